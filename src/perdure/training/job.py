"""A job: runs made side by side in this process, from their settings to their folders."""

from __future__ import annotations

import contextlib
import errno
import logging
import platform
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import torch

from perdure.files import DamagedError
from perdure.memory.episodic import EpisodicMemory
from perdure.results import RunFolder, settings_hash
from perdure.training.build import (
    TRAINING_KEYS,
    Settings,
    build_engine,
    build_run,
    joined,
    read_dataset,
)
from perdure.training.checkpoint import Checkpoints, Shelf
from perdure.training.engine import Engine
from perdure.training.environment import environment
from perdure.training.loop import Hooks, Progress, Run, TrainingError, train
from perdure.training.shared import SharedCheckpoints, from_rank_0_alone

_log = logging.getLogger(__name__)


class Job(NamedTuple):
    """Runs to be made side by side: one on a CPU, several on a GPU."""

    settings: Settings
    seeds: tuple[int, ...]
    out: str
    resume: bool = False
    """Take what is complete as it is, and go on from the last checkpoints where there are any."""
    checkpoint_every: float = 60.0
    """Seconds."""
    beside: tuple[tuple[Settings, int], ...] = ()
    """Settings and seeds of further runs; their streams have as many steps (`together`)."""

    @property
    def members(self) -> list[tuple[Settings, int]]:
        """Settings and seed of each run."""
        return [*((self.settings, seed) for seed in self.seeds), *self.beside]


def together(one: Settings, other: Settings) -> bool:
    """Whether runs with these settings can take their steps side by side in one process."""
    shared = ("stream", "dataset", "data_checksum", "stream_seed", "validation", "max_steps")
    same = (*shared, "device", "precision", "engine", "deterministic", "data_root")
    return (
        all(getattr(one, name) == getattr(other, name) for name in same)
        and all(one.values[key] == other.values[key] for key in TRAINING_KEYS)
        and joined(one.method) == joined(other.method)
    )


def execute(
    job: Job, tell: Callable[[Progress], None], stop: Callable[[], int] | None = None
) -> None:
    """Train and evaluate the runs of a job and write their folders.

    `stop` is asked after every step; when it gives a signal's number, a checkpoint is written and
    `Interrupted` raised. LockedError if another process is at work on one of the runs.
    """
    settings = job.settings  # of all members, as far as data and engine go
    with contextlib.ExitStack() as held:
        places = []
        for member, seed in job.members:
            folder = member.folder(Path(job.out), seed)
            held.enter_context(folder.locked())
            # Another process may have made it since this job was planned.
            if not (job.resume and usable(folder)):
                places.append((member, seed, folder))
        if not places:
            return
        dataset, engine = read_dataset(settings), build_engine(settings)
        folders = [folder for _, _, folder in places]
        runs = [build_run(member, dataset, seed) for member, seed, _ in places]
        shelves = [shelf_of(member, folder, seed) for member, seed, folder in places]
        place = environment(settings.device)
        keeper = Checkpoints if settings.ranks == 1 else SharedCheckpoints
        kept = held.enter_context(keeper(shelves, job.checkpoint_every, place))
        resumed = job.resume and kept.restore(runs)
        if not resumed:
            kept.clear()
        for (member, seed, folder), run in zip(places, runs, strict=True):
            config = member.config(seed, run.stream)
            folder.reopen(config) if resumed else folder.begin(config)
        if settings.ranks > 1:
            stop = from_rank_0_alone(stop)
        _train(settings, dict(zip(runs, folders, strict=True)), engine, kept, tell, stop)
        timing = {
            "seconds": kept.seconds,
            "resumed": kept.resumed,
            "side_by_side": len(runs),
            **place,
            "python": platform.python_version(),
            "host": platform.node(),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        for (member, seed, folder), run in zip(places, runs, strict=True):
            about = {
                "stream": member.stream,
                "method": member.method,
                "buffer_size": member.buffer_size,
            }
            result = {**about, "data": run.stream.data, "seed": seed, **run.record.result()}
            for name, content in run.learner.histograms().items():
                folder.event(name, step=run.step, **content)
            folder.finish(run.learner, result, timing)
        kept.clear()


def usable(folder: RunFolder) -> bool:
    """Whether the run is finished, and what the summary reads of it as it was written."""
    if not folder.complete:
        return False
    try:
        for name in ("config.json", "result.json"):
            folder.check(name)
    except DamagedError as error:
        _log.warning("%s (it is made again)", error)
        return False
    return True


def shelf_of(settings: Settings, folder: RunFolder, seed: int) -> Shelf:
    """Where the checkpoints of a run are."""
    of = {"method": settings.method, "network": settings.network}
    return Shelf(folder, {**of, "settings": settings_hash(settings.deciding()), "seed": seed})


def _train(
    settings: Settings,
    folders: Mapping[Run, RunFolder],
    engine: Engine,
    kept: Checkpoints,
    tell: Callable[[Progress], None],
    stop: Callable[[], int] | None,
) -> None:
    """Train the runs, noting in their folders how they fare."""
    runs = list(folders)
    hooks = Hooks(
        on_read=lambda run: _note_totals(folders[run], run),
        on_task=lambda run, task: _note_accuracies(folders[run], run, task),
        on_progress=tell,
    )
    resumable = all(task.resumable for run in runs for task in run.stream.tasks)
    try:
        train(
            runs,
            max_steps=settings.max_steps,
            engine=engine,
            hooks=hooks,
            keeper=kept if resumable else None,
            stop=stop,
        )
        for reason in dict.fromkeys(engine.refusals()):
            _log.warning("%s: its steps ran one operation at a time", reason)
    except TrainingError as error:
        kept.wait()
        step = kept.shelves[0].latest_step()
        if step is None:
            raise
        raise TrainingError(f"{error}; the checkpoint of step {step} is kept") from None
    except torch.OutOfMemoryError as error:
        raise TrainingError(
            f"the GPU's memory does not hold {len(runs)} runs side by side; try a smaller "
            f"--side-by-side ({str(error).splitlines()[0]})"
        ) from None
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        raise TrainingError(
            "there is not enough memory for the run; try a smaller --buffer or network"
        ) from None


def _note_totals(folder: RunFolder, run: Run) -> None:
    folder.event("totals", step=run.step, **run.learner.totals())
    memory = getattr(run.learner, "memory", None)
    if isinstance(memory, EpisodicMemory):
        folder.event("memory", step=run.step, classes=memory.class_counts(run.stream.classes))


def _note_accuracies(folder: RunFolder, run: Run, task: int) -> None:
    found = {name: rows[-1] for name, rows in run.record.class_il.items() if rows}
    folder.event("evaluation", step=run.step, task=task, class_il=found)


class Failure(NamedTuple):
    """Why a job failed."""

    reason: str
    trace: str = ""
    """The traceback of what no sentence explains: an error in a user's own code, or ours."""


def attempt(job: Job, tell: Callable[[Progress], None], stop: Callable[[], int]) -> Failure | None:
    """Make the runs of a job; returns why that failed, if it did."""
    try:
        execute(job, tell, stop)
    except Exception as error:
        return explain(error, job)
    return None


def explain(error: Exception, job: Job) -> Failure:
    """Why a job failed that ended with this error."""
    if isinstance(error, OSError):
        return Failure(_about_files(error, job))
    if isinstance(error, TrainingError | ValueError):
        return Failure(str(error))
    trace = "".join(traceback.format_exception(error))
    return Failure(f"{type(error).__name__}: {error}", trace)


def _about_files(error: OSError, job: Job) -> str:
    """What the file system refused, and what to do."""
    if error.filename is None:
        return str(error)
    if error.errno == errno.ENOENT:
        return f"{error.filename} is not there any more: its folder was removed during the run"
    how = "the same command" if job.resume else "--resume"
    return (
        f"{error.filename}: {error.strerror}; when that is mended, {how} goes on from the last "
        "checkpoint"
    )
