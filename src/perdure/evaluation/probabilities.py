"""Measures of predicted probabilities.

Calibration: whether accuracy equals confidence (Guo et al., 2017). Task bias: how a predictor
distributes its probability over tasks (Section 6.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from perdure.streams import Test

BINS = 15
Kind = Literal["task", "class"]


@dataclass(frozen=True)
class Bin:
    """Predictions with a confidence in [lower, upper); the last bin includes 1."""

    lower: float
    upper: float
    count: int
    accuracy: float | None
    """Share of correct predictions; None for an empty bin."""
    confidence: float | None
    """Mean confidence; None for an empty bin."""


@dataclass(frozen=True)
class Calibration:
    """Reliability diagram and expected calibration error."""

    ece: float
    """Expected calibration error: mean of |accuracy − confidence| of the bins, by their counts."""
    bins: list[Bin]


def calibration(scores: Tensor, labels: Tensor, *, bins: int = BINS) -> Calibration:
    """Compare confidence, the largest softmax output, with accuracy, in bins of equal width.

    Computed in float64: in float32 a difference of 17 between logits already gives confidence 1.

    >>> scores = torch.tensor([[0.0, 3.0], [0.0, 3.0], [3.0, 0.0], [3.0, 0.0]])
    >>> found = calibration(scores, torch.tensor([1, 1, 0, 1]), bins=2)
    >>> round(found.ece, 3), [part.accuracy for part in found.bins]
    (0.203, [None, 0.75])
    """
    confidence, predicted = scores.double().softmax(dim=1).max(dim=1)
    correct = (predicted == labels).double()
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=scores.device)
    bin_of = (torch.bucketize(confidence, edges, right=True) - 1).clamp_(max=bins - 1)
    counts, confidences, hits = (
        torch.zeros(bins, dtype=torch.float64, device=scores.device)
        .index_add_(0, bin_of, values)
        .tolist()
        for values in (torch.ones_like(correct), confidence, correct)
    )
    found = [
        Bin(
            lower=lower,
            upper=upper,
            count=int(count),
            accuracy=hit / count if count else None,
            confidence=total / count if count else None,
        )
        for lower, upper, count, hit, total in zip(
            edges[:-1].tolist(), edges[1:].tolist(), counts, hits, confidences, strict=True
        )
    ]
    gaps = sum(abs(hit - total) for hit, total in zip(hits, confidences, strict=True))
    return Calibration(ece=gaps / len(labels), bins=found)


@dataclass(frozen=True)
class TaskProbabilities:
    """Probability of predicting each task, over all test samples."""

    names: list[str]
    kind: Kind
    """Whether the names are tasks, or classes because tasks do not partition the classes."""
    mass: list[float]
    """Probability for each name; sums to 1."""


def task_probabilities(
    scores: Tensor, groups: Mapping[str, Sequence[int]], kind: Kind
) -> TaskProbabilities:
    """Average softmax outputs over samples and over the classes of each task, normalised to 1.

    Because of the average over classes, tasks with more classes do not have a larger share.
    `groups` has the classes of each task.

    >>> scores = torch.tensor([[0.25, 0.25, 0.5], [0.25, 0.25, 0.5]]).log()
    >>> found = task_probabilities(scores, {"first": (0, 1), "second": (2,)}, "task")
    >>> [round(share, 3) for share in found.mass]
    [0.333, 0.667]
    """
    per_class = scores.double().softmax(dim=1).mean(dim=0)
    averages = [float(per_class[list(classes)].mean()) for classes in groups.values()]
    total = math.fsum(averages)
    return TaskProbabilities(list(groups), kind, [average / total for average in averages])


def groups_of(tests: Sequence[Test], labels: Tensor) -> tuple[dict[str, Sequence[int]], Kind]:
    """The classes of each task, or single classes if tasks do not partition the classes."""
    named = {test.name: test.classes for test in tests if test.classes is not None}
    classes = [c for group in named.values() for c in group]
    if len(named) == len(tests) > 1 and len(set(classes)) == len(classes):
        return dict(named), "task"
    return {str(c): (c,) for c in torch.unique(labels).tolist()}, "class"
