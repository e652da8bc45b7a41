"""Published hyperparameters and results.

One TOML file per method has its hyperparameters by stream and buffer size; `paper.toml` has the
tables of the CLS-ER paper. The published settings for MNIST-360 do not mention epochs; one epoch
is assumed. This package does not import torch.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from types import EllipsisType
from typing import Any, Literal, NamedTuple

_SAME_AS = {"joint": "sgd"}
"""JOINT is SGD on all tasks at once."""
_SIMILAR_METHODS = {
    "mean-er": "clser",
    "der": "derpp",
    "derpp": "der",
    **dict.fromkeys(("er-ace", "fdr", "gem", "agem", "gss", "mer", "icarl"), "er"),
}
_RENAMED = {"mean-er": {"stable_rate": "rate", "stable_decay": "decay"}}
"""Hyperparameters that have another name in the similar method."""
_FIXED = {"mer": {"batch": 1}}
"""Hyperparameters that are not taken from the similar method."""
_SIMILAR_STREAMS = {
    "s-cifar100-5x20": "s-cifar10",
    "s-cifar100-10x10": "s-cifar10",
    "gcil-cifar100-uniform": "gcil-cifar100-longtail",
    "gcil-cifar100-longtail": "gcil-cifar100-uniform",
}
_MEASURED = "measured from the published code"
README = "README of the published code"
"""What `Figure.table` is for figures that are not in the paper."""


@cache
def _read(name: str) -> dict[str, Any]:
    """The content of `<name>.toml`; cached, so callers must not modify it."""
    file = resources.files("perdure.presets").joinpath(f"{name}.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


# -- hyperparameters ------------------------------------------------------------------------


@dataclass(frozen=True)
class Preset:
    """Hyperparameters for a method on a stream.

    Attributes:
        values: The hyperparameters.
        notes: What was substituted, one sentence each; empty for an exact match.
        source: Where they come from.
    """

    values: Mapping[str, int | float]
    notes: tuple[str, ...] = ()
    source: str = ""

    @property
    def is_published(self) -> bool:
        """Whether the values were published, unlike those found by a search."""
        return self.source.startswith(("paper,", "released with the published code"))


class _Row(NamedTuple):
    """One row of a method's file."""

    buffer_size: int | None
    values: Mapping[str, int | float]
    source: str


def find(method: str, stream: str, buffer_size: int | None) -> Preset | None:
    """The published hyperparameters, the closest substitute, or None.

    Tried in this order: this stream and buffer size; the published buffer size that is nearest
    in ratio (the smaller of two); a similar stream; a similar method, of which only the
    hyperparameters that both have are used. A substitute may therefore lack some.

    Args:
        method: A method's name.
        stream: A stream's name.
        buffer_size: Samples that the memory holds, at least 1; None for methods without a memory.

    >>> find("clser", "s-mnist", 500).values["consistency_weight"]
    2.0
    >>> find("er", "s-mnist", 300).notes
    ('er has no published settings for s-mnist with buffer 300; using those for buffer 200',)
    >>> find("er", "my-stream", 300) is None
    True
    """
    own = _SAME_AS.get(method, method)
    sources = (own, _SIMILAR_METHODS.get(method))
    origins = (stream, _SIMILAR_STREAMS.get(stream))
    for source, origin in itertools.product(sources, origins):
        row = _nearest(_rows(source).get(origin or "", ()), buffer_size)
        if row is None:
            continue
        values, name, notes = dict(row.values), method, []
        if source != own:
            name, fixed = str(source), _FIXED.get(method, {})
            renamed = {_RENAMED.get(method, {}).get(k, k): v for k, v in values.items()}
            known = {key for rows in _rows(own).values() for one in rows for key in one.values}
            values = {k: v for k, v in {**renamed, **fixed}.items() if k in known or not known}
            used = ", ".join(key for key in values if key not in fixed)
            always = "".join(f"; {key} is always {value}" for key, value in fixed.items())
            notes.append(
                f"{method} has no published settings for {stream}; using {used} of {name}{always}"
            )
        if origin != stream:
            notes.append(f"{name} has no published settings for {stream}; using those for {origin}")
        if row.buffer_size != buffer_size:
            notes.append(
                f"{name} has no memory; buffer {buffer_size} is ignored"
                if row.buffer_size is None
                else f"{name} has no published settings for {origin} with buffer {buffer_size}; "
                f"using those for buffer {row.buffer_size}"
            )
        return Preset(values, tuple(notes), row.source)
    return None


def published_buffers(method: str, stream: str) -> tuple[int, ...]:
    """The buffer sizes with published hyperparameters, ascending.

    >>> published_buffers("clser", "mnist-360")
    (200, 500, 1000)
    >>> published_buffers("sgd", "mnist-360")
    ()
    """
    rows = _rows(method).get(stream, ())
    return tuple(row.buffer_size for row in rows if row.buffer_size is not None)


@cache
def _published() -> frozenset[str]:
    """Methods with a file of their own."""
    names = (file.name for file in resources.files(__name__).iterdir())
    return frozenset(n.removesuffix(".toml") for n in names if n.endswith(".toml")) - {"paper"}


def _rows(method: str | None) -> dict[str, list[_Row]]:
    """The content of the method's file by stream, ascending by buffer size."""
    if method is None or method not in _published():
        return {}
    content = dict(_read(method))
    source = content.pop("source")
    return {
        stream: [
            _Row(None if key == "none" else int(key), values, table.get("source", source))
            for key, values in table.items()
            if key != "source"
        ]
        for stream, table in content.items()
    }


def _nearest(rows: Sequence[_Row], buffer_size: int | None) -> _Row | None:
    if buffer_size is None:
        return next((row for row in rows if row.buffer_size is None), None)

    size = max(buffer_size, 1)  # `RunConfig` refuses less

    def ratio(row: _Row) -> float:
        published = row.buffer_size or size
        return max(published, size) / min(published, size)

    return min(rows, key=ratio, default=None)


# -- results --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """A published accuracy.

    Attributes:
        table: Number of the paper's table ("1" to "S3"), or where else the figure comes from.
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


def readme_figures(
    kind: Literal["class_il", "task_il"], stream: str, method: str, buffer_size: int | None
) -> list[Figure]:
    """Figures that only the README of the published code has: at most one.

    >>> [f.mean for f in readme_figures("task_il", "s-cifar10", "clser", 500)]
    [94.94]
    """
    tables = _read("paper")["readme"][kind]
    return [
        figure
        for name, rows in tables.items()
        if name == stream
        for figure in _table(README, name, **rows)
        if (figure.method, figure.buffer_size) == (method, buffer_size)
    ]


@dataclass(frozen=True)
class GCILRun:
    """What the composition of a GCIL stream depends on in the published code.

    Attributes:
        reads: How often a step reads the memory; 0 if the method has none.
        batch: Samples in each step.
        epochs: The published numbers of epochs, that of the preset first.
    """

    reads: int
    batch: int
    epochs: tuple[int, ...]


def gcil_run(method: str, stream: str, buffer_size: int | None) -> GCILRun | None:
    """The paper's runs of a method on a GCIL stream; None if it has none.

    >>> gcil_run("derpp", "gcil-cifar100-uniform", 500)
    GCILRun(reads=2, batch=32, epochs=(100,))
    >>> gcil_run("derpp", "gcil-cifar100-uniform", 300) is None
    True
    """
    preset = find(method, stream, buffer_size)
    if preset is None or not paper_figures("3", stream, method, buffer_size):
        return None
    gcil = _read("paper")["gcil"]
    released = [
        row["epochs"]
        for row in gcil["released"]
        if (row["stream"], row["method"], row["buffer_size"]) == (stream, method, buffer_size)
    ]
    epochs = (int(preset.values["epochs"]), *released)
    return GCILRun(gcil["reads"][method], int(preset.values["batch"]), epochs)


def has_own_stream(method: str, stream: str, buffer_size: int | None) -> bool:
    """Whether the paper's runs of a method saw another GCIL stream than other methods.

    >>> has_own_stream("er", "gcil-cifar100-uniform", 500), has_own_stream("er", "s-mnist", 500)
    (True, False)
    """
    run = gcil_run(method, stream, buffer_size)
    return run is not None and run.reads > 0


def published_code_figures() -> list[Figure]:
    """Results of running the published code on MNIST; these are not figures of the paper.

    >>> for figure in published_code_figures()[:2]:
    ...     print(figure.stream, figure.buffer_size, figure.mean, figure.settings["runs"])
    s-mnist 200 88.62 5
    s-mnist 500 91.77 5
    """
    return [_figure(_MEASURED, **row) for row in _read("paper")[_MEASURED]["rows"]]


@cache
def _paper() -> tuple[Figure, ...]:
    paper = _read("paper")
    tables = (
        _table(number, stream, **rows)
        for number, streams in paper["tables"].items()
        for stream, rows in streams.items()
    )
    sweeps = (_sweep(number, **sweep) for number, sweep in paper["sweeps"].items())
    return tuple(itertools.chain(*tables, *sweeps))


def _table(table: str, stream: str, buffers: list[int], **rows: Any) -> Iterator[Figure]:
    """Rows by method, or by method and predictor; cells by buffer size, or a single one."""
    for method, row in rows.items():
        for predictor, cells in row.items() if isinstance(row, dict) else [(None, row)]:
            pairs = [(None, cells)] if isinstance(cells, str) else zip(buffers, cells, strict=True)
            for buffer_size, cell in pairs:
                yield _figure(table, stream, method, buffer_size, cell, predictor)


def _sweep(
    table: str, columns: list[str], rows: list[list[Any]], **setting: Any
) -> Iterator[Figure]:
    """Each row has numbers (the hyperparameters), then accuracies (the predictors)."""
    for row in rows:
        named = dict(zip(columns, row, strict=True))
        values = {name: cell for name, cell in named.items() if not isinstance(cell, str)}
        for predictor, cell in named.items():
            if isinstance(cell, str):
                yield _figure(table, accuracy=cell, predictor=predictor, **setting, **values)


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
