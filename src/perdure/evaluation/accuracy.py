"""Predictions on tests, computed once for all measures; accuracy, confusion and agreement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from perdure.streams import Test
from perdure.structures import Inputs, chunk_size, select

ScoreFunction = Callable[[Inputs], Tensor]
"""Raw inputs to scores [n, classes], such as logits. Learners' predictors are such functions."""
OnScored = Callable[[int], None]
"""Called after every forward pass with its number of samples."""


class Predictions(NamedTuple):
    """Scores for one set of samples that tests share."""

    tests: list[int]
    """Numbers of the tests."""
    scores: Tensor
    """[n, classes], one row for each sample that a test uses, in order; -inf for classes that the
    predictor does not have yet."""
    labels: Tensor
    """[n]."""
    position: Tensor
    """Maps a row of the samples to its row in `scores`."""


def predict(
    score: ScoreFunction, tests: Sequence[Test], *, on_scored: OnScored = lambda samples: None
) -> list[Predictions]:
    """Compute the scores of all samples that tests use, each once; one item per set of samples."""
    found = []
    for group in _groups(tests):
        samples = tests[group[0]].source()
        labels = samples.labels.long()
        position = rows = torch.arange(len(labels), device=labels.device)
        if all(tests[i].rows is not None for i in group):
            used = torch.zeros(len(labels), dtype=torch.bool, device=labels.device)
            for i in group:
                used[tests[i].rows] = True
            rows = used.nonzero().squeeze(1)
            position = torch.empty_like(position)
            position[rows] = torch.arange(len(rows), device=rows.device)
            labels = labels[rows]
        scores = predict_rows(score, samples.inputs, rows, on_scored=on_scored)
        found.append(Predictions(group, scores, labels, position))
    known = [max(test.classes) for test in tests if test.classes]
    classes = 1 + max(*_numbers([p.labels.max() for p in found]), *known, 0)
    missing = classes - found[0].scores.shape[1]
    if missing <= 0:
        return found
    return [p._replace(scores=F.pad(p.scores, (0, missing), value=-torch.inf)) for p in found]


def _groups(tests: Sequence[Test]) -> list[list[int]]:
    """The numbers of the tests that share a set of samples."""
    groups: dict[int, list[int]] = {}
    for i, test in enumerate(tests):
        groups.setdefault(id(test.source), []).append(i)
    return list(groups.values())


def predict_rows(
    score: ScoreFunction,
    inputs: Inputs,
    rows: Tensor,
    *,
    on_scored: OnScored = lambda samples: None,
) -> Tensor:
    """Scores [n, classes] of these rows, computed in chunks."""
    scores = []
    for chunk in torch.split(rows, chunk_size(inputs)):
        scores.append(score(select(inputs, chunk)))
        on_scored(len(chunk))
    return torch.cat(scores)


def count_rows(tests: Sequence[Test], *, load: bool = False) -> int | None:
    """Number of samples that `predict` scores; None if that takes loading them, unless `load`."""
    count = 0
    for group in _groups(tests):
        rows = [rows for i in group if (rows := tests[i].rows) is not None]
        if len(rows) == len(group):
            count += len(set(torch.cat(rows).tolist()))
        elif load:
            count += len(tests[group[0]].source().labels)
        else:
            return None
    return count


@dataclass(frozen=True)
class Accuracies:
    """Accuracy in percent on each test, and on each class over all these tests."""

    class_il: list[float]
    """Class-IL: the prediction is the argmax over all outputs."""
    task_il: list[float] | None
    """Task-IL: the classes of other tasks are masked; None unless all tests define classes."""
    per_class: list[float | None]
    """Accuracy of each class; None for classes without test samples."""


def accuracies(score: ScoreFunction, tests: Sequence[Test]) -> Accuracies:
    """Evaluate a predictor on tests. Samples that tests share are scored once.

    >>> from perdure import Samples
    >>> samples = Samples(torch.eye(3), torch.tensor([0, 1, 1]))
    >>> accuracies(lambda x: x, [Test("all", lambda: samples, classes=(0, 1))]).class_il
    [66.66666666666667]
    """
    return accuracies_of(predict(score, tests), tests)


def accuracies_of(predictions: Sequence[Predictions], tests: Sequence[Test]) -> Accuracies:
    """Accuracies of the predictions that `predict` made for these tests."""
    class_il: dict[int, Tensor] = {}
    task_il: dict[int, Tensor] = {}
    hits = counts = torch.zeros((), dtype=torch.int64)
    # Results stay on the device until all are computed: reading each would make the host wait.
    for group, scores, labels, position in predictions:
        correct = scores.argmax(dim=1) == labels
        for i in group:
            test = tests[i]
            rows = position if test.rows is None else position[test.rows]
            class_il[i] = _percent(correct[rows])
            if test.classes is not None:
                columns = torch.tensor(test.classes, device=labels.device)
                predicted = columns[scores[rows][:, columns].argmax(dim=1)]
                task_il[i] = _percent(predicted == labels[rows])
        none = torch.zeros(scores.shape[1], dtype=torch.int64, device=labels.device)
        hits = hits.to(labels.device) + none.index_add(0, labels, correct.long())
        counts = counts.to(labels.device) + none.index_add(0, labels, torch.ones_like(labels))
    return Accuracies(
        class_il=_numbers([class_il[i] for i in range(len(tests))]),
        task_il=_numbers([task_il[i] for i in range(len(tests))])
        if len(task_il) == len(tests)
        else None,
        per_class=[
            100 * hit / count if count else None
            for hit, count in zip(hits.tolist(), counts.tolist(), strict=True)
        ],
    )


def _percent(correct: Tensor) -> Tensor:
    if not len(correct):
        raise ValueError("a test has no samples")
    return 100 * correct.sum().double() / len(correct)


def _numbers(scalars: list[Tensor]) -> list[Any]:
    """Read scalars, waiting once for their device."""
    return torch.stack([scalar.to(scalars[0].device) for scalar in scalars]).tolist()


@dataclass(frozen=True)
class Confusion:
    """Confusion matrix."""

    classes: list[int]
    counts: list[list[int]]
    """One row for each true class, one column for each predicted class."""


def confusion(scores: Tensor, labels: Tensor) -> Confusion:
    """Count samples by true and predicted class, from scores [n, classes] and labels [n].

    >>> confusion(torch.eye(3)[[0, 1, 1]], torch.tensor([0, 1, 2])).counts
    [[1, 0, 0], [0, 1, 0], [0, 1, 0]]
    """
    classes = scores.shape[1]
    pairs = labels * classes + scores.argmax(dim=1)
    counts = torch.bincount(pairs, minlength=classes**2).view(classes, classes)
    return Confusion(list(range(classes)), counts.tolist())


@dataclass(frozen=True)
class Agreement:
    """Agreement of predictors."""

    predictors: list[str]
    matrix: list[list[float]]
    """Share of samples for which two predictors predict the same class."""


def agreement(scores: Mapping[str, Tensor]) -> Agreement:
    """Compare several predictors by their scores [n, classes] for the same samples.

    >>> agreement({"a": torch.eye(4), "b": torch.eye(4)[[0, 1, 2, 2]]}).matrix
    [[1.0, 0.75], [0.75, 1.0]]
    """
    predicted = [part.argmax(dim=1) for part in scores.values()]
    matrix = [[float((a == b).double().mean()) for b in predicted] for a in predicted]
    return Agreement(list(scores), matrix)
