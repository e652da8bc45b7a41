"""Runs of several settings in one process."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from perdure.training.job import Failure, Job, attempt, execute, together
from perdure.training.loop import Progress
from perdure.training.plan import plan


def test_runs_of_different_methods_side_by_side_are_those_made_alone(tmp_path: Path) -> None:
    how = {"batch": 10, "epochs": 1}
    methods = {
        name: plan("s-mnist", name, 200, dataset="mnist5k", given=how, max_steps=60)
        for name in ("clser", "er", "derpp")
    }
    first, *others = methods.values()
    assert all(together(first, other) for other in others)
    beside = tuple((other, 3) for other in others)
    execute(Job(first, (3,), str(tmp_path / "beside"), beside=beside), lambda _: None)
    for settings in methods.values():
        execute(Job(settings, (3,), str(tmp_path / "alone")), lambda _: None)
        beside_others, alone = (
            settings.folder(tmp_path / place, 3).path for place in ("beside", "alone")
        )
        for name in ("config.json", "result.json", "learner.safetensors"):
            assert (beside_others / name).read_bytes() == (alone / name).read_bytes()


@pytest.mark.parametrize(("resume", "how"), [(False, "--resume"), (True, "the same command")])
def test_trouble_with_the_disk_says_what_goes_on_when_it_is_mended(
    resume: bool, how: str, tmp_path: Path
) -> None:
    def full(progress: Progress) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "runs/file")

    settings = plan("s-mnist", "sgd", dataset="mnist5k", max_steps=3)
    job = Job(settings, (0,), str(tmp_path), resume)
    assert attempt(job, full, lambda: 0) == Failure(
        "runs/file: No space left on device; when that is mended, "
        f"{how} goes on from the last checkpoint"
    )


@pytest.mark.parametrize("change", ["max_steps", "stream_seed", "batch", "method"])
def test_runs_whose_steps_differ_do_not_go_together(change: str) -> None:
    one = plan("s-mnist", "sgd", dataset="mnist5k")
    other = {
        "max_steps": replace(one, max_steps=7),
        "stream_seed": replace(one, stream_seed=7),
        "batch": replace(one, values={**one.values, "batch": 7}),
        "method": replace(one, method="joint"),
    }[change]
    assert together(one, one)
    assert not together(one, other)
