"""A run that takes a fraction of a second, complete or interrupted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from perdure.config import RunConfig
from perdure.experiment.resolve import resolve
from perdure.experiment.run import Job, PlannedRun
from perdure.results.folder import RunFolder
from perdure.training.loop import Interrupted

STEPS = 60


def settings(method: str = "er", **other: object) -> RunConfig:
    asked = {"dataset": "mnist5k", "max_steps": STEPS, "given": {"epochs": 1}, **other}
    return resolve("s-mnist", method, None if method == "sgd" else 40, **asked)  # type: ignore[arg-type]


def job(what: RunConfig, out: Path, **how: Any) -> Job:
    return Job((PlannedRun(what, 0),), out, **how)


def folder(what: RunConfig, out: Path) -> RunFolder:
    return RunFolder.locate(out, what, 0)


def stop_at(what: RunConfig, out: Path, *steps: int) -> RunFolder:
    """Train with interruptions after these steps, each of which leaves a checkpoint."""
    for number, step in enumerate(steps):
        taken = 0

        def stop(until: int = step - (steps[number - 1] if number else 0)) -> int:
            nonlocal taken
            taken += 1
            return 15 if taken == until else 0

        try:
            job(what, out, resume=number > 0).execute(silent, stop)
        except Interrupted:
            continue
        raise AssertionError("it did not stop")
    return folder(what, out)


def make(what: RunConfig, out: Path, *, resume: bool = False) -> RunFolder:
    job(what, out, resume=resume).execute(silent)
    return folder(what, out)


silent: Callable[[object], None] = lambda progress: None  # noqa: E731
