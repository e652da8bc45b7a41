"""What there is, by name: methods, streams and the networks that go with them."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from perdure import networks, streams
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


@dataclass(frozen=True)
class Method:
    """A learner and how the command runs it."""

    learner: str
    """module:class."""
    title: str
    paper: str
    joined: bool = False
    """Whether it sees all tasks at once: the upper bound, not a continual learner."""


METHODS: dict[str, Method] = {
    "clser": Method("perdure.learners:CLSER", "CLS-ER", "Arani, Sarfraz and Zonooz, ICLR 2022"),
    "mean-er": Method(
        "perdure.learners:MeanER", "Mean-ER", "Arani, Sarfraz and Zonooz, ICLR 2022, ablation"
    ),
    "er": Method("perdure.learners:ER", "ER", "Riemer et al., ICLR 2019"),
    "der": Method("perdure.learners:DER", "DER", "Buzzega et al., NeurIPS 2020"),
    "derpp": Method("perdure.learners:DERPP", "DER++", "Buzzega et al., NeurIPS 2020"),
    "fdr": Method("perdure.learners:FDR", "FDR", "Benjamin, Rolnick and Kording, ICLR 2019"),
    "gem": Method("perdure.learners:GEM", "GEM", "Lopez-Paz and Ranzato, NeurIPS 2017"),
    "agem": Method("perdure.learners:AGEM", "A-GEM", "Chaudhry et al., ICLR 2019"),
    "gss": Method("perdure.learners:GSS", "GSS", "Aljundi et al., NeurIPS 2019"),
    "mer": Method("perdure.learners:MER", "MER", "Riemer et al., ICLR 2019"),
    "icarl": Method("perdure.learners:ICaRL", "iCaRL", "Rebuffi et al., CVPR 2017"),
    "sgd": Method("perdure.learners:SGD", "SGD", "the lower bound"),
    "joint": Method("perdure.learners:SGD", "JOINT", "the upper bound", joined=True),
}


@dataclass(frozen=True)
class Entry:
    """A stream, what it is made from, and how its images are prepared."""

    title: str
    build: Callable[..., Stream]
    """Dataset to stream; takes a `seed` too where chance composes the stream."""
    datasets: tuple[str, ...]
    """The datasets it can be built from; the first is the one of the paper."""
    network: str
    normalise: Normaliser
    augment: Augment | None = None
    seed: int | None = None
    """The seed of its composition, where chance composes it."""


def _digits(title: str, build: Callable[..., Stream], seed: int | None = None) -> Entry:
    return Entry(title, build, ("mnist", "mnist5k"), "mlp", Scale(), seed=seed)


def _split(name: str, title: str, dataset: str, tasks: int, normalise: Normalise) -> Entry:
    crop = CropFlip(4)
    build = partial(streams.split, tasks=tasks, name=name, augment=crop, normalise=normalise)
    return Entry(title, build, (dataset,), "resnet18", normalise, crop)


def _gcil(title: str, weights: Literal["uniform", "longtail"]) -> Entry:
    build = partial(streams.gcil, weights=weights)
    return Entry(title, build, ("cifar100",), "resnet18", CIFAR10, CropFlip(4), seed=1993)


STREAMS: dict[str, Entry] = {
    "s-mnist": _digits(
        "MNIST, two digits at a time, 5 tasks", partial(streams.split, tasks=5, name="s-mnist")
    ),
    "r-mnist": _digits("MNIST turned by another angle, 20 tasks", streams.rotated, seed=0),
    "p-mnist": _digits("MNIST with its pixels permuted, 20 tasks", streams.permuted, seed=0),
    "mnist-360": _digits("pairs of digits that turn as they come, no tasks", streams.mnist360),
    **{
        name: _split(name, title, dataset, tasks, normalise)
        for name, title, dataset, tasks, normalise in [
            ("s-cifar10", "CIFAR-10, 5 tasks of 2 classes", "cifar10", 5, CIFAR10),
            ("s-cifar100-5x20", "CIFAR-100, 5 tasks of 20 classes", "cifar100", 5, CIFAR10),
            ("s-cifar100-10x10", "CIFAR-100, 10 tasks of 10 classes", "cifar100", 10, CIFAR10),
            (
                "s-tiny-imagenet",
                "Tiny-ImageNet, 10 tasks of 20 classes",
                "tiny-imagenet",
                10,
                TINY_IMAGENET,
            ),
        ]
    },
    "gcil-cifar100-uniform": _gcil("CIFAR-100, 20 phases whose classes recur", "uniform"),
    "gcil-cifar100-longtail": _gcil("the same with rare and frequent classes", "longtail"),
}

NETWORKS: dict[str, Callable[..., Any]] = {"mlp": networks.mlp, "resnet18": networks.resnet18}


def build_stream(name: str, dataset: Dataset, seed: int | None = None) -> Stream:
    """A stream of the catalog, composed from its own seed unless another is given."""
    entry = STREAMS[name]
    if entry.seed is None:
        return entry.build(dataset)
    return entry.build(dataset, seed=entry.seed if seed is None else seed)


def find_object(reference: str, what: str) -> Any:
    """What `module:name` names, the current folder being searched too.

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


def describe_error(error: Exception) -> str:
    """What went wrong in a user's own code, and where."""
    if isinstance(error, ImportError | SyntaxError):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}, line {place.lineno}"
    return f"{type(error).__name__}: {error} ({where})"


def find_learner(method: str) -> type[Learner]:
    """The class of a method, by its name or as a user's `module:class`."""
    known = METHODS.get(method)
    found = find_object(known.learner if known else method, "method")
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


def takes_buffer(method: str) -> bool:
    """Whether a method has a memory."""
    return "buffer_size" in accepted(find_learner(method))


def is_joint(method: str) -> bool:
    """Whether a method trains on all tasks' data at once."""
    known = METHODS.get(method)
    return known is not None and known.joined
