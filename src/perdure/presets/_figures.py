"""The figures to compare with: the paper's tables, and what the published code really gave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any

from perdure.presets._toml import read

_MEASURED = "measured from the published code"


@dataclass(frozen=True)
class Figure:
    """A published accuracy in per cent, with its standard deviation over runs."""

    table: str
    """As the paper numbers them, "1" to "S3", or "measured from the published code"."""
    stream: str
    method: str
    buffer_size: int | None
    predictor: str | None
    """The network that answered, where the table tells them apart: stable, working, plastic."""
    mean: float
    std: float | None
    """None: a single run."""
    settings: Mapping[str, int | float] = field(default_factory=dict)
    """What else the row says: S3's hyperparameters; runs and times of the published code."""


def paper_figures(
    table: str | None = None,
    stream: str | None = None,
    method: str | None = None,
    buffer_size: int | EllipsisType | None = ...,
    predictor: str | None = None,
) -> list[Figure]:
    """The paper's figures that fit, in its order; what is not given does not matter.

    `buffer=None` asks for the figures without a buffer (JOINT, SGD).

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
    """What the published code gave when run on real MNIST: not figures of the paper.

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
    """Rows by method, or by method and predictor; cells by buffer, or one without a buffer."""
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
    """Rows of numbers (the settings), then of cells (the predictors)."""
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
    """`accuracy` as printed: "89.54±0.21", or "92.73" of a single run."""
    mean, _, std = accuracy.partition("±")
    deviation = float(std) if std else None
    return Figure(table, stream, method, buffer_size, predictor, float(mean), deviation, settings)
