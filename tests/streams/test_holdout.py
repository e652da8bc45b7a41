"""Validation splits of a user's own streams."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.streams import from_batches, from_tensors
from perdure.streams.holdout import hold_out


def stream_of(n: int = 120, *, patients: int | None = None, **options: object):  # type: ignore[no-untyped-def]
    inputs = torch.arange(n).float().view(n, 1)  # each sample is its own number
    labels = torch.arange(n) % 4
    ids = None if patients is None else torch.arange(n) % patients
    return from_tensors(inputs, labels, keep_together=ids, **options)  # type: ignore[arg-type]


def members(samples: object) -> set[int]:
    return set(samples.inputs.squeeze(1).long().tolist())  # type: ignore[attr-defined]


def test_the_share_of_every_class_of_every_task_is_held_out() -> None:
    whole = stream_of(groups=[(0, 1), (2, 3)], test=(torch.zeros(4, 1), torch.arange(4)))
    split = whole.validation(0.2)
    for task, before, test in zip(split.tasks, whole.tasks, split.tests, strict=True):
        train, held = task.samples(), test.samples()
        assert held.labels.bincount(minlength=4).tolist() == [
            *(6 if label in test.classes else 0 for label in range(4))
        ]
        assert members(train) | members(held) == members(before.samples())
        assert not members(train) & members(held)
        assert task.steps(10) == 5  # 48 samples
    assert [(t.classes, t.since) for t in split.tests] == [((0, 1), 0), ((2, 3), 1)]


def test_a_split_depends_on_its_seed_and_share_only() -> None:
    first, again = stream_of().validation(0.25), stream_of().validation(0.25)
    assert torch.equal(first.tests[0].samples().inputs, again.tests[0].samples().inputs)
    assert first.checksum == again.checksum != stream_of().checksum
    assert first.checksum != stream_of().validation(0.25, seed=1).checksum
    other = stream_of().validation(0.25, seed=1).tests[0].samples().inputs
    assert not torch.equal(first.tests[0].samples().inputs, other)


def test_a_stream_with_one_test_keeps_one() -> None:
    test = torch.zeros(4, 1), torch.arange(4)
    split = stream_of(tasks=[range(60), range(60, 120)], test=test).validation(0.2)
    (held,) = split.tests
    assert len(held.samples().labels) == 24


@given(
    n=st.integers(20, 80),
    patients=st.integers(2, 30),
    share=st.floats(0.05, 0.6),
    seed=st.integers(0, 5),
)
@settings(max_examples=50, deadline=None)
def test_samples_that_belong_together_are_never_separated(
    n: int, patients: int, share: float, seed: int
) -> None:
    draws = torch.Generator().manual_seed(seed)
    ids = torch.randint(patients, (n,), generator=draws)
    labels = torch.randint(3, (n,), generator=draws)
    tasks = torch.randperm(n, generator=draws).tensor_split(3)
    try:
        masks = hold_out([ids[rows] for rows in tasks], [labels[rows] for rows in tasks], share)
    except ValueError:  # a task has no sample that can be held out
        return
    held = {int(i) for rows, mask in zip(tasks, masks, strict=True) for i in ids[rows][mask]}
    trained = {int(i) for rows, mask in zip(tasks, masks, strict=True) for i in ids[rows][~mask]}
    assert not held & trained


def test_a_sample_in_two_tasks_is_held_out_of_both() -> None:
    recurring = stream_of(tasks=[range(80), range(40, 120)]).validation(0.2)
    trained = [members(task.samples()) for task in recurring.tasks]
    held = [members(test.samples()) for test in recurring.tests]
    assert not (trained[0] | trained[1]) & (held[0] | held[1])


def test_many_tasks_and_classes_are_divided_in_linear_time() -> None:
    """A quadratic division would take minutes."""
    ids = torch.arange(200_000)
    start = time.process_time()
    masks = hold_out(list(ids[:50_000].view(-1, 5)), list(torch.zeros(10_000, 5)), 0.2)
    assert all(int(mask.sum()) == 1 for mask in masks)
    (mask,) = hold_out([ids], [ids // 5], 0.2)
    assert int(mask.sum()) == 40_000
    assert time.process_time() - start < 20


def test_splits_that_are_impossible_are_refused() -> None:
    batches = from_batches([(torch.rand(4, 1), torch.zeros(4).long())], classes=2, shape=(1,))
    with pytest.raises(ValueError, match="cannot be split"):
        batches.validation(0.1)
    with pytest.raises(ValueError, match="between 0 and 1"):
        stream_of().validation(1.0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        stream_of().validation("0.5")
    with pytest.raises(ValueError, match="task 1 to test"):
        stream_of(patients=1).validation(0.5)
    few = stream_of().validation(0.9999)  # something remains to train on
    assert all(len(task.samples().labels) for task in few.tasks)
    with pytest.raises(ValueError, match="3 values for 120"):
        from_tensors(torch.rand(120, 1), torch.arange(120) % 2, keep_together=["a", "b", "c"])


def test_gaps_in_the_labels_are_announced() -> None:
    inputs, labels = torch.rand(6, 2), torch.tensor([0, 1, 5, 0, 1, 5])
    with pytest.warns(UserWarning, match="2, 3, 4"):
        assert from_tensors(inputs, labels).classes == 6
    from_tensors(inputs, labels, classes=6)  # as intended: no warning


def test_a_stream_describes_itself() -> None:
    stream = stream_of(groups=[(0, 1), (2, 3)], name="numbers")
    assert repr(stream) == "Stream('numbers': 2 tasks, 4 classes, inputs [1], no tests)"
    assert repr(stream.tasks[0]) == "Task('task 1', 60 samples)"
    single = from_tensors(torch.rand(2, 1), torch.tensor([0, 0]))
    assert repr(single) == "Stream('own': 1 task, 1 class, inputs [1], no tests)"
