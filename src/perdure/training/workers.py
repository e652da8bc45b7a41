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
from typing import Any, Literal, NamedTuple

import torch

from perdure.training.job import Failure, Job, attempt
from perdure.training.loop import Interrupted, Progress
from perdure.training.signals import Stop


class Event(NamedTuple):
    """What happened to a job."""

    number: int
    """Its place among the jobs."""
    kind: Literal["begun", "progress", "done", "again", "failed"]
    """again: it failed and will be tried again."""
    progress: Progress | None = None
    reason: str = ""
    """Why it failed."""
    trace: str = ""
    """The traceback, where the reason does not say enough."""


Tell = Callable[[Event], None]


def in_workers(
    jobs: Sequence[Job],
    *,
    workers: int,
    threads: int,
    retries: int = 0,
    tell: Tell,
    stop: Stop,
) -> None:
    """Do all jobs, `workers` at a time, each with `threads` threads.

    A job that fails, or whose worker dies, is tried again after all others, `retries` times. When
    `stop` says so no job is begun any more, and those under way write a checkpoint and end.
    """
    pool = _Pool(jobs, threads, retries, tell, stop)
    try:
        for _ in range(min(workers, len(jobs))):
            pool.start_worker()
        pool.listen()
    finally:
        pool.end()


class _Pool:
    """The processes, what each is doing, and what is still to be done."""

    def __init__(
        self, jobs: Sequence[Job], threads: int, retries: int, tell: Tell, stop: Stop
    ) -> None:
        # A fork would inherit torch's thread pools.
        self.context = multiprocessing.get_context("spawn")
        self.jobs, self.threads, self.tell, self.stop = jobs, threads, tell, stop
        self.stopping = False
        self.waiting = list(reversed(range(len(jobs))))
        self.chances = [1 + retries] * len(jobs)
        self.busy: dict[Connection[Any, Any], tuple[BaseProcess, int]] = {}
        self.started: list[BaseProcess] = []

    def start_worker(self) -> None:
        ours, theirs = self.context.Pipe()
        worker = self.context.Process(target=_work, args=(theirs, self.threads), daemon=True)
        with _without_ctrl_c():
            worker.start()
        theirs.close()
        self.started.append(worker)
        self.give_work(ours, worker)

    def give_work(self, channel: Connection[Any, Any], process: BaseProcess) -> None:
        number = self.waiting.pop() if self.waiting else None
        with contextlib.suppress(BrokenPipeError):  # its end is noticed when it is listened to
            channel.send(None if number is None else self.jobs[number])
        if number is not None:
            self.busy[channel] = (process, number)
            self.tell(Event(number, "begun"))

    def listen(self) -> None:
        while self.busy:
            if self.stop() and not self.stopping:
                self.stopping = True
                self.waiting.clear()
                for worker in self.started:
                    worker.terminate()  # it finishes its step and writes a checkpoint
            for channel in wait(list(self.busy), timeout=0.1):  # now and then, to hear of a stop
                assert isinstance(channel, Connection)
                self.hear(channel)

    def hear(self, channel: Connection[Any, Any]) -> None:
        process, number = self.busy[channel]
        try:
            kind, content = channel.recv()
        except (EOFError, OSError):
            del self.busy[channel]
            process.join()
            if not self.stopping:
                self.failed(number, Failure(f"its worker process died ({_end(process.exitcode)})"))
            if self.waiting:
                self.start_worker()
            return
        if kind == "progress":
            self.tell(Event(number, "progress", progress=content))
            return
        del self.busy[channel]
        if content is None:
            self.tell(Event(number, "done"))
        else:
            self.failed(number, content)
        self.give_work(channel, process)

    def failed(self, number: int, failure: Failure) -> None:
        self.chances[number] -= 1
        if self.chances[number]:
            self.waiting.insert(0, number)
        kind: Literal["again", "failed"] = "again" if self.chances[number] else "failed"
        self.tell(Event(number, kind, reason=failure.reason, trace=failure.trace))

    def end(self) -> None:
        """At once where one is still busy: we were interrupted, and not for the first time."""
        for process in self.started:
            if self.busy:
                process.kill()
            process.join()


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
    signal.signal(signal.SIGTERM, stop.request)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which tells us
    _die_with_parent()
    torch.set_num_threads(threads)
    with contextlib.suppress(Interrupted):  # the parent hears of our end
        while not stop() and (job := channel.recv()) is not None:
            failure = attempt(job, lambda progress: channel.send(("progress", progress)), stop)
            channel.send(("ended", failure))
    if stop():
        sys.exit(128 + stop())


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
