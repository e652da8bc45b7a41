"""From a grid to runs: which are there, which are half done, and the jobs for the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perdure import catalog
from perdure.data import DATASETS, explain_missing, locate
from perdure.grid.speeds import Speeds, note_run
from perdure.grid.tables import Cell, Grid
from perdure.results import RunFolder
from perdure.training import Settings, plan
from perdure.training.build import TRAINING_KEYS, build_run, read_dataset, stream_of_run
from perdure.training.loop import total_steps
from perdure.training.plan import parse_seeds
from perdure.training.seeds import Job, jobs_for, usable, waiting


@dataclass(frozen=True)
class Entry:
    """A setting of the grid, and how its runs stand."""

    cell: Cell
    settings: Settings
    steps: int | None
    """Of one run; None where the stream does not know its length."""
    complete: tuple[int, ...]
    half_done: tuple[int, ...]
    missing: tuple[int, ...]
    """Seeds, in three parts."""

    @property
    def seeds(self) -> list[int]:
        """All of them."""
        return sorted((*self.complete, *self.half_done, *self.missing))


@dataclass(frozen=True)
class Plan:
    """A grid, in a folder."""

    grid: Grid
    out: Path
    entries: list[Entry]
    skipped: list[str]
    """What was left out and why, a sentence each."""

    def folder(self, entry: Entry, seed: int) -> RunFolder:
        """Where the run of this seed is, or will be."""
        return entry.settings.folder(self.out, seed)

    def jobs(self, speeds: Speeds, *, side_by_side: int, checkpoint_every: float) -> list[Job]:
        """What is left to do: the longest first, so that no worker is left alone at the end."""
        members = [
            (entry.settings, seed)
            for part in ("half_done", "missing")
            for entry in self.entries
            for seed in getattr(entry, part)
        ]
        jobs = jobs_for(members, self.out, True, checkpoint_every, side_by_side)
        steps = {id(entry.settings): entry.steps for entry in self.entries}

        def longest_first(job: Job) -> float:
            parts = [speeds.seconds(member, steps[id(member)]) for member, _ in job.members]
            return -sum(float("inf") if part is None else part for part in parts)

        return sorted(jobs, key=longest_first)

    def measured(self) -> Speeds:
        """What the runs that are complete say of speed."""
        speeds = Speeds()
        for entry in self.entries:
            for seed in entry.complete:
                note_run(speeds, entry.settings, self.folder(entry, seed))
        return speeds


def plan_grid(grid: Grid, out: Path, **how: Any) -> Plan:
    """Settings for every cell whose data is there, checked by building one run of each.

    `how` goes to `training.plan`. ValueError where a cell cannot be run, or none has its data.
    """
    dataset, root = how.pop("dataset", None), how.get("data_root")
    if dataset is not None and dataset not in DATASETS:
        raise ValueError(f"no dataset is called {dataset!r}; there are {', '.join(DATASETS)}")
    lacking: dict[str, list[str]] = {}
    for stream in dict.fromkeys(cell.stream for cell in grid.cells):
        if reason := _lacking(stream, dataset, root):
            lacking.setdefault(reason, []).append(stream)
    left_out = {stream for streams in lacking.values() for stream in streams}
    reasons = [f"{', '.join(streams)}: {reason}" for reason, streams in lacking.items()]
    there = [cell for cell in grid.cells if cell.stream not in left_out]
    if not there:
        raise ValueError(f"nothing of {grid.name} can be run: {'; '.join(reasons)}")
    # Cells may come to the same setting, one of them by naming what is published anyway.
    same: dict[Path, tuple[Cell, Settings, list[int]]] = {}
    for cell in there:
        with _naming(cell):
            settings = _settings(cell, dataset, how)
        seeds = parse_seeds(cell.seeds or grid.seeds)
        same.setdefault(settings.folder(out, 0).path, (cell, settings, []))[2].extend(seeds)
    entries = []
    for cell, settings, seeds in same.values():
        with _naming(cell):
            entries.append(_entry(cell, settings, tuple(dict.fromkeys(seeds)), out))
    return Plan(grid, out, entries, [f"left out: {reason}" for reason in reasons])


@contextmanager
def _naming(cell: Cell) -> Iterator[None]:
    """Say which cell an error is about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{cell}: {error}") from None


def _lacking(stream: str, dataset: str | None, root: Path | None) -> str | None:
    """What the stream has no data from; None if it has its data, or brings it."""
    entry = catalog.STREAMS.get(stream)
    if entry is None:
        return None
    if dataset is not None and dataset not in entry.datasets:
        return f"not {dataset} but {' or '.join(entry.datasets)} is needed"
    name = dataset or entry.datasets[0]
    if locate(name, root) is not None:
        return None
    shipped = [other for other in entry.datasets if other != name and locate(other) is not None]
    return explain_missing(name, root) + "".join(
        f"; or take --dataset {other}" for other in shipped
    )


def _settings(cell: Cell, dataset: str | None, how: dict[str, Any]) -> Settings:
    known = catalog.STREAMS.get(cell.stream)
    return plan(
        cell.stream,
        cell.method,
        cell.buffer_size,
        given=dict(cell.given),
        network=cell.network,
        # Named, so that small data is not taken for the paper's where that is missing.
        dataset=None if known is None else dataset or known.datasets[0],
        **(how if known is not None else {**how, "data_root": None}),
    )


def _entry(cell: Cell, settings: Settings, seeds: tuple[int, ...], out: Path) -> Entry:
    folders = {seed: settings.folder(out, seed) for seed in seeds}
    complete = tuple(seed for seed, folder in folders.items() if usable(folder))
    rest = [seed for seed in seeds if seed not in complete]
    half_done = tuple(waiting(settings, rest, out))
    missing = tuple(seed for seed in rest if seed not in half_done)
    steps: int | None
    if complete:
        steps = int(folders[complete[0]].read("result.json")["steps"])
    else:
        as_published = (
            not (cell.given or cell.network or settings.notes) and cell.method in catalog.METHODS
        )
        steps = _steps(settings, seeds[0], check=not as_published)
    return Entry(cell, settings, steps, complete, half_done, missing)


def _steps(settings: Settings, seed: int, *, check: bool) -> int | None:
    """Of a run with these settings; `check` refuses bad values before any work, by building it.

    That takes a second of imports, so published settings are believed.
    """
    on_cpu = replace(settings, device="cpu", precision="fp32", engine="eager")
    dataset = read_dataset(on_cpu)
    if check:
        return build_run(on_cpu, dataset, seed).total_steps(settings.max_steps)
    batch, epochs = (int(settings.values[key]) for key in TRAINING_KEYS)
    return total_steps(stream_of_run(on_cpu, dataset, seed), batch, epochs, settings.max_steps)
