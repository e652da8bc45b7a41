from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from perdure.evaluation import training_samples as module
from perdure.evaluation.training_samples import training_samples
from perdure.records import Samples
from perdure.streams import ComposedTask, Task


def numbered(first: int, count: int) -> Samples:
    numbers = torch.arange(first, first + count)
    return Samples(numbers[:, None].float(), numbers)


def composed(first: int, count: int | None) -> ComposedTask:
    def compose(batch: int, order: torch.Generator) -> Iterator[Samples]:
        start = first
        while count is None or start < first + count:
            yield numbered(start, batch)
            start += batch

    return ComposedTask("composed", compose)


def test_takes_each_sample_at_most_once_and_from_all_tasks() -> None:
    tasks = [
        Task("a", lambda: numbered(0, 30)),
        composed(30, 20),
        Task("c", lambda: numbered(50, 10)),
    ]
    found = training_samples(tasks, 40, batch=5, seed=0)
    labels = found.labels.tolist()
    assert len(set(labels)) == len(labels) == 40
    assert labels == sorted(labels)
    assert found.inputs[:, 0].long().equal(found.labels)
    assert min(labels) < 30 <= max(labels)
    again = training_samples(tasks, 40, batch=5, seed=0)
    assert again.labels.equal(found.labels)
    assert not training_samples(tasks, 40, batch=5, seed=1).labels.equal(found.labels)


def test_takes_all_where_there_are_fewer() -> None:
    tasks = [Task("a", lambda: numbered(0, 3)), Task("b", lambda: numbered(3, 4))]
    assert training_samples(tasks, 100, batch=5, seed=0).labels.tolist() == list(range(7))


def test_every_sample_has_the_same_chance() -> None:
    tasks = [Task("a", lambda: numbered(0, 6)), Task("b", lambda: numbered(6, 2))]
    counts = Counter[int]()
    for seed in range(800):
        counts.update(training_samples(tasks, 2, batch=1, seed=seed).labels.tolist())
    # 200 expected of each; a standard deviation is 12.
    assert all(abs(counts[i] - 200) < 60 for i in range(8))


def test_an_endless_task_is_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_COLLECTED", 50)
    found = training_samples([composed(0, None)], 1000, batch=8, seed=0)
    assert found.labels.tolist() == list(range(56))
