"""Numbers computed from accuracies.

An accuracy matrix has one row before training and one after each task, and one column per test.
Entries are in percent, or None where nothing was evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

Matrix = Sequence[Sequence[float | None]]


def mean_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation (None for a single value).

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
    """Mean drop of each test but the last from its best accuracy; None for a single task.

    >>> forgetting([[0.0, 0.0], [90.0, 10.0], [70.0, 80.0]])
    20.0
    """
    return _mean(
        max(value for row in matrix[1:-1] if (value := row[j]) is not None) - last
        for j, last in _earlier(matrix)
    )


def incremental_accuracy(matrix: Matrix) -> float | None:
    """Mean over the tasks of the accuracy on all tests so far.

    Also called average incremental accuracy. None for a single task, or if an entry is missing.

    >>> incremental_accuracy([[0.0, 0.0], [90.0, 10.0], [70.0, 80.0]])
    82.5
    """
    means: list[float] = []
    for seen, row in enumerate(matrix[1:], start=1):
        known = [value for value in row[:seen] if value is not None]
        if len(known) < seen:
            return None
        means.append(math.fsum(known) / seen)
    return _mean(means) if len(means) > 1 else None


def backward_transfer(matrix: Matrix) -> float | None:
    """Mean change of each test but the last since its own task; negative means forgetting.

    >>> backward_transfer([[0.0, 0.0], [90.0, 10.0], [70.0, 80.0]])
    -20.0
    """
    return _mean(last - _value(matrix[j + 1][j]) for j, last in _earlier(matrix))


def forward_transfer(matrix: Matrix) -> float | None:
    """Mean accuracy on each test just before its own task, minus that before training.

    >>> forward_transfer([[5.0, 5.0], [90.0, 10.0], [70.0, 80.0]])
    5.0
    """
    return _mean(
        _value(matrix[j][j]) - _value(matrix[0][j])
        for j in range(1, min(len(matrix) - 1, len(matrix[0])))
    )


def _earlier(matrix: Matrix) -> list[tuple[int, float]]:
    """The tests of all tasks but the last, with their final accuracy."""
    return [(j, _value(matrix[-1][j])) for j in range(len(matrix) - 2)]


def _value(entry: float | None) -> float:
    assert entry is not None, "the matrix lacks an entry that every run has"
    return entry


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return math.fsum(found) / len(found) if found else None
