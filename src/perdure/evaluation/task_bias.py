"""Task bias: how a predictor distributes its probability over tasks (Section 6.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from perdure.streams import Test

Kind = Literal["task", "class"]


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
