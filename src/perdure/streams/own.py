"""Streams from a user's own tensors or map-style dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from perdure.records import Samples
from perdure.streams.augment import Scale
from perdure.streams.checked import (
    Array,
    Pair,
    as_tensor,
    checked_samples,
    checked_tests,
    rows_of,
)
from perdure.streams.checksum import checksum
from perdure.streams.stream import Augment, Normaliser, Stream, Task


class MapDataset(Protocol):
    """A map-style dataset as `torch.utils.data` has them: sized, with items (image, label)."""

    def __len__(self) -> int:
        """Number of items."""

    def __getitem__(self, index: int, /) -> Any:
        """The image (tensor, array or PIL image) and its label."""


def from_tensors(
    inputs: Array,
    labels: Array,
    *,
    tasks: Sequence[Array | Sequence[int]] | None = None,
    groups: Sequence[Sequence[int]] | None = None,
    test: Pair | None = None,
    tests: Sequence[Pair] | None = None,
    classes: int | None = None,
    name: str = "own",
    augment: Augment | None = None,
    normalise: Normaliser | None = None,
    drop_last: bool = False,
) -> Stream:
    """A stream over images [n, ...], uint8 or floats in [0, 1], with integer labels [n].

    It is one task without boundaries, unless `tasks` lists the rows of each task or `groups` the
    classes of each; samples in none of them are left out. For evaluation, `test` is one pair
    (images, labels) for the whole stream, which `groups` divide among the tasks, and `tests` has
    one pair for each task. `classes` is the number of outputs, by default the highest training
    label plus one. Tensors are used as they are, where they are: do not change them afterwards.

    >>> inputs, labels = torch.rand(6, 1, 8, 8), torch.tensor([0, 1, 2, 3, 0, 2])
    >>> stream = from_tensors(inputs, labels, groups=[(0, 1), (2, 3)], test=(inputs, labels))
    >>> [len(task.samples().labels) for task in stream.tasks], len(stream.tests), stream.classes
    ([3, 3], 2, 4)
    """
    train = checked_samples("training", (inputs, labels), classes=classes)
    classes = int(train.labels.max()) + 1 if classes is None else classes
    shape = tuple(train.inputs.shape[1:])
    rows = _task_rows(train.labels, tasks, groups, classes)
    if rows is None:
        parts = [Task(name, lambda: train, size=len(train.labels), drop_last=drop_last)]
    else:
        parts = [_task(f"task {t + 1}", train, index, drop_last) for t, index in enumerate(rows)]
    names = [part.name for part in parts]
    held_out = checked_tests(names, test, tests, groups=groups, shape=shape, classes=classes)
    return Stream(
        name=name,
        data="own",
        classes=classes,
        shape=shape,
        tasks=parts,
        tests=held_out,
        normalise=normalise or Scale(),
        augment=augment,
        boundaries=rows is not None,
        checksum=checksum(
            *(name, int(drop_last), train.inputs, train.labels),
            *(rows or ()),
            *(t for x in held_out for t in (*x.samples()[:2], x.rows) if t is not None),
        ),
    )


def from_dataset(
    dataset: MapDataset,
    *,
    tasks: Sequence[Array | Sequence[int]] | None = None,
    groups: Sequence[Sequence[int]] | None = None,
    test: MapDataset | None = None,
    tests: Sequence[MapDataset] | None = None,
    classes: int | None = None,
    name: str = "own",
    augment: Augment | None = None,
    normalise: Normaliser | None = None,
    drop_last: bool = False,
) -> Stream:
    """A stream over a map-style dataset, which is read once, item by item, into memory.

    PIL images become uint8 [channels, height, width]; tensors and arrays are taken as they are, so
    a random transform inside the dataset is applied once for all (use `augment` instead). The
    rest is as in `from_tensors`.

    >>> from torch.utils.data import TensorDataset
    >>> stream = from_dataset(TensorDataset(torch.rand(6, 1, 8, 8), torch.arange(6) % 2))
    >>> stream.classes, stream.shape, stream.tasks[0].steps(4)
    (2, (1, 8, 8), 2)
    """
    train = _collect(dataset)
    return from_tensors(
        train.inputs,
        train.labels,
        tasks=tasks,
        groups=groups,
        test=None if test is None else _collect(test),
        tests=None if tests is None else [_collect(part) for part in tests],
        classes=classes,
        name=name,
        augment=augment,
        normalise=normalise,
        drop_last=drop_last,
    )


def _task(name: str, train: Samples, rows: Tensor, drop_last: bool) -> Task:
    return Task(name, lambda: train.rows(rows), size=len(rows), drop_last=drop_last)


def _task_rows(
    labels: Tensor,
    tasks: Sequence[Array | Sequence[int]] | None,
    groups: Sequence[Sequence[int]] | None,
    classes: int,
) -> list[Tensor] | None:
    """The rows of each task, on the labels' device; None where there are no tasks."""
    if tasks is not None and groups is not None:
        raise ValueError("give tasks as rows or as groups of classes, not both")
    if tasks is None and groups is None:
        return None
    if groups is not None:
        grouped = [c for group in groups for c in group]
        if len(set(grouped)) < len(grouped) or not all(0 <= c < classes for c in grouped):
            raise ValueError(f"groups must name classes 0 to {classes - 1}, each at most once")
        rows = [rows_of(labels, group) for group in groups]
    else:
        rows = [_checked_rows(task, len(labels)).to(labels.device) for task in tasks or ()]
    for task, index in enumerate(rows, 1):
        if not len(index):
            raise ValueError(f"task {task} has no training samples")
    if not rows:
        raise ValueError("there are no tasks in the list; leave it out for a single task")
    return rows


def _checked_rows(task: Array | Sequence[int], n: int) -> Tensor:
    rows = torch.as_tensor(task)
    if not len(rows):
        return torch.empty(0, dtype=torch.int64)
    if rows.ndim != 1 or rows.dtype == torch.bool or rows.is_floating_point():
        raise ValueError(f"a task is a list of row numbers, not {rows.dtype} {list(rows.shape)}")
    if int(rows.min()) < 0 or int(rows.max()) >= n:
        raise ValueError(f"a task names rows outside the {n} training samples")
    return rows.long()


def _collect(dataset: MapDataset) -> Samples:
    n = len(dataset)
    if not n:
        raise ValueError("the dataset is empty")
    inputs: Tensor | None = None
    labels = torch.empty(n, dtype=torch.int64)
    for i in range(n):
        item, label = dataset[i]
        image = _image(item)
        if inputs is None:
            inputs = image.new_empty((n, *image.shape))
        if image.shape != inputs.shape[1:]:
            raise ValueError(
                f"image {i} of the dataset is {list(image.shape)}, "
                f"the first is {list(inputs.shape[1:])}; all must have one size"
            )
        inputs[i] = image
        labels[i] = int(label)
    assert inputs is not None
    return Samples(inputs, labels)


def _image(image: Any) -> Tensor:
    """The image as a tensor; a PIL image as uint8 [channels, height, width]."""
    if not hasattr(image, "getbands"):
        return as_tensor(image)
    picture = image if image.mode in ("L", "RGB") else image.convert("RGB")
    return torch.from_numpy(np.array(picture)).view(*picture.size[::-1], -1).permute(2, 0, 1)
