"""The first signal requests a stop, the second ends the process; earlier handlers are restored."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
import time

import pytest

from perdure.training.signals import Terminated, graceful_stop


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_the_first_signal_requests_a_stop_and_the_second_ends_the_process(name: str) -> None:
    signum = signal.Signals[name]
    before = signal.getsignal(signum)
    with graceful_stop() as stop:
        assert stop() == 0
        os.kill(os.getpid(), signum)
        assert stop() == signum
        with pytest.raises(Terminated) as raised:
            os.kill(os.getpid(), signum)
        assert raised.value.signum == signum
    assert signal.getsignal(signum) == before


def test_a_block_inside_another_shares_its_request() -> None:
    called: list[str] = []
    with graceful_stop(lambda: called.append("outer")) as outer:
        with graceful_stop(lambda: called.append("inner")) as inner:
            os.kill(os.getpid(), signal.SIGTERM)
            assert inner() == signal.SIGTERM
        assert outer() == signal.SIGTERM
    assert called == ["outer"]


def test_a_request_is_reported_once() -> None:
    called: list[int] = []
    with graceful_stop(lambda: called.append(1)):
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert called == [1]


def test_a_request_is_reported_while_no_handler_can_run() -> None:
    """Handlers wait for the end of calls of C, here for a lock that the report releases."""
    c = ctypes.CDLL(None)
    lock = ctypes.create_string_buffer(64)
    c.pthread_mutex_lock(lock)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with graceful_stop(lambda: c.pthread_mutex_unlock(lock)) as stop:
        c.pthread_mutex_lock(lock)
        assert stop() == signal.SIGTERM


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_ends_with_sigterm_and_leaves_other_signals_to_its_parent() -> None:
    called: list[int] = []
    with graceful_stop(lambda: called.append(1)) as stop:
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGINT)
        child.join(0.2)
        assert child.is_alive()
        child.terminate()
        child.join(10)
        assert child.exitcode == -signal.SIGTERM
        assert stop() == 0
    assert not called


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
