"""Building the objects of a run from its configuration: dataset, stream, network, learner, engine.

Code below this module takes plain arguments, never a configuration.
"""

from __future__ import annotations

import collections
import difflib
import warnings
from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

import perdure
from perdure import catalog
from perdure.config import LOOP_HYPERPARAMETERS, PER_RUN, PUBLISHED, RunConfig, is_optional
from perdure.data import Dataset, decoding_progress, load
from perdure.learners import Learner
from perdure.randomness import derive, generator, seeded_globally
from perdure.results.folder import LEARNER_FILE, RunFolder
from perdure.results.records import Facts, Result
from perdure.streams import Augment, ComposedTask, Normaliser, Scale, Stream
from perdure.streams.from_batches import read_checksum
from perdure.streams.from_files import FILE_STREAMS, stream_from_files
from perdure.structures import as_shape
from perdure.training.distributed import divide
from perdure.training.engine import Captured, Eager, Recorded
from perdure.training.loop import Interrupted, Run, check_last_batches, check_network
from perdure.user_code import accepts, describe_error, find_object, source_hash

MAX_LAYERS = 8
"""Kinds of layers that a description of a network names."""


def read_dataset(
    config: RunConfig, *, progress: bool = False, stop: Callable[[], int] | None = None
) -> Dataset | None:
    """The dataset on the run's device; None if the stream supplies the data.

    `progress` shows on stderr that a large dataset is decoded. `stop` is called while
    it is; when it returns a signal's number, Interrupted is raised.
    """
    if config.dataset is None:
        return None
    root = None if config.data_root is None else Path(config.data_root)
    with decoding_progress(config.dataset, shown=progress) as show:

        def on_progress(done: int, total: int) -> None:
            show(done, total)
            if stop is not None and (signum := stop()):
                raise Interrupted(signum)

        dataset = load(config.dataset, root, on_progress=on_progress, keep=True)
    if config.validation is not None:
        dataset = dataset.validation(config.validation)
    return dataset.to(config.device)


def build_stream(config: RunConfig, dataset: Dataset | None, seed: int) -> Stream:
    """The stream as the method sees it: JOINT gets all tasks merged into one.

    The seed of the run matters only if the composition of the stream is per run.
    """
    return _as_seen(config, _composed_stream(config, dataset, seed), seed)


def _as_seen(config: RunConfig, stream: Stream, seed: int) -> Stream:
    """The stream, or for JOINT all its tasks merged into one."""
    if catalog.is_joint(config.method):
        return stream.joined(config.batch, generator(seed, "collection"))
    return stream


def _composed_stream(config: RunConfig, dataset: Dataset | None, seed: int) -> Stream:
    """The stream with its own tasks, whatever the method."""
    if dataset is None:
        stream = load_user_stream(config.stream).stream
        return stream if config.validation is None else stream.validation(config.validation)
    stream_seed = config.stream_seed
    if stream_seed == PER_RUN:
        stream_seed = derive(seed, "stream") % 2**32
    elif stream_seed == PUBLISHED:
        stream_seed = None
    assert not isinstance(stream_seed, str)
    return catalog.build_stream(config.stream, dataset, stream_seed, config.memory_draws())


def data_checksum(config: RunConfig) -> str:
    """The checksum that `Run.data_checksum` has if the run reads a user's batches as they are now.

    Raises:
        ValueError: If the batches cannot be read.
    """
    stream = load_user_stream(config.stream).stream
    for task in stream.tasks:
        try:
            collections.deque(task.epoch(config.batch, torch.Generator()), maxlen=0)
        except Exception as error:
            raise ValueError(f"{config.stream}: {describe_error(error)}") from error
    return read_checksum(stream.tasks, stream.tests)


class UserStream(NamedTuple):
    """A stream that is not in the catalog, and the warnings that its construction caused."""

    stream: Stream
    warnings: tuple[str, ...]


def load_user_stream(reference: str, *, again: bool = False, progress: bool = False) -> UserStream:
    """The stream that a user's `module:function` returns, or one read from a folder or file.

    A stream that can be read repeatedly is built once, unless `again` asks for a new one.
    `progress` shows on stderr that many images are read.
    """
    kind, _, rest = reference.partition(":")
    from_files = kind in FILE_STREAMS
    key: Any = (reference, Path.cwd()) if from_files else _find_stream(reference)
    for last, found in _last_built:
        if last == key and not again:
            return found
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for hidden in (DeprecationWarning, PendingDeprecationWarning, ResourceWarning):
            warnings.simplefilter("ignore", hidden)  # as Python does outside of tests
        if from_files:
            try:
                with decoding_progress(reference, shown=progress) as show:
                    stream = stream_from_files(kind, rest, on_progress=show)
            except (ValueError, OSError) as error:
                raise ValueError(f"{reference}: {error}") from None
        else:
            stream = check_stream(key, f"stream {reference!r}")
    found = UserStream(stream, tuple(dict.fromkeys(str(one.message) for one in caught)))
    _last_built.clear()  # at most one is kept: its data may be large
    if not any(isinstance(task, ComposedTask) for task in stream.tasks):
        _last_built.append((key, found))
    return found


def _find_stream(reference: str) -> Any:
    """What `module:function` refers to; an error suggests the prefix of a stream from files."""
    kind, _, rest = reference.partition(":")
    try:
        return find_object(reference, "stream")
    except ValueError as error:
        meant = difflib.get_close_matches(kind.lower(), FILE_STREAMS, n=1)
        cause = error.__cause__
        if meant and isinstance(cause, ModuleNotFoundError) and cause.name == kind:
            raise ValueError(f"{error}; did you mean {meant[0]}:{rest}?") from error
        raise


_last_built: list[tuple[Any, UserStream]] = []
"""The stream built last, with what it was built from."""


def check_stream(stream: object, name: str) -> Stream:
    """The stream that a user gave, itself or as a function that returns it."""
    if callable(stream):
        if not accepts(stream):
            raise ValueError(f"{name} must be callable without arguments")
        try:
            stream = stream()
        except Exception as error:
            reason = describe_error(error)
            raise ValueError(f"{name} failed: {reason}") from error
    if not isinstance(stream, Stream):
        raise ValueError(f"{name} returned {type(stream).__name__}; expected a Stream")
    return stream


def build_run(config: RunConfig, dataset: Dataset | None, seed: int) -> Run:
    """Stream, network and learner of one seed.

    Raises:
        ValueError: If the method refuses a value, or the network does not fit the stream.
    """
    composed = _composed_stream(config, dataset, seed)
    stream = _as_seen(config, composed, seed)
    learner = build_learner(config, _Inputs.of(stream), seed)
    window = config.prequential and config.prequential_window
    run = Run(learner, stream, config.batch, config.epochs, seed, window, composed.tasks)
    _check_samples(config, stream)
    sample = torch.zeros(1, *stream.shape, dtype=torch.uint8) if dataset else None
    try:
        check_network(learner, stream, sample)
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"network {config.network!r}: {reason}") from error
    check_last_batches(run, config.max_steps)
    if config.ranks > 1:
        divide(learner)
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

    shape: Any
    classes: int
    tasks: int
    normalise: Normaliser
    augment: Augment | None

    @classmethod
    def of(cls, stream: Stream) -> _Inputs:
        tasks = len(stream.tasks)
        return cls(stream.shape, stream.classes, tasks, stream.normalise, stream.augment)


def build_learner(
    config: RunConfig,
    inputs: _Inputs,
    seed: int,
    *,
    network: nn.Module | Callable[..., Any] | None = None,
    method: type[Learner] | None = None,
    optimizer: Callable[..., Any] | None = None,
) -> Learner:
    """The learner with a newly initialised network, or with a given network, method or optimizer.

    `optimizer` is the function of (parameters, lr, …) that the configuration names.
    """
    if isinstance(network, nn.Module):
        module = network
    else:
        make = network or catalog.NETWORKS.get(config.network)
        make = make or find_object(config.network, "network")
        name = "network" if network else f"network {config.network!r}"
        classes = inputs.classes or 1  # unknown in advance: the network starts with one and grows
        module = initialised(make, inputs.shape, classes, seed, name)
    module = module.to(config.device)
    if config.device != "cpu":
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    learner = method or catalog.find_learner(config.method)
    accepted = catalog.accepted(learner)
    arguments: dict[str, Any] = {name: None for name in accepted if is_optional(accepted[name])}
    arguments |= {
        name: value
        for name, value in config.hyperparameters.items()
        if name not in LOOP_HYPERPARAMETERS and not (name in arguments and not value)
    }
    settings = catalog.optimizer_settings(optimizer or config.optimizer).keys()
    if config.optimizer != "sgd" or arguments.keys() & (settings - accepted.keys()):
        # A method with a setting of the same name, as iCaRL, leaves it to the optimizer.
        values = {n: accepted[n].default for n in settings & accepted.keys()}
        values |= {n: arguments.pop(n) for n in settings & arguments.keys()}
        lr = arguments.pop("lr", None)
        if lr is None and config.optimizer == "sgd":
            lr = learner.default_lr
        arguments["lr"] = None
        make_optimizer = optimizer or catalog.find_optimizer(config.optimizer)
        arguments["optimizer"] = build_optimizer(
            config.optimizer, make_optimizer, module, lr, values
        )
    for name in ("buffer_size", "buffer_bytes", "memory_device", "memory_folder"):
        if (value := getattr(config, name)) is not None:
            arguments[name] = value
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
        module, seed=seed, augment=inputs.augment, normalise=inputs.normalise, **arguments
    )


def build_optimizer(
    name: str,
    make: Callable[..., Any],
    network: nn.Module,
    lr: float | None,
    settings: Mapping[str, float],
) -> Optimizer:
    """The optimizer of a network's parameters: of the catalog, or a user's.

    `lr` is None for the optimizer's own default; `settings` has `betas` as beta1 and beta2.

    Raises:
        ValueError: If the optimizer refuses a value or is none.
    """
    values = dict[str, Any](settings)
    parameters = [p for p in network.parameters() if p.requires_grad]
    if name in catalog.OPTIMIZERS:
        if values.keys() & {"beta1", "beta2"}:
            values["betas"] = values.pop("beta1", 0.9), values.pop("beta2", 0.999)
        if name != "sgd" and parameters[0].is_cuda:
            values["capturable"] = True  # inside CUDA graphs
    try:
        optimizer = make(parameters, **values, **({} if lr is None else {"lr": lr}))
    except Exception as error:
        raise ValueError(f"optimizer {name}: {describe_error(error)}") from error
    if not isinstance(optimizer, Optimizer):
        kind = type(optimizer).__name__
        raise ValueError(f"optimizer {name} returned a {kind}, not a torch optimizer")
    return optimizer


def initialised(
    make: Callable[..., Any], shape: Any, classes: int, seed: int, name: str = "network"
) -> nn.Module:
    """make(shape, classes), with weights that depend on the seed alone; messages call it `name`."""
    if not accepts(make, shape, classes):
        raise ValueError(f"{name} must be a function that takes (input shape, classes)")
    with seeded_globally(seed, "initialisation"):
        try:
            network = make(shape, classes)
        except Exception as error:
            if make in catalog.NETWORKS.values() and isinstance(error, ValueError):
                raise  # it names the network and the remedy
            raise ValueError(f"{name} failed: {describe_error(error)}") from error
    if not isinstance(network, nn.Module):
        kind = type(network).__name__
        raise ValueError(f"{name} returned a {kind}, not an nn.Module")
    return network


def build_engine(config: RunConfig) -> Eager:
    """The engine, with the process-wide switches of torch that it needs."""
    if config.device == "cpu":
        # A user's code need not follow the rules of `Learner`, on which a recording depends.
        return Eager() if config.user_code() or config.ranks > 1 else Recorded()
    if torch.are_deterministic_algorithms_enabled() != config.deterministic:
        torch.use_deterministic_algorithms(config.deterministic)  # imports torch's compiler
    torch.backends.cudnn.benchmark = not config.deterministic
    if config.engine == "eager":
        return Eager(config.device, config.precision)
    return Captured(config.device, config.precision, compiled=config.engine == "compiled")


def config_file(config: RunConfig, run: Run) -> dict[str, Any]:
    """The content of `config.json`: the settings and `Facts` about stream and network."""
    stream, learner = run.stream, run.learner
    return {
        **config.to_json(),
        "version": perdure.__version__,
        "source": source_hash(config.user_code().values()),
        "seed": run.seed,
        "stream_name": stream.name,
        "data": stream.data,
        "stream_checksum": stream.checksum,
        "shape": stream.shape,
        "classes": stream.classes,
        **({"class_names": stream.class_names} if stream.class_names else {}),
        "tasks": len(stream.tasks),
        "augment": repr(stream.augment),
        "normalise": repr(stream.normalise),
        "architecture": _architecture(learner.network),
        "parameters": sum(p.numel() for p in learner.network.parameters()),
    }


def _architecture(network: nn.Module) -> str:
    """The network's class and its layers, in the order in which they first appear.

    >>> _architecture(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)))
    'Sequential of 2 Linear, ReLU'
    """
    name = type(network).__name__
    layers = Counter(
        "Linear" if isinstance(part, nn.Linear) else type(part).__name__  # also its subclasses
        for part in network.modules()
        if part is not network and not any(True for _ in part.children())
    )
    listed = [kind if count == 1 else f"{count} {kind}" for kind, count in layers.items()]
    if len(listed) > MAX_LAYERS:
        listed = [*listed[:MAX_LAYERS], "…"]
    return f"{name} of {', '.join(listed)}" if listed else name


def refuse_user_code(config: RunConfig, folder: Path, given: Container[str] = ()) -> None:
    """Raise ValueError if loading the run would import code that is not part of perdure.

    `given` are the kinds of objects that the caller provides itself.
    """
    for what, name in config.user_code().items():
        if what not in given:
            raise ValueError(
                f"{folder} names the {what} {name!r}, which is not part of perdure, and loading it "
                f"runs its code; pass {what}= to load_run or, if you trust the folder, "
                "trust_code=True (--trust-code on the command line)"
            )


def _check_size(network: str, inputs: _Inputs, folder: Path) -> None:
    """Raise ValueError if the network is larger than the file that should contain it."""
    with torch.device("meta"):  # allocates nothing
        make, name = catalog.NETWORKS[network], f"network {network!r}"
        weights = initialised(make, inputs.shape, inputs.classes, 0, name)
    size = sum(part.numel() * part.element_size() for part in weights.state_dict().values())
    if size > (folder / LEARNER_FILE).stat().st_size:
        raise ValueError(
            f"{folder / 'config.json'} describes a larger network than {LEARNER_FILE} contains"
        )


def load_run(
    folder: str | Path,
    *,
    network: nn.Module | Callable[[tuple[int, ...], int], nn.Module] | None = None,
    method: type[Learner] | None = None,
    stream: Stream | Callable[[], Stream] | None = None,
    optimizer: Callable[..., Optimizer] | None = None,
    trust_code: bool = False,
    device: str = "cpu",
) -> Learner:
    """The learner of a finished run, ready to predict or to continue learning.

    The data is not needed. A network, method, stream or optimizer of your own is passed as an
    argument, or imported by the name that the run was made with if `trust_code` is True.

    Args:
        folder: The run's folder.
        network: The run's network: a module, whose weights are replaced, or the function
            `network(shape, classes)` that builds it.
        method: The run's learner class.
        stream: The run's stream, or the function that returns it. Only needed if the stream has an
            augmentation or normalisation of its own.
        optimizer: The function of the parameters that returns the run's optimizer.
        trust_code: Whether to import the stream, network, method or optimizer that the folder
            names as `module:name`. This runs code that whoever wrote the folder chose. Also
            whether files that it names as `images:` or `table:` may be read.
        device: Where to put the learner.

    Raises:
        ValueError: If the folder is not a finished run, a file is missing or damaged, an argument
            does not fit the run, or the folder names code that is not part of perdure, is not
            given and not trusted.
    """
    run = RunFolder(Path(folder))
    config, facts = run.read("config.json", RunConfig), run.read("config.json", Facts)
    if not (network is None or callable(network)):
        raise ValueError(f"network is {network!r}; expected an nn.Module or a function")
    if not (method is None or (isinstance(method, type) and issubclass(method, Learner))):
        raise ValueError(f"method is {method!r}; expected a subclass of perdure.Learner")
    if not (optimizer is None or callable(optimizer)):
        raise ValueError(f"optimizer is {optimizer!r}; expected a function of the parameters")
    objects = {"network": network, "method": method, "stream": stream, "optimizer": optimizer}
    given = {name for name, value in objects.items() if value is not None}
    plain = (facts.normalise, facts.augment) == (repr(Scale()), repr(None))
    if not trust_code:
        refuse_user_code(config, run.path, given | ({"stream"} if plain else set()))
        if not (plain or stream is not None or config.stream in catalog.STREAMS):
            raise ValueError(
                f"{run.path} names the stream {config.stream!r}, whose files would have to be read "
                f"for its normalisation {facts.normalise}; pass stream= to load_run or, if you "
                "trust the folder, trust_code=True (--trust-code on the command line)"
            )
    run.read("result.json", Result)
    if not run.has_networks:
        raise ValueError(f"{run.path} does not contain {LEARNER_FILE}: its networks were not kept")
    run.check(LEARNER_FILE)
    source: Stream | catalog.Entry | None = catalog.STREAMS.get(config.stream)
    if stream is not None:
        source = check_stream(stream, "stream")
    elif source is None and not plain:
        source = load_user_stream(config.stream).stream
    normalise, augment = (source.normalise, source.augment) if source else (Scale(), None)
    inputs = _Inputs(as_shape(facts.shape), facts.classes, facts.tasks, normalise, augment)
    if network is None and config.network in catalog.NETWORKS:
        _check_size(config.network, inputs, run.path)
    try:
        learner = build_learner(
            replace(config, device=device, memory_device=None, memory_folder=None),
            inputs,
            facts.seed,
            network=network,
            method=method,
            optimizer=optimizer,
        )
    except TypeError as error:
        raise ValueError(f"{run.path / 'config.json'} does not fit the method: {error}") from None
    learner.load(run.path / LEARNER_FILE)
    return learner
