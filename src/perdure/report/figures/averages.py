"""Means over seeds, of curves and of matrices."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.evaluation import mean_std
from perdure.report.charts import Values


def mean_curve(curves: Sequence[Sequence[float | None]]) -> tuple[Values, Values | None]:
    """Mean and standard deviation of each point; None where any seed has no value.

    >>> mean_curve([[1.0, 2.0], [3.0, None]])
    ((2.0, None), (1.4142135623730951, None))
    """
    means: list[float | None] = []
    stds: list[float | None] = []
    for values in zip(*curves, strict=True):
        known = [v for v in values if v is not None]
        mean, std = mean_std(known) if len(known) == len(values) else (None, None)
        means.append(mean)
        stds.append(std)
    return tuple(means), None if all(std is None for std in stds) else tuple(stds)


def mean_matrix(matrices: Sequence[Sequence[Sequence[float | None]]]) -> list[Values] | None:
    """The mean of each cell; None if there are no matrices or if their shapes differ.

    >>> mean_matrix([[[1.0, None]], [[3.0, 5.0]]])
    [(2.0, None)]
    """
    shapes = {tuple(len(row) for row in matrix) for matrix in matrices}
    if len(shapes) != 1:
        return None
    return [mean_curve(rows)[0] for rows in zip(*matrices, strict=True)]


def sums(rows: Sequence[Sequence[float]]) -> list[float]:
    """The sum of each column.

    >>> sums([[1, 2], [3, 4]])
    [4.0, 6.0]
    """
    return [float(sum(column)) for column in zip(*rows, strict=True)]
