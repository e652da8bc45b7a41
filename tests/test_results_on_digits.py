"""What the shipped digits must show: forgetting, and that CLS-ER cures more of it than replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure.results import summary
from perdure.training import plan
from perdure.training.seeds import Job, execute_all

METHODS = ("clser", "er", "sgd")  # the longest first, so that two workers end together
SEEDS = (0, 1)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The summary over the seeds of each method on s-mnist, by the published settings."""
    out = tmp_path_factory.mktemp("runs")
    settings = {method: plan("s-mnist", method, dataset="mnist5k") for method in METHODS}
    jobs = [Job(settings[method], (seed,), str(out)) for method in METHODS for seed in SEEDS]
    failed = execute_all(jobs, workers=2, threads=1, tell=lambda seed, progress: None)
    assert failed == {}
    return {method: _summary(settings[method], out) for method in METHODS}


def _summary(settings: Any, out: Path) -> Any:
    folders = [settings.folder(out, seed) for seed in SEEDS]
    return summary([(f.read("config.json"), f.read("result.json")) for f in folders], 1.0)


def accuracy(found: dict[str, Any], method: str, kind: str = "class_il") -> float:
    """Mean over the seeds, of the network that the method answers with."""
    first = next(iter(found[method]["predictors"].values()))
    return float(first[kind]["mean"])


def test_clser_beats_sgd_by_40_points_and_er_by_2(found: dict[str, Any]) -> None:
    clser, er, sgd = (accuracy(found, method) for method in METHODS)
    assert clser >= sgd + 40
    assert clser >= er + 2


def test_the_numbers_are_of_the_right_size(found: dict[str, Any]) -> None:
    clser, er, sgd = (accuracy(found, method) for method in METHODS)
    assert 18 <= sgd <= 21  # two digits of ten are known
    assert 84 <= er <= 92
    assert 88 <= clser <= 95


def test_two_digits_at_a_time_are_told_apart_even_where_all_ten_are_not(
    found: dict[str, Any],
) -> None:
    for method in METHODS:
        assert accuracy(found, method, "task_il") >= 93
        deviation = next(iter(found[method]["predictors"].values()))["class_il"]["std"]
        assert 0 < deviation < 3


def test_all_predictors_of_clser_know_the_digits(found: dict[str, Any]) -> None:
    predictors = found["clser"]["predictors"]
    assert list(predictors) == ["stable", "plastic", "working"]
    for numbers in predictors.values():
        assert numbers["class_il"]["mean"] >= 85
