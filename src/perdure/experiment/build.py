"""Building the objects of a run from its configuration: dataset, stream, network, learner, engine.

Code below this module takes plain arguments, never a configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from perdure import catalog
from perdure.config import LOOP_HYPERPARAMETERS, PER_RUN, PUBLISHED, RunConfig, is_optional
from perdure.data import Dataset, decoding_progress, load
from perdure.learners import Learner
from perdure.randomness import derive, generator
from perdure.results.folder import LEARNER_FILE, RunFolder
from perdure.results.records import Facts, Result
from perdure.streams import Augment, Normaliser, Stream
from perdure.training.distributed import divide
from perdure.training.engine import Captured, Eager
from perdure.training.loop import Interrupted, Run


def read_dataset(
    config: RunConfig, *, progress: bool = False, stop: Callable[[], int] | None = None
) -> Dataset | None:
    """The dataset on the run's device; None if the stream supplies the data.

    Args:
        config: The configuration.
        progress: Whether to show on stderr that a large dataset is decoded.
        stop: Asked while it is decoded; when it returns a signal's number, Interrupted is raised.
    """
    if config.dataset is None:
        return None
    root = None if config.data_root is None else Path(config.data_root)
    with decoding_progress(config.dataset, shown=progress) as show:

        def on_progress(done: int, total: int) -> None:
            show(done, total)
            if stop is not None and (signum := stop()):
                raise Interrupted(signum)

        dataset = load(config.dataset, root, on_progress=on_progress)
    if config.validation is not None:
        dataset = dataset.validation(config.validation)
    return dataset.to(config.device)


def build_stream(config: RunConfig, dataset: Dataset | None, seed: int) -> Stream:
    """The stream as the method sees it: JOINT gets all tasks merged into one.

    The seed of the run matters only if the composition of the stream is per run.
    """
    if dataset is None:
        stream = load_user_stream(config.stream)
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


def load_user_stream(reference: str) -> Stream:
    """The stream that a user's `module:function` returns."""
    stream = catalog.find_object(reference, "stream")
    if callable(stream):
        try:
            stream = stream()
        except Exception as error:
            reason = catalog.describe_error(error)
            raise ValueError(f"stream {reference!r} failed: {reason}") from error
    if not isinstance(stream, Stream):
        raise ValueError(
            f"stream {reference!r} returned {type(stream).__name__}; expected a Stream"
        )
    return stream


def build_run(config: RunConfig, dataset: Dataset | None, seed: int) -> Run:
    """Stream, network and learner of one seed.

    Raises:
        ValueError: If the method refuses a value, or the network does not fit the stream.
    """
    stream = build_stream(config, dataset, seed)
    learner = build_learner(config, _Inputs.of(stream), seed)
    run = Run(learner, stream, config.batch, config.epochs, seed)
    _check_samples(config, stream)
    _check_network(config, stream, learner)
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


def _check_network(config: RunConfig, stream: Stream, learner: Learner) -> None:
    if config.dataset is not None:
        sample = torch.zeros(1, *stream.shape, dtype=torch.uint8)
    elif stream.tests:
        sample = stream.tests[0].samples().inputs[:1]
    else:  # reading a sample would consume the stream
        return
    name = f"network {config.network!r}"
    try:
        logits = next(iter(learner.predictors().values()))(sample.to(learner.device))
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{name} does not accept inputs {list(stream.shape)}: {reason}") from error
    shape = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if stream.classes and shape != [1, stream.classes]:
        raise ValueError(
            f"{name} returns {shape} for one sample; {config.stream} has {stream.classes} "
            f"classes, so expected logits {[1, stream.classes]}"
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
    entry = catalog.STREAMS.get(config.stream) or load_user_stream(config.stream)
    inputs = _Inputs(tuple(facts.shape), facts.classes, facts.tasks, entry.normalise, entry.augment)
    try:
        learner = build_learner(replace(config, device=device), inputs, facts.seed)
    except TypeError as error:
        raise ValueError(f"{run.path / 'config.json'} does not fit the method: {error}") from None
    learner.load(run.path / LEARNER_FILE)
    return learner
