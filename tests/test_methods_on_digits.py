"""Every method is at least ten points better than SGD on the shipped digits."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.catalog import METHODS
from perdure.training.plan import plan
from perdure.training.seeds import make_runs

QUICK = ("der", "derpp", "fdr", "agem", "gss", "icarl", "mean-er")
ELSEWHERE = ("er", "clser", "sgd", "joint")  # the first three in test_results_on_digits.py
SLOW = ("gem", "mer")


def accuracy(method: str, out: Path) -> float:
    """Return the final accuracy (percent) of one run on s-mnist with a buffer of 200."""
    settings = plan("s-mnist", method, 200, dataset="mnist5k", given={"epochs": 5})
    outcome = make_runs(settings, [0], out, tell=lambda *_: None)
    result = outcome.done[0].read("result.json")
    return float(next(iter(result["predictors"].values()))["class_il"]["mean"])


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
