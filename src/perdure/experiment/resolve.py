"""Resolving a user's request into a configuration: names, published defaults, data, device."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import torch

from perdure import catalog, presets
from perdure.config import (
    DEFAULT_BUFFER_SIZE,
    DEVICE_DEFAULTS,
    LOOP_HYPERPARAMETERS,
    NOT_HYPERPARAMETERS,
    PUBLISHED,
    RunConfig,
    as_flag,
    default_hyperparameters,
    is_optional,
    normalised,
)
from perdure.data import DATASETS, locate
from perdure.evaluation.prequential import WINDOW
from perdure.experiment.build import load_user_stream, read_dataset
from perdure.sizes import parse_bytes
from perdure.streams.from_batches import supplies_batches


def resolve(
    stream: str = "s-mnist",
    method: str = "clser",
    buffer_size: int | None = None,
    *,
    given: Mapping[str, float] | None = None,
    network: str | None = None,
    dataset: str | None = None,
    data_root: Path | None = None,
    stream_seed: int | str | None = None,
    validation: float | None = None,
    max_steps: int | None = None,
    device: str = "cpu",
    precision: str | None = None,
    engine: str | None = None,
    deterministic: bool = False,
    optimizer: str = "sgd",
    update: Literal["random", "regular"] = "random",
    ranks: int = 1,
    prequential: bool = False,
    prequential_window: int | None = None,
    buffer_bytes: int | str | None = None,
    memory_device: str | None = None,
    memory_folder: Path | None = None,
    initial_evaluation: bool = False,
    check_device: bool = True,
    progress: bool = False,
    reread: bool = True,
) -> RunConfig:
    """Complete a choice of stream and method with published hyperparameters and defaults.

    `RunConfig` describes the settings. Those that are None get a default: the memory holds 500
    samples, the network is the stream's, the dataset is the paper's (or the digits that ship with
    perdure if that is not installed), precision and engine depend on the device.

    Args:
        stream: As in `RunConfig`, like all arguments that are not listed.
        method: As in `RunConfig`.
        buffer_size: Ignored for methods without a memory.
        given: Hyperparameters that replace the published ones.
        device: "cpu", "cuda" or "auto".
        prequential_window: Implies `prequential`.
        buffer_bytes: A number, or text such as "64MB".
        check_device: Whether the device must be available on this machine.
        progress: Whether to show on stderr that a large dataset is decoded or many images are read.
        reread: Whether to build a user's own stream again if this process has built it before;
            its data may have changed since.

    Raises:
        ValueError: If a name is unknown, a value is invalid, or the data cannot be read.
    """
    entry = catalog.STREAMS.get(stream)
    if entry is None and ":" not in stream:
        raise ValueError(f"unknown stream {stream!r}; {_stream_remedy(stream)}")
    check_method(method)
    accepted = catalog.accepted(catalog.find_learner(method))
    settings = catalog.optimizer_settings(optimizer)
    if update != "random" and "update" not in accepted:
        raise ValueError(f"--update {update} applies to clser and mean-er, not to {method}")
    notes: list[str] = []
    if buffer_size is not None and buffer_bytes is not None:
        raise ValueError("give either --buffer-size or --buffer-bytes, not both")
    if memory_folder is not None and not memory_folder.is_dir():
        raise ValueError(f"--memory-folder is {str(memory_folder)!r}, which is not a folder")
    memory: dict[str, Any] = {
        "buffer_size": buffer_size,
        "buffer_bytes": None if buffer_bytes is None else parse_bytes(buffer_bytes),
        "memory_device": memory_device,
        "memory_folder": None if memory_folder is None else str(memory_folder),
    }
    has_memory = "buffer_size" in accepted
    for name, value in memory.items():
        if value is not None and name not in accepted:
            if has_memory:
                raise ValueError(f"{method} has no argument {name}; omit {as_flag(name)}")
            notes.append(f"{method} has no memory; ignoring {as_flag(name)} {value}")
            memory[name] = None
    if memory["buffer_size"] is None and memory["buffer_bytes"] is None and has_memory:
        memory["buffer_size"] = DEFAULT_BUFFER_SIZE
    dataset = _dataset(stream, dataset, data_root, notes)
    check_names(given or {}, method, optimizer)
    size = memory["buffer_size"] if memory["buffer_bytes"] is None else DEFAULT_BUFFER_SIZE
    usual = default_hyperparameters(stream, method, size, dataset, optimizer)
    place = len(notes)
    notes += usual.notes
    if memory["buffer_bytes"] is not None and entry is not None:
        notes.append(f"hyperparameters are those for a buffer of {DEFAULT_BUFFER_SIZE} samples")
    if optimizer != "sgd" and "lr" not in (given or {}):
        lr = f"{usual.values['lr']:g}" if "lr" in usual.values else "its own default"
        notes.append(f"--lr is not given; {optimizer} uses {lr}")
    hyperparameters = normalised({**usual.values, **(given or {})}, settings | accepted)
    for name, setting in settings.items():
        # Given explicitly or not, it is the same run.
        if name not in accepted and hyperparameters.get(name) == setting.default:
            hyperparameters.pop(name, None)
    if method not in catalog.METHODS:
        # Reading a configuration does not import the method, so its defaults must be recorded.
        off = (name for name in accepted if is_optional(accepted[name]))
        hyperparameters = {**dict.fromkeys(off, 0.0), **hyperparameters}
    _check_ranks(hyperparameters, ranks, *([] if entry is None else ["batch"]), "memory_batch")
    if entry is not None and not usual.source:
        notes.insert(place, _defaults_note(stream, hyperparameters))
    default_network = network is None
    if network is None:
        network = "mlp" if entry is None else entry.network
    elif network not in catalog.NETWORKS and ":" not in network:
        names = ", ".join(catalog.NETWORKS)
        raise ValueError(f"unknown network {network!r}; choose from {names}, or module:function")
    if check_device or device != "cuda":
        device = choose_device(device, precision, engine)
    defaults = DEVICE_DEFAULTS[device] | ({"engine": "eager"} if ranks > 1 else {})
    config = RunConfig(
        stream=stream,
        dataset=dataset,
        data_checksum="",
        network=network,
        stream_seed=_stream_seed(stream, stream_seed),
        validation=validation,
        max_steps=max_steps,
        method=method,
        **memory,
        hyperparameters=hyperparameters,
        optimizer=optimizer,
        update=update,
        device=device,
        precision=cast(Any, precision or defaults["precision"]),
        engine=cast(Any, engine or defaults["engine"]),
        deterministic=deterministic and device != "cpu",
        ranks=ranks,
        prequential=prequential or prequential_window is not None,
        prequential_window=WINDOW if prequential_window is None else prequential_window,
        initial_evaluation=initial_evaluation and device == "cpu",
        data_root=None if data_root is None else str(data_root),
        notes=tuple(notes),
    )
    if config.stream_seed == PUBLISHED:
        config = _published_stream(config)
    data = read_dataset(replace(config, device="cpu"), progress=progress)
    if data is not None:
        return replace(config, data_checksum=data.checksum)
    own = load_user_stream(stream, again=reread, progress=progress)
    if supplies_batches(own.stream) and not catalog.is_joint(method):
        if "batch" in (given or {}):
            raise ValueError(f"--batch does not apply to {stream}, which supplies batches; omit it")
        hyperparameters.pop("batch")
    _check_ranks(hyperparameters, ranks, "batch")
    config = replace(config, hyperparameters=hyperparameters)
    notes.insert(place, _defaults_note(stream, hyperparameters))
    if default_network:
        is_image = isinstance(own.stream.shape, tuple) and len(own.stream.shape) == 3
        hint = " (for images, try --network cnn)" if is_image else ""
        notes.append(f"--network is not given; using mlp{hint}")
    return replace(config, data_checksum=own.stream.checksum, notes=(*notes, *own.warnings))


def _defaults_note(stream: str, hyperparameters: Mapping[str, float]) -> str:
    """The note for a stream without published hyperparameters."""
    batch, epochs = hyperparameters.get("batch"), hyperparameters["epochs"]
    return (
        f"{stream} has no published settings; hyperparameters that are not given have their "
        f"method's defaults; training for {epochs} epoch{'s' if epochs > 1 else ''} with "
        f"{'batches from the stream' if batch is None else f'batches of {batch}'}"
    )


def _check_ranks(hyperparameters: Mapping[str, float], ranks: int, *names: str) -> None:
    """Raise ValueError if several processes cannot divide these numbers equally."""
    for name in names:
        if hyperparameters.get(name, 0) % ranks:
            raise ValueError(
                f"{as_flag(name)} is {hyperparameters[name]}, which is not a multiple of the "
                f"{ranks} processes"
            )


def _stream_remedy(stream: str) -> str:
    """What a user may have meant by a stream that does not exist."""
    path = stream.partition(",")[0]
    if os.path.isdir(path):  # unlike Path.is_dir, of any text
        return f"did you mean images:{stream}?"
    if os.path.isfile(path) and not path.endswith(".py"):
        return f"did you mean table:{path},target=COLUMN?"
    return _choose(
        stream,
        catalog.STREAMS,
        "your own: module:function, table:FILE,target=COLUMN or images:FOLDER",
    )


def _choose(name: str, known: Iterable[str], own: str) -> str:
    """The known names, those similar to this one first, and a user's own."""
    names = list(known)
    meant = difflib.get_close_matches(name.lower(), names)
    choices = f"choose from {', '.join(names)}, or {own}"
    return f"did you mean {' or '.join(meant)}? If not, {choices}" if meant else choices


def check_method(method: str) -> None:
    """Raise ValueError unless this is a method of the catalog or written as `module:class`."""
    if method not in catalog.METHODS and ":" not in method:
        remedy = _choose(method, catalog.METHODS, "module:class")
        raise ValueError(f"unknown method {method!r}; {remedy}")


def choose_device(device: str, precision: str | None = None, engine: str | None = None) -> str:
    """The device to use on this machine.

    Raises:
        ValueError: If it is not available or does not support the precision or the engine.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        if precision == "bf16" or engine not in (None, "eager"):
            flag = "--precision bf16" if precision == "bf16" else f"--engine {engine}"
            raise ValueError(f"{flag} requires a GPU; omit it to train on the CPU")
        return device
    if not torch.cuda.is_available():
        raise ValueError("--device cuda: no CUDA device is available; omit it to use the CPU")
    name = torch.cuda.get_device_name()
    major, minor = torch.cuda.get_device_capability()
    if major < 7:
        raise ValueError(
            f"{name} has compute capability {major}.{minor}; expected 7.0 or later: use "
            "--device cpu"
        )
    if precision != "fp32" and not torch.cuda.is_bf16_supported():
        raise ValueError(f"{name} does not support bfloat16: use --precision fp32")
    return device


def _dataset(stream: str, dataset: str | None, root: Path | None, notes: list[str]) -> str | None:
    entry = catalog.STREAMS.get(stream)
    if entry is None:
        if dataset is not None or root is not None:
            raise ValueError(f"{stream} supplies its own data; omit --dataset and --data")
        return None
    if dataset is not None:
        if dataset not in entry.datasets:
            known = "" if dataset in DATASETS else f"; known datasets: {', '.join(DATASETS)}"
            raise ValueError(
                f"{stream} requires {' or '.join(entry.datasets)}, not {dataset!r}{known}"
            )
        return dataset
    first, *others = entry.datasets
    if root is None and others and locate(first) is None:
        notes.append(
            f"{first} not found; using {others[0]}, the 5,000 digits that ship with perdure "
            f"(run `perdure data fetch {first}`, or pass --data DIR)"
        )
        return others[0]
    return first


def hyperparameter_names(method: str, optimizer: str = "sgd") -> set[str]:
    """The hyperparameters of a method and its optimizer."""
    accepted = catalog.accepted(catalog.find_learner(method))
    settings = catalog.optimizer_settings(optimizer)
    return {*accepted, *settings, *LOOP_HYPERPARAMETERS} - NOT_HYPERPARAMETERS


def check_names(names: Iterable[str], method: str, optimizer: str = "sgd") -> None:
    """Raise ValueError unless all of these are hyperparameters of the method or the optimizer."""
    allowed = hyperparameter_names(method, optimizer)
    for name in names:
        if name not in allowed:
            known = ", ".join(sorted(allowed))
            what = method if optimizer == "sgd" else f"{method} with {optimizer}"
            raise ValueError(f"{what} has no hyperparameter {name!r}; it has {known}")


def _stream_seed(stream: str, seed: int | str | None) -> int | str | None:
    """The seed of the composition; None if it is the stream's own."""
    if seed is None:
        return None
    entry = catalog.STREAMS.get(stream)
    if entry is None or entry.seed is None:
        raise ValueError(f"{stream} is deterministic; --stream-seed does not apply")
    if isinstance(seed, str) and seed.isascii() and seed.isdecimal():
        seed = int(seed)
    return None if seed == entry.seed else seed


def _published_stream(config: RunConfig) -> RunConfig:
    """The configuration, if the paper has such a run on a GCIL stream.

    Methods without a memory were run on the default stream.
    """
    run = presets.gcil_run(config.method, config.stream, config.buffer_size)
    if run is None:
        gcil = config.stream.startswith("gcil")
        raise ValueError(
            f"--stream-seed {PUBLISHED}: the paper has no run of {config}"
            if gcil
            else f"--stream-seed {PUBLISHED} applies to the GCIL streams only; omit it"
        )
    if config.validation is not None:
        raise ValueError(f"--stream-seed {PUBLISHED} needs all training samples; omit --validation")
    if config.batch != run.batch or config.epochs not in run.epochs:
        epochs = " or ".join(map(str, run.epochs))
        raise ValueError(
            f"--stream-seed {PUBLISHED}: the stream depends on the batch and the epochs; the paper "
            f"has {config} with batch {run.batch} and {epochs} epochs"
        )
    return config if run.reads else replace(config, stream_seed=None)
