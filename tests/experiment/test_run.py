"""Training runs: equal bytes wherever they run, failures, and worker processes."""

from __future__ import annotations

import contextlib
import errno
import inspect
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.context import SpawnProcess
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from perdure.cli import main
from perdure.config import RunConfig
from perdure.experiment.plan import runs_on_other_data
from perdure.experiment.pool import Event
from perdure.experiment.run import Job, PlannedRun, make_jobs
from perdure.results.records import Result, read_run
from perdure.training.loop import Interrupted

from . import short
from .conftest import Write
from .short import BYTES, contents, train


def digits(method: str = "clser", **other: Any) -> RunConfig:
    return short.digits("s-mnist", method, **other)


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


# -- what a run writes ----------------------------------------------------------------------


def test_workers_write_the_same_bytes_as_this_process(tmp_path: Path) -> None:
    events: dict[int, list[Event]] = {1: [], 2: []}
    outcomes = {
        workers: train(
            digits(), [0, 3], tmp_path / str(workers), workers=workers, on_event=found.append
        )
        for workers, found in events.items()
    }
    for seed in (0, 3):
        here, there = (contents(outcomes[workers].done[seed]) for workers in (1, 2))
        models = [f"{name}.safetensors" for name in ("plastic", "stable", "working")]
        assert list(here) == [*BYTES, *models]
        assert here == there
    one, other = (contents(outcomes[1].done[seed]) for seed in (0, 3))
    assert one["learner.safetensors"] != other["learner.safetensors"]
    for found in events.values():
        assert {event.number for event in found if event.kind == "done"} == {0, 1}
        assert max(event.progress.step for event in found if event.kind == "progress") == 50


def test_a_run_folder_contains_what_is_documented(tmp_path: Path) -> None:
    folder = train(digits(max_steps=120), [0], tmp_path).done[0]
    names = sorted(file.name for file in folder.path.iterdir())
    assert names == sorted([*BYTES, "models", "timing.json", "events.jsonl", "manifest.json"])
    run = read_run(folder.path)
    assert run.remarks == ()
    assert (run.config, run.seed, run.facts.data) == (digits(max_steps=120), 0, "mnist5k")
    assert (run.result.steps, run.result.complete) == (120, False)
    assert [(type(e).__name__, e.step) for e in run.events] == [
        ("EvaluationEvent", 0),
        ("MetricsEvent", 100),
        ("MemoryEvent", 100),
        ("MetricsEvent", 120),
        ("MemoryEvent", 120),
        ("EvaluationEvent", 120),
        ("AgesEvent", 120),
    ]
    events = list(folder.events())
    assert [event["task"] for event in events if event["event"] == "evaluation"] == [-1, 0]
    scores = {name: found.class_il for name, found in run.result.predictors.items()}
    final = {name: found and found.matrix[-1] for name, found in scores.items()}
    assert events[-2]["class_il"] == final
    assert [sum(e["classes"]) for e in events if e["event"] == "memory"] == [500, 500]
    first, second = (event["values"]["loss"] for event in events if event["event"] == "metrics")
    assert 100 * first + 20 * second == pytest.approx(run.result.totals["loss"])
    ages, totals = events[-1], run.result.totals
    assert ages["edges"] == [2**k for k in range(len(ages["total"]) + 1)]
    assert sum(ages["stable"]) == totals["stable_used"]
    assert sum(ages["total"]) == totals["stable_used"] + totals["plastic_used"] > 1000
    assert (run.timing.seconds or 0) > 0


def test_only_missing_runs_are_trained(tmp_path: Path) -> None:
    first = train(digits(), [0, 1], tmp_path)
    assert first.reused == []
    before = {seed: contents(folder) for seed, folder in first.done.items()}
    kept, lost = (first.done[seed].path / "result.json" for seed in (0, 1))
    (kept.parent / "timing.json").write_text("{}")  # would be written again
    lost.unlink()
    second = train(digits(), [0, 1], tmp_path)
    assert (second.reused, second.failed) == ([0], {})
    assert (kept.parent / "timing.json").read_text() == "{}"
    assert {seed: contents(folder) for seed, folder in second.done.items()} == before
    third = train(digits(), [0, 1], tmp_path, restart=True)
    assert third.reused == []
    assert (kept.parent / "timing.json").read_text() != "{}"
    assert {seed: contents(folder) for seed, folder in third.done.items()} == before


def test_other_settings_have_another_folder(tmp_path: Path) -> None:
    train(digits("sgd"), [0], tmp_path)
    other = train(digits("sgd", given={"lr": 0.5}), [0], tmp_path)
    assert other.reused == []


def test_a_run_completed_by_another_process_is_not_trained_again(tmp_path: Path) -> None:
    run = PlannedRun(digits("sgd", max_steps=3), 0)
    job = Job((run,), tmp_path, resume=True)
    job.execute(lambda progress: None)
    timing = run.folder(tmp_path).path / "timing.json"
    written = timing.read_bytes()
    job.execute(lambda progress: None)
    assert timing.read_bytes() == written


def test_runs_on_other_data_are_found(tmp_path: Path) -> None:
    config = digits("sgd", max_steps=3)
    train(config, [0], tmp_path)
    assert runs_on_other_data(config, tmp_path) == {}
    changed = replace(config, data_checksum="changed")
    (folder,) = (tmp_path / "s-mnist").iterdir()
    assert runs_on_other_data(changed, tmp_path) == {folder: config.data_checksum}
    assert runs_on_other_data(replace(changed, max_steps=4), tmp_path) == {}


# -- runs side by side ----------------------------------------------------------------------


def test_runs_of_different_methods_together_equal_those_alone(tmp_path: Path) -> None:
    given = {"batch": 10, "epochs": 1}
    configs = [digits(m, buffer_size=200, given=given) for m in ("clser", "er", "derpp")]
    runs = tuple(PlannedRun(config, 3) for config in configs)
    Job(runs, tmp_path / "together").execute(lambda progress: None)
    for run in runs:
        Job((run,), tmp_path / "alone").execute(lambda progress: None)
        together, alone = (run.folder(tmp_path / name) for name in ("together", "alone"))
        assert contents(together) == contents(alone)


def test_runs_at_the_same_position_resume_side_by_side(tmp_path: Path) -> None:
    runs = [PlannedRun(digits("sgd", max_steps=30), seed) for seed in range(7)]

    def stop_at(step: int, *seeds: int) -> None:
        steps = iter(range(1, 31))
        job = Job(tuple(runs[seed] for seed in seeds), tmp_path)
        with pytest.raises(Interrupted):
            job.execute(lambda progress: None, lambda: 15 * (next(steps) == step))

    stop_at(5, 0, 1)
    stop_at(9, 2, 3, 4)

    def groups(width: int, resume: bool) -> list[tuple[int, ...]]:
        jobs = make_jobs(runs, tmp_path, resume=resume, side_by_side=width)
        return [tuple(run.seed for run in job.runs) for job in jobs]

    assert groups(4, True) == [(0, 1), (2, 3, 4), (5, 6)]
    assert groups(2, True) == [(0, 1), (2, 3), (4,), (5, 6)]
    assert groups(4, False) == [(0, 1, 2, 3), (4, 5, 6)]
    for group in groups(4, True):
        Job(tuple(runs[seed] for seed in group), tmp_path, resume=True).execute(lambda _: None)
    alone = train(runs[0].config, range(7), tmp_path / "alone")
    for run in runs:
        assert contents(run.folder(tmp_path)) == contents(alone.done[run.seed])


@pytest.mark.parametrize("change", ["max_steps", "stream_seed", "batch", "method"])
def test_runs_whose_steps_differ_are_not_grouped(change: str) -> None:
    one = digits("sgd")
    other = {
        "max_steps": replace(one, max_steps=7),
        "stream_seed": replace(one, stream_seed=7),
        "batch": replace(one, hyperparameters={**one.hyperparameters, "batch": 7}),
        "method": replace(one, method="joint"),
    }[change]
    assert one.can_share_a_device(one)
    assert not one.can_share_a_device(other)


# -- runs that fail -------------------------------------------------------------------------

FATAL = """
    import os, signal
    from perdure import SGD

    class Fatal(SGD):
        def __init__(self, network, *, seed=0, **common):
            super().__init__(network, seed=seed, **common)
            self.own_seed = seed

        def step(self, inputs, labels):
            super().step(inputs, labels)
            if int(self.steps) == 5 and self.own_seed == 0:
                os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_seed_of_a_killed_worker_fails_and_the_other_finishes(
    write: Write, tmp_path: Path
) -> None:
    write("fatal", FATAL)
    outcome = train(digits("fatal:Fatal", max_steps=10), [0, 1], tmp_path, workers=2)
    assert outcome.failed == {0: "its worker process died (signal 9)"}
    assert list(outcome.done) == [1]
    assert outcome.done[1].complete


def test_a_diverging_run_fails_with_one_sentence(tmp_path: Path) -> None:
    config = digits("sgd", given={"lr": 1e30}, max_steps=100)
    outcome = train(config, [0, 1], tmp_path)
    assert outcome.done == {}
    for seed in (0, 1):
        assert outcome.failed[seed].startswith(f"seed {seed}: ")
        assert "1e+30" in outcome.failed[seed]


def test_a_memory_that_does_not_fit_fails_with_one_sentence(tmp_path: Path) -> None:
    outcome = train(digits("er", buffer_size=10**12), [0], tmp_path)
    assert "GB of memory; use a smaller one" in outcome.failed[0]


@pytest.mark.parametrize(
    ("resume", "how"), [(False, "without --restart"), (True, "the same command")]
)
def test_a_full_disk_is_explained(resume: bool, how: str, tmp_path: Path) -> None:
    job = Job((PlannedRun(digits("sgd", max_steps=3), 0),), tmp_path, resume)
    full = OSError(errno.ENOSPC, "No space left on device", "runs/file")
    reason = job.explain(full).reason
    assert "runs/file: No space left on device" in reason
    assert how in reason


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
        def step(self, inputs, labels):
            super().step(inputs, labels)
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


@pytest.mark.parametrize(
    ("name", "status"), [("SIGKILL", -9), pytest.param("SIGTERM", 143, marks=pytest.mark.slow)]
)
def test_workers_end_with_their_parent(slow: list[str], name: str, status: int) -> None:
    parent = subprocess.Popen(
        slow, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        wait_for(lambda: len(pids()) == 2, 180, "the workers have not started")
        assert parent.poll() is None
        assert all(map(alive, pids()))
        assert parent.pid not in pids()
        os.kill(parent.pid, signal.Signals[name])
        _, errors = parent.communicate(timeout=180)
        assert parent.returncode == status
        wait_for(lambda: not any(map(alive, pids())), 120, "a worker has outlived its parent")
        assert "Traceback" not in errors
    finally:
        with contextlib.suppress(ProcessLookupError):  # all are gone, as they should be
            os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()


def test_workers_end_with_their_parent_even_while_importing(tmp_path: Path) -> None:
    (tmp_path / "slow/torch").mkdir(parents=True)
    (tmp_path / "slow/torch/__init__.py").write_text(
        f"import time\nopen({str(tmp_path / 'importing')!r}, 'w').close()\ntime.sleep(600)\n"
    )
    (tmp_path / "parent.py").write_text(
        dedent(
            f"""
            if __name__ == "__main__":
                import sys
                from perdure.experiment.pool import run_tasks

                sys.path.insert(0, {str(tmp_path / "slow")!r})  # workers import torch from there
                run_tasks([None], print, workers=1)
            """
        )
    )
    parent = subprocess.Popen([sys.executable, str(tmp_path / "parent.py")], start_new_session=True)
    try:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        wait_for((tmp_path / "importing").exists, 180, "the worker has not started")
        workers = [int(pid) for pid in children.read_text().split()]
        os.kill(parent.pid, signal.SIGKILL)
        wait_for(lambda: not any(map(alive, workers)), 120, "a worker has outlived its parent")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()


def test_ctrl_c_ends_all_processes_quietly_even_while_workers_start(slow: list[str]) -> None:
    parent = subprocess.Popen(
        slow, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        # multiprocessing's resource tracker, and the two workers
        wait_for(lambda: len(children.read_text().split()) == 3, 180, "no workers were started")
        os.killpg(parent.pid, signal.SIGINT)  # as a terminal does: to all of them
        _, errors = parent.communicate(timeout=180)
        assert parent.returncode == 130
        last = errors.splitlines()[-1]
        assert "`perdure run s-mnist --method " in last
        assert errors.count("stopping after") == 1  # not by every worker
        assert "--resume" not in last
        assert "Traceback" not in errors
    finally:
        with contextlib.suppress(ProcessLookupError):  # all are gone, as they should be
            os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()


def test_an_interrupted_run_is_not_complete(tmp_path: Path) -> None:
    config = digits("sgd", max_steps=20)

    def interrupt(event: Event) -> None:
        if event.kind == "progress":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, [0], tmp_path, on_event=interrupt)
    folder = PlannedRun(config, 0).folder(tmp_path)
    assert (folder.path / "config.json").is_file()
    assert not folder.complete
    assert train(config, [0], tmp_path).reused == []
    assert folder.read("result.json", Result).steps == 20


# -- the depth of the call stack ------------------------------------------------------------

DEPTH = """
    import traceback
    from pathlib import Path
    from perdure import SGD

    class Depth(SGD):
        def step(self, inputs, labels):
            super().step(inputs, labels)
            frames = [(frame.filename, frame.name) for frame in traceback.extract_stack()]
            ours = [f"{Path(file).stem}.{name}" for file, name in frames if "perdure" in file]
            Path("stack").write_text("\\n".join(ours))
"""


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_from_the_command_to_the_training_loop_there_are_at_most_nine_calls(
    workers: int, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("depth", DEPTH)
    parent: list[str] = []
    start = SpawnProcess.start

    def recorded(self: SpawnProcess) -> None:
        frames = reversed(inspect.stack())
        stems = [(Path(f.filename), f.function) for f in frames if "perdure" in f.filename]
        parent[:] = [f"{file.stem}.{name}" for file, name in stems]
        start(self)

    monkeypatch.setattr(SpawnProcess, "start", recorded)
    flags = "run --method depth:Depth --dataset mnist5k --max-steps 2 --seeds 0:2 --quiet"
    assert main([*flags.split(), "--workers", str(workers)]) == 0
    calls = [*parent, *Path("stack").read_text().splitlines()]
    assert ("pool.worker_main" in calls) == (workers == 2)
    path = calls[calls.index("run.run") : calls.index("loop.train", calls.index("run.run")) + 2]
    assert path[-2:] == ["loop.train", "loop.train"]  # the function, and the method of the group
    path = [call for call in path if call != "processes.call_with_parent"]  # the process's entry
    assert len(path) <= 9, path
