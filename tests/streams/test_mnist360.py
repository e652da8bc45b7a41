from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from perdure.data import Dataset
from perdure.records import Samples
from perdure.streams import ComposedTask, mnist360

MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
"""Training images of each digit."""


def row_of(image: Tensor) -> int:
    """The row encoded in the middle pixel, which no rotation moves."""
    return int.from_bytes(bytes(image[:, 2, 2].tolist()), "big")


def rotated(image: Tensor, degrees: float) -> Tensor:
    bands = [np.array(Image.fromarray(band.numpy()).rotate(degrees)) for band in image]
    return torch.from_numpy(np.stack(bands))


def one_task(dataset: Dataset) -> ComposedTask:
    (task,) = mnist360(dataset).tasks
    assert isinstance(task, ComposedTask)
    return task


@pytest.mark.parametrize("batch", [1, 3, 16, 100])
def test_the_stream_equals_a_simple_reference_implementation(digits: Dataset, batch: int) -> None:
    labels, inputs = digits.train.labels, digits.train.inputs
    rows = {d: (labels == d).nonzero()[:, 0].tolist() for d in range(9)}
    chunks = {}
    for d, of_digit in rows.items():
        size = len(of_digit) // 6 + 1
        chunks[d] = [set(of_digit[i * size : (i + 1) * size]) for i in range(6)]
    drawn = dict.fromkeys(range(9), 0)

    batches = one_task(digits).epoch(batch, torch.Generator().manual_seed(5))
    for _ in range(3):
        for first in range(9):
            pair = first, (first + 1) % 9
            left = {d: chunks[d].pop() for d in pair}
            while all(left.values()):
                a, b = (len(left[d]) for d in pair)
                take = min(a, round(batch * a / (a + b)))
                takes = {pair[0]: take, pair[1]: min(b, batch - take)}
                shown = next(batches)
                assert shown.labels.tolist() == [d for d in pair for _ in range(takes[d])]
                for image, d in zip(shown.inputs, shown.labels.tolist(), strict=True):
                    row = row_of(image)
                    left[d].remove(row)  # KeyError if drawn twice or from another chunk
                    degrees = (d - 1) * 60 + drawn[d] * 360 / len(rows[d])
                    assert torch.equal(image, rotated(inputs[row], degrees))
                    drawn[d] += 1
    assert next(batches, None) is None


@pytest.mark.parametrize("batch", [1, 2, 5, 16, 64, 1000])
def test_steps_are_counted_without_building_the_epoch(digits: Dataset, batch: int) -> None:
    task = one_task(digits)
    assert task.steps(batch) == sum(1 for _ in task.epoch(batch, torch.Generator()))


def test_full_mnist_has_the_published_number_of_samples() -> None:
    labels = torch.arange(10).repeat_interleave(torch.tensor(MNIST))
    samples = Samples(torch.zeros(60000, 1, 1, 1, dtype=torch.uint8), labels)
    task = one_task(Dataset("mnist", samples, samples, classes=10, checksum=""))
    sizes = [len(batch.labels) for batch in task.epoch(16, torch.Generator())]
    assert (len(sizes), sum(sizes)) == (3387, 54051)
    assert task.steps(1) == 54024


def test_draws_depend_only_on_the_order_generator(digits: Dataset) -> None:
    task = one_task(digits)
    one, same, other = (task.collect(16, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(one.inputs, same.inputs)
    assert torch.equal(one.labels, other.labels)
    assert not torch.equal(one.inputs, other.inputs)


def test_test_images_are_rotated_by_their_number_within_the_digit(digits: Dataset) -> None:
    stream = mnist360(digits)
    (test,) = stream.tests
    inputs, labels, _ = test.samples()
    wanted = (digits.test.labels < 9).nonzero()[:, 0]
    assert torch.equal(labels, digits.test.labels[wanted])
    met = dict.fromkeys(range(9), 0)
    for image, row in zip(inputs, wanted.tolist(), strict=True):
        digit = int(digits.test.labels[row])
        degrees = met[digit] * 360 / int((digits.test.labels == digit).sum())
        assert torch.equal(image, rotated(digits.test.inputs[row], degrees))
        met[digit] += 1
    assert test.samples() is test.samples()
    assert (test.rows, test.classes, test.since) == (None, None, 0)


def test_there_are_ten_outputs_and_no_boundaries(digits: Dataset) -> None:
    stream = mnist360(digits)
    assert (stream.classes, stream.boundaries) == (10, False)
    with pytest.raises(ValueError, match="composes its batches"):
        stream.tasks[0].samples()


def test_every_digit_is_needed(digits: Dataset) -> None:
    few = Samples(digits.train.inputs[:3], torch.arange(3))
    with pytest.raises(ValueError, match="needs images of digits 0 to 8"):
        mnist360(Dataset("few", few, few, classes=10, checksum=""))


def test_drawing_with_replacement_repeats_images_and_keeps_the_counts() -> None:
    rows = torch.arange(900)
    inputs = torch.zeros(900, 3, 5, 5, dtype=torch.uint8)
    inputs[:, 1, 2, 2], inputs[:, 2, 2, 2] = rows // 256, rows % 256
    samples = Samples(inputs, rows % 9)
    dataset = Dataset("small", samples, samples, classes=10, checksum="c")
    once, again = mnist360(dataset), mnist360(dataset, replacement=True)
    shown = []
    for stream in (once, again):
        (task,) = stream.tasks
        assert isinstance(task, ComposedTask)
        shown.append([row_of(i) for i in task.collect(16, torch.Generator()).inputs])
    assert len(shown[0]) == len(shown[1])
    assert len(set(shown[0])) == len(shown[0])
    assert len(set(shown[1])) < 0.8 * len(shown[1])
    assert once.checksum != again.checksum
