"""Plans: which runs are complete, which can be resumed, which are missing, and their jobs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perdure.config import RunConfig
from perdure.experiment.build import data_checksum
from perdure.experiment.run import Job, PlannedRun, is_usable, make_jobs
from perdure.experiment.speeds import Speeds
from perdure.lock import LockedError
from perdure.results.folder import RunFolder
from perdure.results.records import Facts, Result, RunRecord, read_run
from perdure.results.table import Setting, group
from perdure.user_code import source_hash

_log = logging.getLogger(__name__)

FEW_STEPS = 100
"""The library's defaults are tested on streams of at least this many steps."""


@dataclass(frozen=True)
class PlannedSetting:
    """The runs of one configuration."""

    config: RunConfig
    label: str
    steps: int | None
    """Steps of each run; None if the length of the stream is unknown."""
    complete: tuple[int, ...]
    """Seeds of the runs that need no training."""
    resumable: dict[int, int]
    """Seeds of unfinished runs that have a checkpoint, with its step."""
    missing: tuple[int, ...]

    @property
    def seeds(self) -> list[int]:
        """All seeds, ascending."""
        return sorted((*self.complete, *self.resumable, *self.missing))

    def folder(self, out: Path, seed: int) -> RunFolder:
        """The folder of a run."""
        return PlannedRun(self.config, seed).folder(out)


def plan_setting(
    config: RunConfig,
    seeds: Sequence[int],
    out: Path,
    *,
    label: str = "",
    steps: int | None = None,
    restart: bool = False,
) -> PlannedSetting:
    """Find out which runs of a configuration have to be trained; with `restart`, all of them.

    Raises:
        ValueError: If a run's code or batches have changed since.
    """
    complete, missing, resumable = [], [], {}
    for seed in seeds:
        run = PlannedRun(config, seed)
        folder = run.folder(out)
        if restart:
            missing.append(seed)
            continue
        _check_source(config, folder)
        if is_usable(folder):
            complete.append(seed)
        elif not folder.complete and (step := run.checkpoints(out).latest_step()) is not None:
            resumable[seed] = step
        else:
            missing.append(seed)
    if complete and not config.data_checksum:
        config = _check_batches(config, complete, out)
    if complete and steps is None:
        steps = PlannedRun(config, complete[0]).folder(out).read("result.json", Result).steps
    if config.dataset is None and steps is not None and steps != config.max_steps:
        config = _note_few_steps(config, steps)
    return PlannedSetting(
        config, label or str(config), steps, tuple(complete), resumable, tuple(missing)
    )


def _note_few_steps(config: RunConfig, steps: int) -> RunConfig:
    """The configuration, with a note if runs on a user's data are too short for the defaults."""
    if steps >= FEW_STEPS:
        return config
    smaller = " or smaller batches (--batch)" if "batch" in config.hyperparameters else ""
    note = (
        f"only {steps} training step{'' if steps == 1 else 's'}; more epochs (--epochs){smaller} "
        "usually help"
    )
    return replace(config, notes=(*config.notes, note))


def _check_source(config: RunConfig, folder: RunFolder) -> None:
    """Raise ValueError if a user's code has changed since the run in this folder began."""
    if not (names := config.user_code()):
        return
    try:
        before = folder.read("config.json", Facts).source
    except ValueError:  # missing or damaged: it is not reused either
        return
    if before and before != source_hash(names.values()):
        raise ValueError(
            f"the source of {' or '.join(names.values())}, or of a module that it imports, has "
            f"changed since the run in {folder.path}; restore it, use another --out, or train "
            "again (run --restart)"
        )


def _check_batches(config: RunConfig, seeds: Sequence[int], out: Path) -> RunConfig:
    """Compare the batches of a user's stream with those of complete runs, by reading them again.

    Returns:
        The configuration, with a note if they cannot be compared.

    Raises:
        ValueError: If they differ.
    """
    folders = [PlannedRun(config, seed).folder(out) for seed in seeds]
    known = [folder.read("result.json", Result).data_checksum for folder in folders]
    now = data_checksum(config) if any(known) else ""
    for folder, before in zip(folders, known, strict=True):
        if before and before != now:
            raise ValueError(
                f"the data of {config.stream} differ from those of the run in {folder.path}, or "
                "come in another order each time; use another --out, or train again (run --restart)"
            )
    if all(known):
        return config
    note = (
        f"the data of {config.stream} cannot be compared with those of its complete runs (their "
        "order is random, or not all were read); the runs are reused, so use --restart if the "
        "data have changed"
    )
    return replace(config, notes=(*config.notes, note))


@dataclass(frozen=True)
class Plan:
    """Settings to run."""

    name: str
    title: str
    out: Path
    settings: list[PlannedSetting]
    skipped: Sequence[str] = ()
    """What is left out and why, one sentence each."""
    table: str | None = None
    """Number of the paper's table that it reproduces, if any."""

    @property
    def complete(self) -> bool:
        """Whether nothing is left to run."""
        return not any(setting.resumable or setting.missing for setting in self.settings)

    def jobs(
        self,
        speeds: Speeds,
        *,
        resume: bool = True,
        side_by_side: int = 1,
        checkpoint_every: float = 60.0,
    ) -> list[Job]:
        """Jobs for all runs that are not complete, longest first to keep all workers busy."""
        runs = [PlannedRun(s.config, seed) for s in self.settings for seed in s.resumable]
        runs += [PlannedRun(s.config, seed) for s in self.settings for seed in s.missing]
        steps = {setting.config.hash: setting.steps for setting in self.settings}

        def seconds(job: Job) -> float:
            parts = [speeds.seconds(run.config, steps[run.config.hash]) for run in job.runs]
            return sum(float("inf") if part is None else part for part in parts)

        jobs = make_jobs(
            runs,
            self.out,
            resume=resume,
            checkpoint_every=checkpoint_every,
            side_by_side=1 if self.settings[0].config.device == "cpu" else side_by_side,
        )
        return sorted(jobs, key=seconds, reverse=True)

    def clear_leftovers(self) -> None:
        """Remove checkpoints of complete runs, left by a process that was killed at the end."""
        for setting in self.settings:
            for seed in setting.complete:
                run = PlannedRun(setting.config, seed)
                with contextlib.suppress(LockedError, OSError):  # then another process does it
                    run.folder(self.out).refuse_if_locked()
                    run.checkpoints(self.out).clear()

    def speeds(self) -> Speeds:
        """The speeds of the complete runs."""
        speeds = Speeds()
        for setting in self.settings:
            for seed in setting.complete:
                speeds.add_run(setting.config, setting.folder(self.out, seed))
        return speeds

    def results(self, *, all_seeds: bool = False) -> list[Setting]:
        """The results of every setting that has a complete run, in the order of the plan.

        With `all_seeds`, runs with seeds that are not part of the plan are included. Runs of a
        setting that read different batches are several settings.
        """
        runs = []
        for setting in self.settings:
            seeds = setting.seeds
            if all_seeds:
                found = RunFolder.group(self.out, setting.config).glob("seed-*")
                seeds = sorted(int(f.name[5:]) for f in found if f.name[5:].isdecimal())
            folders = [RunFolder.locate(self.out, setting.config, seed) for seed in seeds]
            read = [read_run(folder.path) for folder in folders if folder.complete]
            if len({run.config.data_checksum for run in read}) > 1:
                _log.warning(
                    "the runs of %s have different data; they are not averaged", setting.label
                )
            else:  # the settings keep the hash in the names of their folders
                read = [_with_checksum(run, setting.config.data_checksum) for run in read]
            runs += read
        by_hash = {setting.config.hash: setting for setting in group(runs).settings}
        hashes = dict.fromkeys(run.config.hash for run in runs)
        return [by_hash[key] for key in hashes if key in by_hash]


def _with_checksum(run: RunRecord, checksum: str) -> RunRecord:
    return replace(run, config=replace(run.config, data_checksum=checksum))


def runs_on_other_data(config: RunConfig, out: Path) -> dict[Path, str]:
    """Folders of runs that differ only in their data, with the checksums of that data."""
    found = {}
    for path in sorted(RunFolder.group(out, config).parent.glob("*/seed-*/config.json")):
        with contextlib.suppress(ValueError):
            other = RunFolder(path.parent).read("config.json", RunConfig)
            same = replace(other, data_checksum=config.data_checksum)
            if same.identity() == config.identity() and other.identity() != config.identity():
                found[path.parents[1]] = other.data_checksum
    return found
