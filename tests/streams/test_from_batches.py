from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from perdure.streams import from_batches, from_tensors
from perdure.streams.from_batches import read_checksum, supplies_batches

Batch = tuple[Tensor, Tensor]


def batch(number: int, n: int = 2) -> Batch:
    return torch.full((n, 1, 2, 2), float(number)), torch.arange(n) % 2


def endless() -> Iterator[Batch]:
    return (batch(number) for number in itertools.count())


def numbers(batches: Any) -> list[int]:
    return [int(each.inputs.flatten()[0]) for each in batches]


def stream_of(batches: Any, **more: Any) -> Any:
    return from_batches(batches, classes=2, shape=(1, 2, 2), **more)


def test_the_batch_size_does_not_apply() -> None:
    stream = stream_of([batch(0, 3), batch(1, 1), batch(2, 5)])
    (task,) = stream.tasks
    assert [len(b.labels) for b in task.epoch(32, torch.Generator())] == [3, 1, 5]
    assert numbers(task.epoch(1, torch.Generator())) == [0, 1, 2]
    assert numbers(task.epoch(1, torch.Generator(), start=2)) == [2]
    assert numbers(task.epoch(1, torch.Generator(), start=3)) == []
    assert task.steps(32) == 3
    assert (stream.boundaries, stream.checksum) == (False, "")


def test_epochs_that_are_read_at_the_same_time_have_the_checksum_of_one() -> None:
    batches = [batch(0, 3), batch(1, 1), batch(2, 5)]
    (one,), (shared,) = (stream_of(batches).tasks for _ in range(2))
    assert numbers(one.epoch(32, torch.Generator())) == [0, 1, 2]
    for _ in zip(*(shared.epoch(32, torch.Generator()) for _ in range(2)), strict=True):
        pass
    assert shared.epochs_read == one.epochs_read
    assert shared.checksum == one.checksum


def test_a_function_is_not_an_iterable_of_batches() -> None:
    for batches in (endless, {"first": endless}):
        with pytest.raises(ValueError, match=r"of type function.*call it"):
            stream_of(batches)


def test_an_endless_iterable_is_read_lazily() -> None:
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
        with pytest.raises(ValueError, match="can be read only once"):
            list(task.epoch(32, torch.Generator(), start))


def test_an_exhausted_iterator_is_rejected() -> None:
    for start in (0, 4):
        batches = iter([batch(0)])
        list(batches)
        (task,) = stream_of(batches).tasks
        with pytest.raises(ValueError, match="task 'own' has no batches"):
            list(task.epoch(32, torch.Generator(), start))


def test_a_start_beyond_the_end_is_rejected() -> None:
    (task,) = stream_of([batch(0)]).tasks
    with pytest.raises(ValueError, match="task 'own' has 1 batches, fewer than 2"):
        list(task.epoch(32, torch.Generator(), start=2))


def test_a_list_serves_many_epochs() -> None:
    (task,) = stream_of([batch(0), batch(1)]).tasks
    for _ in range(3):
        assert numbers(task.epoch(32, torch.Generator())) == [0, 1]


def test_several_tasks_have_names_and_boundaries() -> None:
    pair = batch(0)
    stream = stream_of({"old": [batch(0)], "new": endless()}, tests=[pair, pair])
    assert [task.name for task in stream.tasks] == ["old", "new"]
    assert [(test.name, test.since) for test in stream.tests] == [("old", 0), ("new", 1)]
    assert stream.boundaries


def test_a_data_loader_is_accepted() -> None:
    data = TensorDataset(torch.rand(10, 1, 2, 2), torch.arange(10) % 2)
    (task,) = stream_of(DataLoader(data, batch_size=4)).tasks
    assert task.steps(32) == 3
    shown = list(task.epoch(32, torch.Generator()))
    assert torch.equal(torch.cat([b.inputs for b in shown]), data.tensors[0])


def test_arrays_are_accepted() -> None:
    pair = np.zeros((3, 1, 2, 2), np.uint8), np.array([0, 1, 1])
    (task,) = stream_of([pair]).tasks
    (shown,) = task.epoch(32, torch.Generator())
    assert (shown.inputs.dtype, shown.labels.dtype) == (torch.uint8, torch.int64)


def test_joined_collects_all_batches() -> None:
    stream = stream_of({"old": [batch(0)], "new": [batch(1)]})
    joint = stream.joined(32, torch.Generator())
    assert len(joint.tasks[0].samples().labels) == 4
    assert joint.checksum == ""


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ((torch.zeros(2, 1, 2, 2), torch.tensor([0, 2])), "a batch label is 2; expected 0 to 1"),
        ((torch.zeros(2, 1, 2, 2), torch.tensor([0])), "for 1 labels"),
        (
            (torch.zeros(2, 3, 2, 2), torch.tensor([0, 1])),
            r"shape \(3, 2, 2\); expected \(1, 2, 2\)",
        ),
        ((torch.zeros(0, 1, 2, 2), torch.zeros(0, dtype=torch.int64)), "no batch samples"),
    ],
)
def test_an_invalid_batch_is_rejected_when_it_is_read(bad: Batch, message: str) -> None:
    (task,) = stream_of([batch(0), bad]).tasks
    epoch = task.epoch(32, torch.Generator())
    next(epoch)
    with pytest.raises(ValueError, match=message):
        next(epoch)


def test_an_empty_mapping_is_rejected() -> None:
    with pytest.raises(ValueError, match="is empty"):
        stream_of({})


# -- what was read --------------------------------------------------------------------------


def checksum_after(stream: Any, epochs: int = 1) -> str:
    for task in stream.tasks:
        for _ in range(epochs):
            assert numbers(task.epoch(32, torch.Generator()))
    return read_checksum(stream.tasks, stream.tests)


def test_the_checksum_of_what_was_read_depends_on_batches_and_tests_only() -> None:
    first, longer = [batch(0), batch(1)], [batch(0), batch(1), batch(2)]
    found = checksum_after(stream_of(first))
    assert found == checksum_after(stream_of(list(first)), epochs=3)
    others = [
        stream_of(longer),
        stream_of(first[::-1]),
        stream_of({"a": first[:1], "b": first[1:]}),
        stream_of(first, test=batch(0)),
        stream_of(first, test=batch(1)),
    ]
    assert len({found, *map(checksum_after, others)}) == 6


def test_there_is_no_checksum_of_batches_that_were_not_all_read_or_have_changed() -> None:
    stream = stream_of([batch(0), batch(1)])
    next(stream.tasks[0].epoch(32, torch.Generator()))
    assert read_checksum(stream.tasks, stream.tests) == ""
    assert checksum_after(stream_of(iter([batch(0)]))) == ""
    growing = [batch(0)]
    stream = stream_of(growing)
    assert checksum_after(stream)
    growing.append(batch(1))
    assert checksum_after(stream) == ""
    tensors = from_tensors(torch.rand(4, 3), torch.tensor([0, 1, 0, 1]))
    assert read_checksum(tensors.tasks, tensors.tests) == ""
    assert [supplies_batches(each) for each in (stream, tensors)] == [True, False]


class Failing:
    """An iterable that can be read once."""

    def __init__(self) -> None:
        self.started = 0

    def __iter__(self) -> Iterator[Batch]:
        self.started += 1
        if self.started > 1:
            raise ConnectionError
        return iter([batch(0)])


def test_batches_in_a_random_order_do_not_repeat() -> None:
    data = TensorDataset(torch.rand(100, 1, 2, 2), torch.arange(100) % 2)
    state = torch.get_rng_state()
    for shuffle in (False, True):
        (task,) = stream_of(DataLoader(data, batch_size=50, shuffle=shuffle)).tasks
        assert task.repeats() != shuffle
    assert torch.equal(torch.get_rng_state(), state)
    (task,) = stream_of(Failing()).tasks
    list(task.epoch(32, torch.Generator()))
    assert not task.repeats()
