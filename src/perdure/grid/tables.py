"""Which settings a grid consists of: a table of the paper, or a file of the user's."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perdure.presets import paper_figures
from perdure.training.build import accepted, find_learner
from perdure.training.plan import DEFAULT_BUFFER, check_method, parse_seeds

PAPER = {
    "table1": ("1", "Table 1: Class-IL and Domain-IL"),
    "table2": ("2", "Table 2: MNIST-360"),
    "table3": ("3", "Table 3: GCIL-CIFAR-100"),
    "s1": ("S1", "Table S1: the networks of CLS-ER"),
    "s2": ("S2", "Table S2: one semantic memory against two"),
    "s3": ("S3", "Table S3: CLS-ER under other hyperparameters"),
}
"""The command's name of a table → the paper's number, and what it shows."""
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "streams": ((str,), "names"),
    "methods": ((str,), "names"),
    "buffers": ((int,), "whole numbers"),
    "networks": ((str,), "names"),
}


@dataclass(frozen=True)
class Cell:
    """One setting of a grid, in a user's words."""

    stream: str
    method: str
    buffer_size: int | None
    given: Mapping[str, float] = field(default_factory=dict)
    """Hyperparameters other than the published ones."""
    network: str | None = None
    """Where it is not the stream's."""
    seeds: str | None = None
    """As the command takes them, where they are not those of the whole grid."""

    def __str__(self) -> str:
        buffer_size = [] if self.buffer_size is None else [f"buffer {self.buffer_size}"]
        given = [f"{name} {value:g}" for name, value in self.given.items()]
        network = [] if self.network is None else [self.network]
        return ", ".join([f"{self.method} on {self.stream}", *buffer_size, *network, *given])


@dataclass(frozen=True)
class Grid:
    """Settings to be run, and with which seeds."""

    name: str
    """Names the file with its results."""
    title: str
    seeds: str
    """As the command takes them, of the settings that name none."""
    cells: tuple[Cell, ...]
    table: str | None = None
    """The number of the paper's table, if it is one."""


def paper_grid(name: str) -> Grid:
    """The settings behind a table of the paper: those for which it has a figure.

    >>> grid = paper_grid("table2")
    >>> len(grid.cells), str(grid.cells[-1])
    (17, 'clser on mnist-360, buffer 1000')
    """
    if name not in PAPER:
        raise ValueError(f"there is no table {name!r}; the tables are {', '.join(PAPER)}")
    table, title = PAPER[name]
    cells = [Cell(f.stream, f.method, f.buffer_size, f.settings) for f in paper_figures(table)]
    seeds = "0:3" if table == "S3" else "0:10"  # as many as the paper
    return Grid(name, title, seeds, _unique(cells), table)


def read_grid(path: Path) -> Grid:
    """A user's own grid.

    seeds = "0:5"                 # and title; both may be left out
    [[runs]]                      # as many as you like; seeds of its own, if it names some
    streams = ["s-mnist"]
    methods = ["clser", "my:Method"]
    buffers = [200, 500]          # 500, if none is named
    networks = ["mlp"]            # the stream's, if none is named
    consistency_weight = [1, 2]   # any hyperparameter; lists are crossed
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"--grid {path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--grid {path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"--grid {path} is not TOML: {error}") from None
    runs = content.get("runs")
    unknown = set(content) - {"title", "seeds", "runs"}
    if unknown or not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs):
        wrong = f"has {', '.join(sorted(unknown))}" if unknown else "has no [[runs]]"
        raise ValueError(f"--grid {path} {wrong}; expected title, seeds and [[runs]]")
    if not runs:
        raise ValueError(f"--grid {path} names no runs; expected at least one [[runs]]")
    cells = [cell for run in runs for cell in _crossed(path, run)]
    title, seeds = content.get("title", path.stem), _seeds(path, content.get("seeds", 0))
    return Grid(path.stem, str(title), seeds, _unique(cells))


def _crossed(path: Path, run: Mapping[str, Any]) -> list[Cell]:
    """Every combination of what an entry of a grid file lists."""
    seeds = _seeds(path, run["seeds"]) if "seeds" in run else None
    named = {key: value for key, value in run.items() if key != "seeds"}
    lists = {key: value if isinstance(value, list) else [value] for key, value in named.items()}
    for key, values in lists.items():
        if f"{key}s" in _KINDS:
            raise ValueError(f"--grid {path} has {key}; expected {key}s")
        if not values:
            raise ValueError(f"--grid {path}: {key} is empty")
        kind, expected = _KINDS.get(key, ((int, float), "numbers"))
        if any(isinstance(value, bool) or not isinstance(value, kind) for value in values):
            raise ValueError(f"--grid {path}: {key} is {run[key]!r}; expected {expected}")
    streams, methods = lists.pop("streams", ["s-mnist"]), lists.pop("methods", ["clser"])
    buffers, networks = lists.pop("buffers", [DEFAULT_BUFFER]), lists.pop("networks", [None])
    return [
        Cell(stream, method, buffer_size, dict(zip(lists, values, strict=True)), network, seeds)
        for stream, method in itertools.product(streams, methods)
        for buffer_size in (buffers if _remembers(method) else [None])
        for network in networks
        for values in itertools.product(*lists.values())
    ]


def _seeds(path: Path, value: Any) -> str:
    """Seeds as a grid file names them, checked."""
    try:
        parse_seeds(str(value))
    except ValueError as error:
        raise ValueError(f"--grid {path}: {str(error).removeprefix('--')}") from None
    return str(value)


def choose(
    grid: Grid,
    *,
    streams: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    buffers: Sequence[int] | None = None,
    where: Mapping[str, Sequence[float]] | None = None,
    seeds: str | None = None,
) -> Grid:
    """The part of a grid that is asked for; what is None is taken whole.

    Settings without a memory have no buffer, so `buffers` leaves them in. A method that the grid
    does not have is added, on its streams and with its buffers. `seeds` are then those of all.
    """
    cells = list(grid.cells)
    if seeds is not None:
        parse_seeds(seeds)
        cells = [replace(cell, seeds=None) for cell in cells]
        grid = replace(grid, seeds=seeds, cells=tuple(cells))
    if streams is not None:
        _known(grid, "stream", streams, [cell.stream for cell in cells])
        cells = [cell for cell in cells if cell.stream in streams]
    if buffers is not None:
        _known(
            grid,
            "buffer_size",
            buffers,
            [c.buffer_size for c in cells if c.buffer_size is not None],
        )
        cells = [cell for cell in cells if cell.buffer_size in (None, *buffers)]
    added = []
    if methods is not None:
        new = [method for method in methods if method not in {c.method for c in grid.cells}]
        added = _added(new, cells)
        cells = [cell for cell in cells if cell.method in methods]
    for name, values in (where or {}).items():
        there = [cell.given[name] for cell in grid.cells if name in cell.given]
        if not there:
            raise ValueError(f"--where {name}: {grid.name} does not vary it")
        _known(grid, name, values, there)
        cells = [cell for cell in cells if cell.given.get(name) in values]
    cells += added
    if not cells:
        raise ValueError(f"nothing of {grid.name} is left: it has no setting that fits all of it")
    for method in methods or ():
        if method not in {cell.method for cell in cells}:
            raise ValueError(f"nothing of {method} is left: {grid.name} has no setting that fits")
    return replace(grid, cells=_unique(cells))


def _known(grid: Grid, what: str, asked: Sequence[Any], there: Sequence[Any]) -> None:
    for value in asked:
        if value not in there:
            names = ", ".join(map(str, dict.fromkeys(there)))
            raise ValueError(f"{grid.name} has no {what} {value}; what it has is {names}")


def _added(methods: Sequence[str], cells: Sequence[Cell]) -> list[Cell]:
    """Methods that a grid does not have, where it has others; with its buffers, if it has any."""
    buffers: dict[tuple[str, str | None, str | None], list[int | None]] = {}
    for cell in cells:
        found = buffers.setdefault((cell.stream, cell.network, cell.seeds), [])
        if cell.buffer_size is not None:
            found.append(cell.buffer_size)
    return [
        Cell(stream, method, buffer_size, {}, network, seeds)
        for method in methods
        for (stream, network, seeds), found in buffers.items()
        for buffer_size in (found or [DEFAULT_BUFFER] if _remembers(method) else [None])
    ]


def _remembers(method: str) -> bool:
    check_method(method)
    return "buffer_size" in accepted(find_learner(method))


def _unique(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    seen: list[Cell] = []
    for cell in cells:
        if cell not in seen:
            seen.append(cell)
    return tuple(seen)
