"""The first signal asks, the second ends; others' handlers come back."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from perdure.training.signals import noticed


@pytest.mark.parametrize(
    ("name", "second"), [("SIGINT", KeyboardInterrupt), ("SIGTERM", SystemExit)]
)
def test_the_first_is_noted_and_the_second_ends(name: str, second: type[BaseException]) -> None:
    signum = signal.Signals[name]
    before = signal.getsignal(signum)
    with noticed() as stop:
        assert stop() == 0
        os.kill(os.getpid(), signum)
        assert stop() == signum
        with pytest.raises(second):
            os.kill(os.getpid(), signum)
    assert signal.getsignal(signum) == before


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with noticed() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop() == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_are_left_alone() -> None:
    found: list[object] = []

    def look() -> None:
        with noticed() as stop:
            found.append((stop(), signal.getsignal(signal.SIGTERM)))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [(0, before)]
