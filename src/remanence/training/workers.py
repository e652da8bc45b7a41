"""Worker processes: they take jobs until there are none, say how they stand, and die with us."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal, NamedTuple, TypeVar

import torch

from remanence.training.loop import Progress

Job = TypeVar("Job")
Attempt = Callable[[Job, Callable[[Progress], None]], str | None]
"""Does a job, telling of its progress; returns why that failed, if it did."""


class Event(NamedTuple):
    """What happened to a job."""

    number: int
    """Its place among the jobs."""
    kind: Literal["begun", "progress", "done", "again", "failed"]
    """again: it failed and will be tried again."""
    progress: Progress | None = None
    reason: str = ""
    """Why it failed."""


Tell = Callable[[Event], None]


def in_workers(
    attempt: Attempt[Job],
    jobs: Sequence[Job],
    *,
    workers: int,
    threads: int,
    retries: int = 0,
    tell: Tell,
) -> None:
    """Do all jobs, `workers` at a time, each with `threads` threads.

    A job that fails, or whose worker dies, is tried again after all others, `retries` times.
    """
    pool = _Pool(attempt, jobs, threads, retries, tell)
    try:
        for _ in range(min(workers, len(jobs))):
            pool.start_worker()
        pool.listen()
    finally:
        pool.end()


class _Pool:
    """The processes, what each is doing, and what is still to be done."""

    def __init__(
        self, attempt: Attempt[Any], jobs: Sequence[Any], threads: int, retries: int, tell: Tell
    ) -> None:
        # A fork would inherit torch's thread pools.
        self.context = multiprocessing.get_context("spawn")
        self.attempt, self.jobs, self.threads, self.tell = attempt, jobs, threads, tell
        self.waiting = list(reversed(range(len(jobs))))
        self.chances = [1 + retries] * len(jobs)
        self.busy: dict[Connection[Any, Any], tuple[BaseProcess, int]] = {}
        self.started: list[BaseProcess] = []

    def start_worker(self) -> None:
        ours, theirs = self.context.Pipe()
        worker = self.context.Process(
            target=_work, args=(theirs, self.attempt, self.threads), daemon=True
        )
        with _without_ctrl_c():
            worker.start()
        theirs.close()
        self.started.append(worker)
        self.give_work(ours, worker)

    def give_work(self, channel: Connection[Any, Any], process: BaseProcess) -> None:
        number = self.waiting.pop() if self.waiting else None
        with contextlib.suppress(BrokenPipeError):  # its end is noticed when it is listened to
            channel.send(None if number is None else (self.jobs[number],))
        if number is not None:
            self.busy[channel] = (process, number)
            self.tell(Event(number, "begun"))

    def listen(self) -> None:
        while self.busy:
            for channel in wait(list(self.busy)):
                assert isinstance(channel, Connection)
                self.hear(channel)

    def hear(self, channel: Connection[Any, Any]) -> None:
        process, number = self.busy[channel]
        try:
            kind, content = channel.recv()
        except (EOFError, OSError):
            del self.busy[channel]
            process.join()
            self.failed(number, f"its worker process died ({_end(process.exitcode)})")
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

    def failed(self, number: int, reason: str) -> None:
        self.chances[number] -= 1
        if self.chances[number]:
            self.waiting.insert(0, number)
        self.tell(Event(number, "again" if self.chances[number] else "failed", reason=reason))

    def end(self) -> None:
        """At once where one is still busy: we were interrupted."""
        for process in self.started:
            if self.busy:
                process.terminate()
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


def _work(channel: Connection[Any, Any], attempt: Attempt[Any], threads: int) -> None:
    """A worker's life: jobs until there are none, or until its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends us
    _die_with_parent()
    torch.set_num_threads(threads)
    while (given := channel.recv()) is not None:
        reason = attempt(given[0], lambda progress: channel.send(("progress", progress)))
        channel.send(("ended", reason))


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
