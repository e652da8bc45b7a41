"""The seeds of a setting: trained in this process, or in worker processes that die with it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import platform
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import torch

from remanence.memory.episodic import EpisodicMemory
from remanence.results import RunFolder
from remanence.training.build import Settings, build_engine, build_run, read_dataset
from remanence.training.loop import Hooks, Progress, Run, TrainingError, train

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
    workers: int = 1,
    threads: int = 1,
    side_by_side: int = 1,
    tell: Tell,
) -> Outcome:
    """Train the seeds that have no finished run below `out` (all of them, with `again`)."""
    folders = {seed: settings.folder(out, seed) for seed in seeds}
    missing = [seed for seed in seeds if again or not folders[seed].complete]
    width = side_by_side if settings.device != "cpu" else 1
    groups = [tuple(missing[i : i + width]) for i in range(0, len(missing), width)]
    jobs = [Job(settings, group, str(out)) for group in groups]
    failed = execute_all(jobs, workers=workers, threads=threads, tell=tell)
    done = {seed: folder for seed, folder in folders.items() if seed not in failed}
    return Outcome(done, failed, len(seeds) - len(missing))


class Job(NamedTuple):
    """Runs to be made side by side: one on a CPU, several on a GPU."""

    settings: Settings
    seeds: tuple[int, ...]
    out: str


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
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    about = {"stream": settings.stream, "method": settings.method, "buffer": settings.buffer}
    for run in runs:
        result = {**about, "data": run.stream.data, "seed": run.seed, **run.record.result()}
        for name, content in run.learner.histograms().items():
            folders[run.seed].event(name, step=run.step, **content)
        folders[run.seed].finish(run.learner, result, timing)


def _processor(device: str) -> str:
    if device != "cpu":
        return torch.cuda.get_device_name(device)
    return torch.backends.cpu.get_cpu_capability()


def _note_totals(folder: RunFolder, run: Run) -> None:
    folder.event("totals", step=run.step, **run.learner.readings())
    memory = getattr(run.learner, "memory", None)
    if isinstance(memory, EpisodicMemory):
        folder.event("memory", step=run.step, classes=memory.class_counts(run.stream.classes))


def _note_accuracies(folder: RunFolder, run: Run, task: int) -> None:
    found = {name: rows[-1] for name, rows in run.record.class_il.items() if rows}
    folder.event("evaluation", step=run.step, task=task, class_il=found)


def execute_all(jobs: Sequence[Job], *, workers: int, threads: int, tell: Tell) -> dict[int, str]:
    """Make all runs, several at once where there are workers for it; returns seed → what failed.

    Each run computes with `threads` threads wherever it runs, so its numbers do not depend on
    how many others run beside it.
    """
    if min(workers, len(jobs)) > 1:
        return _in_workers(jobs, min(workers, len(jobs)), threads, tell)
    torch.set_num_threads(threads)
    failed: dict[int, str] = {}
    for job in jobs:
        reason = _attempt(job, lambda progress, job=job: tell(job.seeds[0], progress))  # type: ignore[misc]
        if reason is not None:
            failed |= dict.fromkeys(job.seeds, reason)
    return failed


def _attempt(job: Job, tell: Callable[[Progress], None]) -> str | None:
    """Make the runs of a job; returns why that failed, if it did."""
    try:
        execute(job, tell)
    except (TrainingError, ValueError, OSError) as error:
        return str(error)
    except Exception as error:  # in a user's own code, or ours: they will want to see where
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    return None


def _in_workers(jobs: Sequence[Job], workers: int, threads: int, tell: Tell) -> dict[int, str]:
    context = multiprocessing.get_context("spawn")  # a fork would inherit torch's thread pools
    waiting = list(reversed(jobs))
    failed: dict[int, str] = {}
    busy: dict[Connection[Any, Any], tuple[BaseProcess, Job]] = {}
    started: list[BaseProcess] = []

    def start_worker() -> None:
        ours, theirs = context.Pipe()
        worker = context.Process(target=_work, args=(theirs, threads), daemon=True)
        with _without_ctrl_c():
            worker.start()
        theirs.close()
        started.append(worker)
        give_work(ours, worker)

    def give_work(channel: Connection[Any, Any], process: BaseProcess) -> None:
        job = waiting.pop() if waiting else None
        if job is not None:
            busy[channel] = (process, job)
        with contextlib.suppress(BrokenPipeError):  # its end is noticed when it is listened to
            channel.send(job)

    try:
        for _ in range(workers):
            start_worker()
        while busy:
            for channel in wait(list(busy)):
                assert isinstance(channel, Connection)
                process, job = busy[channel]
                try:
                    kind, content = channel.recv()
                except (EOFError, OSError):
                    del busy[channel]
                    process.join()
                    reason = f"its worker process died ({_end(process.exitcode)})"
                    failed |= dict.fromkeys(job.seeds, reason)
                    if waiting:
                        start_worker()
                    continue
                if kind == "progress":
                    tell(job.seeds[0], content)
                    continue
                if kind == "failed":
                    failed |= dict.fromkeys(job.seeds, content)
                del busy[channel]
                give_work(channel, process)
    finally:
        for process in started:
            if busy:
                process.terminate()
            process.join()
    return failed


@contextlib.contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """A process started inside never hears Ctrl-C, not even while it starts: we end it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # or the first worker would start it, which unblocks signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(code: int | None) -> str:
    return f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"


def _work(channel: Connection[Any, Any], threads: int) -> None:
    """A worker's life: jobs until there are none, or until its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends us
    _die_with_parent()
    torch.set_num_threads(threads)
    while (job := channel.recv()) is not None:
        reason = _attempt(job, lambda progress: channel.send(("progress", progress)))
        channel.send(("done", None) if reason is None else ("failed", reason))


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
