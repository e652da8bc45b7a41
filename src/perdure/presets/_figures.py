"""Published results: the tables of the paper, and measurements of the published code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any

from perdure.presets._toml import read

_MEASURED = "measured from the published code"


@dataclass(frozen=True)
class Figure:
    """A published accuracy.

    Attributes:
        table: Number of the paper's table ("1" to "S3"), or "measured from the published code".
        stream: The stream's name.
        method: The method's name.
        buffer_size: None for methods without a memory.
        predictor: The network (stable, plastic or working) if the table tells them apart.
        mean: Mean over runs, percent.
        std: Standard deviation over runs; None for a single run.
        settings: Further values of the row: the hyperparameters of Table S3, or the number of
            runs and the time of the published code.
    """

    table: str
    stream: str
    method: str
    buffer_size: int | None
    predictor: str | None
    mean: float
    std: float | None
    settings: Mapping[str, int | float] = field(default_factory=dict)


def paper_figures(
    table: str | None = None,
    stream: str | None = None,
    method: str | None = None,
    buffer_size: int | EllipsisType | None = ...,
    predictor: str | None = None,
) -> list[Figure]:
    """The matching figures of the paper, in its order.

    Args:
        table: Number of the table; any if None.
        stream: A stream's name; any if None.
        method: A method's name; any if None.
        buffer_size: A buffer size; None for methods without a memory, any if `...`.
        predictor: A network's name; any if None.

    >>> [f.mean for f in paper_figures(table="1", stream="s-mnist", method="clser")]
    [89.54, 92.05, 95.73]
    >>> [(f.method, f.mean) for f in paper_figures(table="2", buffer_size=None)]
    [('joint', 82.98), ('sgd', 19.09)]
    """
    return [
        figure
        for figure in _paper()
        if table in (None, figure.table)
        and stream in (None, figure.stream)
        and method in (None, figure.method)
        and buffer_size in (..., figure.buffer_size)
        and predictor in (None, figure.predictor)
    ]


def published_code_figures() -> list[Figure]:
    """Results of running the published code on MNIST; these are not figures of the paper.

    >>> for figure in published_code_figures()[:2]:
    ...     print(figure.stream, figure.buffer_size, figure.mean, figure.settings["runs"])
    s-mnist 200 88.62 5
    s-mnist 500 91.77 5
    """
    return [_figure(_MEASURED, **row) for row in read("paper")[_MEASURED]["rows"]]


def _paper() -> Iterator[Figure]:
    paper = read("paper")
    for table, streams in paper["tables"].items():
        for stream, section in streams.items():
            yield from _table(table, stream, **section)
    for table, sweep in paper["sweeps"].items():
        yield from _sweep(table, **sweep)


def _table(table: str, stream: str, buffers: list[int], **rows: Any) -> Iterator[Figure]:
    """Rows by method, or by method and predictor; cells by buffer size, or a single one."""
    for method, row in rows.items():
        for predictor, cells in row.items() if isinstance(row, dict) else [(None, row)]:
            if isinstance(cells, str):
                yield _figure(table, stream, method, None, cells, predictor)
            else:
                for buffer_size, cell in zip(buffers, cells, strict=True):
                    yield _figure(table, stream, method, buffer_size, cell, predictor)


def _sweep(
    table: str,
    stream: str,
    method: str,
    buffer_size: int,
    columns: list[str],
    rows: list[list[Any]],
) -> Iterator[Figure]:
    """Each row has numbers (the hyperparameters), then accuracies (the predictors)."""
    for row in rows:
        named = dict(zip(columns, row, strict=True))
        settings = {name: cell for name, cell in named.items() if not isinstance(cell, str)}
        for predictor, cell in named.items():
            if isinstance(cell, str):
                yield _figure(table, stream, method, buffer_size, cell, predictor, **settings)


def _figure(
    table: str,
    stream: str,
    method: str,
    buffer_size: int | None,
    accuracy: str,
    predictor: str | None = None,
    **settings: int | float,
) -> Figure:
    """A figure from an accuracy as printed: "89.54±0.21", or "92.73" for a single run."""
    mean, _, std = accuracy.partition("±")
    deviation = float(std) if std else None
    return Figure(table, stream, method, buffer_size, predictor, float(mean), deviation, settings)
