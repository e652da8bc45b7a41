"""Signals that stop training: the first between two steps, the second at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
STOP_SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
"""Ctrl-C, the end of a session, and what batch systems send before they end a job."""


class Stop:
    """A request to stop. Calling it returns the number of the signal, or 0 without a request."""

    signum = 0

    def __call__(self) -> int:
        """Return the number of the signal that requested the stop, or 0."""
        return self.signum

    def request(self, signum: int, frame: FrameType | None) -> None:
        """Request a stop (a signal handler)."""
        self.signum = signum

    def request_or_exit(self, signum: int, frame: FrameType | None) -> None:
        """Request a stop or, if one was requested already, exit (a signal handler)."""
        if self.signum:
            if signum == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(128 + signum)
        self.signum = signum


@contextlib.contextmanager
def graceful_stop() -> Iterator[Stop]:
    """Turn the first of STOP_SIGNALS inside the block into a request to stop.

    Pass the result to `train` as `stop`. Outside the main thread no signal is handled.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    previous = {s: signal.getsignal(s) for s in STOP_SIGNALS}
    for signum, handler in previous.items():
        if handler not in (signal.SIG_IGN, None):  # shells start background jobs ignoring SIGINT
            signal.signal(signum, stop.request_or_exit)
    try:
        yield stop
    finally:
        for signum, handler in previous.items():
            if handler is not None:  # None: not installed from Python
                signal.signal(signum, handler)
