"""Every method of the catalog passes the conformance suite."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import pytest

from perdure.catalog import METHODS, find_learner
from perdure.testing import LEARNER_CHECKS, LearnerCheck, MakeLearner

SMALL: dict[str, Any] = {"buffer_size": 20, "memory_batch": 8, "gss_batch": 8, "tasks": 2}
"""Arguments for the methods that accept them; the checks use two tasks."""
VARIANTS: dict[str, dict[str, Any]] = {
    "clser": {"stable_window": None, "stable_rate": 0.5, "plastic_rate": 0.5},
    "mean-er": {"window": None, "rate": 0.5},
}
"""The published warm-up, and windows of memories that are not updated at every step."""
NAMES = {method.learner: name for name, method in reversed(METHODS.items())}
"""First name of each class: JOINT, for example, is SGD on another stream."""


def make(method: str, **more: Any) -> MakeLearner:
    learner = find_learner(method)
    parameters = inspect.signature(learner).parameters
    return partial(learner, **{k: v for k, v in SMALL.items() if k in parameters}, **more)


QUICK = ("clser", "gem", "gss", "icarl")
"""Methods with different memories, which the quick tests check completely."""
SHARED = {
    *("invalid_batches_are_rejected", "strided_inputs_are_learned_like_contiguous_ones"),
    *("structures_of_tensors_are_learned_like_one_tensor", "token_ids_are_learned"),
    *("inputs_are_copied", "inputs_are_not_modified", "predicting_changes_nothing"),
    *("predictors_return_scores", "states_are_snapshots", "unsuitable_optimizers_are_rejected"),
}
"""Checks of what nearly only the base class decides; the long tests apply them to all methods."""


def cases(methods: list[str], quick: tuple[str, ...]) -> list[Any]:
    """Every check of every method; shared checks of methods that are not quick are slow."""
    return [
        pytest.param(
            check,
            method,
            marks=pytest.mark.slow if check.__name__ in SHARED and method not in quick else (),
            id=f"{check.__name__}-{method}",
        )
        for check in LEARNER_CHECKS
        for method in methods
    ]


def test_shared_checks_exist() -> None:
    assert {check.__name__ for check in LEARNER_CHECKS} > SHARED


@pytest.mark.parametrize(("check", "method"), cases(sorted(NAMES.values()), QUICK))
def test_method_conforms(check: LearnerCheck, method: str) -> None:
    check(make(method))


@pytest.mark.parametrize(
    ("check", "method"),
    [
        *cases(["clser"], quick=()),
        *(
            pytest.param(check, "mean-er", marks=pytest.mark.slow, id=f"{check.__name__}-mean-er")
            for check in LEARNER_CHECKS
        ),
    ],
)
def test_other_averages_conform(check: LearnerCheck, method: str) -> None:
    check(make(method, **VARIANTS[method]))
