"""Accuracy of anything that predicts, on the tests of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from perdure.evaluation.answers import Answers, Predict, ask
from perdure.streams import Test


@dataclass(frozen=True)
class Accuracies:
    """Percent right on each test, and on each class over all these tests together."""

    class_il: list[float]
    """Prediction is an argmax over all outputs."""
    task_il: list[float] | None
    """With the other tasks' classes masked; None unless every test names its classes."""
    per_class: list[float | None]
    """By class; None for classes that no test holds."""


def accuracies(predict: Predict, tests: Sequence[Test]) -> Accuracies:
    """Evaluate raw images → scores [n, classes] on tests; rows that tests share are scored once.

    >>> from perdure import Samples
    >>> samples = Samples(torch.eye(3), torch.tensor([0, 1, 1]))
    >>> accuracies(lambda x: x, [Test("all", lambda: samples, classes=(0, 1))]).class_il
    [66.66666666666667]
    """
    return accuracies_of(ask(predict, tests), tests)


def accuracies_of(found: Sequence[Answers], tests: Sequence[Test]) -> Accuracies:
    """The accuracies in what a predictor answered to these tests."""
    class_il: dict[int, float] = {}
    task_il: dict[int, float] = {}
    answered: list[tuple[Tensor, Tensor]] = []
    outputs = 0
    for group, scores, labels, place in found:
        right = scores.argmax(dim=1) == labels
        for i in group:
            test = tests[i]
            own = place if test.rows is None else place[test.rows]
            class_il[i] = _percent(right[own])
            if test.classes is not None:
                columns = torch.tensor(test.classes, device=labels.device)
                answer = columns[scores[own][:, columns].argmax(dim=1)]
                task_il[i] = _percent(answer == labels[own])
        answered.append((labels, right))
        outputs = scores.shape[1]
    return Accuracies(
        class_il=[class_il[i] for i in range(len(tests))],
        task_il=[task_il[i] for i in range(len(tests))] if len(task_il) == len(tests) else None,
        per_class=_per_class(answered, outputs),
    )


def _per_class(answers: Sequence[tuple[Tensor, Tensor]], classes: int) -> list[float | None]:
    labels = torch.cat([part for part, _ in answers])
    right = torch.cat([part for _, part in answers])
    hits = torch.bincount(labels[right], minlength=classes).tolist()
    counts = torch.bincount(labels, minlength=classes).tolist()
    return [100 * hit / count if count else None for hit, count in zip(hits, counts, strict=True)]


def _percent(right: Tensor) -> float:
    return 100 * int(right.sum()) / len(right)
