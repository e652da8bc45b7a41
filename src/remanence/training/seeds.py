"""The seeds of a setting: trained in this process, or in worker processes that die with it."""

from __future__ import annotations

import platform
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from remanence.results import RunFolder
from remanence.training.build import Settings, build_engine, build_run, read_dataset
from remanence.training.loop import Hooks, Progress, Run, TrainingError, train
from remanence.training.workers import Event, in_workers

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

    With `resume` they go on from their last checkpoints, which are `checkpoint_every` seconds apart.
    """
    folders = {seed: settings.folder(out, seed) for seed in seeds}
    missing = [seed for seed in seeds if again or not folders[seed].complete]
    width = side_by_side if settings.device != "cpu" else 1
    groups = [tuple(missing[i : i + width]) for i in range(0, len(missing), width)]
    jobs = [Job(settings, group, str(out), resume, checkpoint_every) for group in groups]
    failed = execute_all(jobs, workers=workers, threads=threads, tell=tell)
    done = {seed: folder for seed, folder in folders.items() if seed not in failed}
    return Outcome(done, failed, len(seeds) - len(missing))


class Job(NamedTuple):
    """Runs to be made side by side: one on a CPU, several on a GPU."""

    settings: Settings
    seeds: tuple[int, ...]
    out: str
    resume: bool = False
    """Go on from the last checkpoints, where there are any."""
    checkpoint_every: float = 60.0
    """Seconds."""


def execute(job: Job, tell: Callable[[Progress], None]) -> None:
    """Train and evaluate the runs of a job and write their folders."""
    settings, began = job.settings, time.perf_counter()
    dataset, engine = read_dataset(settings), build_engine(settings)
    runs = [build_run(settings, dataset, seed) for seed in job.seeds]
    folders = {run.seed: settings.folder(Path(job.out), run.seed) for run in runs}
    for run in runs:
        folders[run.seed].begin(settings.config(run.seed, run.stream))
    hooks = Hooks(
        on_read=lambda run: _note_totals(folders[run.seed], run),
        on_task=lambda run, task: _note_accuracies(folders[run.seed], run, task),
        on_progress=tell,
    )
    try:
        train(runs, max_steps=settings.max_steps, engine=engine, hooks=hooks)
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
    timing = {
        "seconds": time.perf_counter() - began,
        "side_by_side": len(runs),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": _processor(settings.device),
        "host": platform.node(),
    }
    about = {"stream": settings.stream, "method": settings.method, "buffer": settings.buffer}
    for run in runs:
        result = {**about, "data": run.stream.data, "seed": run.seed, **run.record.result()}
        folders[run.seed].finish(run.learner, result, timing)


def _processor(device: str) -> str:
    if device != "cpu":
        return torch.cuda.get_device_name(device)
    return torch.backends.cpu.get_cpu_capability()


def _note_totals(folder: RunFolder, run: Run) -> None:
    totals = {name: float(total) for name, total in run.learner.totals.items()}
    folder.event("totals", step=run.step, **totals)


def _note_accuracies(folder: RunFolder, run: Run, task: int) -> None:
    found = {name: rows[-1] for name, rows in run.record.class_il.items() if rows}
    folder.event("evaluation", step=run.step, task=task, class_il=found)


def execute_all(jobs: Sequence[Job], *, workers: int, threads: int, tell: Tell) -> dict[int, str]:
    """Make all runs, several at once where there are workers for it; returns seed → what failed.

    Each run computes with `threads` threads wherever it runs, so its numbers do not depend on
    how many others run beside it.
    """
    failed: dict[int, str] = {}
    if min(workers, len(jobs)) > 1:

        def note(event: Event) -> None:
            seeds = jobs[event.number].seeds
            if event.progress is not None:
                tell(seeds[0], event.progress)
            if event.kind == "failed":
                failed.update(dict.fromkeys(seeds, event.reason))

        in_workers(attempt, jobs, workers=workers, threads=threads, tell=note)
        return failed
    torch.set_num_threads(threads)
    for job in jobs:
        reason = attempt(job, lambda progress, job=job: tell(job.seeds[0], progress))  # type: ignore[misc]
        if reason is not None:
            failed |= dict.fromkeys(job.seeds, reason)
    return failed


def attempt(job: Job, tell: Callable[[Progress], None]) -> str | None:
    """Make the runs of a job; returns why that failed, if it did."""
    try:
        execute(job, tell)
    except Exception as error:
        if not isinstance(error, _EXPECTED):  # in a user's own code, or ours: where was it?
            traceback.print_exc()
        return explain(error)
    return None


_EXPECTED = (TrainingError, ValueError, OSError)
"""Their messages say all."""


def explain(error: BaseException) -> str:
    """Why a run failed, in a sentence."""
    return str(error) if isinstance(error, _EXPECTED) else f"{type(error).__name__}: {error}"
