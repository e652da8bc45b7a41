from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from perdure.evaluation import task_probabilities
from perdure.evaluation.probabilities import groups_of
from perdure.records import Samples
from perdure.streams import Test


def named(*classes: tuple[int, ...] | None) -> list[Test]:
    samples = Samples(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64))
    return [Test(f"task {i}", lambda: samples, classes=c) for i, c in enumerate(classes)]


def test_an_example_computed_by_hand() -> None:
    scores = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.3, 0.0, 0.1, 0.6]], dtype=torch.float64).log()
    found = task_probabilities(scores, {"a": (0, 1), "b": (2, 3)}, "task")
    # Averages per class: 0.2, 0.1, 0.2, 0.5; per task: 0.15 and 0.35, in total 0.5.
    assert found.mass == pytest.approx([0.3, 0.7])
    assert (found.names, found.kind) == (["a", "b"], "task")


def test_the_number_of_classes_does_not_matter() -> None:
    even = torch.zeros(5, 4)
    found = task_probabilities(even, {"three": (0, 1, 2), "one": (3,)}, "task")
    assert found.mass == pytest.approx([0.5, 0.5])


def test_outputs_in_no_group_are_ignored() -> None:
    scores = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64).log()
    found = task_probabilities(scores, {"0": (0,), "1": (1,)}, "class")
    assert found.mass == pytest.approx([0.4, 0.6])
    assert math.fsum(found.mass) == pytest.approx(1)


def test_tasks_that_partition_the_classes_are_the_groups() -> None:
    groups, kind = groups_of(named((0, 1), (2, 3)), torch.tensor([0, 1, 2, 3]))
    assert (groups, kind) == ({"task 0": (0, 1), "task 1": (2, 3)}, "task")


@pytest.mark.parametrize(
    "classes",
    [
        [None, None],  # the same classes in every task
        [(0, 1), (1, 2)],  # classes recur
        [(0, 1), None],
        [(0, 1)],  # a single task would have probability 1
    ],
)
def test_otherwise_each_class_is_a_group(
    classes: list[tuple[int, ...] | None],
) -> None:
    labels: Tensor = torch.tensor([3, 1, 1])
    groups, kind = groups_of(named(*classes), labels)
    assert (groups, kind) == ({"1": (1,), "3": (3,)}, "class")
