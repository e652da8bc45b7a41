"""From settings to objects: configuration ends here; beyond it there are only arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from perdure import catalog
from perdure.catalog import accepted as accepted
from perdure.catalog import find_learner as find_learner
from perdure.data import Dataset, load
from perdure.learners import Learner
from perdure.randomness import derive, generator
from perdure.results import NETWORKS, RunFolder, settings_hash
from perdure.streams import Augment, Normaliser, Stream
from perdure.training.distributed import divide
from perdure.training.engine import Captured, Eager, Engine
from perdure.training.loop import Run
from perdure.training.shared import SharedFolder

PER_RUN = "per-run"
TRAINING_KEYS = ("batch", "epochs")
"""Settings of the loop; all others are arguments of the learner."""
_REMARKS = ("data_root", "notes", "published")
"""Fields that do not decide a run's numbers."""


@dataclass(frozen=True)
class Settings:
    """All that decides a run but its seed, as plain values for a worker or a file."""

    stream: str
    """A name of the catalog, or module:function."""
    method: str
    buffer_size: int | None
    values: Mapping[str, float]
    """Hyperparameters: batch and epochs for the loop, the rest for the learner."""
    network: str
    dataset: str | None
    """None: the user's own stream brings its data."""
    data_checksum: str
    stream_seed: int | str | None = None
    """None: the stream's own; "per-run": a new composition for each seed."""
    validation: float | None = None
    max_steps: int | None = None
    device: str = "cpu"
    precision: str = "fp32"
    engine: str = "eager"
    deterministic: bool = False
    """On a GPU: the same bits again, at the cost of the fastest kernels. A CPU's always are."""
    update: str = "random"
    """clser, mean-er: when the semantic memories are updated, by a coin or at regular steps."""
    ranks: int = 1
    """Processes that share the learner's work, as torchrun started them."""
    data_root: str | None = None
    notes: tuple[str, ...] = ()
    """What was substituted or assumed, a sentence each."""
    published: bool = False
    """Whether all of it is as published, so that the paper's figure may stand beside the result."""

    def deciding(self) -> dict[str, Any]:
        """What the hash covers. An option that came later is left out where it is not used."""
        fields = {k: v for k, v in asdict(self).items() if k not in _REMARKS}
        if self.update == "random":
            del fields["update"]
        if self.ranks == 1:
            del fields["ranks"]
        return fields

    def config(self, seed: int, stream: Stream) -> dict[str, Any]:
        """The content of `config.json`."""
        return {
            **self.deciding(),
            "data": stream.data,
            "hash": settings_hash(self.deciding()),
            "notes": list(self.notes),
            "published": self.published,
            "seed": seed,
            "stream_checksum": stream.checksum,
            "shape": list(stream.shape),
            "classes": stream.classes,
            "tasks": len(stream.tasks),
            "augment": repr(stream.augment),
            "normalise": repr(stream.normalise),
        }

    def folder(self, root: Path, seed: int) -> RunFolder:
        """Where the run with this seed belongs below `root`."""
        digest = settings_hash(self.deciding())
        place = RunFolder.place(root, self.stream, self.method, self.buffer_size, digest, seed)
        return place if self.ranks == 1 else SharedFolder(place.path)


def read_dataset(settings: Settings) -> Dataset | None:
    """The dataset that the settings name, on their device."""
    if settings.dataset is None:
        return None
    root = None if settings.data_root is None else Path(settings.data_root)
    dataset = load(settings.dataset, root)
    if settings.validation is not None:
        dataset = dataset.validation(settings.validation)
    return dataset.to(settings.device)


def build_stream(settings: Settings, dataset: Dataset | None, seed: int) -> Stream:
    """The stream for one seed (the same for all, unless its composition is per run)."""
    if dataset is None:
        return own_stream(settings.stream)
    stream_seed = settings.stream_seed
    if isinstance(stream_seed, str):
        stream_seed = derive(seed, "stream") % 2**32
    return catalog.build_stream(settings.stream, dataset, stream_seed)


def stream_of_run(settings: Settings, dataset: Dataset | None, seed: int) -> Stream:
    """The stream as the run's method sees it: an upper bound has all tasks joined."""
    stream = build_stream(settings, dataset, seed)
    if joined(settings.method):
        return stream.joined(int(settings.values["batch"]), generator(seed, "collection"))
    return stream


def own_stream(reference: str) -> Stream:
    """The stream that a user's module:function returns."""
    stream = catalog.find_object(reference, "stream")
    if callable(stream):
        try:
            stream = stream()
        except Exception as error:
            reason = catalog.describe_error(error)
            raise ValueError(f"stream {reference!r} failed: {reason}") from error
    if not isinstance(stream, Stream):
        raise ValueError(f"stream {reference!r} gave a {type(stream).__name__}, not a Stream")
    return stream


def build_run(settings: Settings, dataset: Dataset | None, seed: int) -> Run:
    """Stream, network and learner of one seed, ready to train."""
    stream = stream_of_run(settings, dataset, seed)
    batch, epochs = (int(settings.values[key]) for key in TRAINING_KEYS)
    learner = build_learner(settings, inputs_of(stream), seed)
    run = Run(learner, stream, batch, epochs, seed)
    _check_samples(settings, stream, batch)
    _check_network(settings, stream, learner)
    if settings.ranks > 1:
        divide(learner, seed)
    return run


def _check_samples(settings: Settings, stream: Stream, batch: int) -> None:
    """ValueError if there is nothing to learn from, or nothing to evaluate on."""
    if all(task.drop_last and task.steps(batch) == 0 for task in stream.tasks):
        raise ValueError(f"the tasks of {settings.stream} hold less than one batch of {batch}")
    for test in stream.tests:
        if test.rows is not None and not len(test.rows):
            raise ValueError(
                f"--validation {settings.validation} leaves {test.name!r} without a sample to "
                "evaluate on; give a larger share"
            )


def _check_network(settings: Settings, stream: Stream, learner: Learner) -> None:
    """ValueError if the network does not take the stream's images or has another head."""
    image = _one_image(settings, stream)
    if image is None:
        return
    named = f"network {settings.network!r}"
    try:
        logits = next(iter(learner.predictors().values()))(image.to(learner.device))
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{named} does not take images {list(stream.shape)}: {reason}") from error
    shape = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if shape != [1, stream.classes]:
        raise ValueError(
            f"{named} gives {shape} for one image; {settings.stream} has {stream.classes} "
            f"classes, so expected logits {[1, stream.classes]}"
        )


def _one_image(settings: Settings, stream: Stream) -> Tensor | None:
    """An image such as the stream has, if it can be had without reading the stream."""
    if settings.dataset is not None:
        return torch.zeros(1, *stream.shape, dtype=torch.uint8)
    if stream.tests:
        return stream.tests[0].samples().inputs[:1]
    return None


class Inputs(NamedTuple):
    """What building a learner takes of a stream."""

    shape: tuple[int, ...]
    classes: int
    tasks: int
    normalise: Normaliser
    augment: Augment | None


def inputs_of(stream: Stream) -> Inputs:
    """What a learner for this stream is built with."""
    tasks = len(stream.tasks)
    return Inputs(stream.shape, stream.classes, tasks, stream.normalise, stream.augment)


def build_learner(settings: Settings, inputs: Inputs, seed: int) -> Learner:
    """The learner with a freshly initialised network."""
    make_network = catalog.NETWORKS.get(settings.network) or catalog.find_object(
        settings.network, "network"
    )
    network = initialised(make_network, inputs.shape, inputs.classes, seed).to(settings.device)
    if settings.device != "cpu":
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    learner = find_learner(settings.method)
    arguments: dict[str, Any] = {
        name: value for name, value in settings.values.items() if name not in TRAINING_KEYS
    }
    if settings.buffer_size is not None:
        arguments["buffer_size"] = settings.buffer_size
    if settings.update != "random":
        arguments["update"] = settings.update
    if "tasks" in accepted(learner):
        arguments["tasks"] = inputs.tasks
    return learner(
        network, seed=seed, augment=inputs.augment, normalise=inputs.normalise, **arguments
    )


def initialised(
    make: Callable[..., Any], shape: tuple[int, ...], classes: int, seed: int
) -> nn.Module:
    """make(shape, classes), drawing its weights from the run's seed, whatever was drawn before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "initialisation"))
        try:
            network = make(shape, classes)
        except Exception as error:
            reason = catalog.describe_error(error)
            raise ValueError(f"the network function failed: {reason}") from error
    if not isinstance(network, nn.Module):
        raise ValueError(f"the network function gave a {type(network).__name__}, not a module")
    return network


def build_engine(settings: Settings) -> Engine:
    """What executes the steps, and the process-wide switches that its promises need."""
    if settings.device == "cpu":
        return Eager()
    torch.use_deterministic_algorithms(settings.deterministic)
    torch.backends.cudnn.benchmark = not settings.deterministic
    if settings.engine == "eager":
        return Eager(settings.device, settings.precision)
    return Captured(settings.device, settings.precision, compiled=settings.engine == "compiled")


def joined(method: str) -> bool:
    """Whether a method trains on all tasks' data at once."""
    known = catalog.METHODS.get(method)
    return known is not None and known.joined


def settings_of(config: Mapping[str, Any]) -> Settings:
    """The settings that a run's `config.json` holds; where its data lay is not among them."""
    fields = {name: config[name] for name in Settings.__dataclass_fields__ if name in config}
    return Settings(**fields)


def load_run(folder: str | Path, *, device: str = "cpu") -> Learner:
    """The learner of a finished run, to predict with or to go on learning from new data.

    Network and learner are built as the run's configuration says; of the data, only a user's own
    stream is needed (it says how images are prepared).
    """
    run = RunFolder(Path(folder))
    config = run.read("config.json")
    run.read("result.json")
    try:
        settings = replace(settings_of(config), device=device)
        shape, classes = tuple(config["shape"]), int(config["classes"])
        entry = catalog.STREAMS.get(settings.stream)
        if entry is None:
            prepare = inputs_of(own_stream(settings.stream))
        else:
            prepare = Inputs(shape, classes, 0, entry.normalise, entry.augment)
        inputs = Inputs(shape, classes, int(config["tasks"]), prepare.normalise, prepare.augment)
        learner = build_learner(settings, inputs, int(config["seed"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{run.path / 'config.json'} is not a run's configuration: {error}"
        ) from None
    if not run.has_networks:
        raise ValueError(f"{run.path} was kept without its networks: {NETWORKS} is not there")
    run.check(NETWORKS)
    learner.load(run.path / NETWORKS)
    return learner
