"""Short runs on the shipped digits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from perdure.config import RunConfig
from perdure.experiment.plan import plan_setting
from perdure.experiment.pool import Event, OnEvent, run_tasks
from perdure.experiment.resolve import resolve
from perdure.experiment.run import PlannedRun, make_jobs
from perdure.results.folder import RunFolder

BYTES = ("result.json", "learner.safetensors", "config.json")
"""Files that equal runs share, besides the models."""


class Outcome(NamedTuple):
    """What `train` did: folders and reasons of failures by seed, and seeds that were reused."""

    done: dict[int, RunFolder]
    failed: dict[int, str]
    reused: list[int]


def digits(stream: str = "s-mnist", method: str = "clser", **other: Any) -> RunConfig:
    return resolve(stream, method, **{"dataset": "mnist5k", "max_steps": 50, **other})


def train(
    config: RunConfig,
    seeds: Sequence[int],
    out: Path,
    *,
    restart: bool = False,
    resume: bool = False,
    workers: int = 1,
    on_event: OnEvent = lambda event: None,
) -> Outcome:
    """Train what is missing, as `perdure run` does."""
    setting = plan_setting(config, seeds, out, restart=restart)
    runs = [PlannedRun(config, seed) for seed in seeds if seed not in setting.complete]
    jobs, failed = make_jobs(runs, out, resume=resume), {}

    def note(event: Event) -> None:
        if event.kind == "failed" and event.failure is not None:
            failed[jobs[event.number].runs[0].seed] = event.failure.reason
        on_event(event)

    run_tasks(jobs, note, workers=workers, in_process=workers == 1)
    done = {seed: setting.folder(out, seed) for seed in seeds if seed not in failed}
    return Outcome(done, failed, list(setting.complete))


def train_one(config: RunConfig, out: Path, seed: int = 0) -> Path:
    """Train one run and return its folder."""
    outcome = train(config, [seed], out)
    assert outcome.failed == {}
    return outcome.done[seed].path


def contents(folder: RunFolder) -> dict[str, bytes]:
    """The files that equal runs share, by name."""
    models = sorted((folder.path / "models").iterdir())
    return {file.name: file.read_bytes() for file in (*(folder.path / n for n in BYTES), *models)}
