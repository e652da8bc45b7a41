"""Streams from your own tensors or arrays."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from perdure.arguments import as_count, as_list, as_whole, check_choices, is_list
from perdure.streams.augment import Scale
from perdure.streams.encoder import check_names, first_names
from perdure.streams.holdout import as_ids
from perdure.streams.pairs import Pair, as_tensor, check_samples, make_tests
from perdure.streams.stream import Augment, Normaliser, Stream, Task, Test, checksum_of, rows_of
from perdure.structures import Inputs, shapes
from perdure.user_code import warn_caller

Array: TypeAlias = Tensor | npt.NDArray[Any]
MAX_MISSING = 10_000
"""Labels up to the highest one that may be missing, unless the number of classes is given."""


def from_tensors(
    inputs: Inputs,
    labels: Array,
    *,
    tasks: Sequence[Array | Sequence[int]] | None = None,
    groups: Sequence[Sequence[int]] | None = None,
    test: Pair | None = None,
    tests: Sequence[Pair] | None = None,
    keep_together: Sequence[Hashable] | Array | None = None,
    classes: int | None = None,
    class_names: Sequence[str] = (),
    name: str = "own",
    augment: Augment | None = None,
    normalise: Normaliser | None = None,
    drop_last: bool = False,
    shuffle: bool = True,
) -> Stream:
    """Create a stream from tensors or arrays.

    Without `tasks` and `groups`, the stream is a single task without boundaries. Tensors are not
    copied: do not modify them afterwards.

    Args:
        inputs: Training inputs: a tensor or array [n, ...] of uint8, of floating point in [0, 1]
            or of integers such as token ids; or a dict or tuple, also nested, of them. float64
            is converted to float32.
        labels: Integer labels [n], from 0.
        tasks: Rows of each task. Samples in no task are omitted.
        groups: Classes of each task, instead of `tasks`. Samples of other classes are omitted,
            with a warning.
        test: Test inputs and labels for the whole stream. With `groups`, each task is tested on
            the samples of its classes.
        tests: Test inputs and labels for each task, instead of `test`.
        keep_together: A value for each training sample, such as the patient it comes from. A
            validation split never separates samples with the same value.
        classes: Number of outputs; by default the highest training label plus one. It is needed if
            training samples of more than 10,000 classes are missing.
        class_names: Names of the classes for figures, in the order of the labels.
        name: Name in tables and reports.
        augment: Augmentation of raw training inputs, such as `CropFlip`.
        normalise: Turns raw inputs into the float tensor that the network expects; by default
            bytes are scaled to [0, 1].
        drop_last: Whether an epoch omits the last batch if it is smaller than the others.
        shuffle: Whether the samples of a task are presented in a new random order in each epoch;
            False keeps their order, for data that are sorted by time.

    Raises:
        ValueError: If the data do not fit together.

    >>> inputs, labels = torch.rand(6, 1, 8, 8), torch.tensor([0, 1, 2, 3, 0, 2])
    >>> stream = from_tensors(inputs, labels, groups=[(0, 1), (2, 3)], test=(inputs, labels))
    >>> [len(task.samples().labels) for task in stream.tasks], len(stream.tests), stream.classes
    ([3, 3], 2, 4)
    """
    check_choices((True, False), drop_last=drop_last, shuffle=shuffle)
    if classes is not None:
        classes = as_count("classes", classes)
    groups = _as_groups(groups)
    train = check_samples("training", (inputs, labels), classes=classes)
    if classes is None:
        classes = int(train.labels.max()) + 1
        _check_gaps(train.labels, classes)
    if isinstance(class_names, set | frozenset):
        raise ValueError(
            "class_names is a set; expected a list of names in the order of the labels"
        )
    class_names = tuple(map(str, as_list("class_names", class_names, "a list of names")))
    check_names("class names", class_names)
    if class_names and len(class_names) != classes:
        raise ValueError(
            f"the number of class names is {len(class_names)}, that of classes {classes}; expected "
            "one name per class"
        )
    n = len(train.labels)
    ids = torch.arange(n) if keep_together is None else as_ids(keep_together, n)
    shape = shapes(train.inputs)
    rows = _task_rows(train.labels, tasks, groups, classes)
    make_task = partial(Task, drop_last=drop_last, shuffle=shuffle)
    if rows is None:
        parts = [make_task(name, lambda: train, size=n, ids=ids)]
    else:
        parts = [
            make_task(
                f"task {t}", partial(train.rows, index), size=len(index), ids=ids[index.cpu()]
            )
            for t, index in enumerate(rows, 1)
        ]
    names = [part.name for part in parts]
    held_out = make_tests(names, test, tests, shape, classes, groups)
    if groups is not None:
        _warn_of_unused(train.labels, groups, class_names)
    _warn_of_untested(train.labels, rows, held_out, class_names)
    return Stream(
        name=name,
        data="own",
        classes=classes,
        class_names=class_names,
        shape=shape,
        tasks=parts,
        tests=held_out,
        normalise=normalise or Scale(),
        augment=augment,
        boundaries=rows is not None,
        checksum=checksum_of(
            name,
            int(drop_last),
            *train.tensors(),
            *(rows or ()),
            *(t for x in held_out for t in (*x.source().tensors(), x.rows) if t is not None),
            *(() if keep_together is None else (ids,)),
            *(() if shuffle else ("in order",)),
        ),
    )


def _check_gaps(labels: Tensor, classes: int) -> None:
    """Warn if labels are missing; ValueError if there are too many of them."""
    present = set(np.unique(labels.cpu().numpy()).tolist())
    count = classes - len(present)
    if not count:
        return
    missing = itertools.islice((label for label in range(classes) if label not in present), 11)
    problem = (
        f"no training sample has the label {first_names(list(missing))}, although the highest "
        f"label is {classes - 1}; the network needs {classes} outputs. Renumber the labels from 0, "
        f"or pass classes={classes} if this is intended"
    )
    if count > MAX_MISSING:
        raise ValueError(problem)
    warn_caller(problem)


def _warn_of_unused(
    labels: Tensor, groups: Sequence[Sequence[int]], class_names: Sequence[str]
) -> None:
    found, counts = np.unique(labels.cpu().numpy(), return_counts=True)
    used = {int(c) for group in groups for c in group}
    unused = {c: n for c, n in zip(found.tolist(), counts.tolist(), strict=True) if c not in used}
    if unused:
        names = [class_names[c] if class_names else c for c in unused]
        warn_caller(
            f"{sum(unused.values()):,} training samples are not used, because their classes are in "
            f"no task: {first_names(names)}"
        )


def _warn_of_untested(
    labels: Tensor, rows: Sequence[Tensor] | None, tests: Sequence[Test], class_names: Sequence[str]
) -> None:
    """Warn if training samples have classes that no test has."""
    used = labels if rows is None else torch.cat([labels[index] for index in rows])
    found = set(np.unique(used.cpu().numpy()).tolist())
    tested: set[int] = set()
    for test in tests:
        every = test.source().labels
        chosen = every if test.rows is None else every[test.rows]
        tested.update(np.unique(chosen.cpu().numpy()).tolist())
    if tests and found - tested:
        names = [class_names[c] if class_names else c for c in sorted(found - tested)]
        warn_caller(
            f"no test has samples of class{'es' * (len(names) > 1)} {first_names(names)}; "
            "accuracies do not cover them"
        )


def _as_groups(groups: Any) -> list[list[int]] | None:
    """The classes of each task as ints; ValueError if there is anything else."""
    if groups is None:
        return None
    return [
        [
            as_whole("a class in groups", label)
            for label in as_list("a task in groups", group, "a list of classes")
        ]
        for group in as_list("groups", groups, "a list of classes for each task")
    ]


def _task_rows(
    labels: Tensor,
    tasks: Sequence[Array | Sequence[int]] | None,
    groups: Sequence[Sequence[int]] | None,
    classes: int,
) -> list[Tensor] | None:
    """The rows of each task, on the labels' device; None if the stream has no tasks."""
    if tasks is not None and groups is not None:
        raise ValueError("give either tasks (rows) or groups (classes), not both")
    if groups is not None:
        grouped = [c for group in groups for c in group]
        if len(set(grouped)) < len(grouped) or not all(0 <= c < classes for c in grouped):
            counts = Counter(grouped)
            wrong = next(c for c in grouped if counts[c] > 1 or not 0 <= c < classes)
            raise ValueError(
                f"groups has the class {wrong}; expected 0 to {classes - 1}, each at most once"
            )
        rows = [rows_of(labels, group) for group in groups]
    elif tasks is not None:
        if not is_list(tasks):
            raise ValueError(
                f"tasks is {tasks!r}; expected a list of row numbers for each task, or use groups "
                "for a list of classes for each task"
            )
        rows = [_check_rows(task, len(labels)).to(labels.device) for task in tasks]
    else:
        return None
    for task, index in enumerate(rows, 1):
        if not len(index):
            raise ValueError(f"task {task} has no training samples")
    if not rows:
        raise ValueError("the list of tasks is empty; omit it for a single task")
    return rows


def _check_rows(task: Array | Sequence[int], n: int) -> Tensor:
    if not is_list(task):
        raise ValueError(f"tasks has {task!r}; expected a list of row numbers for each task")
    try:
        rows = as_tensor(task)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"a task is {task!r}; expected a list of row numbers") from None
    if rows.ndim and not len(rows):
        return rows
    fractions = rows.is_floating_point() or rows.is_complex()
    if rows.ndim != 1 or rows.dtype == torch.bool or fractions:
        raise ValueError(
            f"a task is {rows.dtype} {list(rows.shape)}; expected a list of row numbers"
        )
    rows = rows.long()  # torch finds no minimum of uint16, uint32 and uint64
    if int(rows.min()) < 0 or int(rows.max()) >= n:
        raise ValueError(f"a task has rows outside the {n} training samples")
    return rows
