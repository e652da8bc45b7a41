"""Every method of the catalog keeps the rules of `perdure.testing`."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from perdure.catalog import METHODS
from perdure.testing import LEARNER_CHECKS, LearnerCheck, MakeLearner
from perdure.training.build import accepted, find_learner

SMALL: dict[str, Any] = {"buffer_size": 20, "memory_batch": 8, "gss_batch": 8, "tasks": 2}
"""Arguments for those that take them; two tasks are what the checks show."""
ONE_NAME_EACH = {method.learner: name for name, method in reversed(METHODS.items())}
"""JOINT, say, is SGD on another stream: one class is checked under its first name."""


def make(method: str) -> MakeLearner:
    learner = find_learner(method)
    takes = accepted(learner)
    return partial(learner, **{name: value for name, value in SMALL.items() if name in takes})


@pytest.mark.parametrize("method", sorted(ONE_NAME_EACH.values()))
@pytest.mark.parametrize("check", LEARNER_CHECKS, ids=lambda check: check.__name__)
def test_keeps_the_rule(check: LearnerCheck, method: str) -> None:
    check(make(method))
