"""What a user hands over, checked: one clear sentence about the first thing that is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from perdure.records import Samples
from perdure.streams.stream import Test

Array: TypeAlias = Tensor | npt.NDArray[Any]
Pair: TypeAlias = Sequence[Array] | Samples
"""Images [n, ...], uint8 or floats, and labels [n], integers."""


def as_tensor(array: Array) -> Tensor:
    """The tensor itself, or one over the array's memory (a copy where that is read-only)."""
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        array = array.copy()
    return torch.as_tensor(array)


def checked_samples(
    what: str, pair: Pair, *, shape: tuple[int, ...] | None = None, classes: int | None = None
) -> Samples:
    """The pair as samples with int64 labels, if it fits together and into the stream."""
    inputs, labels = as_tensor(pair[0]), as_tensor(pair[1])
    if inputs.dtype != torch.uint8 and not inputs.is_floating_point():
        raise ValueError(f"{what} images are {inputs.dtype}; expected uint8 or floating point")
    if labels.dtype == torch.bool or labels.is_floating_point() or labels.ndim != 1:
        raise ValueError(
            f"{what} labels are {labels.dtype} {list(labels.shape)}; expected one integer per image"
        )
    if inputs.ndim < 2 or len(inputs) != len(labels):
        raise ValueError(
            f"{what} images are {list(inputs.shape)} for {len(labels)} labels; "
            "expected one image per label"
        )
    if not len(labels):
        raise ValueError(f"there are no {what} samples")
    if shape is not None and inputs.shape[1:] != shape:
        raise ValueError(
            f"{what} images have shape {list(inputs.shape[1:])}; the stream's have {list(shape)}"
        )
    low, high = (int(label) for label in labels.aminmax())
    if low < 0 or (classes is not None and high >= classes):
        bad = low if low < 0 else high
        expected = "0 or more" if classes is None else f"0 to {classes - 1}"
        raise ValueError(f"a {what} label is {bad}; expected {expected}")
    return Samples(inputs, labels.long())


def checked_tests(
    names: Sequence[str],
    test: Pair | None,
    tests: Sequence[Pair] | None,
    *,
    groups: Sequence[Sequence[int]] | None = None,
    shape: tuple[int, ...],
    classes: int,
) -> list[Test]:
    """The tests of a stream with these tasks: `test` for all (by `groups`), or `tests` one each."""
    if test is not None and tests is not None:
        raise ValueError("give one test for the stream or one for each task, not both")
    if test is not None:
        samples = checked_samples("test", test, shape=shape, classes=classes)
        if groups is None:
            return [Test("test", partial(_itself, samples))]
        return _divided(names, samples, groups)
    if tests is not None and len(tests) != len(names):
        raise ValueError(f"there are {len(tests)} tests for {len(names)} tasks")
    parts = [checked_samples("test", pair, shape=shape, classes=classes) for pair in tests or ()]
    return [
        Test(
            names[task],
            partial(_itself, samples),
            classes=None if groups is None else tuple(groups[task]),
            since=task,
        )
        for task, samples in enumerate(parts)
    ]


def _itself(samples: Samples) -> Samples:
    return samples


def _divided(names: Sequence[str], samples: Samples, groups: Sequence[Sequence[int]]) -> list[Test]:
    """One test for each group of classes, all of them rows of the same samples."""
    whole = partial(_itself, samples)
    parts = [rows_of(samples.labels, group) for group in groups]
    for group, rows in zip(groups, parts, strict=True):
        if not len(rows):
            raise ValueError(f"there are no test samples of classes {list(group)}")
    return [
        Test(name, whole, rows, tuple(group), since=task)
        for task, (name, rows, group) in enumerate(zip(names, parts, groups, strict=True))
    ]


def rows_of(labels: Tensor, classes: Sequence[int]) -> Tensor:
    """The rows whose label is one of these classes."""
    wanted = torch.tensor(classes, dtype=torch.int64, device=labels.device)
    return torch.isin(labels, wanted).nonzero().squeeze(1)
