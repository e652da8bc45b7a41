"""Methods, streams, networks and optimizers by name, and how to find a user's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
from perdure.user_code import find_object


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
