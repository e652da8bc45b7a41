"""From what a user asks for to settings: presets, datasets, and what had to be assumed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from inspect import Parameter
from pathlib import Path

import torch

from perdure import catalog, presets
from perdure.data import DATASETS, locate
from perdure.training.build import (
    PER_RUN,
    TRAINING_KEYS,
    Settings,
    accepted,
    find_learner,
    own_stream,
    read_dataset,
)

DEFAULT_BUFFER = 500
MOST_SEEDS = 10_000
SMALL_EPOCHS = 15
"""Passes over mnist5k for each pass over MNIST: as many steps."""
_OWN = {"batch": 32, "epochs": 1}
Takes = Mapping[str, Parameter]
"""The keyword arguments of a method."""


def plan(
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
    elsewhere: bool = False,
    update: str = "random",
    ranks: int = 1,
) -> Settings:
    """Settings for a method on a stream; `given` are the hyperparameters that the user chose.

    With `elsewhere` another machine will train, and this one need not have the device.
    ValueError, with what is wrong and what there is, for names and values that do not exist.
    """
    notes: list[str] = []
    entry = catalog.STREAMS.get(stream)
    if entry is None and ":" not in stream:
        # One's own cannot be divided for validation, so it is no choice there.
        own = ", or your own as module:function" if validation is None else ""
        names = ", ".join(catalog.STREAMS)
        raise ValueError(f"there is no stream {stream!r}; the streams are {names}{own}")
    check_method(method)
    if max_steps is not None and max_steps < 1:
        raise ValueError(f"--max-steps is {max_steps}; expected 1 or more")
    takes = accepted(find_learner(method))
    if update != "random" and "update" not in takes:
        raise ValueError(
            f"--update {update}: {method} has no semantic memories; clser and mean-er have"
        )
    buffer_size = _buffer(method, buffer_size, takes, notes)
    chosen = _dataset(stream, dataset, data_root, notes)
    values = _values(stream, method, buffer_size, dict(given or {}), takes, chosen, notes)
    _check_shares(values, ranks)
    if stream_seed is not None and (entry is None or entry.seed is None):
        raise ValueError(f"--stream-seed: chance has no part in the composition of {stream}")
    if isinstance(stream_seed, str) and stream_seed != PER_RUN:
        raise ValueError(f"--stream-seed is {stream_seed!r}; expected a number or {PER_RUN!r}")
    if entry is None and network is None:
        network = "mlp"
        notes.append("no network was named for your stream: taking the mlp")
    if validation is not None and entry is None:
        raise ValueError("--validation divides a dataset; your own stream brings its own tests")
    assert network is not None or entry is not None
    if not elsewhere or device == "cpu":
        device = choose_device(device, precision, engine)
    settings = Settings(
        stream=stream,
        method=method,
        buffer_size=buffer_size,
        values=values,
        network=entry.network if network is None and entry is not None else network or "",
        dataset=chosen,
        data_checksum="",
        stream_seed=stream_seed,
        validation=validation,
        max_steps=max_steps,
        device=device,
        precision=precision or ("fp32" if device == "cpu" else "bf16"),
        engine=engine or ("eager" if device == "cpu" else "captured"),
        deterministic=deterministic and device != "cpu",
        update=update,
        ranks=ranks,
        data_root=None if data_root is None else str(data_root),
        notes=tuple(notes),
        published=entry is not None
        and chosen == entry.datasets[0]
        and (network, stream_seed, validation, max_steps) == (None,) * 4
        and not (notes or given)
        and update == "random",
    )
    if settings.network not in catalog.NETWORKS and ":" not in settings.network:
        raise ValueError(
            f"there is no network {settings.network!r}; the networks are "
            f"{', '.join(catalog.NETWORKS)}, or your own as module:function"
        )
    data = read_dataset(replace(settings, device="cpu"))
    checksum = own_stream(stream).checksum if data is None else data.checksum
    return replace(settings, data_checksum=checksum)


def check_method(method: str) -> None:
    """ValueError with what there is, for a name that is no method's."""
    if method not in catalog.METHODS and ":" not in method:
        raise ValueError(
            f"there is no method {method!r}; the methods are {', '.join(catalog.METHODS)}, or "
            "your own as module:class"
        )


def default_values(
    stream: str, method: str, buffer_size: int | None, dataset: str | None
) -> dict[str, float]:
    """The hyperparameters of a run for which none were given."""
    return _values(stream, method, buffer_size, {}, accepted(find_learner(method)), dataset, [])


def whole_settings(method: str) -> frozenset[str]:
    """The names of those that are whole numbers."""
    return _whole(accepted(find_learner(method)))


def _whole(takes: Takes) -> frozenset[str]:
    counts = (name for name, p in takes.items() if p.annotation in (int, "int"))
    return frozenset((*TRAINING_KEYS, *counts))


def choose_device(device: str, precision: str | None = None, engine: str | None = None) -> str:
    """The device of this machine to train on, found fit for what is asked of it."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        if precision == "bf16" or engine not in (None, "eager"):
            asked = "--precision bf16" if precision == "bf16" else f"--engine {engine}"
            raise ValueError(f"{asked} needs a GPU; leave it out to train on the CPU")
        return device
    if not torch.cuda.is_available():
        raise ValueError(
            "--device cuda: no CUDA device can be used here; leave it out to train on the CPU"
        )
    major, minor = torch.cuda.get_device_capability()
    if major < 7:
        raise ValueError(
            f"{torch.cuda.get_device_name()} has compute capability {major}.{minor}; expected 7.0 "
            "or later: use --device cpu"
        )
    if precision != "fp32" and not torch.cuda.is_bf16_supported():
        raise ValueError(f"{torch.cuda.get_device_name()} has no bfloat16: use --precision fp32")
    return device


def _buffer(method: str, buffer_size: int | None, takes: Takes, notes: list[str]) -> int | None:
    if "buffer_size" not in takes:
        if buffer_size is not None:
            notes.append(f"{method} keeps no memory: --buffer {buffer_size} is not used")
        return None
    if buffer_size is not None and buffer_size < 1:
        raise ValueError(f"--buffer is {buffer_size}; expected 1 or more")
    return DEFAULT_BUFFER if buffer_size is None else buffer_size


def _dataset(stream: str, dataset: str | None, root: Path | None, notes: list[str]) -> str | None:
    entry = catalog.STREAMS.get(stream)
    if entry is None:
        if dataset is not None or root is not None:
            raise ValueError(f"{stream} brings its own data; leave out --dataset and --data")
        return None
    if dataset is not None:
        if dataset not in entry.datasets:
            known = "" if dataset in DATASETS else f"; the datasets are {', '.join(DATASETS)}"
            raise ValueError(
                f"{stream} is made from {' or '.join(entry.datasets)}, not from {dataset!r}{known}"
            )
        return dataset
    first = entry.datasets[0]
    if root is None and len(entry.datasets) > 1 and locate(first) is None:
        notes.append(
            f"{first} was not found: taking {entry.datasets[1]}, the 5,000 digits that ship with "
            f"perdure (`perdure data fetch {first}` gets all, --data DIR says where they are)"
        )
        return entry.datasets[1]
    return first


def _values(
    stream: str,
    method: str,
    buffer_size: int | None,
    given: dict[str, float],
    takes: Takes,
    dataset: str | None,
    notes: list[str],
) -> dict[str, float]:
    others = {"seed", "optimizer", "augment", "normalise", "buffer_size", "tasks", "update"}
    allowed = {*takes} - others
    whole = _whole(takes)
    for key, value in given.items():
        if key not in allowed and key not in TRAINING_KEYS:
            raise ValueError(
                f"{method} has no setting {key!r}; it takes "
                f"{', '.join(sorted([*allowed, *TRAINING_KEYS]))}"
            )
        if key in whole:
            if not float(value).is_integer():
                raise ValueError(f"{key} is {value}; expected a whole number")
            given[key] = int(value)
    preset = presets.find(method, stream, buffer_size)
    values: dict[str, float] = dict(_OWN)
    if preset is not None:
        values |= preset.values
        notes += preset.notes
    elif stream in catalog.STREAMS:
        kin = "er" if buffer_size is not None else "sgd"
        fallback = presets.find(kin, stream, buffer_size)
        if fallback is not None:
            values |= {k: v for k, v in fallback.values.items() if k in (*takes, *TRAINING_KEYS)}
            notes.append(f"no published setting of {method} for {stream}: taking those of {kin}")
    else:
        notes.append(
            f"no published setting for {stream}: taking batch 32, one epoch and the defaults of "
            f"{method}, where you gave nothing else"
        )
    if dataset == "mnist5k" and "epochs" not in given:
        values["epochs"] *= SMALL_EPOCHS
    return values | given


def _check_shares(values: Mapping[str, float], ranks: int) -> None:
    for key in ("batch", "memory_batch"):
        if values.get(key, 0) % ranks:
            flag = f"--{key.replace('_', '-')}"
            raise ValueError(
                f"{flag} is {values[key]}, which {ranks} processes cannot share equally; give a "
                f"multiple of {ranks}, or start another number of processes"
            )


def parse_seeds(text: str) -> list[int]:
    """Seeds as the command takes them: one, several, or a half-open range.

    >>> parse_seeds("3"), parse_seeds("0,4,7"), parse_seeds("0:4")
    ([3], [0, 4, 7], [0, 1, 2, 3])
    """
    if match := re.fullmatch(r"(\d+):(\d+)", text):
        start, end = int(match[1]), int(match[2])
        if end <= start:
            raise ValueError(f"--seeds {text} is empty: the end must be larger than the start")
        if end - start > MOST_SEEDS:
            raise ValueError(f"--seeds {text} are {end - start}; expected at most {MOST_SEEDS}")
        seeds = list(range(start, end))
    elif re.fullmatch(r"\d+(,\d+)*", text):
        seeds = [int(part) for part in text.split(",")]
    else:
        raise ValueError(f"--seeds is {text!r}; expected 3, or 0,4,7, or 0:10 (10 left out)")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"--seeds {text} names a seed twice")
    return seeds
