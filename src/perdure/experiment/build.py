"""Building the objects of a run from its configuration: dataset, stream, network, learner, engine.

Code below this module takes plain arguments, never a configuration.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from perdure import catalog
from perdure.config import LOOP_HYPERPARAMETERS, PER_RUN, PUBLISHED, RunConfig, is_optional
from perdure.data import Dataset, load
from perdure.learners import Learner
from perdure.randomness import derive, generator
from perdure.results.folder import LEARNER_FILE, RunFolder
from perdure.results.records import Facts, Result
from perdure.streams import Augment, ComposedTask, Normaliser, Stream
from perdure.streams.from_files import FILE_STREAMS, stream_from_files
from perdure.training.distributed import divide
from perdure.training.engine import Captured, Eager
from perdure.training.loop import Run, check_network


def read_dataset(config: RunConfig) -> Dataset | None:
    """The dataset on the run's device; None if the stream supplies the data."""
    if config.dataset is None:
        return None
    dataset = load(config.dataset, None if config.data_root is None else Path(config.data_root))
    if config.validation is not None:
        dataset = dataset.validation(config.validation)
    return dataset.to(config.device)


def build_stream(config: RunConfig, dataset: Dataset | None, seed: int) -> Stream:
    """The stream as the method sees it: JOINT gets all tasks merged into one.

    The seed of the run matters only if the composition of the stream is per run.
    """
    if dataset is None:
        stream = load_user_stream(config.stream).stream
        if config.validation is not None:
            stream = stream.validation(config.validation)
    else:
        stream_seed = config.stream_seed
        if stream_seed == PER_RUN:
            stream_seed = derive(seed, "stream") % 2**32
        elif stream_seed == PUBLISHED:
            stream_seed = None
        assert not isinstance(stream_seed, str)
        memory = config.memory_draws()
        stream = catalog.build_stream(config.stream, dataset, stream_seed, memory)
    if catalog.is_joint(config.method):
        return stream.joined(config.batch, generator(seed, "collection"))
    return stream


class UserStream(NamedTuple):
    """A stream that is not in the catalog, and the warnings that its construction caused."""

    stream: Stream
    warnings: tuple[str, ...]


def load_user_stream(reference: str) -> UserStream:
    """The stream that a user's `module:function` returns, or one read from a folder or file.

    A stream that can be read repeatedly is built once per process.
    """
    kind, _, rest = reference.partition(":")
    make: Any
    if kind in FILE_STREAMS:
        key: Any = (reference, Path.cwd())
        make = partial(stream_from_files, kind, rest)
    else:
        key = make = catalog.find_object(reference, "stream")
    for last, found in _last_built:
        if last == key:
            return found
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stream = _call(make, reference) if callable(make) else make
    if not isinstance(stream, Stream):
        raise ValueError(
            f"stream {reference!r} returned {type(stream).__name__}; expected a Stream"
        )
    found = UserStream(stream, tuple(dict.fromkeys(str(one.message) for one in caught)))
    _last_built.clear()  # at most one is kept: its data may be large
    if not any(isinstance(task, ComposedTask) for task in stream.tasks):
        _last_built.append((key, found))
    return found


_last_built: list[tuple[Any, UserStream]] = []
"""The stream built last, with what it was built from."""


def _call(make: Callable[[], Any], reference: str) -> Any:
    try:
        return make()
    except Exception as error:
        if reference.partition(":")[0] in FILE_STREAMS and isinstance(error, ValueError | OSError):
            raise ValueError(f"{reference}: {error}") from None
        reason = catalog.describe_error(error)
        raise ValueError(f"stream {reference!r} failed: {reason}") from error


def build_run(config: RunConfig, dataset: Dataset | None, seed: int) -> Run:
    """Stream, network and learner of one seed.

    Raises:
        ValueError: If the method refuses a value, or the network does not fit the stream.
    """
    stream = build_stream(config, dataset, seed)
    learner = build_learner(config, _Inputs.of(stream), seed)
    run = Run(learner, stream, config.batch, config.epochs, seed)
    _check_samples(config, stream)
    sample = torch.zeros(1, *stream.shape, dtype=torch.uint8) if dataset else None
    try:
        check_network(learner, stream, sample)
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"network {config.network!r}: {reason}") from error
    if config.ranks > 1:
        divide(learner, seed)
    return run


def _check_samples(config: RunConfig, stream: Stream) -> None:
    if all(task.drop_last and task.steps(config.batch) == 0 for task in stream.tasks):
        raise ValueError(f"every task of {config.stream} is smaller than a batch of {config.batch}")
    for test in stream.tests:
        if test.rows is not None and not len(test.rows):
            raise ValueError(
                f"--validation {config.validation} leaves no samples to test {test.name!r}; use a "
                "larger share"
            )


class _Inputs(NamedTuple):
    """The properties of a stream that a learner is built with."""

    shape: tuple[int, ...]
    classes: int
    tasks: int
    normalise: Normaliser
    augment: Augment | None

    @classmethod
    def of(cls, stream: Stream) -> _Inputs:
        tasks = len(stream.tasks)
        return cls(stream.shape, stream.classes, tasks, stream.normalise, stream.augment)


def build_learner(config: RunConfig, inputs: _Inputs, seed: int) -> Learner:
    """The learner with a newly initialised network."""
    make_network = catalog.NETWORKS.get(config.network) or catalog.find_object(
        config.network, "network"
    )
    classes = inputs.classes or 1  # unknown in advance: the network starts with one and grows
    network = initialised(make_network, inputs.shape, classes, seed).to(config.device)
    if config.device != "cpu":
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    learner = catalog.find_learner(config.method)
    accepted = catalog.accepted(learner)
    arguments: dict[str, Any] = {name: None for name in accepted if is_optional(accepted[name])}
    arguments |= {
        name: value
        for name, value in config.hyperparameters.items()
        if name not in LOOP_HYPERPARAMETERS
    }
    settings = catalog.optimizer_settings(config.optimizer).keys()
    if config.optimizer != "sgd" or arguments.keys() & (settings - accepted.keys()):
        # A method with a setting of the same name, as iCaRL, leaves it to the optimizer.
        values = {n: accepted[n].default for n in settings & accepted.keys()}
        values |= {n: arguments.pop(n) for n in settings & arguments.keys()}
        lr = arguments.pop("lr", None)
        if lr is None and config.optimizer == "sgd":
            lr = learner.default_lr
        arguments["lr"] = None
        arguments["optimizer"] = build_optimizer(config.optimizer, network, lr, values)
    if config.buffer_size is not None:
        arguments["buffer_size"] = config.buffer_size
    if "update" in accepted:
        arguments["update"] = config.update
    if "tasks" in accepted:
        arguments["tasks"] = inputs.tasks
    if not inputs.classes:
        if "grow" not in accepted:
            raise ValueError(
                f"method {config.method!r} has no argument grow; give the stream its number of "
                "classes"
            )
        arguments["grow"] = True
    return learner(
        network, seed=seed, augment=inputs.augment, normalise=inputs.normalise, **arguments
    )


def build_optimizer(
    name: str, network: nn.Module, lr: float | None, settings: Mapping[str, float]
) -> Optimizer:
    """The optimizer of a network's parameters.

    Args:
        name: A name of the catalog, or a user's `module:function`.
        network: The network.
        lr: Learning rate; None for the optimizer's own default.
        settings: Its other settings, with `betas` as beta1 and beta2.

    Raises:
        ValueError: If the optimizer refuses a value or is none.
    """
    make, values = catalog.find_optimizer(name), dict[str, Any](settings)
    parameters = [p for p in network.parameters() if p.requires_grad]
    if name in catalog.OPTIMIZERS:
        if values.keys() & {"beta1", "beta2"}:
            values["betas"] = values.pop("beta1", 0.9), values.pop("beta2", 0.999)
        if name != "sgd" and parameters[0].is_cuda:
            values["capturable"] = True  # inside CUDA graphs
    try:
        optimizer = make(parameters, **values, **({} if lr is None else {"lr": lr}))
    except Exception as error:
        raise ValueError(f"optimizer {name}: {catalog.describe_error(error)}") from error
    if not isinstance(optimizer, Optimizer):
        kind = type(optimizer).__name__
        raise ValueError(f"optimizer {name} returned a {kind}, not a torch optimizer")
    return optimizer


def initialised(
    make: Callable[..., Any], shape: tuple[int, ...], classes: int, seed: int
) -> nn.Module:
    """make(shape, classes), with weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "initialisation"))
        try:
            network = make(shape, classes)
        except Exception as error:
            reason = catalog.describe_error(error)
            raise ValueError(f"the network function failed: {reason}") from error
    if not isinstance(network, nn.Module):
        kind = type(network).__name__
        raise ValueError(f"the network function returned a {kind}, not an nn.Module")
    return network


def build_engine(config: RunConfig) -> Eager:
    """The engine, with the process-wide switches of torch that it needs."""
    if config.device == "cpu":
        return Eager()
    torch.use_deterministic_algorithms(config.deterministic)
    torch.backends.cudnn.benchmark = not config.deterministic
    if config.engine == "eager":
        return Eager(config.device, config.precision)
    return Captured(config.device, config.precision, compiled=config.engine == "compiled")


def config_file(config: RunConfig, seed: int, stream: Stream) -> dict[str, Any]:
    """The content of `config.json`: the settings and `Facts` about the stream."""
    return {
        **config.to_json(),
        "seed": seed,
        "data": stream.data,
        "stream_checksum": stream.checksum,
        "shape": list(stream.shape),
        "classes": stream.classes,
        "tasks": len(stream.tasks),
        "augment": repr(stream.augment),
        "normalise": repr(stream.normalise),
    }


def load_run(folder: str | Path, *, device: str = "cpu") -> Learner:
    """The learner of a finished run, ready to predict or to continue learning.

    The data is not needed, unless the stream is a user's own, which defines how inputs are
    normalised.

    Args:
        folder: The run's folder.
        device: Where to put the learner.

    Raises:
        ValueError: If the folder is not a finished run, or a file is missing or damaged.
    """
    run = RunFolder(Path(folder))
    config, facts = run.read("config.json", RunConfig), run.read("config.json", Facts)
    run.read("result.json", Result)
    if not run.has_networks:
        raise ValueError(f"{run.path} does not contain {LEARNER_FILE}: its networks were not kept")
    run.check(LEARNER_FILE)
    entry = catalog.STREAMS.get(config.stream) or load_user_stream(config.stream).stream
    inputs = _Inputs(tuple(facts.shape), facts.classes, facts.tasks, entry.normalise, entry.augment)
    try:
        learner = build_learner(replace(config, device=device), inputs, facts.seed)
    except TypeError as error:
        raise ValueError(f"{run.path / 'config.json'} does not fit the method: {error}") from None
    learner.load(run.path / LEARNER_FILE)
    return learner
