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


@pytest.mark.parametrize("method", sorted(NAMES.values()))
@pytest.mark.parametrize("check", LEARNER_CHECKS, ids=lambda check: check.__name__)
def test_method_conforms(check: LearnerCheck, method: str) -> None:
    check(make(method))


@pytest.mark.parametrize("method", ["clser", pytest.param("mean-er", marks=pytest.mark.slow)])
@pytest.mark.parametrize("check", LEARNER_CHECKS, ids=lambda check: check.__name__)
def test_other_averages_conform(check: LearnerCheck, method: str) -> None:
    check(make(method, **VARIANTS[method]))
