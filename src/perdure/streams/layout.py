"""How labelled samples with named classes are divided into tasks, training and test samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from perdure.arguments import as_count, is_list
from perdure.records import Samples
from perdure.streams.encoder import Encoder, class_text, first_names, labels_of
from perdure.streams.from_tensors import from_tensors
from perdure.streams.holdout import hold_out
from perdure.streams.stream import Stream, rows_of
from perdure.user_code import warn_caller

TEST_SHARE = 0.2
"""Share of the samples that are held out as tests unless the user says otherwise."""


@dataclass(frozen=True)
class Layout:
    """Tasks, by classes or by samples; neither for a stream that is a single task.

    Attributes:
        names: Names of the tasks.
        groups: Labels of each task.
        rows: Samples of each task.
    """

    names: Sequence[str] = ()
    groups: Sequence[Sequence[int]] | None = None
    rows: Sequence[Tensor] | None = None

    @classmethod
    def by_classes(
        cls, tasks: int | Sequence[Sequence[Any]] | None, classes: Sequence[str]
    ) -> Layout:
        """Tasks with the classes that the user lists, or that many tasks of successive classes.

        Raises:
            ValueError: If there are too few classes, one is unknown, or this is neither a number
                nor lists of classes.

        >>> Layout.by_classes(2, ["ant", "bee", "cat"]).groups
        [[0, 1], [2]]
        """
        if tasks is None:
            return cls()
        if isinstance(tasks, int) or not is_list(tasks):
            parts = as_count("tasks", tasks, len(classes), "classes")
            groups = [part.tolist() for part in torch.arange(len(classes)).tensor_split(parts)]
        else:
            groups = []
            for task in tasks:
                if not is_list(task):
                    raise ValueError(
                        f"tasks has {task!r}; expected a list of classes for each task"
                    )
                names = [class_text(name, classes) or str(name) for name in task]
                groups.append(labels_of(names, classes, "the data").tolist())
            counts = Counter(label for group in groups for label in group)
            if twice := [classes[label] for label, count in counts.items() if count > 1]:
                raise ValueError(
                    f"tasks has the class {twice[0]!r} twice; expected each class at most once"
                )
        return cls([_listed([classes[label] for label in group]) for group in groups], groups)

    @classmethod
    def by_value(cls, values: Sequence[str]) -> Layout:
        """A task for each value, in the order in which they first appear.

        >>> Layout.by_value(["may", "may", "june"]).rows
        [tensor([0, 1]), tensor([2])]
        """
        found: dict[str, list[int]] = {}
        for row, value in enumerate(values):
            found.setdefault(value, []).append(row)
        return cls(list(found), rows=[torch.tensor(rows) for rows in found.values()])

    @classmethod
    def in_chunks(cls, chunks: int, n: int) -> Layout:
        """That many tasks of successive samples."""
        chunks = as_count("chunks", chunks, n, "training samples")
        parts = torch.arange(n).tensor_split(chunks)
        return cls([f"part {number}" for number in range(1, chunks + 1)], rows=list(parts))

    def parts(self, labels: Tensor) -> list[Tensor]:
        """The samples of each task."""
        if self.groups is not None:
            return [rows_of(labels, group) for group in self.groups]
        return [torch.arange(len(labels))] if self.rows is None else list(self.rows)

    def hold_out(self, labels: Tensor, ids: Tensor, share: float) -> list[Tensor]:
        """A share of every class of each task, as tests; an empty list if the share is 0."""
        if share == 0:
            return []
        parts = self.parts(labels)
        masks = hold_out([ids[part] for part in parts], [labels[part] for part in parts], share)
        return [part[mask] for part, mask in zip(parts, masks, strict=True)]


def warn_of_single_class(known: Sequence[str], classes: Sequence[str]) -> None:
    """Warn if the first data have a single class; `known` are the classes of earlier data."""
    if not known and len(classes) == 1:
        warn_caller(
            f"the data have a single class, {classes[0]!r}; there is nothing to learn until a "
            "learner with grow=True receives another class"
        )


def warn_of_cases(known: Sequence[str], classes: Sequence[str], what: str) -> None:
    """Warn if new names of classes differ from other names only in case; `known` come first."""
    cases = {name.casefold(): name for name in known}
    pairs = [(name, cases.setdefault(name.casefold(), name)) for name in classes[len(known) :]]
    if alike := [f"{name!r} and {other!r}" for name, other in pairs if name != other]:
        warn_caller(
            f"{what} classes that differ only in case: {first_names(alike)}; if they are the same, "
            "change the spelling"
        )


def is_trained(n: int, held_out: Sequence[Tensor]) -> Tensor:
    """Whether each of n samples is trained on: all but those that are held out."""
    trained = torch.ones(n, dtype=torch.bool)
    for rows in held_out:
        trained[rows] = False
    return trained


def build_stream(
    samples: Samples,
    layout: Layout,
    held_out: Sequence[Tensor],
    ids: Tensor,
    encoder: Encoder,
    *,
    test: Samples | None = None,
    test_tasks: Sequence[str] | None = None,
    **options: Any,
) -> Stream:
    """A stream from samples that are divided into tasks.

    `held_out` are the rows of the samples that are tests, by task. Samples with the same id are
    never separated. `test` are further samples as tests, and `test_tasks` the task of each of them
    if they are divided. The options are of `from_tensors`.
    """
    rows, tests = layout.rows, None
    if test is not None and test_tasks is not None:
        found = Layout.by_value(test_tasks)
        by_task = dict(zip(found.names, found.rows or (), strict=True))
        if missing := [name for name in layout.names if name not in by_task]:
            raise ValueError(f"there are no test samples of the task {missing[0]}")
        tests, test = [test.rows(by_task[name]) for name in layout.names], None
    train = samples
    if held_out:
        trained = is_trained(len(samples.labels), held_out)
        kept = trained.nonzero().squeeze(1)
        train, ids = samples.rows(kept), ids[kept]
        if rows is None:
            test = samples.rows(torch.cat(list(held_out)))
        else:
            tests = [samples.rows(part) for part in held_out]
            place = trained.cumsum(0) - 1
            rows = [place[index[trained[index]]] for index in rows]
    stream = from_tensors(
        train.inputs,
        train.labels,
        tasks=rows,
        groups=layout.groups,
        test=test,
        tests=tests,
        keep_together=ids,
        classes=len(encoder.class_names),
        class_names=encoder.class_names,
        **options,
    )
    for task, name in zip(stream.tasks, layout.names, strict=False):
        task.name = name
    named = list(stream.tests)
    if len(named) == len(layout.names):
        named = [replace(t, name=n) for t, n in zip(named, layout.names, strict=True)]
    return replace(stream, tests=named, encoder=encoder)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} to {names[-1]}"
