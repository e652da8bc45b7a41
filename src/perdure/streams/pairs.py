"""Checks of users' pairs of inputs and labels, and the tests of a stream made from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from perdure.arguments import as_list
from perdure.records import Samples, label_remedy
from perdure.streams.stream import Test, rows_of
from perdure.structures import Inputs, as_tensors, check_unmasked, leaves, map_leaves, shapes

Pair: TypeAlias = Sequence[Any] | Mapping[str, Any] | Samples
"""Inputs (a tensor or array [n, ...], or a dict or tuple, also nested, of them) and integer labels
[n]; or a dict in which the key "labels" holds the labels and the others the inputs."""


def check_samples(
    what: str, pair: Pair, *, shape: Any = None, classes: int | None = None
) -> Samples:
    """The pair as samples with int64 labels; ValueError if they do not fit the stream."""
    inputs, labels = as_pair(pair, "a batch" if what == "batch" else f"{what} data")
    inputs = map_leaves(lambda leaf: _check_leaf(what, leaf), inputs)
    fractions = labels.is_floating_point() or labels.is_complex()
    if labels.dtype == torch.bool or fractions or labels.ndim != 1:
        raise ValueError(
            f"{what} labels are {labels.dtype} {list(labels.shape)}; expected one integer per input"
            f"{label_remedy(labels)}"
        )
    short = isinstance(inputs, Tensor) and inputs.ndim < 2
    if short or any(not leaf.ndim or len(leaf) != len(labels) for leaf in leaves(inputs)):
        sizes = map_leaves(lambda leaf: list(leaf.shape), inputs)
        raise ValueError(
            f"{what} inputs have shape {sizes} for {len(labels)} labels; "
            "expected one input per label"
        )
    if not len(labels):
        raise ValueError(f"there are no {what} samples")
    if shape is not None and (found := shapes(inputs)) != shape:
        raise ValueError(f"{what} inputs have shape {found}; expected {shape}")
    labels = labels.long()
    low, high = (int(label) for label in labels.aminmax())
    if low < 0 or (classes is not None and high >= classes):
        bad = low if low < 0 else high
        expected = "0 or more" if classes is None else f"0 to {classes - 1}"
        remedy = ""
        if low >= 1 and high == classes:
            remedy = "; if classes are numbered from 1, subtract 1 from the labels"
        raise ValueError(f"a {what} label is {bad}; expected {expected}{remedy}")
    return Samples(inputs, labels)


def as_pair(batch: Pair, what: str = "a batch") -> tuple[Inputs, Tensor]:
    """The inputs, as a structure of tensors, and the labels of a batch."""
    inputs, labels = divide(batch, what)
    inputs = as_tensors(inputs)
    check_unmasked(labels, "labels")
    try:
        return inputs, as_tensor(labels)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            "labels are not whole numbers of at most 64 bits; number the classes from 0"
        ) from None


def as_tensor(numbers: Any) -> Tensor:
    """Numbers as a tensor, also from arrays and columns that torch does not read.

    >>> as_tensor(np.arange(3)[::-1])
    tensor([2, 1, 0])
    """
    if not isinstance(numbers, Tensor) and hasattr(numbers, "__array__"):
        array = np.asarray(numbers)  # torch supports neither all strides nor byte orders
        known = array.dtype != object
        numbers = array.astype(array.dtype.newbyteorder("=")) if known else array.tolist()
    return torch.as_tensor(numbers)


def divide(pair: Any, what: str) -> tuple[Any, Any]:
    """The inputs and the labels of a batch, or the input and the label of a sample."""
    if isinstance(pair, Samples):
        return pair.inputs, pair.labels
    if isinstance(pair, Mapping):
        if "labels" not in pair:
            keys = ", ".join(sorted(map(repr, pair)))
            raise ValueError(f"{what} is a dict with the keys {keys}, without 'labels'")
        return {key: value for key, value in pair.items() if key != "labels"}, pair["labels"]
    found = f"is of type {type(pair).__name__}"
    if isinstance(pair, Sequence) and not isinstance(pair, str | bytes):
        if len(pair) == 2:
            return pair[0], pair[1]
        found = f"has {len(pair)} item{'s' * (len(pair) != 1)}"
    raise ValueError(f"{what} {found}; expected a pair (inputs, labels)")


def _check_leaf(what: str, leaf: Tensor) -> Tensor:
    """A tensor of the inputs, float64 as float32."""
    if leaf.layout is not torch.strided:
        raise ValueError(f"{what} inputs have layout {leaf.layout}; expected dense tensors")
    if leaf.is_complex():
        raise ValueError(f"{what} inputs are {leaf.dtype}; expected integers or floating point")
    if leaf.is_floating_point() and not leaf.isfinite().all():
        raise ValueError(f"{what} inputs contain infinite or NaN values")
    return leaf.float() if leaf.dtype == torch.float64 else leaf


def make_tests(
    names: Sequence[str],
    test: Pair | None,
    tests: Sequence[Pair] | None,
    shape: Any,
    classes: int | None,
    groups: Sequence[Sequence[int]] | None = None,
) -> list[Test]:
    """The tests of a stream with these tasks: `test`, divided by `groups`, or one per task."""
    check = partial(check_samples, "test", shape=shape, classes=classes)
    if test is not None and tests is not None:
        raise ValueError("give either test (for the stream) or tests (one for each task), not both")
    if tests is not None:
        tests = as_list("tests", tests, "test data for each task")
        if len(tests) != len(names):
            raise ValueError(f"there are {len(tests)} tests for {len(names)} tasks")
        return [
            Test(
                names[task],
                partial(Samples, *check(pair)),
                classes=None if groups is None else tuple(groups[task]),
                since=task,
            )
            for task, pair in enumerate(tests)
        ]
    if test is None:
        return []
    samples = check(test)
    shared = partial(Samples, *samples)  # so that all tests are evaluated in one pass
    if groups is None:
        return [Test("test", shared)]
    found = []
    for task, (name, group) in enumerate(zip(names, groups, strict=True)):
        rows = rows_of(samples.labels, group)
        if not len(rows):
            raise ValueError(f"there are no test samples of classes {list(group)}")
        found.append(Test(name, shared, rows, tuple(group), since=task))
    return found
