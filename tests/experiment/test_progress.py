"""Counts and the time left, from what an engine tells."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from perdure.grid import Cell, Entry, Grid, Plan, Speeds, Standing
from perdure.training import Progress, plan
from perdure.training.job import Job
from perdure.training.workers import Event

STEPS = 1000


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def standing(
    tmp_path: Path,
    clock: Clock,
    seeds: int = 4,
    given: Mapping[str, float] | None = None,
    steps: int | None = STEPS,
) -> Standing:
    """A grid of one setting, the first of its seeds complete."""
    settings = plan("s-mnist", "er", 50, dataset="mnist5k")
    done, left = (0,), tuple(range(1, seeds))
    entry = Entry(Cell("s-mnist", "er", 50, given or {}), settings, steps, done, (), left)
    grid = Grid("mine", "mine", "0", (entry.cell,))
    made = Plan(grid, tmp_path, [entry], [])
    jobs = made.jobs(Speeds(), side_by_side=1, checkpoint_every=60)
    speeds = Speeds()
    speeds.note(settings, STEPS, 20.0)
    return Standing(made, jobs, speeds, 2, clock)


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


def finish(
    state: Standing, number: int, seconds: float, tell: Callable[[Event], object] | None = None
) -> None:
    """Write what a finished run leaves, and tell of its end."""
    course = state.courses[number]
    path = state.plan.folder(*course.runs[0]).path
    path.mkdir(parents=True)
    (path / "timing.json").write_text(json.dumps({"seconds": seconds, "side_by_side": 1}))
    (path / "result.json").write_text(json.dumps({"steps": STEPS}))
    (tell or state.note)(Event(number, "done"))


def test_time_left_is_of_what_runs_and_what_waits(tmp_path: Path) -> None:
    clock = Clock()
    state = standing(tmp_path, clock, seeds=6)
    assert (state.done, state.total, state.runs("waiting")) == (1, 6, 5)
    assert state.time_left().seconds == pytest.approx(5 * 20 / 2)
    state.note(Event(0, "begun"))
    state.note(Event(1, "begun"))
    clock.now = 5.0  # by the speed of others, while nothing was heard
    assert state.time_left().seconds == pytest.approx((15 + 15 + 3 * 20) / 2)
    state.note(Event(0, "progress", progress=progress(250, 10.0)))
    state.note(Event(1, "progress", progress=progress(600, 1.0, since=500)))  # a resumed run
    assert state.time_left().seconds == pytest.approx((30 + 4 + 3 * 20) / 2)
    clock.now = 7.0
    assert state.time_left().seconds == pytest.approx((28 + 2 + 3 * 20) / 2)
    assert state.runs("running") == 2


def test_a_finished_run_changes_what_is_expected_of_the_others(tmp_path: Path) -> None:
    state = standing(tmp_path, Clock())
    state.note(Event(0, "begun"))
    finish(state, 0, seconds=40.0)
    assert (state.done, state.runs("failed")) == (2, 0)
    assert state.time_left().seconds == pytest.approx(30.0 * 2 / 2)


def test_the_longest_job_bounds_the_time_left(tmp_path: Path) -> None:
    state = standing(tmp_path, Clock(), seeds=2)
    assert state.time_left().seconds == pytest.approx(20.0)  # one job does not gain by two workers
    state.note(Event(0, "begun"))
    finish(state, 0, seconds=20.0)
    assert state.time_left() == (0, 0)


def test_time_that_is_not_known_is_not_guessed(tmp_path: Path) -> None:
    state = standing(tmp_path, Clock(), steps=None)
    assert str(state.time_left()) == "time left unknown"
    state.note(Event(0, "begun"))
    state.note(Event(0, "progress", progress=progress(250, 10.0)))
    assert str(state.time_left()) == "at least 0:30 left"
    for number in (1, 2):
        state.note(Event(number, "failed"))
    assert str(state.time_left()) == "0:30 left"


def test_failures(tmp_path: Path) -> None:
    state = standing(tmp_path, Clock())
    state.note(Event(0, "begun"))
    state.note(Event(0, "again", reason="once"))
    assert (state.runs("waiting"), state.runs("failed")) == (3, 0)
    state.note(Event(0, "begun"))
    assert state.note(Event(0, "failed", reason="twice")).reason == "twice"
    assert (state.runs("waiting"), state.runs("failed"), state.done) == (2, 1, 1)


def test_the_seed_of_a_run_that_failed_is_said_once(tmp_path: Path) -> None:
    state = standing(tmp_path, Clock())
    course = state.note(Event(0, "failed", reason="seed 1: the loss was infinite"))
    assert (str(course), course.reason) == (
        "er on s-mnist, buffer 50, seed 1",
        "the loss was infinite",
    )
    settings = state.plan.entries[0].settings
    group = Job(settings, (1, 2), str(tmp_path), True)
    state = Standing(state.plan, [group], state.speeds, 1, Clock())
    course = state.note(Event(0, "failed", reason="seed 1: the loss was infinite"))
    assert course.reason == "seed 1: the loss was infinite"  # or nobody would know which


def test_a_run_that_ended_elsewhere_and_left_nothing_here_has_failed(tmp_path: Path) -> None:
    state = standing(tmp_path, Clock())
    state.note(Event(0, "begun"))
    course = state.note(Event(0, "done"))
    assert course.state == "failed"
    assert course.reason.endswith("holds no result")


def test_runs_of_a_group_that_failed_go_on_alone(tmp_path: Path) -> None:
    state = standing(tmp_path, Clock())
    settings = state.plan.entries[0].settings
    group = Job(settings, (1, 2), str(tmp_path), True, 60.0, beside=((settings, 3),))
    state = Standing(state.plan, [group], state.speeds, 1, Clock())
    assert str(state.courses[0]) == "er on s-mnist, buffer 50, seed 1 and 2 beside it"
    assert state.time_left().seconds == pytest.approx(60)  # their shares of the device
    state.note(Event(0, "begun"))
    assert state.runs("running") == 3
    state.note(Event(0, "failed", reason="the loss of one was not finite"))
    assert state.runs("failed") == 3
    state.separate()
    assert [(c.job.seeds, c.job.beside, c.job.resume) for c in state.current] == [
        ((seed,), (), True) for seed in (1, 2, 3)
    ]
    assert (state.runs("waiting"), state.runs("failed")) == (3, 0)
    state.note(Event(1, "begun"))
    state.note(Event(1, "failed", reason="it was this one"))
    state.separate()
    assert state.current == []
    assert (state.runs("waiting"), state.runs("failed")) == (2, 1)
