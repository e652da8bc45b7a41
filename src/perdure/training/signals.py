"""Signals that stop training: the first between two steps, the second at once."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from types import FrameType
from typing import NoReturn

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
STOP_SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
"""Ctrl-C, the end of a session, and what batch systems send before they end a job."""


class Terminated(KeyboardInterrupt):
    """A signal ended the process at once, as Ctrl-C does."""

    def __init__(self, signum: int) -> None:
        super().__init__()
        self.signum = signum


def terminate(signum: int, frame: FrameType | None) -> NoReturn:
    """Raise Terminated (a signal handler)."""
    raise Terminated(signum)


class Stop:
    """A request to stop. Calling it returns the number of the signal, or 0 without a request."""

    signum = 0

    def __call__(self) -> int:
        """Return the number of the signal that requested the stop, or 0."""
        return self.signum

    def request(self, signum: int, frame: FrameType | None) -> None:
        """Request a stop (a signal handler)."""
        self.signum = signum

    def request_or_terminate(self, signum: int, frame: FrameType | None) -> None:
        """Request a stop or, if one was requested already, terminate (a signal handler)."""
        if self.signum:
            terminate(signum, frame)
        self.signum = signum


_handled: set[int] = set()
"""The signals for which `handle` has installed a handler."""


def handle(signals: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> None:
    """Install a handler in this process, but not in those that it forks."""
    for signum in signals:
        signal.signal(signum, handler)
        _handled.add(signum)


def _before_fork() -> None:
    """Postpone the signals of a new process until its handlers are reset."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _handled)


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _reset_in_child() -> None:
    """Let a forked process, such as a worker of a user's DataLoader, be ended by its parent.

    A terminal sends the other signals to all processes; this one continues until the parent stops.
    """
    if _handled:
        signal.set_wakeup_fd(-1)  # the parent reads it
    for signum in _handled:
        ends = signum == signal.SIGTERM
        signal.signal(signum, signal.SIG_DFL if ends else signal.SIG_IGN)
    _handled.clear()
    _after_fork()


_forking = threading.local()
"""The signals that were blocked before a fork, in its thread."""
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_reset_in_child
    )


@contextlib.contextmanager
def graceful_stop(on_request: Callable[[], None] | None = None) -> Iterator[Stop]:
    """Turn the first of STOP_SIGNALS inside the block into a request to stop.

    Pass the result to `train` as `stop`. Outside the main thread no signal is handled. A block
    inside another has the request of the outer one.

    Args:
        on_request: Called in another thread as soon as the signal arrives.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    previous = {s: signal.getsignal(s) for s in STOP_SIGNALS}
    for handler in previous.values():
        if isinstance(outer := getattr(handler, "__self__", None), Stop):
            yield outer
            return
    handled = [  # shells start background jobs ignoring SIGINT
        s for s, handler in previous.items() if handler not in (signal.SIG_IGN, None)
    ]
    handle(handled, stop.request_or_terminate)
    try:
        with _call_on_arrival(on_request, handled) if on_request else contextlib.nullcontext():
            yield stop
    finally:
        _handled.difference_update(handled)
        for signum, handler in previous.items():
            if handler is not None:  # None: not installed from Python
                signal.signal(signum, handler)


@contextlib.contextmanager
def _call_on_arrival(function: Callable[[], None], signals: Collection[int]) -> Iterator[None]:
    """Call a function in another thread when the first of the signals arrives.

    Handlers in Python wait for the end of an operation outside of Python, which on a CPU may be a
    backward pass of many seconds.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)

    def listen() -> None:
        while number := ours.recv(1):
            if number[0] in signals:
                function()
                return

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    previous = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        theirs.shutdown(socket.SHUT_WR)  # forked processes may have copies, which stay open
        thread.join()
        theirs.close()
        ours.close()
