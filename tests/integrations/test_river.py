"""The river classifier: river's own checks, and what they do not cover."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from river import checks, datasets, metrics
from river.evaluate import progressive_val_score
from torch import nn

import perdure
from perdure.integrations.river import ContinualClassifier

CHECKS = list(checks.yield_checks(ContinualClassifier()))
SLOW = "check_bounded_memory_growth"
SEGMENTS = list(datasets.ImageSegments().take(350))


def check_name(index: int) -> str:
    return f"{CHECKS[index].__name__}-{index}"


def check_index(index: int) -> Any:
    marks = [pytest.mark.slow] if CHECKS[index].__name__ == SLOW else []
    return pytest.param(index, marks=marks, id=check_name(index))


@pytest.mark.parametrize("index", [check_index(i) for i in range(len(CHECKS))])
def test_rivers_checks(index: int) -> None:
    CHECKS[index](ContinualClassifier(batch_size=16, buffer_size=100))


def test_rivers_evaluation() -> None:
    classifier = ContinualClassifier(batch_size=4)
    accuracy = progressive_val_score(datasets.Phishing().take(300), classifier, metrics.Accuracy())
    assert accuracy.get() >= 0.8


def test_classes_that_arrive_one_after_the_other_are_remembered() -> None:
    classifier = ContinualClassifier(batch_size=4)
    for x, y in sorted(SEGMENTS, key=lambda sample: sample[1]):
        classifier.learn_one(x, y)
    right = [classifier.predict_one(x) == y for x, y in SEGMENTS]
    assert sum(right) / len(right) >= 0.6


@pytest.mark.parametrize("batch_size", [1, 8])
def test_learn_many_equals_learn_one(batch_size: int) -> None:
    one, many = (ContinualClassifier(batch_size=batch_size) for _ in range(2))
    table = pd.DataFrame([x for x, _ in SEGMENTS[:60]], index=range(100, 160))
    labels = pd.Series([y for _, y in SEGMENTS[:60]], index=table.index)
    for x, y in SEGMENTS[:60]:
        one.learn_one(x, y)
    for start in range(0, 60, 20):
        many.learn_many(table[start : start + 20], labels[start : start + 20])
    found = many.predict_proba_many(table)
    assert list(found.index) == list(table.index)
    for (x, _), row in zip(SEGMENTS, found.to_dict("records"), strict=False):
        assert one.predict_proba_one(x) == pytest.approx(row, abs=1e-6)
    assert many.predict_many(table).tolist() == [one.predict_one(x) for x, _ in SEGMENTS[:60]]


def test_features_may_appear_later_be_missing_and_exceed_the_inputs() -> None:
    draws = random.Random(0)
    classifier = ContinualClassifier(max_features=8, batch_size=4)
    for i in range(400):
        y = draws.choice([True, False])
        signal = "early" if i < 200 else "late"
        x: dict[Any, Any] = {signal: 1.0 if y else -1.0, draws.randrange(50): draws.random()}
        classifier.learn_one(x, y)
    assert classifier.predict_one({"early": 1.0}) is True
    assert classifier.predict_one({"early": -1.0, "never seen": 0.1}) is False
    for nothing in ({}, {"early": None}, {"early": math.nan}):
        assert math.fsum(classifier.predict_proba_one(nothing).values()) == pytest.approx(1)


def test_before_the_first_sample_there_is_no_prediction() -> None:
    classifier = ContinualClassifier()
    assert classifier.predict_proba_one({"a": 1}) == {}
    assert classifier.predict_one({"a": 1}) is None
    assert classifier.predict_many(pd.DataFrame([{"a": 1}])).empty


@pytest.mark.parametrize("value", ["red", math.inf, 1e39, 10**400, [1], object()])
def test_features_that_are_no_numbers_are_refused_and_change_nothing(value: Any) -> None:
    classifier, other = ContinualClassifier(), ContinualClassifier()
    with pytest.raises(ValueError, match="'colour'"):
        classifier.learn_one({"x": 1.0, "colour": value}, "a")
    for each in (classifier, other):
        for x, y in SEGMENTS[:10]:
            each.learn_one(x, y)
    assert classifier.predict_proba_one({"x": 2}) == other.predict_proba_one({"x": 2})


@pytest.mark.parametrize("label", [None, math.nan, np.float32("nan"), pd.NA, 0.5, math.inf])
def test_labels_that_name_no_class_are_refused_and_change_nothing(label: Any) -> None:
    classifier = ContinualClassifier(batch_size=2)
    for name in ("none", "nan", 1, 1.0, True):
        classifier.learn_one({"x": 1.0}, name)
    with pytest.raises(ValueError, match="the label is"):
        classifier.learn_one({"y": 2.0}, label)
    assert list(classifier.predict_proba_one({"x": 1.0})) == ["none", "nan", 1]
    assert set(classifier._columns) == {"x"}


def test_a_refused_sample_changes_nothing() -> None:
    class Network(nn.Linear):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return super().forward(rows) ** 3  # infinite for large inputs

    classifier, other = (
        ContinualClassifier(Network, standardise=False, learner=perdure.ER) for _ in range(2)
    )
    for each in (classifier, other):
        each.learn_one({"x": 1.0}, "a")
    with pytest.raises(ValueError, match="infinite"):
        classifier.learn_one({"x": 1e30}, "b")
    for each in (classifier, other):
        each.learn_one({"x": -1.0}, "c")
    assert classifier.predict_proba_one({"x": 2}) == other.predict_proba_one({"x": 2})


def test_settings_below_one_are_refused() -> None:
    for name in ("buffer_size", "batch_size", "max_features"):
        with pytest.raises(ValueError, match=name):
            ContinualClassifier(**{name: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [("network", nn.Linear(2, 3)), ("learner", "er"), ("learner", perdure.SGD(nn.Linear(2, 3)))],
)
def test_objects_instead_of_functions_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} is .* function"):
        ContinualClassifier(**{name: value})
