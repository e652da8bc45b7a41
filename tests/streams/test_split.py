from __future__ import annotations

import pytest
import torch

from perdure.data import Dataset
from perdure.streams import CIFAR10, CropFlip, split


@pytest.mark.parametrize("tasks", [1, 2, 5, 10])
def test_tasks_partition_the_images_by_class_in_order(digits: Dataset, tasks: int) -> None:
    stream = split(digits, tasks, "s-digits")
    size = 10 // tasks
    seen = 0
    for number, (task, test) in enumerate(zip(stream.tasks, stream.tests, strict=True)):
        classes = list(range(number * size, (number + 1) * size))
        assert test.since == number
        assert test.classes == tuple(classes)
        wanted = torch.isin(digits.train.labels, torch.tensor(classes))
        images, labels, _ = task.samples()
        assert torch.equal(images, digits.train.inputs[wanted])
        assert torch.equal(labels, digits.train.labels[wanted])
        assert test.rows is not None
        assert torch.equal(
            test.rows, torch.isin(digits.test.labels, torch.tensor(classes)).nonzero()[:, 0]
        )
        seen += len(labels)
    assert seen == len(digits.train.labels)


def test_all_tests_share_the_same_samples(digits: Dataset) -> None:
    tests = split(digits, 5, "s-digits").tests
    assert len({test.source for test in tests}) == 1
    assert tests[0].source().inputs is digits.test.inputs


@pytest.mark.parametrize("batch", [1, 7, 32])
def test_an_epoch_shows_each_image_once_except_the_last_smaller_batch(
    digits: Dataset, batch: int
) -> None:
    task = split(digits, 5, "s-digits").tasks[1]
    n = len(task.samples().labels)
    batches = list(task.epoch(batch, torch.Generator().manual_seed(0)))
    assert [len(b.labels) for b in batches] == [batch] * (n // batch)
    assert task.steps(batch) == n // batch
    shown = {image.numpy().tobytes() for b in batches for image in b.inputs}
    assert len(shown) == n // batch * batch
    assert shown <= {image.numpy().tobytes() for image in task.samples().inputs}


def test_epochs_differ_in_order(digits: Dataset) -> None:
    task, order = split(digits, 5, "s-digits").tasks[0], torch.Generator().manual_seed(0)
    first, second = (next(task.epoch(32, order)) for _ in range(2))
    assert not torch.equal(first.inputs, second.inputs)


def test_arguments_are_passed_to_the_stream(digits: Dataset) -> None:
    stream = split(digits, 5, "s-digits", augment=CropFlip(), normalise=CIFAR10)
    assert (stream.augment, stream.normalise) == (CropFlip(), CIFAR10)
    assert (stream.name, stream.data, stream.shape) == ("s-digits", "digits", (3, 5, 5))
    assert stream.boundaries
    assert not stream.cumulative


@pytest.mark.parametrize("tasks", [0, 3, 20, -5])
def test_the_number_of_tasks_must_divide_the_classes(digits: Dataset, tasks: int) -> None:
    with pytest.raises(ValueError, match="10 classes cannot be divided equally"):
        split(digits, tasks, "s-digits")
