"""The seeds of a setting: trained in this process, or in worker processes that die with it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from perdure.lock import LockedError
from perdure.results import RunFolder
from perdure.training.build import Settings
from perdure.training.job import Job as Job
from perdure.training.job import attempt, shelf_of, together
from perdure.training.job import execute as execute
from perdure.training.job import usable as usable
from perdure.training.loop import Interrupted, Position, Progress
from perdure.training.signals import Stop, graceful_stop
from perdure.training.workers import Event, in_workers

Member = tuple[Settings, int]
"""Settings and seed of a run."""
Tell = Callable[[int, Progress], None]
"""Called with a seed and where its run stands."""


class Outcome(NamedTuple):
    """What became of the runs of a setting."""

    done: dict[int, RunFolder]
    failed: dict[int, str]
    """Why, by seed."""
    reused: int
    """How many were there already."""


def make_runs(
    settings: Settings,
    seeds: Sequence[int],
    out: Path,
    *,
    again: bool = False,
    resume: bool = False,
    checkpoint_every: float = 60.0,
    workers: int = 1,
    threads: int = 1,
    side_by_side: int = 1,
    tell: Tell,
) -> Outcome:
    """Train the seeds that have no finished run below `out` (all of them, with `again`).

    With `resume` they go on from their last checkpoints, `checkpoint_every` seconds apart.
    """
    folders = {seed: settings.folder(out, seed) for seed in seeds}
    missing = [seed for seed in seeds if again or not usable(folders[seed])]
    for seed, folder in folders.items():
        if seed in missing:
            folder.refuse_if_locked()
            continue
        with contextlib.suppress(LockedError, OSError):  # then another process does this
            folder.refuse_if_locked()
            shelf_of(settings, folder, seed).clear()  # of one killed after the run's last file
    members = [(settings, seed) for seed in missing]
    jobs = jobs_for(members, out, resume, checkpoint_every, side_by_side)
    failed = execute_all(jobs, workers=workers, threads=threads, tell=tell)
    done = {seed: folder for seed, folder in folders.items() if seed not in failed}
    return Outcome(done, failed, len(seeds) - len(missing))


def waiting(settings: Settings, seeds: Sequence[int], out: Path) -> dict[int, int]:
    """The seeds whose runs are unfinished and have a checkpoint, with its step."""
    folders = {seed: settings.folder(out, seed) for seed in seeds}
    steps = {
        seed: shelf_of(settings, folder, seed).latest_step()
        for seed, folder in folders.items()
        if not folder.complete
    }
    return {seed: step for seed, step in steps.items() if step is not None}


def made_from_other_data(settings: Settings, out: Path) -> dict[Path, str]:
    """Folders of runs with the same settings on other data, and the checksums of that data."""
    own = settings.folder(out, 0).path.parent
    mine = {**settings.deciding(), "data_checksum": None}
    found = {}
    for path in sorted(own.parent.glob("*/seed-*/config.json")):
        with contextlib.suppress(ValueError):
            config = RunFolder(path.parent).read("config.json")
            theirs = {name: config.get(name) for name in mine} | {"data_checksum": None}
            if theirs == mine and config.get("data_checksum") != settings.data_checksum:
                found[path.parents[1]] = str(config.get("data_checksum"))
    return found


def jobs_for(
    members: Sequence[Member],
    out: Path,
    resume: bool,
    checkpoint_every: float,
    side_by_side: int,
) -> list[Job]:
    """The runs as jobs: one each on a CPU; on a GPU, groups that can go on together."""
    on_gpu = any(settings.device != "cpu" for settings, _ in members)
    groups = _groups(members, out, side_by_side if on_gpu else 1, resume)
    return [_job(group, out, resume, checkpoint_every) for group in groups]


def _groups(members: Sequence[Member], out: Path, width: int, resume: bool) -> list[list[Member]]:
    """The runs in groups of at most `width` that can go on from a common position."""
    groups: list[tuple[list[Member], set[Position]]] = []
    for settings, seed in members:
        places = {Position()}
        if resume and width > 1:
            kept = shelf_of(settings, settings.folder(out, seed), seed).valid(warn=False)
            places = {checkpoint.position for checkpoint in kept} or places
        for group, shared in groups:
            if len(group) < width and together(group[0][0], settings) and shared & places:
                group.append((settings, seed))
                shared &= places
                break
        else:
            groups.append(([(settings, seed)], places))
    return [group for group, _ in groups]


def _job(group: Sequence[Member], out: Path, resume: bool, checkpoint_every: float) -> Job:
    first = group[0][0]
    seeds = tuple(seed for settings, seed in group if settings is first)
    beside = tuple(member for member in group if member[0] is not first)
    return Job(first, seeds, str(out), resume, checkpoint_every, beside)


def execute_all(jobs: Sequence[Job], *, workers: int, threads: int, tell: Tell) -> dict[int, str]:
    """Make all runs, several at once where there are workers for it; returns seed → what failed.

    Each run computes with `threads` threads wherever it runs, so its numbers do not depend on
    how many others run beside it.
    """
    with graceful_stop() as stop:
        if min(workers, len(jobs)) > 1:
            failed = _at_once(jobs, workers, threads, tell, stop)
        else:
            failed = _in_turn(jobs, threads, tell, stop)
    if stop():
        raise Interrupted(stop())
    return failed


def _at_once(
    jobs: Sequence[Job], workers: int, threads: int, tell: Tell, stop: Stop
) -> dict[int, str]:
    failed: dict[int, str] = {}

    def note(event: Event) -> None:
        seeds = jobs[event.number].seeds
        if event.progress is not None:
            tell(seeds[0], event.progress)
        if event.kind == "failed":
            failed.update(dict.fromkeys(seeds, event.reason))
            _show(event.trace)

    in_workers(jobs, workers=workers, threads=threads, tell=note, stop=stop)
    return failed


def _in_turn(jobs: Sequence[Job], threads: int, tell: Tell, stop: Stop) -> dict[int, str]:
    torch.set_num_threads(threads)
    failed: dict[int, str] = {}
    for job in jobs:
        if stop():
            break
        failure = attempt(job, lambda progress, job=job: tell(job.seeds[0], progress), stop)  # type: ignore[misc]
        if failure is not None:
            failed |= dict.fromkeys(job.seeds, failure.reason)
            _show(failure.trace)
    return failed


def _show(trace: str) -> None:
    """From this process, whose stderr a live display puts above itself."""
    print(trace, end="", file=sys.stderr, flush=True)
