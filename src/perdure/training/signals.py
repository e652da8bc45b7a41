"""Ctrl-C and SIGTERM: the first asks for a stop between two steps, the second ends at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Stop:
    """Whether, and by which signal, a stop was asked for. Calling it gives the number, or 0."""

    signum = 0

    def __call__(self) -> int:
        """The signal's number."""
        return self.signum

    def note(self, signum: int, frame: FrameType | None) -> None:
        """A signal handler that asks for the stop and nothing more."""
        self.signum = signum

    def insist(self, signum: int, frame: FrameType | None) -> None:
        """A signal handler that asks for the stop, and the second time does not wait for it."""
        if self.signum:
            if signum == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(128 + signum)
        self.signum = signum


@contextlib.contextmanager
def noticed() -> Iterator[Stop]:
    """Inside, the first SIGINT or SIGTERM only asks for a stop. Does nothing in other threads."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    for signum, handler in before.items():
        if handler not in (signal.SIG_IGN, None):  # a shell's background jobs hear no Ctrl-C
            signal.signal(signum, stop.insist)
    try:
        yield stop
    finally:
        for signum, handler in before.items():
            if handler is not None:  # None: not Python's to restore
                signal.signal(signum, handler)
