"""The first signal requests a stop, the second exits; earlier handlers are restored."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from perdure.training.signals import graceful_stop


@pytest.mark.parametrize(
    ("name", "second"), [("SIGINT", KeyboardInterrupt), ("SIGTERM", SystemExit)]
)
def test_the_first_signal_requests_a_stop_and_the_second_exits(
    name: str, second: type[BaseException]
) -> None:
    signum = signal.Signals[name]
    before = signal.getsignal(signum)
    with graceful_stop() as stop:
        assert stop() == 0
        os.kill(os.getpid(), signum)
        assert stop() == signum
        with pytest.raises(second):
            os.kill(os.getpid(), signum)
    assert signal.getsignal(signum) == before


def test_ignored_signals_stay_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with graceful_stop() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop() == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_signals_are_not_handled_in_other_threads() -> None:
    found: list[object] = []

    def look() -> None:
        with graceful_stop() as stop:
            found.append((stop(), signal.getsignal(signal.SIGTERM)))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [(0, before)]
