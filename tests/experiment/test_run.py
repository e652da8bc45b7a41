"""The seeds of a setting: equal bytes wherever they run, and worker processes that come and go."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from perdure.results import RunFolder
from perdure.training import Progress, Settings, plan
from perdure.training.loop import Interrupted
from perdure.training.seeds import Job, Outcome, _groups, execute, make_runs

from .conftest import Write

BYTES = ("result.json", "learner.safetensors", "config.json")


def digits(method: str = "clser", **other: Any) -> Settings:
    return plan("s-mnist", method, dataset="mnist5k", **{"max_steps": 50, **other})


def make(settings: Settings, seeds: Sequence[int], out: Path, **how: Any) -> Outcome:
    return make_runs(settings, seeds, out, **{"tell": lambda seed, progress: None, **how})


def contents(folder: RunFolder) -> dict[str, bytes]:
    """The files that equal runs share, by name."""
    models = sorted((folder.path / "models").iterdir())
    return {file.name: file.read_bytes() for file in (*(folder.path / n for n in BYTES), *models)}


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


# -- what a run leaves behind ---------------------------------------------------------------


def test_workers_write_the_same_bytes_as_this_process(tmp_path: Path) -> None:
    told: dict[str, list[tuple[int, Progress]]] = {"workers": [], "here": []}
    outcomes = {
        name: make(
            digits(),
            [0, 3],
            tmp_path / name,
            workers=workers,
            tell=lambda seed, progress, name=name: told[name].append((seed, progress)),
        )
        for name, workers in (("workers", 2), ("here", 1))
    }
    for seed in (0, 3):
        there, here = (contents(outcomes[name].done[seed]) for name in ("workers", "here"))
        models = [f"{name}.safetensors" for name in ("plastic", "stable", "working")]
        assert list(here) == [*BYTES, *models]
        assert here == there
    one, other = (contents(outcomes["here"].done[seed]) for seed in (0, 3))
    assert one["learner.safetensors"] != other["learner.safetensors"]
    for heard in told.values():
        assert {seed for seed, _ in heard} == {0, 3}
        assert max(progress.step for _, progress in heard) == 50


def test_a_run_folder_holds_what_the_documents_say(tmp_path: Path) -> None:
    folder = make(digits(max_steps=120), [0], tmp_path).done[0]
    names = sorted(file.name for file in folder.path.iterdir())
    assert names == sorted([*BYTES, "models", "timing.json", "events.jsonl", "manifest.json"])
    result = folder.read("result.json")
    about = {
        "stream": "s-mnist",
        "method": "clser",
        "buffer_size": 500,
        "data": "mnist5k",
        "seed": 0,
    }
    assert {key: result[key] for key in about} == about
    assert (result["steps"], result["complete"]) == (120, False)
    events = list(folder.events())
    assert [(e["event"], e["step"]) for e in events] == [
        ("evaluation", 0),
        ("totals", 100),
        ("memory", 100),
        ("totals", 120),
        ("memory", 120),
        ("evaluation", 120),
        ("ages", 120),
    ]
    assert [event["task"] for event in events if event["event"] == "evaluation"] == [-1, 0]
    final = {name: rows["class_il"]["matrix"][-1] for name, rows in result["predictors"].items()}
    assert events[-2]["class_il"] == final
    totals = [event for event in events if event["event"] == "totals"]
    assert 0 < totals[0]["loss"] < totals[1]["loss"]
    assert totals[1]["stable_used"] + totals[1]["plastic_used"] > 1000
    assert [sum(e["classes"]) for e in events if e["event"] == "memory"] == [500, 500]
    ages = events[-1]
    assert ages["edges"] == [2**k for k in range(len(ages["total"]) + 1)]
    assert sum(ages["stable"]) == totals[1]["stable_used"]
    assert sum(ages["total"]) == totals[1]["stable_used"] + totals[1]["plastic_used"]
    assert result["totals"] == {k: v for k, v in totals[1].items() if k not in ("event", "step")}
    timing = folder.read("timing.json")
    assert timing["seconds"] > 0
    assert timing["threads"] == 1


def test_only_what_is_missing_is_trained(tmp_path: Path) -> None:
    first = make(digits(), [0, 1], tmp_path)
    assert first.reused == 0
    before = {seed: contents(folder) for seed, folder in first.done.items()}
    kept, lost = (first.done[seed].path / "result.json" for seed in (0, 1))
    (kept.parent / "timing.json").write_text("{}")  # would be written again
    lost.unlink()
    second = make(digits(), [0, 1], tmp_path)
    assert (second.reused, second.failed) == (1, {})
    assert (kept.parent / "timing.json").read_text() == "{}"
    assert {seed: contents(folder) for seed, folder in second.done.items()} == before
    third = make(digits(), [0, 1], tmp_path, again=True)
    assert third.reused == 0
    assert (kept.parent / "timing.json").read_text() != "{}"
    assert {seed: contents(folder) for seed, folder in third.done.items()} == before


def test_another_setting_has_another_folder(tmp_path: Path) -> None:
    make(digits("sgd"), [0], tmp_path)
    other = make(digits("sgd", given={"lr": 0.5}), [0], tmp_path)
    assert other.reused == 0


# -- runs that fail -------------------------------------------------------------------------

FATAL = """
    import os, signal
    from perdure import SGD

    class Fatal(SGD):
        def __init__(self, network, *, seed=0, **common):
            super().__init__(network, seed=seed, **common)
            self.own_seed = seed

        def step(self, images, labels):
            super().step(images, labels)
            if int(self.steps) == 5 and self.own_seed in (0, 1):
                os.kill(os.getpid(), signal.SIGKILL)
            if int(self.steps) == 5 and self.own_seed == 2:
                raise KeyError("slot")
"""


def test_the_seeds_of_killed_workers_fail_and_the_others_finish(
    write: Write, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write("fatal", FATAL)
    settings = digits("fatal:Fatal", max_steps=10)
    outcome = make(settings, [0, 1, 2, 3], tmp_path, workers=2)
    died = "its worker process died (signal 9)"  # both: others take their places
    assert outcome.failed == {0: died, 1: died, 2: "KeyError: 'slot'"}
    assert list(outcome.done) == [3]
    assert [settings.folder(tmp_path, seed).complete for seed in range(4)] == [False] * 3 + [True]
    said = capfd.readouterr().err
    assert (said.count("Traceback"), said.count("fatal.py"), said.count("'slot'")) == (1, 1, 1)


def test_a_run_that_raises_fails_alone_and_shows_where(
    write: Write, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write("fatal", FATAL)
    outcome = make(digits("fatal:Fatal", max_steps=10), [2, 3], tmp_path)
    assert outcome.failed == {2: "KeyError: 'slot'"}
    assert list(outcome.done) == [3]
    said = capfd.readouterr().err
    assert (said.count("Traceback"), said.count("fatal.py"), said.count("'slot'")) == (1, 1, 1)


def test_a_run_that_diverges_fails_with_one_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = digits("sgd", given={"lr": 1e30}, max_steps=100)
    outcome = make(settings, [0, 1], tmp_path)
    assert outcome.done == {}
    for seed in (0, 1):
        assert outcome.failed[seed].startswith(f"seed {seed}: the loss was infinite or not a num")
    assert capfd.readouterr().err == ""


def test_a_memory_that_does_not_fit_fails_with_one_sentence(tmp_path: Path) -> None:
    outcome = make(digits("er", buffer_size=10**14), [0], tmp_path)
    assert outcome.failed == {
        0: "there is not enough memory for the run; try a smaller --buffer or network"
    }


def test_seeds_that_stand_at_one_position_go_on_side_by_side(tmp_path: Path) -> None:
    settings = digits("sgd", max_steps=30)
    folders = {seed: settings.folder(tmp_path, seed) for seed in range(7)}

    def stop_at(step: int, *seeds: int) -> None:
        taken = iter(range(1, 31))
        with pytest.raises(Interrupted):
            execute(
                Job(settings, seeds, str(tmp_path)),
                lambda progress: None,
                lambda: 15 * (next(taken) == step),
            )

    stop_at(5, 0, 1)
    stop_at(9, 2, 3, 4)
    members = [(settings, seed) for seed in range(7)]

    def groups(width: int, resume: bool) -> list[tuple[int, ...]]:
        found = _groups(members, tmp_path, width, resume)
        return [tuple(seed for _, seed in group) for group in found]

    grouped = groups(4, True)
    assert grouped == [(0, 1), (2, 3, 4), (5, 6)]
    assert groups(2, True) == [(0, 1), (2, 3), (4,), (5, 6)]
    assert groups(4, False) == [(0, 1, 2, 3), (4, 5, 6)]
    for group in grouped:
        execute(Job(settings, group, str(tmp_path), resume=True), lambda progress: None)
    alone = make(settings, range(7), tmp_path / "alone")
    for seed, folder in folders.items():
        assert contents(folder) == contents(alone.done[seed])


# -- processes ------------------------------------------------------------------------------


def alive(pid: int) -> bool:
    """Whether the process runs; one that has died and waits to be buried does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"


SLOW = """
    import os, time
    from pathlib import Path
    from perdure import SGD

    class Slow(SGD):
        def step(self, images, labels):
            super().step(images, labels)
            Path(f"pid-{os.getpid()}").touch()
            time.sleep(0.01)
"""


@pytest.fixture
def slow(write: Write, tmp_path: Path) -> list[str]:
    """A command that trains two seeds for minutes, each worker leaving its pid in this folder."""
    write("slow", SLOW)
    command = "run s-mnist --method slow:Slow --dataset mnist5k --seeds 0:2 --workers 2 --out"
    return [sys.executable, "-m", "perdure", *command.split(), str(tmp_path / "runs")]


def pids() -> list[int]:
    return [int(file.name.removeprefix("pid-")) for file in Path.cwd().glob("pid-*")]


@pytest.mark.parametrize(("name", "status"), [("SIGKILL", -9), ("SIGTERM", 143)])
def test_workers_die_with_their_parent(slow: list[str], name: str, status: int) -> None:
    parent = subprocess.Popen(
        slow, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        wait_for(lambda: len(pids()) == 2, 90, "the workers have not begun")
        assert parent.poll() is None
        assert all(map(alive, pids()))
        assert parent.pid not in pids()
        os.kill(parent.pid, signal.Signals[name])
        _, errors = parent.communicate(timeout=30)
        assert parent.returncode == status
        wait_for(lambda: not any(map(alive, pids())), 20, "a worker has outlived its parent")
        assert "Traceback" not in errors
    finally:
        with contextlib.suppress(ProcessLookupError):  # all are gone, as they should be
            os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()


def test_ctrl_c_ends_all_without_noise_even_while_workers_start(slow: list[str]) -> None:
    parent = subprocess.Popen(
        slow, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        # multiprocessing's resource tracker, and the two workers
        wait_for(lambda: len(children.read_text().split()) == 3, 90, "no workers were started")
        os.killpg(parent.pid, signal.SIGINT)  # as a terminal does: to all of them
        _, errors = parent.communicate(timeout=30)
        assert parent.returncode == 130
        last = errors.splitlines()[-1]
        assert last.startswith("perdure: stopped; go on with `perdure run s-mnist --method ")
        assert last.endswith(" --resume`")
        assert "Traceback" not in errors
    finally:
        with contextlib.suppress(ProcessLookupError):  # all are gone, as they should be
            os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()


def test_a_run_that_was_interrupted_is_not_taken_for_a_finished_one(tmp_path: Path) -> None:
    settings = digits("sgd", max_steps=20)

    def stop(seed: int, progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(settings, [0], tmp_path, tell=stop)
    folder = settings.folder(tmp_path, 0)
    assert (folder.path / "config.json").is_file()
    assert not folder.complete
    outcome = make(settings, [0], tmp_path)
    assert outcome.reused == 0
    assert json.loads((folder.path / "result.json").read_text())["steps"] == 20
