"""The scikit-learn classifier: scikit-learn's own checks, and what they do not cover."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, load_wine
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import perdure
from perdure.integrations.online import Standardise
from perdure.integrations.scikit_learn import ContinualClassifier

DIGITS, DIGIT_LABELS = load_digits(return_X_y=True)
ORDER = np.argsort(DIGIT_LABELS, kind="stable")
"""Rows of the digits, one class after the other."""

EXPECTED_FAILURES: dict[str, str] = {}
"""Checks of scikit-learn that do not apply, with the reason. So far, all apply."""
CHECKS = parametrize_with_checks(
    [ContinualClassifier(epochs=4)],
    expected_failed_checks=lambda _: EXPECTED_FAILURES,
)


def needs_array_api(check: Any) -> bool:
    """Whether a check runs only if SciPy's array API is switched on, and is skipped otherwise."""
    return "array_api" in getattr(getattr(check, "func", check), "__name__", "")


# pytest wants a list where scikit-learn provides a generator.
@pytest.mark.parametrize(
    CHECKS.args[0],
    [pair for pair in CHECKS.args[1] if not needs_array_api(getattr(pair, "values", pair)[1])],
    **CHECKS.kwargs,
)
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_classes_that_arrive_one_after_the_other_are_remembered() -> None:
    classifier = ContinualClassifier()
    for digit in range(10):
        rows = digit == DIGIT_LABELS
        classifier.partial_fit(DIGITS[rows], DIGIT_LABELS[rows])
        assert classifier.classes_.tolist() == list(range(digit + 1))
    assert classifier.score(DIGITS, DIGIT_LABELS) >= 0.75
    forgetful = ContinualClassifier(learner=perdure.SGD)
    forgetful.partial_fit(DIGITS[ORDER], DIGIT_LABELS[ORDER])
    assert forgetful.score(DIGITS, DIGIT_LABELS) <= 0.3


@pytest.mark.parametrize(
    "names",
    [
        np.array([f"digit {'x' * i}" for i in range(10)]),
        np.array([f"{i}" for i in range(10)], dtype=object),
        np.arange(10) * 1000 - 5000,
        np.arange(10) / 1.0,
        np.arange(10, 20).astype(np.uint8),
    ],
    ids=["texts of several lengths", "objects", "negative", "floats", "bytes"],
)
def test_labels_of_any_kind(names: Any) -> None:
    backwards = ORDER[::-1]  # labels do not arrive in their sorted order
    rows, labels = DIGITS[backwards][::10], DIGIT_LABELS[backwards][::10]
    named = ContinualClassifier(batch_size=4).partial_fit(rows, names[labels])
    plain = ContinualClassifier(batch_size=4).partial_fit(rows, labels)
    assert named.classes_.tolist() == sorted(names.tolist())
    assert named.predict(DIGITS).tolist() == names[plain.predict(DIGITS)].tolist()
    assert named.labels_ == names[plain.labels_].tolist()
    best = named.classes_[named.predict_proba(DIGITS).argmax(axis=1)]
    assert best.tolist() == named.predict(DIGITS).tolist()


def test_announced_classes_have_probabilities_before_they_arrive() -> None:
    classifier = ContinualClassifier()
    classifier.partial_fit(DIGITS[ORDER][:50], DIGIT_LABELS[ORDER][:50], classes=range(10))
    assert classifier.predict_proba(DIGITS[:3]).shape == (3, 10)


def test_labels_of_another_kind_are_refused_and_change_nothing() -> None:
    classifier = ContinualClassifier().partial_fit(DIGITS[:64], DIGIT_LABELS[:64])
    before = classifier.predict_proba(DIGITS)
    for labels in (np.array(["a"] * 64), np.array(["a", 1] * 32, dtype=object)):
        with pytest.raises(ValueError, match=r"texts|sorted"):
            classifier.partial_fit(DIGITS[:64], labels)
    assert classifier.classes_.tolist() == list(range(10))
    assert np.array_equal(before, classifier.predict_proba(DIGITS))


TOO_LARGE = np.full((64, 64), 1e39)  # in single precision


def explode(features: int, classes: int) -> nn.Module:
    """A network whose loss is infinite for large inputs."""
    return nn.Sequential(nn.Linear(features, classes), Cube())


class Cube(nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows**3


@pytest.mark.parametrize(
    ("how", "rows"),
    [({}, TOO_LARGE), ({"network": explode, "standardise": False}, np.full((64, 64), 1e30))],
    ids=["rows", "loss"],
)
def test_a_refused_batch_changes_nothing(how: dict[str, Any], rows: Any) -> None:
    first, second = ORDER[:64], ORDER[-64:]
    classifier, other = (ContinualClassifier(**how, learner=perdure.ER) for _ in range(2))
    for each in (classifier, other):
        each.partial_fit(DIGITS[first] / 16, DIGIT_LABELS[first])
    with pytest.raises(ValueError, match=r"infinite|precision"):
        classifier.partial_fit(rows, DIGIT_LABELS[second])
    assert classifier.labels_ == classifier.classes_.tolist() == other.labels_
    assert np.array_equal(classifier.predict_proba(DIGITS), other.predict_proba(DIGITS))
    for each in (classifier, other):
        each.partial_fit(DIGITS[second] / 16, DIGIT_LABELS[second])
    assert np.array_equal(classifier.predict_proba(DIGITS), other.predict_proba(DIGITS))


def test_an_interrupted_batch_changes_neither_labels_nor_statistics() -> None:
    def interrupt(network: nn.Module, rows: Any) -> None:
        if network.training:
            raise KeyboardInterrupt

    first, second = ORDER[:64], ORDER[-32:]
    classifier = ContinualClassifier().partial_fit(DIGITS[first], DIGIT_LABELS[first])
    handle = classifier.learner_.network.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        classifier.partial_fit(DIGITS[second], DIGIT_LABELS[second])
    handle.remove()
    assert classifier.learner_.normalise.count == 64
    assert classifier.labels_ == classifier.classes_.tolist() == [0]
    assert classifier.predict_proba(DIGITS).shape == (len(DIGITS), 1)


def test_rows_before_a_refused_batch_are_learned() -> None:
    classifier = ContinualClassifier(explode, standardise=False, learner=perdure.ER)
    rows = np.concatenate([DIGITS[ORDER[:32]] / 16, np.full((32, 64), 1e30)])
    labels = np.repeat(["a", "b"], 32)
    for _ in range(2):
        with pytest.raises(ValueError, match="infinite"):
            classifier.partial_fit(rows, labels)
        assert classifier.labels_ == classifier.classes_.tolist() == ["a"]
        assert classifier.predict_proba(DIGITS).sum(axis=1) == pytest.approx(1)
    assert int(classifier.learner_.steps) == 2


def test_partial_fit_takes_one_step_per_32_rows() -> None:
    classifier = ContinualClassifier()
    for steps in (4, 8):
        classifier.partial_fit(DIGITS[:100], DIGIT_LABELS[:100])
        assert int(classifier.learner_.steps) == steps
    classifier.fit(DIGITS[:100], DIGIT_LABELS[:100])  # starts over
    assert int(classifier.learner_.steps) == 40


def test_a_pickled_classifier_continues_with_the_same_bits() -> None:
    first, second = np.split(ORDER[:800], 2)
    classifier = ContinualClassifier(random_state=3)
    classifier.partial_fit(DIGITS[first], DIGIT_LABELS[first])
    copy = pickle.loads(pickle.dumps(classifier))
    for each in (classifier, copy):
        each.partial_fit(DIGITS[second], DIGIT_LABELS[second])
    assert np.array_equal(classifier.predict_proba(DIGITS), copy.predict_proba(DIGITS))


def test_scikit_learns_tools_work() -> None:
    rows, labels = load_wine(return_X_y=True)
    classifier = ContinualClassifier(epochs=5)
    assert cross_val_score(classifier, rows, labels, cv=3).mean() >= 0.9
    assert make_pipeline(StandardScaler(), classifier).fit(rows, labels).score(rows, labels) >= 0.9
    assert clone(classifier.set_params(epochs=2)).get_params()["epochs"] == 2


def test_own_network_and_learner() -> None:
    def network(features: int, classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(features, 16), nn.Tanh(), nn.Linear(16, classes))

    learner = functools.partial(perdure.DERPP, lr=0.05, buffer_size=50)
    classifier = ContinualClassifier(network, learner=learner, buffer_size=100)
    classifier.partial_fit(DIGITS, DIGIT_LABELS)
    assert isinstance(classifier.learner_, perdure.DERPP)
    assert classifier.learner_.memory.buffer_size == 50
    assert isinstance(classifier.learner_.network[1], nn.Tanh)  # type: ignore[index]


def test_what_cannot_work_is_refused() -> None:
    for arguments in ({"batch_size": 0}, {"epochs": 1.5}, {"buffer_size": "many"}):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            ContinualClassifier(**arguments).fit(DIGITS, DIGIT_LABELS)
    with pytest.raises(ValueError, match="task boundaries"):
        ContinualClassifier(learner=perdure.ICaRL).fit(DIGITS, DIGIT_LABELS)


def test_standardisation_is_that_of_all_rows_so_far() -> None:
    rows = torch.randn(100, 3, dtype=torch.float64) * torch.tensor([1e-3, 1.0, 1e6]) + 1e3
    rows[:, 1] = 7.0  # constant
    standardise = Standardise(3)
    for part in torch.chunk(rows, 15):
        standardise.update(part)
    expected = StandardScaler().fit(rows.numpy()).transform(rows.numpy())
    np.testing.assert_allclose(standardise(rows).numpy(), expected, atol=1e-5)
    assert standardise(torch.full((1, 3), 1e12)).abs().max() <= 10


def test_importing_perdure_imports_no_optional_package() -> None:
    code = (
        "import sys, perdure; [getattr(perdure, name) for name in perdure.__all__];"
        "assert not {'sklearn', 'river', 'onnx', 'onnxruntime', 'onnxscript', 'pandas', 'wandb',"
        " 'mlflow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("scikit_learn", "sklearn.base", "scikit-learn"),
        ("river", "river.base", "river"),
        ("wandb", "wandb", "wandb"),
        ("mlflow", "mlflow", "mlflow"),
    ],
)
def test_the_message_for_a_missing_package_names_the_extra(
    module: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"perdure.integrations.{module}", raising=False)
    with pytest.raises(ImportError, match=f"extra {extra}"):
        __import__(f"perdure.integrations.{module}")


def test_read_only_data_frames_are_learned_without_warnings() -> None:
    rows = pd.DataFrame({"a": np.arange(8.0), "b": 1.0})
    names = pd.Series(["low"] * 4 + ["high"] * 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ContinualClassifier(random_state=0).partial_fit(rows, names).predict(rows)
    assert set(found) <= {"low", "high"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("network", nn.Linear(2, 3)), ("learner", "er"), ("learner", perdure.SGD(nn.Linear(2, 3)))],
)
def test_objects_instead_of_functions_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} is .* function"):
        ContinualClassifier(**{name: value}).partial_fit(DIGITS, DIGIT_LABELS)
