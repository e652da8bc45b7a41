"""Grids: the settings behind a table of the paper, or those of a user's TOML file."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perdure import catalog
from perdure.config import DEFAULT_BUFFER_SIZE, PUBLISHED, RunConfig, parse_seeds
from perdure.data import DATASETS, explain_missing, locate
from perdure.experiment.build import build_run, build_stream, read_dataset
from perdure.experiment.plan import Plan, plan_setting
from perdure.experiment.resolve import check_method, resolve
from perdure.files import read_bytes
from perdure.presets import gcil_run, has_own_stream, paper_figures
from perdure.training.loop import total_steps

PAPER_TABLES = {
    "table1": ("1", "Table 1: Class-IL and Domain-IL"),
    "table2": ("2", "Table 2: MNIST-360"),
    "table3": ("3", "Table 3: GCIL-CIFAR-100"),
    "s1": ("S1", "Table S1: the networks of CLS-ER"),
    "s2": ("S2", "Table S2: one semantic memory and two"),
    "s3": ("S3", "Table S3: sensitivity of CLS-ER to its hyperparameters"),
}
"""Names of tables on the command line, with the paper's number and a title."""
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "streams": ((str,), "names"),
    "methods": ((str,), "names"),
    "buffer_sizes": ((int,), "whole numbers"),
    "networks": ((str,), "names"),
    "stream_seeds": ((str, int), "numbers, per-run or published"),
}


@dataclass(frozen=True)
class Cell:
    """One setting of a grid, as the user names it."""

    stream: str
    method: str
    buffer_size: int | None
    given: Mapping[str, float] = field(default_factory=dict)
    """Hyperparameters that replace the published ones."""
    network: str | None = None
    """The network, if not the stream's."""
    seeds: str | None = None
    """Its seeds, if not those of the grid."""
    stream_seed: int | str | None = None
    """Seed of the stream's composition, if not the stream's own."""
    note: str = ""
    """What was substituted, one sentence."""

    def __str__(self) -> str:
        buffer_size = [] if self.buffer_size is None else [f"buffer {self.buffer_size}"]
        network = [] if self.network is None else [self.network]
        given = [f"{name} {value:g}" for name, value in self.given.items()]
        seed = [] if self.stream_seed is None else [f"stream seed {self.stream_seed}"]
        return ", ".join([f"{self.method} on {self.stream}", *buffer_size, *network, *given, *seed])


@dataclass(frozen=True)
class Grid:
    """Settings and seeds."""

    name: str
    title: str
    seeds: str
    cells: tuple[Cell, ...]
    table: str | None = None
    """Number of the paper's table, if it is one."""


def paper_grid(name: str) -> Grid:
    """The settings for which a table of the paper has a figure, on the streams that it saw.

    >>> grid = paper_grid("table2")
    >>> len(grid.cells), str(grid.cells[-1])
    (17, 'clser on mnist-360, buffer 1000')
    """
    if name not in PAPER_TABLES:
        raise ValueError(f"unknown table {name!r}; choose from {', '.join(PAPER_TABLES)}")
    table, title = PAPER_TABLES[name]
    cells = [
        Cell(
            f.stream,
            f.method,
            f.buffer_size,
            f.settings,
            stream_seed=PUBLISHED if has_own_stream(f.method, f.stream, f.buffer_size) else None,
        )
        for f in paper_figures(table)
    ]
    seeds = "0:3" if table == "S3" else "0:10"  # as many as in the paper
    return Grid(name, title, seeds, _unique(cells), table)


def read_grid(path: Path) -> Grid:
    """A grid from a TOML file.

    seeds = "0:5"                 # seeds and title are optional
    [[runs]]                      # any number of these, each with optional seeds of its own
    streams = ["s-mnist"]
    methods = ["clser", "my:Method"]
    buffer_sizes = [200, 500]     # 500 by default
    networks = ["mlp"]            # the stream's by default
    stream_seeds = ["published"]  # as --stream-seed; the stream's own by default
    consistency_weight = [1, 2]   # any hyperparameter; all combinations of the lists are run
    """
    try:
        content = tomllib.loads(read_bytes(path).decode())
        if unknown := sorted(set(content) - {"title", "seeds", "runs"}):
            raise ValueError(f"has {', '.join(unknown)}; expected title, seeds and [[runs]]")
        runs = content.get("runs")
        if not isinstance(runs, list) or not runs or not all(isinstance(r, dict) for r in runs):
            raise ValueError("has no [[runs]]")
        cells = [cell for run in runs for cell in _combinations(run)]
        title, seeds = str(content.get("title", path.stem)), _seeds(content.get("seeds", 0))
    except FileNotFoundError:
        raise ValueError(f"--grid {path} does not exist") from None
    except (OSError, ValueError, RecursionError) as error:  # ValueError: also if not UTF-8 or TOML
        raise ValueError(f"--grid {path}: {str(error).removeprefix('--')}") from None
    return Grid(path.stem, title, seeds, _unique(cells))


def _combinations(run: Mapping[str, Any]) -> list[Cell]:
    """All combinations of the lists in one [[runs]]."""
    seeds = _seeds(run["seeds"]) if "seeds" in run else None
    named = {key: value for key, value in run.items() if key != "seeds"}
    lists = {key: value if isinstance(value, list) else [value] for key, value in named.items()}
    for key, values in lists.items():
        if f"{key}s" in _KINDS:
            raise ValueError(f"has {key}; expected {key}s")
        if not values:
            raise ValueError(f"{key} is empty")
        kind, expected = _KINDS.get(key, ((int, float), "numbers"))
        if any(isinstance(value, bool) or not isinstance(value, kind) for value in values):
            raise ValueError(f"{key} is {run[key]!r}; expected {expected}")
    streams, methods = lists.pop("streams", ["s-mnist"]), lists.pop("methods", ["clser"])
    sizes = lists.pop("buffer_sizes", [DEFAULT_BUFFER_SIZE])
    networks, stream_seeds = lists.pop("networks", [None]), lists.pop("stream_seeds", [None])
    return [
        Cell(stream, method, size, dict(zip(lists, values, strict=True)), network, seeds, composed)
        for stream, method in itertools.product(streams, methods)
        for size in (sizes if _has_memory(method) else [None])
        for network, composed in itertools.product(networks, stream_seeds)
        for values in itertools.product(*lists.values())
    ]


def _seeds(value: Any) -> str:
    parse_seeds(str(value))
    return str(value)


def select(
    grid: Grid,
    *,
    streams: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    buffer_sizes: Sequence[int] | None = None,
    where: Mapping[str, Sequence[float]] | None = None,
    seeds: str | None = None,
    stream_seed: str | None = None,
) -> Grid:
    """A part of a grid; arguments that are None select everything.

    Methods that the grid does not have are added, on its streams and with its buffer sizes. Where
    it uses published streams, an added method gets its own, or the default stream and a note if
    the paper has no run of it and `stream_seed` is None.
    Settings without a memory have any buffer size. `where` selects values of hyperparameters,
    and `seeds` replaces all seeds. `stream_seed` replaces that of all streams that have one.
    """
    cells = list(grid.cells)
    if stream_seed is not None:
        if not any(_is_random(cell.stream) for cell in cells):
            raise ValueError(f"{grid.name} is deterministic; --stream-seed does not apply")
        cells = [
            replace(cell, stream_seed=stream_seed) if _is_random(cell.stream) else cell
            for cell in cells
        ]
        grid = replace(grid, cells=tuple(cells))
    if seeds is not None:
        parse_seeds(seeds)
        cells = [replace(cell, seeds=None) for cell in cells]
        grid = replace(grid, seeds=seeds, cells=tuple(cells))
    if streams is not None:
        _check_known(grid, "stream", streams, [cell.stream for cell in cells])
        cells = [cell for cell in cells if cell.stream in streams]
    if buffer_sizes is not None:
        sizes = [cell.buffer_size for cell in cells if cell.buffer_size is not None]
        _check_known(grid, "buffer size", buffer_sizes, sizes)
        cells = [cell for cell in cells if cell.buffer_size in (None, *buffer_sizes)]
    added = []
    if methods is not None:
        present = {cell.method for cell in grid.cells}
        new = [method for method in methods if method not in present]
        added = _added(new, cells, substitute=stream_seed is None)
        cells = [cell for cell in cells if cell.method in methods]
    for name, values in (where or {}).items():
        varied = [cell.given[name] for cell in grid.cells if name in cell.given]
        if not varied:
            raise ValueError(f"--where {name}: {grid.name} does not vary it")
        _check_known(grid, name, values, varied)
        cells = [cell for cell in cells if cell.given.get(name) in values]
    if added:
        cells += added
        order = list(dict.fromkeys(cell.stream for cell in cells))
        cells.sort(key=lambda cell: order.index(cell.stream))
    if not cells:
        raise ValueError(f"{grid.name} has no setting that meets all conditions")
    for method in methods or ():
        if method not in {cell.method for cell in cells}:
            raise ValueError(f"{grid.name} has no setting of {method} that meets all conditions")
    return replace(grid, cells=_unique(cells))


def _check_known(grid: Grid, what: str, wanted: Sequence[Any], known: Sequence[Any]) -> None:
    for value in wanted:
        if value not in known:
            names = ", ".join(map(str, dict.fromkeys(known)))
            raise ValueError(f"{grid.name} has no {what} {value}; it has {names}")


def _added(methods: Sequence[str], cells: Sequence[Cell], *, substitute: bool) -> list[Cell]:
    """Further methods on the streams and with the buffer sizes of these cells.

    With `substitute`, methods without a published stream get the default one.
    """
    groups: dict[tuple[str, str | None, str | None, int | str | None], list[Cell]] = {}
    for cell in cells:
        seed = None if substitute and cell.stream_seed == PUBLISHED else cell.stream_seed
        groups.setdefault((cell.stream, cell.network, cell.seeds, seed), []).append(cell)
    added = []
    for method, (key, group) in itertools.product(methods, groups.items()):
        stream, network, seeds, seed = key
        found = [cell.buffer_size for cell in group if cell.buffer_size is not None]
        for size in found or [DEFAULT_BUFFER_SIZE] if _has_memory(method) else [None]:
            new = Cell(stream, method, size, {}, network, seeds, seed)
            if substitute and any(cell.stream_seed == PUBLISHED for cell in group):
                new = _on_published_stream(new)
            added.append(new)
    return added


def _on_published_stream(cell: Cell) -> Cell:
    """The cell on the stream that the paper's runs of its method saw, or with a note."""
    run = gcil_run(cell.method, cell.stream, cell.buffer_size)
    if run is None:
        return replace(cell, note=f"the paper has no run of {cell}; using the default stream seed")
    return replace(cell, stream_seed=PUBLISHED) if run.reads else cell


def _has_memory(method: str) -> bool:
    check_method(method)
    return catalog.takes_buffer(method)


def _is_random(stream: str) -> bool:
    entry = catalog.STREAMS.get(stream)
    return entry is not None and entry.seed is not None


def _unique(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    unique: list[Cell] = []
    for cell in cells:
        if cell not in unique:
            unique.append(cell)
    return tuple(unique)


def plan_grid(
    grid: Grid,
    out: Path,
    *,
    dataset: str | None = None,
    data_root: Path | None = None,
    resolve: Callable[..., RunConfig] = resolve,
) -> Plan:
    """Resolve and check every cell whose data is available, and see which runs are complete.

    Streams that need another `dataset` are skipped. `resolve` is the function of that name with
    the arguments that are the same for all cells.

    Raises:
        ValueError: If a cell is invalid, or no cell has its data.
    """
    if dataset is not None and dataset not in DATASETS:
        raise ValueError(f"unknown dataset {dataset!r}; choose from {', '.join(DATASETS)}")
    streams = dict.fromkeys(cell.stream for cell in grid.cells)
    missing = {stream: _missing_data(stream, dataset, data_root) for stream in streams}
    reasons = [
        f"{', '.join(stream for stream in missing if missing[stream] == reason)}: {reason}"
        for reason in dict.fromkeys(missing.values())
        if reason is not None
    ]
    read: set[str] = set()
    # Cells may resolve to the same settings, for example if one names a published value.
    resolved: dict[str, tuple[Cell, RunConfig, list[int]]] = {}
    for cell in grid.cells:
        if missing[cell.stream] is not None:
            continue
        entry = catalog.STREAMS.get(cell.stream)
        with _naming(cell):
            config = resolve(
                cell.stream,
                cell.method,
                cell.buffer_size,
                given=cell.given,
                network=cell.network,
                stream_seed=cell.stream_seed,
                # Given explicitly, so that no smaller dataset is substituted.
                dataset=None if entry is None else dataset or entry.datasets[0],
                data_root=None if entry is None else data_root,
                reread=cell.stream not in read,
            )
        read.add(cell.stream)
        if cell.note:
            config = replace(config, notes=(*config.notes, cell.note))
        seeds = parse_seeds(cell.seeds or grid.seeds)
        resolved.setdefault(config.hash, (cell, config, []))[2].extend(seeds)
    if not resolved:
        raise ValueError(f"{grid.name} cannot be run: {'; '.join(reasons)}")
    settings = []
    for cell, config, seeds in resolved.values():
        with _naming(cell):
            unique = tuple(dict.fromkeys(seeds))
            planned = plan_setting(config, unique, out, label=str(cell))
            if planned.steps is None:
                planned = replace(planned, steps=_steps(cell, config, unique[0]))
        settings.append(planned)
    skipped_notes = [f"skipped: {reason}" for reason in reasons]
    return Plan(grid.name, grid.title, out, settings, skipped_notes, grid.table)


@contextmanager
def _naming(cell: Cell) -> Iterator[None]:
    """Raise ValueErrors from the block with the name of the cell."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{cell}: {error}") from None


def _missing_data(stream: str, dataset: str | None, root: Path | None) -> str | None:
    """Why the stream's data is not available; None if it is."""
    entry = catalog.STREAMS.get(stream)
    if entry is None:
        return None
    if dataset is not None and dataset not in entry.datasets:
        return f"requires {' or '.join(entry.datasets)}, not {dataset}"
    name = dataset or entry.datasets[0]
    if locate(name, root) is not None:
        return None
    others = [other for other in entry.datasets if other != name and locate(other) is not None]
    return explain_missing(name, root) + "".join(f"; or use --dataset {o}" for o in others)


def _steps(cell: Cell, config: RunConfig, seed: int) -> int | None:
    """Steps of a run. Builds one to check its values, unless all of them are published."""
    on_cpu = replace(config, device="cpu", precision="fp32", engine="eager")
    dataset = read_dataset(on_cpu)
    if cell.given or cell.network or config.notes or cell.method not in catalog.METHODS:
        return build_run(on_cpu, dataset, seed).total_steps(config.max_steps)
    stream = build_stream(on_cpu, dataset, seed)
    return total_steps(stream, config.batch, config.epochs, config.max_steps)
