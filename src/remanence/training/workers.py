"""Worker processes: jobs in, progress and outcomes back; none of them outlives its parent."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from remanence.training.job import Job, attempt
from remanence.training.loop import Interrupted, Progress
from remanence.training.signals import Stop

Tell = Callable[[int, Progress], None]
"""Called with a seed and where its run stands."""


def in_workers(
    jobs: Sequence[Job], workers: int, threads: int, tell: Tell, stop: Stop
) -> dict[int, str]:
    """Make all runs, `workers` jobs at a time; returns seed → what failed.

    When `stop` says so no job is begun any more, and those under way write a checkpoint and end.
    """
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
        stopping = False
        while busy:
            if stop() and not stopping:
                stopping = True
                waiting.clear()
                for worker in started:
                    worker.terminate()  # it finishes its step and writes a checkpoint
            for channel in wait(list(busy), timeout=0.1):  # now and then, to hear of a stop
                assert isinstance(channel, Connection)
                process, job = busy[channel]
                try:
                    kind, content = channel.recv()
                except (EOFError, OSError):
                    del busy[channel]
                    process.join()
                    if not stopping:
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
                process.kill()
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
    """A worker's life: jobs until there are none, it is asked to stop, or its parent is gone."""
    stop = Stop()
    signal.signal(signal.SIGTERM, stop.note)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which tells us
    _die_with_parent()
    torch.set_num_threads(threads)
    with contextlib.suppress(Interrupted):  # the parent hears of our end
        while not stop() and (job := channel.recv()) is not None:
            reason = attempt(job, lambda progress: channel.send(("progress", progress)), stop)
            channel.send(("done", None) if reason is None else ("failed", reason))
    if stop():
        sys.exit(128 + stop())


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
