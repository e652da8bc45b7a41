from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.evaluation import (
    backward_transfer,
    forgetting,
    forward_transfer,
    incremental_accuracy,
    mean_std,
)

THREE: list[list[float | None]] = [
    [10.0, 10.0, 12.0],
    [90.0, 30.0, 12.0],
    [95.0, 80.0, 18.0],
    [60.0, 70.0, 85.0],
]
"""Before training, then after each of three tasks."""


def test_forgetting_is_the_drop_from_the_best() -> None:
    assert forgetting(THREE) == pytest.approx(((95 - 60) + (80 - 70)) / 2)


def test_backward_transfer_is_the_change_since_a_tests_own_task() -> None:
    assert backward_transfer(THREE) == pytest.approx(((60 - 90) + (70 - 80)) / 2)


def test_forward_transfer_is_the_gain_before_a_tests_own_task() -> None:
    assert forward_transfer(THREE) == pytest.approx(((30 - 10) + (18 - 12)) / 2)


def test_a_single_task_has_no_forgetting_or_transfer() -> None:
    for metric in (forgetting, backward_transfer, forward_transfer):
        assert metric([[10.0], [90.0]]) is None


def test_a_run_that_was_stopped_early_has_fewer_tasks_than_tests() -> None:
    stopped = THREE[:3]
    assert forgetting(stopped) == 90 - 95
    assert backward_transfer(stopped) == 95 - 90
    assert forward_transfer(stopped) == 30 - 10


def test_missing_entries_are_ignored() -> None:
    sparse: list[list[float | None]] = [
        [10.0, 10.0, 12.0],
        [90.0, 30.0, None],
        [95.0, 80.0, 18.0],
        [60.0, 70.0, 85.0],
    ]
    for metric in (forgetting, backward_transfer, forward_transfer):
        assert metric(sparse) == metric(THREE)


@st.composite
def matrices(draw: st.DrawFn) -> list[list[float]]:
    tasks = draw(st.integers(2, 5))
    entry = st.integers(0, 100).map(float)
    row = st.lists(entry, min_size=tasks, max_size=tasks)
    return draw(st.lists(row, min_size=tasks + 1, max_size=tasks + 1))


@given(matrices())
def test_forgetting_is_at_least_minus_backward_transfer(matrix: list[list[float]]) -> None:
    lost, gained = forgetting(matrix), backward_transfer(matrix)
    assert lost is not None
    assert gained is not None
    assert lost >= -gained - 1e-9


def test_forgetting_is_negative_if_a_test_improved_beyond_its_best() -> None:
    assert forgetting([[0.0, 0.0], [50.0, 10.0], [70.0, 80.0]]) == -20.0
    matrix = [[0.0] * 3, [50.0, 0.0, 0.0], [40.0, 60.0, 0.0], [80.0, 50.0, 90.0]]
    assert forgetting(matrix) == pytest.approx(((50 - 80) + (60 - 50)) / 2)


@given(matrices())
def test_incremental_accuracy_equals_its_definition(matrix: list[list[float]]) -> None:
    means = [np.mean(row[: k + 1]) for k, row in enumerate(matrix[1:])]
    assert incremental_accuracy(matrix) == pytest.approx(np.mean(means))
    assert incremental_accuracy([[0.0], [50.0]]) is None
    assert incremental_accuracy([*matrix[:-1], [None] * len(matrix[0])]) is None


@given(matrices())
def test_forgetting_equals_its_definition(matrix: list[list[float]]) -> None:
    array = np.array(matrix)
    expected = (array[1:-1, : len(matrix) - 2].max(0) - array[-1, : len(matrix) - 2]).mean()
    assert forgetting(matrix) == pytest.approx(expected, abs=1e-9)


@given(matrices(), st.integers(-50, 50))
def test_adding_a_constant_changes_nothing(matrix: list[list[float]], shift: int) -> None:
    shifted = [[value + shift for value in row] for row in matrix]
    for metric in (forgetting, backward_transfer, forward_transfer):
        assert metric(shifted) == pytest.approx(metric(matrix), abs=1e-9)


@given(matrices())
def test_constant_accuracy_gives_zero(matrix: list[list[float]]) -> None:
    still = [matrix[0]] * len(matrix)
    for metric in (forgetting, backward_transfer, forward_transfer):
        assert metric(still) == 0


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
def test_mean_std_equals_the_statistics_module(values: list[float]) -> None:
    mean, std = mean_std(values)
    assert mean == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert std == pytest.approx(statistics.stdev(values), rel=1e-6, abs=1e-6)


def test_one_value_has_no_deviation() -> None:
    assert mean_std([3.5]) == (3.5, None)
