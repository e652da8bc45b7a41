"""Accuracy of anything that predicts, on the tests of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from remanence.records import Samples
from remanence.streams import Test

CHUNK = 1000
"""Images per forward pass: large enough to be fast, small enough for any device."""


@dataclass(frozen=True)
class Accuracies:
    """Percent right on each test, and on each class over all these tests together."""

    class_il: list[float]
    """Prediction is an argmax over all outputs."""
    task_il: list[float] | None
    """With the other tasks' classes masked; None unless every test names its classes."""
    per_class: list[float | None]
    """By class; None for classes that no test holds."""


def accuracies(predict: Callable[[Tensor], Tensor], tests: Sequence[Test]) -> Accuracies:
    """Evaluate raw images → scores [n, classes] on tests; rows that tests share are scored once.

    >>> samples = Samples(torch.eye(3), torch.tensor([0, 1, 1]))
    >>> accuracies(lambda x: x, [Test("all", lambda: samples, classes=(0, 1))]).class_il
    [66.66666666666667]
    """
    class_il: dict[int, float] = {}
    task_il: dict[int, float] = {}
    answers: list[tuple[Tensor, Tensor]] = []
    outputs = 0
    for group in _by_source(tests):
        samples = tests[group[0]].samples()
        rows = _rows_of([tests[i] for i in group], samples)
        scores, labels = _scores(predict, samples.images, rows), samples.labels[rows]
        right = scores.argmax(dim=1) == labels
        place = torch.empty(len(samples.labels), dtype=torch.int64, device=rows.device)
        place[rows] = torch.arange(len(rows), device=rows.device)
        for i in group:
            test = tests[i]
            own = place if test.rows is None else place[test.rows]
            class_il[i] = _percent(right[own])
            if test.classes is not None:
                columns = torch.tensor(test.classes, device=rows.device)
                answer = columns[scores[own][:, columns].argmax(dim=1)]
                task_il[i] = _percent(answer == labels[own])
        answers.append((labels, right))
        outputs = scores.shape[1]
    return Accuracies(
        class_il=[class_il[i] for i in range(len(tests))],
        task_il=[task_il[i] for i in range(len(tests))] if len(task_il) == len(tests) else None,
        per_class=_per_class(answers, outputs),
    )


def _per_class(answers: Sequence[tuple[Tensor, Tensor]], classes: int) -> list[float | None]:
    labels = torch.cat([part for part, _ in answers])
    right = torch.cat([part for _, part in answers])
    hits = torch.bincount(labels[right], minlength=classes).tolist()
    counts = torch.bincount(labels, minlength=classes).tolist()
    return [100 * hit / count if count else None for hit, count in zip(hits, counts, strict=True)]


def _by_source(tests: Sequence[Test]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for i, test in enumerate(tests):
        groups.setdefault(id(test.samples), []).append(i)
    return list(groups.values())


def _rows_of(tests: Sequence[Test], samples: Samples) -> Tensor:
    """The rows that these tests use, each once, in order."""
    used = torch.zeros(len(samples.labels), dtype=torch.bool, device=samples.labels.device)
    for test in tests:
        used[slice(None) if test.rows is None else test.rows] = True
    return used.nonzero().squeeze(1)


def _scores(predict: Callable[[Tensor], Tensor], images: Tensor, rows: Tensor) -> Tensor:
    return torch.cat([predict(images[chunk]) for chunk in torch.split(rows, CHUNK)])


def _percent(right: Tensor) -> float:
    return 100 * int(right.sum()) / len(right)
