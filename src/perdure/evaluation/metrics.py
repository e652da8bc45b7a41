"""Numbers from an accuracy matrix.

A matrix has a row per moment (before training, then after each task) and a column per test, in
percent; None where nothing was evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Matrix = Sequence[Sequence[float | None]]


def mean_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation, which one value does not have.

    >>> mean_std([1.0, 3.0])
    (2.0, 1.4142135623730951)
    >>> mean_std([1.0])
    (1.0, None)
    """
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def forgetting(matrix: Matrix) -> float | None:
    """How far each test but the last fell from its best, on average; None for a single task.

    >>> forgetting([[0.0, 0.0], [90.0, 10.0], [70.0, 80.0]])
    20.0
    """
    drops = [max(_known(row[j] for row in matrix[1:-1])) - last for j, last in _earlier(matrix)]
    return _mean(drops) if drops else None


def backward_transfer(matrix: Matrix) -> float | None:
    """What later learning did to each test since its own task: below zero is forgetting.

    >>> backward_transfer([[0.0, 0.0], [90.0, 10.0], [70.0, 80.0]])
    -20.0
    """
    changes = [last - _value(matrix[j + 1][j]) for j, last in _earlier(matrix)]
    return _mean(changes) if changes else None


def forward_transfer(matrix: Matrix) -> float | None:
    """Accuracy on each test just before its own task, above that of the untrained network.

    >>> forward_transfer([[5.0, 5.0], [90.0, 10.0], [70.0, 80.0]])
    5.0
    """
    gains = [
        _value(matrix[j][j]) - _value(matrix[0][j])
        for j in range(1, min(len(matrix) - 1, len(matrix[0])))
    ]
    return _mean(gains) if gains else None


def _earlier(matrix: Matrix) -> list[tuple[int, float]]:
    """The tests of all tasks but the last, with their final accuracy."""
    return [(j, _value(matrix[-1][j])) for j in range(len(matrix) - 2)]


def _value(entry: float | None) -> float:
    assert entry is not None, "the matrix lacks an entry that every run has"
    return entry


def _known(row: object) -> list[float]:
    return [v for v in row if v is not None]  # type: ignore[attr-defined]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
