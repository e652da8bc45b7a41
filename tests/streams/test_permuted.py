from __future__ import annotations

import torch

from perdure.data.dataset import Dataset
from perdure.records import Samples
from perdure.streams import permuted

PIXELS = 3 * 5 * 5


def numbered(n: int) -> Samples:
    """Images that all show the number of each pixel."""
    inputs = torch.arange(PIXELS, dtype=torch.uint8).repeat(n, 1).view(n, 3, 5, 5)
    return Samples(inputs, torch.arange(n) % 2)


def test_every_task_moves_all_pixels_its_own_way_in_training_and_test_alike() -> None:
    dataset = Dataset("pixels", numbered(4), numbered(2), classes=2, checksum="")
    stream = permuted(dataset, seed=1)
    assert len(stream.tasks) == len(stream.tests) == 20
    moves = set()
    for number, (task, test) in enumerate(zip(stream.tasks, stream.tests, strict=True)):
        assert test.since == number
        train, held_out = task.samples(), test.samples()
        assert torch.equal(train.labels, dataset.train.labels)
        assert torch.equal(held_out.labels, dataset.test.labels)
        shown = torch.cat([train.inputs, held_out.inputs]).flatten(1)
        assert (shown == shown[0]).all()
        assert sorted(shown[0].tolist()) == list(range(PIXELS))
        moves.add(tuple(shown[0].tolist()))
    assert len(moves) == 20
    assert tuple(range(PIXELS)) not in moves


def test_images_are_moved_not_changed(digits: Dataset) -> None:
    moved = permuted(digits, seed=1).tasks[0].samples().inputs
    assert moved.shape == digits.train.inputs.shape
    assert torch.equal(moved.flatten(1).sort().values, digits.train.inputs.flatten(1).sort().values)


def test_the_last_short_batch_is_kept_and_steps_build_nothing(digits: Dataset) -> None:
    task = permuted(digits, seed=1).tasks[5]
    assert task.steps(100) == 7
    assert task._samples is None
    assert [len(b.labels) for b in task.epoch(100, torch.Generator())] == [100] * 6 + [90]


def test_test_samples_are_made_once(digits: Dataset) -> None:
    test = permuted(digits, seed=0).tests[3]
    assert test.samples() is test.samples()
