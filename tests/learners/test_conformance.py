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
NAMES = {method.learner: name for name, method in reversed(METHODS.items())}
"""First name of each class: JOINT, for example, is SGD on another stream."""


def make(method: str) -> MakeLearner:
    learner = find_learner(method)
    parameters = inspect.signature(learner).parameters
    return partial(learner, **{k: v for k, v in SMALL.items() if k in parameters})


@pytest.mark.parametrize("method", sorted(NAMES.values()))
@pytest.mark.parametrize("check", LEARNER_CHECKS, ids=lambda check: check.__name__)
def test_method_conforms(check: LearnerCheck, method: str) -> None:
    check(make(method))
