"""Signals, concurrent writers and killed workers, with real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from .compare import contents, find_run, left_over
from .server import Life, Server

SLOW = """
    import os, time
    from pathlib import Path
    from perdure import SGD

    class Slow(SGD):
        def __init__(self, network, *, seed=0, **common):
            super().__init__(network, seed=seed, **common)
            self.own_seed = seed

        def step(self, inputs, labels):
            super().step(inputs, labels)
            Path(f"pid-{self.own_seed}").write_text(str(os.getpid()))
            time.sleep(float(Path("pause").read_text()))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where `slow:Slow` is a method whose every step pauses."""
    (tmp_path / "slow.py").write_text(dedent(SLOW))
    (tmp_path / "pause").write_text("0.01")
    return tmp_path


def flags(out: str, *more: str) -> list[str]:
    run = "s-mnist --method slow:Slow --dataset mnist5k --epochs 1 --max-steps 100 --quiet"
    return [*run.split(), "--out", out, *more]


def pause(folder: Path, seconds: float) -> None:
    """Set how long each step takes. With `LONG`, a run of 100 steps lasts until it is stopped."""
    (folder / "new").write_text(str(seconds))
    (folder / "new").rename(folder / "pause")


LONG = 0.5


def wait_until(condition: Callable[[], bool], life: Life, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, life.errors
        time.sleep(0.005)


def stepping(life: Life) -> Callable[[], bool]:
    return lambda: (life.log / "steps").exists() and life.seen().last > 3


# -- stopping -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "SIGINT",
        "SIGUSR1",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("SIGTERM", "SIGHUP")),
    ],
)
def test_a_signal_finishes_the_step_and_prints_how_to_continue(
    server: Server, folder: Path, name: str
) -> None:
    assert server.start(folder, "run", *flags("whole")).wait() == 0
    pause(folder, LONG)
    life = server.start(folder, "run", *flags("stopped"))
    wait_until(stepping(life), life)
    os.kill(life.pid, signal.Signals[name])
    assert life.wait() == 128 + signal.Signals[name]
    pause(folder, 0)
    command = " ".join(["perdure run", *flags("stopped")])
    assert life.errors.count("\n") == 1
    assert f"`{command}`" in life.errors
    last = life.seen().last
    assert 3 < last < 100
    resumed = server.start(folder, "run", *flags("stopped"))
    assert (resumed.wait(), resumed.errors) == (0, "")
    assert resumed.seen().first == last  # not one step was lost
    run = find_run(folder / "stopped")
    assert contents(run) == contents(find_run(folder / "whole"))
    assert left_over(run) == set()


def test_a_second_ctrl_c_does_not_wait_for_the_step(server: Server, folder: Path) -> None:
    pause(folder, 600)
    life = server.start(folder, "run", *flags("runs"))
    wait_until((folder / "pid-0").exists, life)
    os.kill(life.pid, signal.SIGINT)
    time.sleep(2)  # two signals at one moment would be one
    began = time.monotonic()
    os.kill(life.pid, signal.SIGINT)
    assert life.wait() == 130
    assert time.monotonic() - began < 300
    assert life.errors.startswith("perdure: interrupted")


def test_an_interrupted_run_resumes_with_a_note_and_restarts_on_request(
    server: Server, folder: Path
) -> None:
    pause(folder, LONG)
    life = server.start(folder, "run", *flags("runs"))
    wait_until(stepping(life), life)
    os.kill(life.pid, signal.SIGTERM)
    assert life.wait() == 143
    pause(folder, 0)
    again = server.start(folder, "run", *(f for f in flags("runs") if f != "--quiet"))
    assert again.wait() == 0
    assert again.seen().first == life.seen().last
    assert "use --restart" in again.errors
    assert f"from step {life.seen().last}\n" in again.errors
    restarted = server.start(folder, "run", *flags("runs", "--restart"))
    assert restarted.wait() == 0
    assert restarted.seen().first == 0


# -- one writer -----------------------------------------------------------------------------


def test_a_second_process_is_refused_with_a_sentence(server: Server, folder: Path) -> None:
    pause(folder, LONG)
    first = server.start(folder, "run", *flags("runs"))
    wait_until(stepping(first), first)
    for more in ([], ["--resume"], ["--restart"]):
        second = server.start(folder, "run", *flags("runs", *more))
        assert second.wait() == 2
        assert re.search(r"runs/s-mnist/slow\.Slow-\w+/seed-0\b", second.errors)
        assert str(first.pid) in second.errors
        assert second.errors.count("\n") == 1
    pause(folder, 0)
    assert (first.wait(), first.errors) == (0, "")
    assert left_over(find_run(folder / "runs")) == set()


def test_of_processes_started_at_the_same_time_one_trains(server: Server, folder: Path) -> None:
    lives = [server.start(folder, "run", *flags("runs")) for _ in range(5)]
    ended = [(life.wait(), life.errors) for life in lives]
    assert [status for status, _ in ended].count(0) >= 1
    for status, errors in ended:
        if status:
            assert status in (1, 2)  # before any work, or as it was about to begin
            assert "another process" in errors
            assert "Traceback" not in errors
    whole = server.start(folder, "run", *flags("whole"))
    assert whole.wait() == 0
    assert contents(find_run(folder / "runs")) == contents(find_run(folder / "whole"))


def test_a_killed_process_leaves_no_lock_behind(server: Server, folder: Path) -> None:
    pause(folder, LONG)
    first = server.start(folder, "run", *flags("runs"))
    wait_until(stepping(first), first)
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait() == -9
    pause(folder, 0)
    assert (find_run(folder / "runs") / ".lock").exists()  # a file, but nobody holds it
    second = server.start(folder, "run", *flags("runs"))
    assert (second.wait(), second.errors) == (0, "")


# -- workers --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_worker_fails_one_seed_which_a_rerun_completes(folder: Path) -> None:
    command = [sys.executable, "-m", "perdure", "run"]
    command += flags("runs", "--seeds", "0:2", "--workers", "2", "--checkpoint-every", "0.1")
    pause(folder, LONG)
    parent = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    shelf = "runs/*/*/seed-1/checkpoints/*.json"
    deadline = time.monotonic() + 120
    while not [*folder.glob(shelf)]:
        assert time.monotonic() < deadline
        assert parent.poll() is None
        time.sleep(0.02)
    os.kill(int((folder / "pid-1").read_text()), signal.SIGKILL)
    pause(folder, 0)
    _, errors = parent.communicate(timeout=120)
    assert parent.returncode == 1
    assert errors == "perdure: seed 1 failed: its worker process died (signal 9)\n"
    runs = {n: next(folder.glob(f"runs/*/*/seed-{n}")) for n in range(2)}
    finished = {n: (run / "result.json").stat() for n, run in runs.items() if n != 1}
    again = subprocess.run(
        [*command, "--resume"], cwd=folder, stderr=subprocess.PIPE, text=True, timeout=120
    )
    assert (again.returncode, again.stderr) == (0, "")
    for n, stat in finished.items():
        assert os.path.samestat((runs[n] / "result.json").stat(), stat)  # not made again
    assert re.search(r'"resumed": \[\s*[1-9]', (runs[1] / "timing.json").read_text())
