"""Figures computed from accuracies, and null where they are undefined."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from perdure import SGD, Stream, from_tensors
from perdure.evaluation import Accuracies
from perdure.training.record import Record

from . import toy

ROWS: list[list[float | None]] = [
    [10.0, 20.0, 30.0],  # before training
    [90.0, 15.0, None],
    [70.0, 80.0, 25.0],
    [60.0, 50.0, 95.0],
]


def grouped(*groups: tuple[int, ...]) -> Stream:
    """A stream of these of the eight classes."""
    samples = toy.inputs(48, 0)
    used = torch.isin(samples.labels, torch.tensor([c for group in groups for c in group]))
    train = samples.inputs[used], samples.labels[used]
    return from_tensors(*train, groups=groups, test=toy.inputs(16, 1), classes=8)


def three() -> Stream:
    return grouped((0, 1), (2, 3), (4, 5))


def filled(stream: Stream, rows: Sequence[Sequence[float | None]], *, task_il: bool) -> Record:
    """A record of one predictor with the given rows."""
    record = Record(stream, ["working"])
    for moment, row in enumerate(rows, -1):
        tests = [i for i, value in enumerate(row) if value is not None]
        values = [value for value in row if value is not None]
        found = Accuracies(values, values if task_il else None, [50.0, None])
        record.add("working", moment, tests, found)
    return record


def numbers(record: Record, kind: str = "class_il") -> Any:
    return record.result()["predictors"]["working"][kind]


def test_figures_equal_those_computed_by_hand() -> None:
    record = filled(three(), ROWS, task_il=True)
    expected = {
        "matrix": ROWS,
        "mean": (60 + 50 + 95) / 3,
        "last_test": 95.0,
        "forgetting": ((90 - 60) + (80 - 50)) / 2,
        "backward_transfer": ((60 - 90) + (50 - 80)) / 2,
        "forward_transfer": ((15 - 20) + (25 - 30)) / 2,
    }
    assert numbers(record) == expected
    assert numbers(record, "task_il") == expected


def test_the_content_of_a_result() -> None:
    record = filled(three(), ROWS, task_il=True)
    learner = SGD(toy.network())
    learner.observe(*toy.inputs(8, 0)[:2])
    record.finish(learner, 12)
    result = record.result()
    assert list(result) == ["moments", "tests", "predictors", "complete", "steps", "totals"]
    assert result["moments"] == ["start", "task 1", "task 2", "task 3"]
    assert result["tests"] == ["task 1", "task 2", "task 3"]
    assert result["predictors"]["working"]["per_class"] == [50.0, None]
    assert (result["complete"], result["steps"]) == (True, 12)
    assert result["totals"] == {"loss": learner.totals()["loss"]}
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_tests_that_were_not_evaluated_are_null() -> None:
    record = filled(three(), ROWS, task_il=True)
    assert record.class_il["working"][1] == [90.0, 15.0, None]


@pytest.mark.parametrize("moments", [1, 2, 3])
def test_an_incomplete_run_has_a_mean_over_the_tasks_seen(moments: int) -> None:
    record = filled(three(), ROWS[:moments], task_il=True)
    found = numbers(record)
    assert found["mean"] == [None, 90.0, 75.0][moments - 1]
    for name in ("last_test", "forgetting", "backward_transfer", "forward_transfer"):
        assert found[name] is None
    assert record.result()["complete"] is False
    assert record.latest() == found["mean"]


def test_tasks_with_the_same_classes_have_no_task_il() -> None:
    record = filled(toy.domain(), ROWS, task_il=False)
    assert numbers(record, "task_il") is None
    assert numbers(record)["forgetting"] == 30.0


def test_tasks_of_a_single_class_have_no_task_il() -> None:
    for groups, expected in (([(0,), (1,)], True), ([(0,), (1, 2)], False)):
        record = filled(grouped(*groups), [[None, None], [90.0, None], [80.0, 70.0]], task_il=True)
        assert (numbers(record, "task_il") is None) == expected
        record.skip(2)
        assert len(record.task_il["working"]) == (0 if expected else 4)


def test_overlapping_tests_have_a_mean_but_no_forgetting() -> None:
    record = filled(replace(three(), cumulative=True), ROWS, task_il=False)
    found = numbers(record)
    assert found["mean"] == pytest.approx(205 / 3)
    assert found["last_test"] == 95.0
    for name in ("forgetting", "backward_transfer", "forward_transfer"):
        assert found[name] is None


def test_joint_training_has_a_mean_but_no_forgetting() -> None:
    joint = three().joined(8, torch.Generator())
    record = filled(joint, [[10.0, 20.0, 30.0], [60.0, 50.0, 95.0]], task_il=True)
    for kind in ("class_il", "task_il"):
        found = numbers(record, kind)
        assert found["mean"] == pytest.approx(205 / 3)
        for name in ("forgetting", "backward_transfer", "forward_transfer"):
            assert found[name] is None
    assert record.result()["moments"] == ["start", "joint"]
    assert record.result()["complete"] is True


def test_a_stream_without_tasks_has_accuracies_per_class() -> None:
    stream = from_tensors(*toy.inputs(16, 0)[:2], test=toy.inputs(16, 1))
    record = filled(stream, [[10.0], [80.0]], task_il=False)
    found = numbers(record)
    assert (found["mean"], found["last_test"]) == (80.0, 80.0)
    assert found["forgetting"] is None
    assert numbers(record, "task_il") is None
    assert numbers(record, "per_class") == [50.0, None]


def test_each_predictor_has_its_own_rows() -> None:
    record = Record(three(), ["stable", "working"])
    for name, value in (("stable", 1.0), ("working", 2.0)):
        record.add(name, -1, [0, 2], Accuracies([value, value], None, []))
    assert record.moments == [-1]
    assert record.class_il == {"stable": [[1.0, None, 1.0]], "working": [[2.0, None, 2.0]]}
    assert record.latest() is None


def test_a_record_is_restored_from_its_state() -> None:
    record, restored = filled(three(), ROWS, task_il=True), Record(three(), ["working"])
    restored.load_state_dict(record.state_dict())
    assert restored.result() == record.result()


def test_a_record_describes_itself() -> None:
    record = filled(three(), ROWS[:3], task_il=False)
    assert repr(record) == "Record('own': unfinished, after 2 of 3 tasks, working 75.0 %)"
    assert repr(Record(replace(three(), tests=()), ["working"])).endswith("no tests)")
