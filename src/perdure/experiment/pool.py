"""Running tasks one after another in this process, or several at a time in worker processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal, NamedTuple, Protocol

import torch

from perdure.processes import call_with_parent, leave_out_compiler
from perdure.training.loop import Interrupted
from perdure.training.signals import STOP_SIGNALS, Stop, graceful_stop, handle


class Failure(NamedTuple):
    """Why a task failed."""

    reason: str
    """One sentence."""
    trace: str = ""
    """The traceback, if the error was not expected: one in a user's code, or in ours."""


class Task(Protocol):
    """Work for one process. Tasks are sent to workers, so they must be serialisable."""

    def execute(self, report: Callable[[Any], None], stop: Callable[[], int]) -> None:
        """Do the work, and send progress to the process that started the task with `report`.

        Once `stop` returns a signal's number, the task should stop by raising Interrupted.
        """

    def explain(self, error: Exception) -> Failure:
        """Why `execute` failed with this error."""


class Event(NamedTuple):
    """What happened to a task."""

    number: int
    """Position of the task in the list."""
    kind: Literal["started", "progress", "done", "retry", "failed"]
    """retry: it failed and will be attempted again."""
    progress: Any = None
    """What the task reported."""
    failure: Failure | None = None


OnEvent = Callable[[Event], None]


def run_tasks(
    tasks: Sequence[Task],
    on_event: OnEvent,
    *,
    workers: int,
    threads: int = 1,
    retries: int = 0,
    in_process: bool = False,
) -> None:
    """Execute all tasks; a failure does not keep the others from running.

    Args:
        tasks: What to execute.
        on_event: Called with everything that happens.
        workers: Worker processes, if there are enough tasks.
        threads: Threads of each process, so that results do not depend on the number of workers.
        retries: How often a failed task, or one whose worker died, is attempted again after all
            others.
        in_process: Whether to execute the tasks in this process, one after another.

    Raises:
        Interrupted: If one of STOP_SIGNALS arrived. Running tasks were asked to stop and have.
    """
    with graceful_stop() as stop:
        if in_process:
            torch.set_num_threads(threads)
            for number, task in enumerate(tasks):
                if stop():
                    break
                on_event(Event(number, "started"))
                try:
                    task.execute(lambda p, n=number: on_event(Event(n, "progress", p)), stop)  # type: ignore[misc]
                except Exception as error:
                    on_event(Event(number, "failed", failure=task.explain(error)))
                else:
                    on_event(Event(number, "done"))
        else:
            pool = _Pool(tasks, on_event, threads, retries, stop)
            try:
                for _ in range(min(workers, len(tasks))):
                    pool.start_worker()
                pool.listen()
            finally:
                pool.close()
    if stop():
        raise Interrupted(stop())


class _Pool:
    """Worker processes, the task of each, and the tasks that are waiting."""

    def __init__(
        self, tasks: Sequence[Task], on_event: OnEvent, threads: int, retries: int, stop: Stop
    ) -> None:
        # Forked processes would inherit torch's thread pools.
        self.context = multiprocessing.get_context("spawn")
        self.tasks, self.on_event, self.threads, self.stop = tasks, on_event, threads, stop
        self.stopping = False
        self.waiting = list(reversed(range(len(tasks))))
        self.attempts_left = [1 + retries] * len(tasks)
        self.busy: dict[Connection[Any, Any], tuple[BaseProcess, int]] = {}
        self.workers: list[BaseProcess] = []

    def start_worker(self) -> None:
        ours, theirs = self.context.Pipe()
        worker = self.context.Process(
            target=call_with_parent,
            args=(__name__, "worker_main", theirs, self.threads),
            daemon=True,
        )
        with _signals_blocked():
            worker.start()
        theirs.close()
        self.workers.append(worker)
        self.send_task(ours, worker)

    def send_task(self, channel: Connection[Any, Any], worker: BaseProcess) -> None:
        number = self.waiting.pop() if self.waiting else None
        with contextlib.suppress(BrokenPipeError):  # its death is noticed in `receive`
            channel.send(None if number is None else self.tasks[number])
        if number is not None:
            self.busy[channel] = (worker, number)
            self.on_event(Event(number, "started"))

    def listen(self) -> None:
        while self.busy:
            if self.stop() and not self.stopping:
                self.stopping = True
                self.waiting.clear()
                for worker in self.workers:
                    worker.terminate()  # asks it to stop
            for channel in wait(list(self.busy), timeout=0.1):
                assert isinstance(channel, Connection)
                self.receive(channel)

    def receive(self, channel: Connection[Any, Any]) -> None:
        worker, number = self.busy[channel]
        try:
            kind, content = channel.recv()
        except (EOFError, OSError):
            del self.busy[channel]
            worker.join()
            if not self.stopping:
                code = worker.exitcode or 0
                how = f"signal {-code}" if code < 0 else f"exit status {code}"
                self.failed(number, Failure(f"its worker process died ({how})"))
            if self.waiting:
                self.start_worker()
            return
        if kind == "progress":
            self.on_event(Event(number, "progress", content))
            return
        del self.busy[channel]
        if content is None:
            self.on_event(Event(number, "done"))
        else:
            self.failed(number, content)
        self.send_task(channel, worker)

    def failed(self, number: int, failure: Failure) -> None:
        self.attempts_left[number] -= 1
        if self.attempts_left[number]:
            self.waiting.insert(0, number)
            self.on_event(Event(number, "retry", failure=failure))
        else:
            self.on_event(Event(number, "failed", failure=failure))

    def close(self) -> None:
        """Wait for the workers; kill them if tasks are still running after a second signal."""
        for worker in self.workers:
            if self.busy:
                worker.kill()
            worker.join()


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Processes started inside never receive a signal that the parent handles for all.

    A terminal or a batch system sends these to all processes, even while they start.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # the first worker would start it and unblock the signal
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, set(STOP_SIGNALS) - {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def worker_main(channel: Connection[Any, Any], threads: int) -> None:
    """Worker main loop: execute tasks until there are none, or until asked to stop."""
    stop = Stop()
    handle([signal.SIGTERM], stop.request)
    for signum in set(STOP_SIGNALS) - {signal.SIGTERM}:
        signal.signal(signum, signal.SIG_IGN)  # the parent handles it, and then sends SIGTERM
    torch.set_num_threads(threads)
    leave_out_compiler()
    with contextlib.suppress(Interrupted):
        while not stop() and (task := channel.recv()) is not None:
            failure = None
            try:
                task.execute(lambda progress: channel.send(("progress", progress)), stop)
            except Exception as error:
                failure = task.explain(error)
            channel.send(("ended", failure))
    if stop():
        sys.exit(128 + stop())
