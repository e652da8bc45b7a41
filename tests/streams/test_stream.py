from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from perdure.data import Dataset
from perdure.records import Samples
from perdure.streams import ComposedTask, Stream, Task, gcil, mnist360, permuted, split


def bag(samples: Samples) -> list[tuple[bytes, int]]:
    """The samples without their order."""
    pairs = zip(samples.inputs, samples.labels.tolist(), strict=True)
    return sorted((image.numpy().tobytes(), label) for image, label in pairs)


def test_samples_are_built_when_first_needed_and_again_after_release() -> None:
    made = []

    def make() -> Samples:
        made.append(1)
        return Samples(torch.zeros(5, 1), torch.arange(5))

    task = Task("lazy", make)
    assert not made
    task.samples()
    assert task.steps(2) == 2
    list(task.epoch(2, torch.Generator()))
    assert len(made) == 1
    task.release()
    task.samples()
    assert len(made) == 2


def fail() -> Samples:
    raise AssertionError


def stream_of(tasks: list[Task]) -> Stream:
    return Stream("mine", "own", 3, (2,), tasks, [], normalise=torch.Tensor.float)


def test_the_size_of_the_last_batch_is_known_without_building_samples() -> None:
    def last_batch(**arguments: Any) -> int | None:
        return Task("t", fail, **arguments).last_batch(4)

    assert last_batch(size=9, drop_last=False) == 1
    assert last_batch(size=8, drop_last=False) == 4
    assert last_batch(size=9) == 4  # the last one is omitted
    assert last_batch(drop_last=False) is None


def test_steps_of_a_known_size_do_not_build_samples() -> None:
    assert Task("sized", fail, size=10).steps(4) == 2
    assert Task("sized", fail, size=10, drop_last=False).steps(4) == 3


def test_an_epoch_draws_its_order_when_the_first_batch_is_requested(digits: Dataset) -> None:
    task, order = split(digits, 5, "s").tasks[0], torch.Generator().manual_seed(0)
    before = order.get_state()
    epoch = task.epoch(8, order)
    assert torch.equal(order.get_state(), before)
    next(epoch)
    assert not torch.equal(order.get_state(), before)


def streams(dataset: Dataset) -> Iterator[Stream]:
    yield split(dataset, 5, "s-digits")
    yield permuted(dataset, seed=2, tasks=3)
    yield gcil(dataset, phases=4, size=60, most=4)


@pytest.mark.parametrize("kind", range(3), ids=["split", "permuted", "gcil"])
def test_joined_is_one_task_with_all_samples_of_all_tasks(digits: Dataset, kind: int) -> None:
    stream = list(streams(digits))[kind]
    joint = stream.joined(32, torch.Generator())
    (task,) = joint.tasks
    everything = sorted(pair for task in stream.tasks for pair in bag(task.samples()))
    assert bag(task.samples()) == everything
    sizes = [len(b.labels) for b in task.epoch(32, torch.Generator())]
    assert sum(sizes) == len(everything)
    assert task.steps(32) == len(sizes)
    assert [test.since for test in joint.tests] == [0] * len(stream.tests)
    assert joint.checksum not in ("", stream.checksum)


def test_joined_collects_composed_batches(digits: Dataset) -> None:
    stream, order = mnist360(digits), torch.Generator().manual_seed(4)
    (task,) = stream.tasks
    assert isinstance(task, ComposedTask)
    expected = bag(task.collect(4, torch.Generator().manual_seed(4)))
    joint = stream.joined(4, order)
    order.manual_seed(99)  # draws of the run in between do not matter
    assert bag(joint.tasks[0].samples()) == expected
    joint.tasks[0].release()
    assert bag(joint.tasks[0].samples()) == expected
    shown = list(joint.tasks[0].epoch(4, order))
    assert sum(len(batch.labels) for batch in shown) == len(expected)


def test_joined_knows_its_size_without_building_samples() -> None:
    tasks = [Task(name, fail, size=size) for name, size in (("a", 5), ("b", 4))]
    (joint,) = stream_of(tasks).joined(2, torch.Generator()).tasks
    assert (joint.steps(2), joint.last_batch(2)) == (5, 1)


def test_joined_holds_one_task_at_a_time() -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def make() -> Samples:
        assert all(inputs() is None for inputs in held[:-1])
        samples = Samples(torch.full((3, 2), float(len(held))), torch.arange(3))
        held.append(weakref.ref(samples.inputs))
        return samples

    tasks = [Task(str(number), make, size=3) for number in range(4)]
    found = stream_of(tasks).joined(2, torch.Generator()).tasks[0].samples()
    assert found.inputs[:, 0].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert found.labels.tolist() == [0, 1, 2] * 4


@pytest.mark.parametrize(("rows", "dtype"), [(2, "uint8"), (4, "uint8"), (3, "float32")])
def test_joined_refuses_tasks_that_do_not_fit_together(rows: int, dtype: str) -> None:
    def make(count: int, name: str) -> Samples:
        return Samples(torch.zeros(count, 2, dtype=getattr(torch, name)), torch.arange(count))

    tasks = [
        Task("first", partial(make, 3, "uint8"), size=3),
        Task("second", partial(make, rows, dtype), size=3),
    ]
    with pytest.raises(ValueError, match="samples"):
        stream_of(tasks).joined(2, torch.Generator()).tasks[0].samples()


def test_joined_releases_the_tasks(digits: Dataset) -> None:
    stream = permuted(digits, tasks=3)
    stream.joined(8, torch.Generator()).tasks[0].samples()
    assert all(task._samples is None for task in stream.tasks)
