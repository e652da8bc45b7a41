from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from perdure.streams import from_batches

Batch = tuple[Tensor, Tensor]


def batch(number: int, n: int = 2) -> Batch:
    return torch.full((n, 1, 2, 2), float(number)), torch.arange(n) % 2


def endless() -> Iterator[Batch]:
    return (batch(number) for number in itertools.count())


def numbers(batches: Any) -> list[int]:
    return [int(each.inputs.flatten()[0]) for each in batches]


def stream_of(batches: Any, **more: Any) -> Any:
    return from_batches(batches, classes=2, shape=(1, 2, 2), **more)


def test_batches_come_as_they_are_whatever_the_batch_size() -> None:
    stream = stream_of([batch(0, 3), batch(1, 1), batch(2, 5)])
    (task,) = stream.tasks
    assert [len(b.labels) for b in task.epoch(32, torch.Generator())] == [3, 1, 5]
    assert numbers(task.epoch(1, torch.Generator())) == [0, 1, 2]
    assert numbers(task.epoch(1, torch.Generator(), start=2)) == [2]
    assert numbers(task.epoch(1, torch.Generator(), start=3)) == []
    assert task.steps(32) == 3
    assert (stream.boundaries, stream.checksum) == (False, "")


def test_an_endless_iterable_is_read_only_as_far_as_asked() -> None:
    read = []

    def reader() -> Iterator[Batch]:
        for number in itertools.count():
            read.append(number)
            yield batch(number)

    (task,) = stream_of(reader()).tasks
    assert task.steps(32) is None
    epoch = task.epoch(32, torch.Generator(), start=5)
    assert numbers(itertools.islice(epoch, 3)) == [5, 6, 7]
    assert read == list(range(8))


def test_an_iterator_serves_one_epoch() -> None:
    (task,) = stream_of(iter([batch(0), batch(1)])).tasks
    assert numbers(task.epoch(32, torch.Generator(), start=1)) == [1]
    for start in (0, 1):
        with pytest.raises(ValueError, match="come from an iterator, which serves one epoch only"):
            list(task.epoch(32, torch.Generator(), start))


def test_an_iterator_that_was_used_up_elsewhere_is_refused() -> None:
    for start in (0, 4):
        batches = iter([batch(0)])
        list(batches)
        (task,) = stream_of(batches).tasks
        with pytest.raises(ValueError, match="task 'own' has no batches"):
            list(task.epoch(32, torch.Generator(), start))


def test_a_start_beyond_the_end_is_refused() -> None:
    (task,) = stream_of([batch(0)]).tasks
    with pytest.raises(ValueError, match="task 'own' ended after 1 batches, before 2"):
        list(task.epoch(32, torch.Generator(), start=2))


def test_what_can_be_read_again_serves_many_epochs() -> None:
    (task,) = stream_of([batch(0), batch(1)]).tasks
    for _ in range(3):
        assert numbers(task.epoch(32, torch.Generator())) == [0, 1]


def test_several_tasks_have_names_and_boundaries() -> None:
    pair = batch(0)
    stream = stream_of({"old": [batch(0)], "new": endless()}, tests=[pair, pair])
    assert [task.name for task in stream.tasks] == ["old", "new"]
    assert [(test.name, test.since) for test in stream.tests] == [("old", 0), ("new", 1)]
    assert stream.boundaries


def test_a_data_loader_is_taken_as_it_is() -> None:
    data = TensorDataset(torch.rand(10, 1, 2, 2), torch.arange(10) % 2)
    (task,) = stream_of(DataLoader(data, batch_size=4)).tasks
    assert task.steps(32) == 3
    shown = list(task.epoch(32, torch.Generator()))
    assert torch.equal(torch.cat([b.inputs for b in shown]), data.tensors[0])


def test_arrays_are_taken() -> None:
    pair = np.zeros((3, 1, 2, 2), np.uint8), np.array([0, 1, 1])
    (task,) = stream_of([pair]).tasks
    (shown,) = task.epoch(32, torch.Generator())
    assert (shown.inputs.dtype, shown.labels.dtype) == (torch.uint8, torch.int64)


def test_joined_collects_them() -> None:
    stream = stream_of({"old": [batch(0)], "new": [batch(1)]})
    joint = stream.joined(32, torch.Generator())
    assert len(joint.tasks[0].samples().labels) == 4
    assert joint.checksum == ""


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ((torch.zeros(2, 1, 2, 2), torch.tensor([0, 2])), "a batch label is 2; expected 0 to 1"),
        ((torch.zeros(2, 1, 2, 2), torch.tensor([0])), "batch images are .* for 1 labels"),
        ((torch.zeros(2, 3, 2, 2), torch.tensor([0, 1])), r"shape \[3, 2, 2\]; the stream's"),
        ((torch.zeros(0, 1, 2, 2), torch.zeros(0, dtype=torch.int64)), "no batch samples"),
    ],
)
def test_a_bad_batch_is_refused_when_it_comes(bad: Batch, message: str) -> None:
    (task,) = stream_of([batch(0), bad]).tasks
    epoch = task.epoch(32, torch.Generator())
    next(epoch)
    with pytest.raises(ValueError, match=message):
        next(epoch)


def test_no_tasks_at_all_are_refused() -> None:
    with pytest.raises(ValueError, match="there are no tasks among the batches"):
        stream_of({})
