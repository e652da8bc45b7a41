"""Methods, streams and networks by name, and how to find a user's own."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import torch

from perdure import learners, networks, streams
from perdure.data import Dataset
from perdure.learners import Learner
from perdure.streams import (
    CIFAR10,
    TINY_IMAGENET,
    Augment,
    CropFlip,
    Normalise,
    Normaliser,
    Scale,
    Stream,
)
from perdure.streams.gcil import MemoryDraws


@dataclass(frozen=True)
class Method:
    """A method of the catalog."""

    learner: type[Learner]
    """Its class."""
    title: str
    """Its name in tables."""
    paper: str
    """Where it was published."""
    joined: bool = False
    """Whether it trains on all tasks at once, as an upper bound."""


METHODS: dict[str, Method] = {
    "clser": Method(learners.CLSER, "CLS-ER", "Arani, Sarfraz and Zonooz, ICLR 2022"),
    "mean-er": Method(learners.MeanER, "Mean-ER", "Arani, Sarfraz and Zonooz, ICLR 2022, ablation"),
    "er": Method(learners.ER, "ER", "Riemer et al., ICLR 2019"),
    "er-ace": Method(learners.ERACE, "ER-ACE", "Caccia et al., ICLR 2022"),
    "der": Method(learners.DER, "DER", "Buzzega et al., NeurIPS 2020"),
    "derpp": Method(learners.DERPP, "DER++", "Buzzega et al., NeurIPS 2020"),
    "fdr": Method(learners.FDR, "FDR", "Benjamin, Rolnick and Kording, ICLR 2019"),
    "gem": Method(learners.GEM, "GEM", "Lopez-Paz and Ranzato, NeurIPS 2017"),
    "agem": Method(learners.AGEM, "A-GEM", "Chaudhry et al., ICLR 2019"),
    "gss": Method(learners.GSS, "GSS", "Aljundi et al., NeurIPS 2019"),
    "mer": Method(learners.MER, "MER", "Riemer et al., ICLR 2019"),
    "icarl": Method(learners.ICaRL, "iCaRL", "Rebuffi et al., CVPR 2017"),
    "sgd": Method(learners.SGD, "SGD", "the lower bound"),
    "joint": Method(learners.SGD, "JOINT", "the upper bound", joined=True),
}


@dataclass(frozen=True)
class Entry:
    """A stream of the catalog."""

    title: str
    """One-line description."""
    build: Callable[..., Stream]
    """Builds the stream from a dataset and, if its composition is random, a `seed`."""
    datasets: tuple[str, ...]
    """Datasets it can be built from; the paper uses the first."""
    network: str
    """Name of the network that the paper uses."""
    normalise: Normaliser
    """As in `Stream`."""
    augment: Augment | None = None
    """As in `Stream`."""
    seed: int | None = None
    """Default seed of its composition; None if the composition is deterministic."""


def _digits(title: str, build: Callable[..., Stream], seed: int | None = None) -> Entry:
    return Entry(title, build, ("mnist", "mnist5k"), "mlp", Scale(), seed=seed)


def _split(
    name: str, title: str, dataset: str, tasks: int, normalise: Normalise = CIFAR10
) -> Entry:
    crop = CropFlip()
    build = partial(streams.split, tasks=tasks, name=name, augment=crop, normalise=normalise)
    return Entry(title, build, (dataset,), "resnet18", normalise, crop)


def _gcil(title: str, weights: Literal["uniform", "longtail"]) -> Entry:
    build = partial(streams.gcil, weights=weights)
    return Entry(title, build, ("cifar100",), "resnet18", CIFAR10, CropFlip(), seed=1993)


STREAMS: dict[str, Entry] = {
    "s-mnist": _digits(
        "MNIST, 5 tasks of 2 digits", partial(streams.split, tasks=5, name="s-mnist")
    ),
    "r-mnist": _digits("MNIST rotated by one angle per task, 20 tasks", streams.rotated, seed=0),
    "p-mnist": _digits("MNIST with one permutation per task, 20 tasks", streams.permuted, seed=0),
    "mnist-360": _digits("pairs of rotating digits, no boundaries", streams.mnist360),
    "s-cifar10": _split("s-cifar10", "CIFAR-10, 5 tasks of 2 classes", "cifar10", 5),
    "s-cifar100-5x20": _split("s-cifar100-5x20", "CIFAR-100, 5 tasks of 20 classes", "cifar100", 5),
    "s-cifar100-10x10": _split(
        "s-cifar100-10x10", "CIFAR-100, 10 tasks of 10 classes", "cifar100", 10
    ),
    "s-tiny-imagenet": _split(
        "s-tiny-imagenet",
        "Tiny-ImageNet, 10 tasks of 20 classes",
        "tiny-imagenet",
        10,
        TINY_IMAGENET,
    ),
    "gcil-cifar100-uniform": _gcil("CIFAR-100, 20 phases, classes recur", "uniform"),
    "gcil-cifar100-longtail": _gcil(
        "CIFAR-100, 20 phases, classes recur with unequal frequencies", "longtail"
    ),
}

FILE_STREAMS: dict[str, Callable[..., Stream]] = {
    "images": streams.from_image_folder,
    "table": streams.from_table,
}
"""Constructors by the prefix of a stream's name: `images:FOLDER` or `table:FILE,target=COLUMN`."""
_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "images": ("augment", "normalise", "keep_together"),
    "table": ("encoder",),
}
"""Arguments that cannot be written as text."""

NETWORKS: dict[str, Callable[..., Any]] = {
    "mlp": networks.mlp,
    "cnn": networks.cnn,
    "resnet18": networks.resnet18,
}


@dataclass(frozen=True)
class OptimizerEntry:
    """An optimizer of the catalog."""

    make: Callable[..., torch.optim.Optimizer]
    """Its class."""
    settings: tuple[str, ...]
    """Its settings besides the learning rate; beta1 and beta2 are the two `betas`."""
    lr: float | None = None
    """Default learning rate; None for the method's."""


OPTIMIZERS: dict[str, OptimizerEntry] = {
    "sgd": OptimizerEntry(torch.optim.SGD, ("momentum", "weight_decay")),
    "adam": OptimizerEntry(torch.optim.Adam, ("beta1", "beta2", "eps", "weight_decay"), 1e-3),
    "adamw": OptimizerEntry(torch.optim.AdamW, ("beta1", "beta2", "eps", "weight_decay"), 1e-3),
}


def build_stream(
    name: str, dataset: Dataset, seed: int | None = None, memory: MemoryDraws | None = None
) -> Stream:
    """Build a stream of the catalog, with its own seed by default.

    `memory` is for GCIL streams: what a learner of the published code draws between phases.
    """
    entry = STREAMS[name]
    if entry.seed is None:
        return entry.build(dataset)
    further = {} if memory is None else {"memory": memory}
    return entry.build(dataset, seed=entry.seed if seed is None else seed, **further)


def file_options(kind: str) -> dict[str, inspect.Parameter]:
    """The options of a stream from files: arguments of the constructor that are written as text.

    >>> list(file_options("images"))
    ['size', 'grayscale', 'tasks', 'test_share', 'name', 'drop_last']
    """
    _, *arguments = inspect.signature(FILE_STREAMS[kind]).parameters.values()
    return {a.name: a for a in arguments if a.name not in _FUNCTIONS[kind]}


def stream_from_files(kind: str, text: str) -> Stream:
    """Build a stream from `PATH,NAME=VALUE,…`, where the names are those of `file_options`.

    Raises:
        ValueError: If an option is unknown, missing or invalid, or the files cannot be used.
    """
    options = file_options(kind)
    path, *settings = text.split(",")
    values: dict[str, Any] = {}
    for setting in settings:
        name, sign, value = setting.partition("=")
        if not sign or name not in options:
            raise ValueError(f"{setting!r}; expected NAME=VALUE with one of {', '.join(options)}")
        if name in values:
            raise ValueError(f"{name} is given twice")
        values[name] = _value(name, value)
    for name, option in options.items():
        if option.default is option.empty and name not in values:
            raise ValueError(f"{name} is missing; write {kind}:{path},{name}=…")
    return FILE_STREAMS[kind](path, **values)


def _value(name: str, text: str) -> Any:
    """A number, a switch, a list separated by plus signs, height x width, or text."""
    if name in ("features", "categorical"):
        return text.split("+")
    if name in ("target", "keep_together", "test", "name"):  # text, also if it is a number
        return text
    if name == "size" and "x" in text:
        return tuple(_value("", side) for side in text.split("x"))
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def find_object(reference: str, what: str) -> Any:
    """Import the object that `module:name` refers to; also searches the current folder.

    `what` names the kind of object in error messages.

    Raises:
        ValueError: If there is no such module or object, or importing the module fails.

    >>> find_object("math:sqrt", "function")(9)
    3.0
    """
    module, _, name = reference.partition(":")
    if not (module and name):
        raise ValueError(f"{what} {reference!r}; expected module:name")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        raise ValueError(f"{what} {reference!r}: {describe_error(error)}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{what} {reference!r}: {module} has no {name!r}")
        found = getattr(found, part)
    return found


_STANDARD_LIBRARY = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}


def source_hash(references: Iterable[str]) -> str:
    """Sixteen hex digits of the source of modules, given as `module:name`; "" for none.

    Covers the file of each module or, if it is in a package that is not installed, all Python files
    of the package, and in the same way what `import` statements in these files refer to, and so on,
    except for the standard library, installed packages and perdure. The modules must be importable;
    those without a source contribute their name.
    """
    found = hashlib.sha256()
    names = sorted({reference.partition(":")[0] for reference in references})
    sources = {name: _source_files(name) for name in names}
    for name, paths in [*sources.items(), *sorted(_imported_sources(sources).items())]:
        found.update(f"{name}\n".encode())
        for path in paths:
            content = path.read_bytes()
            found.update(f"{path.name} {len(content)}\n".encode() + content)
    return found.hexdigest()[:16] if names else ""


def _source_files(name: str) -> list[Path]:
    """The Python files of a module's package or, if there is none or it is installed, its own."""
    file = getattr(importlib.import_module(name), "__file__", None)
    installed = file is None or "site-packages" in Path(file).parts
    package = sys.modules[name.partition(".")[0]]
    files = [] if installed else _python_files(getattr(package, "__path__", ()))
    return files or ([Path(file)] if file is not None and file.endswith(".py") else [])


def _imported_sources(sources: Mapping[str, Iterable[Path]]) -> dict[str, list[Path]]:
    """The Python files of a user's other modules and packages that these files import, by name.

    Reads import statements and imports nothing, so that what is found depends on files alone.
    """
    found: dict[str, list[Path]] = {}
    known = {"perdure", *(name.partition(".")[0] for name in sources)}
    queue = [path for paths in sources.values() for path in paths if not _is_installed(path)]
    while queue:
        for name in _imported_names(queue.pop().read_bytes()) - known:
            known.add(name)
            try:
                spec = importlib.util.find_spec(name)
            except (ImportError, ValueError):  # ValueError: it was not created by an import
                spec = None
            if spec is None:
                continue
            folders = spec.submodule_search_locations or ()
            files = _python_files(folder for folder in folders if not _is_installed(Path(folder)))
            if spec.has_location and (file := str(spec.origin)).endswith(".py"):
                files = files or [Path(file)]
            if own := [path for path in files if not _is_installed(path)]:
                found[name] = own
                queue += own
    return found


def _python_files(folders: Iterable[str]) -> list[Path]:
    paths = (path for folder in folders for path in sorted(Path(folder).rglob("*.py")))
    return [path for path in paths if path.is_file()]


def _is_installed(path: Path) -> bool:
    """Whether a file or folder belongs to the standard library or to an installed package."""
    packages = {"site-packages", "dist-packages"} & set(path.parts)
    return bool(packages) or any(path.is_relative_to(folder) for folder in _STANDARD_LIBRARY)


@lru_cache(maxsize=1024)
def _imported_names(source: bytes) -> frozenset[str]:
    """The top-level names of the modules that a Python file imports, wherever in the file.

    >>> sorted(_imported_names(b"import a.b, c; from d.e import f; from . import g"))
    ['a', 'c', 'd']
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the user's code; importing it shows them
            nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # not importable either
        return frozenset()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    names += [node.module for node in froms if node.module and not node.level]
    return frozenset(name.partition(".")[0] for name in names)


def describe_error(error: Exception) -> str:
    """Message and location of an error in a user's code."""
    if isinstance(error, ImportError | SyntaxError):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}, line {place.lineno}"
    return f"{type(error).__name__}: {error} ({where})"


def find_learner(method: str) -> type[Learner]:
    """The class of a method: a name of the catalog, or a user's `module:class`.

    Raises:
        ValueError: If there is no such class, or it is not a complete learner.
    """
    if method in METHODS:
        return METHODS[method].learner
    found = find_object(method, "method")
    if not (isinstance(found, type) and issubclass(found, Learner)):
        raise ValueError(f"method {method!r} is not a subclass of perdure.Learner")
    if inspect.isabstract(found):
        raise ValueError(f"method {method!r} is abstract: it does not implement `step`")
    return found


def accepted(learner: type[Learner]) -> dict[str, inspect.Parameter]:
    """The keyword arguments of a learner, those of its base classes included."""
    found: dict[str, inspect.Parameter] = {}
    for base in learner.__mro__:
        if "__init__" in vars(base) and base is not object:
            parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
            found = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY} | found
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                break
    return found


def find_optimizer(name: str | Callable[..., Any]) -> Callable[..., Any]:
    """The class of an optimizer, or a user's function or `module:function` of (parameters, lr, …).

    Raises:
        ValueError: If there is no such optimizer.
    """
    if not isinstance(name, str):
        return name
    if name in OPTIMIZERS:
        return OPTIMIZERS[name].make
    if ":" not in name:
        names = ", ".join(OPTIMIZERS)
        raise ValueError(f"unknown optimizer {name!r}; choose from {names}, or module:function")
    found = find_object(name, "optimizer")
    if not callable(found):
        raise ValueError(f"optimizer {name!r} is not a function or class")
    return found  # type: ignore[no-any-return]


def optimizer_settings(name: str | Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The settings of an optimizer besides the learning rate; a user's function is imported.

    >>> {name: setting.default for name, setting in optimizer_settings("adam").items()}
    {'beta1': 0.9, 'beta2': 0.999, 'eps': 1e-08, 'weight_decay': 0}
    """
    if isinstance(name, str) and name in OPTIMIZERS:
        usual = {
            k: p.default for k, p in inspect.signature(OPTIMIZERS[name].make).parameters.items()
        }
        if "betas" in usual:
            usual["beta1"], usual["beta2"] = usual["betas"]
        number = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY, annotation=float)
        return {key: number(key, default=usual[key]) for key in OPTIMIZERS[name].settings}
    _, *others = inspect.signature(find_optimizer(name)).parameters.values()
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {p.name: p for p in others if p.kind in named and p.name != "lr"}


def takes_buffer(method: str) -> bool:
    """Whether a method has an episodic memory.

    >>> takes_buffer("er"), takes_buffer("sgd")
    (True, False)
    """
    return "buffer_size" in accepted(find_learner(method))


def is_joint(method: str) -> bool:
    """Whether a method trains on all tasks at once."""
    return method in METHODS and METHODS[method].joined
