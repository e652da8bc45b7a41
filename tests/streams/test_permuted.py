from __future__ import annotations

import torch

from perdure.data import Dataset
from perdure.records import Samples
from perdure.streams import permuted

PIXELS = 3 * 5 * 5


def numbered(n: int) -> Samples:
    """Images whose pixels contain their own number."""
    inputs = torch.arange(PIXELS, dtype=torch.uint8).repeat(n, 1).view(n, 3, 5, 5)
    return Samples(inputs, torch.arange(n) % 2)


def test_each_task_applies_its_own_permutation_to_training_and_test_images() -> None:
    dataset = Dataset("pixels", numbered(4), numbered(2), classes=2, checksum="")
    stream = permuted(dataset, seed=1)
    assert len(stream.tasks) == len(stream.tests) == 20
    permutations = set()
    for number, (task, test) in enumerate(zip(stream.tasks, stream.tests, strict=True)):
        assert test.since == number
        train, held_out = task.samples(), test.samples()
        assert torch.equal(train.labels, dataset.train.labels)
        assert torch.equal(held_out.labels, dataset.test.labels)
        shown = torch.cat([train.inputs, held_out.inputs]).flatten(1)
        assert (shown == shown[0]).all()
        assert sorted(shown[0].tolist()) == list(range(PIXELS))
        permutations.add(tuple(shown[0].tolist()))
    assert len(permutations) == 20
    assert tuple(range(PIXELS)) not in permutations


def test_pixels_keep_their_values(digits: Dataset) -> None:
    moved = permuted(digits, seed=1).tasks[0].samples().inputs
    assert moved.shape == digits.train.inputs.shape
    assert torch.equal(moved.flatten(1).sort().values, digits.train.inputs.flatten(1).sort().values)


def test_the_last_smaller_batch_is_kept_and_steps_do_not_build_samples(digits: Dataset) -> None:
    task = permuted(digits, seed=1).tasks[5]
    assert task.steps(100) == 7
    assert task._samples is None
    assert [len(b.labels) for b in task.epoch(100, torch.Generator())] == [100] * 6 + [90]


def test_test_samples_are_built_once(digits: Dataset) -> None:
    test = permuted(digits, seed=0).tests[3]
    assert test.samples() is test.samples()
