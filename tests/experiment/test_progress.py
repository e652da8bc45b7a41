"""Progress of jobs: counts, time left, and what is shown."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from perdure.config import RunConfig
from perdure.experiment.plan import Plan, PlannedSetting
from perdure.experiment.pool import Event, Failure, OnEvent
from perdure.experiment.progress import GridProgress, run_jobs
from perdure.experiment.resolve import resolve
from perdure.experiment.run import Job, PlannedRun
from perdure.experiment.speeds import Speeds
from perdure.training.loop import Progress

STEPS = 1000


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def config() -> RunConfig:
    return resolve("s-mnist", "er", 50, dataset="mnist5k")


def grid(
    tmp_path: Path, clock: Clock, seeds: int = 4, label: str = "er", steps: int | None = STEPS
) -> GridProgress:
    """A grid of two settings: one complete, one with jobs for seeds 1, 2, …"""
    left = PlannedSetting(config(), label, steps, (), {}, tuple(range(1, seeds)))
    complete = replace(left, config=replace(config(), max_steps=1), complete=(0,), missing=())
    plan = Plan("mine", "mine", tmp_path, [left, complete])
    speeds = Speeds()
    speeds.add(config(), STEPS, 20.0)
    return GridProgress(plan, plan.jobs(Speeds()), speeds, 2, clock)


def progress(step: int, seconds: float, since: int = 0) -> Progress:
    return Progress(
        step=step,
        total_steps=STEPS,
        task=0,
        tasks=5,
        epoch=0,
        epochs=1,
        seconds=seconds,
        accuracy=None,
        since=since,
    )


def failed(reason: str, kind: Literal["retry", "failed"] = "failed", number: int = 0) -> Event:
    return Event(number, kind, failure=Failure(reason))


def write_result(state: GridProgress, number: int, seconds: float) -> None:
    """Write the files of a finished run that progress reads."""
    setting, seed = state.jobs[number].runs[0]
    path = setting.folder(state.plan.out, seed).path
    path.mkdir(parents=True)
    (path / "timing.json").write_text(json.dumps({"seconds": seconds, "side_by_side": 1}))
    found = {"class_il": None, "task_il": None}
    result = {"moments": [], "tests": [], "predictors": {"working": found}, "complete": True}
    (path / "result.json").write_text(json.dumps({**result, "steps": STEPS}))


def test_time_left_covers_running_and_waiting_jobs(tmp_path: Path) -> None:
    clock = Clock()
    state = grid(tmp_path, clock, seeds=6)
    assert (state.done, state.total, state.count("waiting")) == (1, 6, 5)
    assert state.time_left().seconds == pytest.approx(5 * 20 / 2)
    state.update(Event(0, "started"))
    state.update(Event(1, "started"))
    clock.now = 5.0  # by the speed of others, while nothing was heard
    assert state.time_left().seconds == pytest.approx((15 + 15 + 3 * 20) / 2)
    state.update(Event(0, "progress", progress=progress(250, 10.0)))
    state.update(Event(1, "progress", progress=progress(600, 1.0, since=500)))  # a resumed run
    assert state.time_left().seconds == pytest.approx((30 + 4 + 3 * 20) / 2)
    clock.now = 7.0
    assert state.time_left().seconds == pytest.approx((28 + 2 + 3 * 20) / 2)
    assert state.count("running") == 2


def test_a_finished_run_changes_the_estimate_of_the_others(tmp_path: Path) -> None:
    state = grid(tmp_path, Clock())
    state.update(Event(0, "started"))
    write_result(state, 0, seconds=40.0)
    state.update(Event(0, "done"))
    assert (state.done, state.count("failed")) == (2, 0)
    assert state.time_left().seconds == pytest.approx(30.0 * 2 / 2)


def test_the_longest_job_bounds_the_time_left(tmp_path: Path) -> None:
    state = grid(tmp_path, Clock(), seeds=2)
    assert state.time_left().seconds == pytest.approx(20.0)  # one job does not gain by two workers
    state.update(Event(0, "started"))
    write_result(state, 0, seconds=20.0)
    state.update(Event(0, "done"))
    assert state.time_left() == (0, 0)


def test_unknown_durations_are_not_guessed(tmp_path: Path) -> None:
    state = grid(tmp_path, Clock(), steps=None)
    assert str(state.time_left()) == "time left unknown"
    state.update(Event(0, "started"))
    state.update(Event(0, "progress", progress=progress(250, 10.0)))
    assert str(state.time_left()) == "at least 0:30 left"
    for number in (1, 2):
        state.update(failed("", number=number))
    assert str(state.time_left()) == "0:30 left"


def test_failures(tmp_path: Path) -> None:
    state = grid(tmp_path, Clock())
    state.update(Event(0, "started"))
    state.update(failed("once", "retry"))
    assert (state.count("waiting"), state.count("failed")) == (3, 0)
    state.update(Event(0, "started"))
    assert state.update(failed("twice")).reason == "twice"
    assert (state.count("waiting"), state.count("failed"), state.done) == (2, 1, 1)


def test_the_reason_of_a_failure_does_not_repeat_the_seed(tmp_path: Path) -> None:
    state = grid(tmp_path, Clock())
    status = state.update(failed("seed 1: the loss is infinite"))
    assert (status.name, status.reason) == ("seed 1 of er", "the loss is infinite")
    job = Job((PlannedRun(config(), 1), PlannedRun(config(), 2)), tmp_path)
    state = GridProgress(state.plan, [job], state.speeds, 1, Clock())
    status = state.update(failed("seed 1: the loss is infinite"))
    assert status.reason == "seed 1: the loss is infinite"  # of two


def test_a_run_that_left_no_result_has_failed(tmp_path: Path) -> None:
    state = grid(tmp_path, Clock())
    state.update(Event(0, "started"))
    status = state.update(Event(0, "done"))
    assert status.state == "failed"
    assert "no result" in status.reason


def test_runs_of_a_failed_group_continue_alone(tmp_path: Path) -> None:
    state = grid(tmp_path, Clock())
    group = Job(tuple(PlannedRun(config(), seed) for seed in (1, 2, 3)), tmp_path)
    state = GridProgress(state.plan, [group], state.speeds, 1, Clock())
    assert state.jobs[0].name == "seed 1 of er and 2 more"
    assert state.time_left().seconds == pytest.approx(60)  # their shares of the device
    state.update(Event(0, "started"))
    assert state.count("running") == 3
    state.update(failed("the loss of one is infinite"))
    assert state.count("failed") == 3
    state.split_failed_groups()
    alone = [([run.seed for run in s.job.runs], s.job.resume) for s in state.current]
    assert alone == [([1], True), ([2], True), ([3], True)]
    assert (state.count("waiting"), state.count("failed")) == (3, 0)
    state.update(Event(1, "started"))
    state.update(failed("this one", number=1))
    state.split_failed_groups()
    assert state.current == []
    assert (state.count("waiting"), state.failed) == (2, {"er": [2]})


# -- the view -------------------------------------------------------------------------------


def show(
    state: GridProgress, events: Sequence[Event], *, quiet: bool = False, by_task: bool = False
) -> None:
    """Show events as they come from a backend."""

    def backend(jobs: Sequence[Job], on_event: OnEvent) -> None:
        for event in events:
            on_event(event)

    run_jobs(state, backend, quiet=quiet, by_task=by_task)


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")


def test_a_terminal_shows_one_live_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", "120")
    state = grid(tmp_path, Clock(), label="er on s-mnist, buffer 50")
    write_result(state, 0, 20.0)
    events = [Event(0, "started"), Event(1, "started")]
    events += [Event(0, "progress", progress(250, 10.0)), failed("bad luck", "retry", 1)]
    show(state, [*events, Event(0, "done"), Event(2, "started")])
    drawn = plain(capfd.readouterr().err)
    assert re.search(r"1 of 4 done, 0 running, 0 failed, 0:3\d left *\nmine +[━╺╸]+", drawn)
    assert "seed 2 of er on s-mnist, buffer 50 failed; trying again: bad luck" in drawn
    assert re.search(r"2 of 4 done, 1 running, 0 failed", drawn)


def test_quiet_shows_failures_only(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    state = grid(tmp_path, Clock())
    write_result(state, 1, 20.0)
    events = [Event(0, "started"), Event(1, "started"), failed("bad luck"), Event(1, "done")]
    show(state, events, quiet=True)
    assert capfd.readouterr().err == "perdure: seed 1 of er failed: bad luck\n"


def test_a_log_has_a_line_per_finished_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    state = grid(tmp_path, Clock())
    write_result(state, 0, 20.0)
    last = replace(progress(STEPS, 20.0), accuracy=91.234)
    show(state, [Event(0, "started"), Event(0, "progress", last), Event(0, "done")])
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("seed 1 of er: 91.23 %  [2 of 4 done, 0 running, 0 failed")


def test_a_log_of_tasks_has_a_line_when_a_task_has_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def at(number: int, task: int, step: int, accuracy: float | None, since: int = 0) -> Event:
        found = Progress(step, 400, task, 4, 0, 1 + number, 2.0, accuracy, since)
        found = replace(found, task_ended=step % 100 == 0)
        return Event(number, "progress", found)

    events = [
        at(0, 0, 50, None),
        at(0, 0, 100, 90.0),
        at(0, 1, 150, 90.0),
        at(0, 1, 200, 85.5),
        at(1, 1, 120, 90.0, since=100),
    ]
    show(grid(tmp_path, Clock()), events, by_task=True)
    assert capfd.readouterr().err.splitlines() == [
        "seed 1 of er: task 1/4  50 steps/s  0:06 left  accuracy 90.00 %",
        "seed 1 of er: task 2/4  100 steps/s  0:02 left  accuracy 85.50 %",
        "Resuming seed 2 of er from step 100",
        "seed 2 of er: task 2/4, epoch 1/2  10 steps/s  0:28 left  accuracy 90.00 %",
    ]


@pytest.mark.parametrize("tests", [False, True])
def test_a_log_of_a_long_task_has_a_line_now_and_then(
    tests: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def at(step: int, seconds: float, accuracy: float) -> Event:
        found = Progress(step, None, 0, 1, 0, 1, seconds, accuracy if tests else None)
        return Event(0, "progress", replace(found, prequential=None if tests else accuracy))

    events = [at(10, 1.0, 10.0), at(800, 80.0, 55.5), at(1000, 100.0, 60.0), at(1500, 150.0, 62.0)]
    if tests:
        events = events[1:]  # the first line with an accuracy is printed at once
    show(grid(tmp_path, Clock()), events, by_task=True)
    kind = "accuracy" if tests else "prequential"
    assert capfd.readouterr().err.splitlines() == [
        f"seed 1 of er: task 1/1  10 steps/s  {kind} 55.50 %",
        f"seed 1 of er: task 1/1  10 steps/s  {kind} 62.00 %",
    ]


def test_the_log_of_a_second_attempt_has_lines_as_often(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def at(seconds: float) -> Event:
        found = Progress(round(10 * seconds), None, 0, 1, 0, 1, seconds, None, prequential=50.0)
        return Event(0, "progress", found)

    attempt = [Event(0, "started"), at(1.0), at(80.0)]
    events = [*attempt, at(7200.0), failed("killed", "retry"), *attempt]
    show(grid(tmp_path, Clock()), events, by_task=True)
    lines = capfd.readouterr().err.splitlines()
    assert ["killed" in line for line in lines] == [False, False, True, False]


def test_names_are_cut_off_on_a_narrow_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    state = grid(tmp_path, Clock(), label="er on s-mnist, buffer 50, plastic_rate 0.9")
    show(state, [Event(0, "started"), Event(0, "progress", progress(250, 10.0))])
    drawn = plain(capfd.readouterr().err)
    assert re.search(r"^seed 1 of er on [^\n]*… +[━╺╸]+ +task 1/5 *$", drawn, re.MULTILINE)


TRACE = """Traceback (most recent call last):
  File "mine.py", line {line}, in step
    slots["a [bold]key[/bold]"]
KeyError: 'attempt {attempt}'
"""


@pytest.mark.parametrize("terminal", [True, False])
def test_a_traceback_is_shown_once_per_job_and_place(
    terminal: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    events = []
    kinds: tuple[Literal["retry", "failed"], ...] = ("retry", "retry", "failed")
    for attempt, kind in enumerate(kinds):
        for number in (0, 1):
            # The first job always fails at the same place, the second finally at another.
            line = 8 if (attempt, number) == (2, 1) else 7
            failure = Failure("KeyError", TRACE.format(line=line, attempt=attempt))
            events += [Event(number, "started"), Event(number, kind, failure=failure)]
    show(grid(tmp_path, Clock()), events, quiet=not terminal)
    shown = plain(capfd.readouterr().err)
    assert shown.count("Traceback") == 3
    assert shown.count(TRACE.format(line=7, attempt=0)) == 2
    assert shown.count(TRACE.format(line=8, attempt=2)) == 1


def test_a_terminal_that_is_gone_does_not_stop_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(message: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("perdure.experiment.progress.print_status", fail)
    state, heard = grid(tmp_path, Clock()), list[str]()

    def execute(jobs: Sequence[Job], on_event: OnEvent) -> None:
        for number in range(len(jobs)):
            on_event(Event(number, "started"))
            on_event(Event(number, "failed", failure=Failure("no reason")))

    run_jobs(state, execute, on_event=lambda event: heard.append(event.kind))
    assert heard == ["started", "failed"] * 3
    assert state.count("failed") == 3
