"""A run that takes a fraction of a second, whole or stopped on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from perdure.results import RunFolder
from perdure.training import Settings, plan
from perdure.training.job import Job, execute
from perdure.training.loop import Interrupted

STEPS = 60


def settings(method: str = "er", **other: object) -> Settings:
    asked = {"dataset": "mnist5k", "max_steps": STEPS, "given": {"epochs": 1}, **other}
    return plan("s-mnist", method, None if method == "sgd" else 40, **asked)  # type: ignore[arg-type]


def stop_at(what: Settings, out: Path, *steps: int) -> RunFolder:
    """A folder of a run that was stopped, with a checkpoint, after each of these steps."""
    for number, step in enumerate(steps):
        taken = 0

        def stop(until: int = step - (steps[number - 1] if number else 0)) -> int:
            nonlocal taken
            taken += 1
            return 15 if taken == until else 0

        try:
            execute(Job(what, (0,), str(out), resume=number > 0), silent, stop)
        except Interrupted:
            continue
        raise AssertionError("it did not stop")
    return what.folder(out, 0)


def make(what: Settings, out: Path, *, resume: bool = False) -> RunFolder:
    execute(Job(what, (0,), str(out), resume=resume), silent)
    return what.folder(out, 0)


silent: Callable[[object], None] = lambda progress: None  # noqa: E731
