"""Every method is at least ten points better than SGD on the shipped digits."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.catalog import METHODS, takes_buffer
from perdure.experiment.pool import run_tasks
from perdure.experiment.resolve import resolve
from perdure.experiment.run import PlannedRun, make_jobs
from perdure.results import RunFolder, read_run
from perdure.results.table import group

QUICK = ("derpp", "icarl")
ELSEWHERE = ("er", "clser", "sgd", "joint")  # the first three in test_results_on_digits.py
SLOW = ("mean-er", "er-ace", "der", "fdr", "agem", "gss", "gem", "mer")


def accuracy(method: str, out: Path) -> float:
    """Return the final accuracy (percent) of one run on s-mnist with a buffer of 200."""
    buffer_size = 200 if takes_buffer(method) else None
    config = resolve("s-mnist", method, buffer_size, dataset="mnist5k", given={"epochs": 3})
    jobs = make_jobs([PlannedRun(config, 0)], out, resume=False)
    run_tasks(jobs, lambda event: None, workers=1, in_process=True)
    spread = group([read_run(RunFolder.locate(out, config, 0).path)]).settings[0].spread()
    assert spread is not None
    return spread.mean


@pytest.fixture(scope="module")
def sgd(tmp_path_factory: pytest.TempPathFactory) -> float:
    return accuracy("sgd", tmp_path_factory.mktemp("sgd"))


@pytest.mark.parametrize(
    "method", [*QUICK, *(pytest.param(method, marks=pytest.mark.slow) for method in SLOW)]
)
def test_method_is_ten_points_better_than_sgd(method: str, sgd: float, tmp_path: Path) -> None:
    assert accuracy(method, tmp_path) >= sgd + 10


def test_no_method_is_left_out() -> None:
    assert {*QUICK, *SLOW, *ELSEWHERE} == set(METHODS)
