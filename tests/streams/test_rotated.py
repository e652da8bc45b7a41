from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import stats
from torch import Tensor

from perdure.data import Dataset
from perdure.streams import rotate, rotated


def by_pillow(image: Tensor, degrees: float) -> Tensor:
    bands = [Image.fromarray(band.numpy()).rotate(degrees) for band in image]
    return torch.from_numpy(np.stack([np.array(band) for band in bands]))


tiny = st.floats(-1e-6, 1e-6)
quarters = st.integers(-9, 9).map(lambda k: 90.0 * k)
angles = st.one_of(
    st.floats(-1000, 1000), quarters, tiny, st.builds(lambda a, b: a + b, quarters, tiny)
)


@settings(max_examples=250, deadline=None)
@given(
    degrees=angles,
    height=st.integers(1, 33),
    width=st.integers(1, 33),
    channels=st.sampled_from([1, 3]),
    seed=st.integers(0, 2**32),
)
def test_every_pixel_equals_pillows(
    degrees: float, height: int, width: int, channels: int, seed: int
) -> None:
    draws = torch.Generator().manual_seed(seed)
    inputs = torch.randint(1, 256, (2, channels, height, width), generator=draws, dtype=torch.uint8)
    expected = torch.stack([by_pillow(image, degrees) for image in inputs])
    assert torch.equal(rotate(inputs, degrees), expected)


def test_each_image_may_have_its_own_angle() -> None:
    draws = torch.Generator().manual_seed(0)
    inputs = torch.randint(256, (2500, 1, 28, 28), generator=draws, dtype=torch.uint8)
    degrees = torch.rand(2500, generator=draws, dtype=torch.float64) * 800 - 400
    expected = [by_pillow(*pair) for pair in zip(inputs, degrees.tolist(), strict=True)]
    assert torch.equal(rotate(inputs, degrees), torch.stack(expected))


def test_the_images_are_not_modified(digits: Dataset) -> None:
    before = digits.train.inputs.clone()
    rotate(digits.train.inputs, 45)
    rotate(digits.train.inputs, torch.arange(len(before)))
    assert torch.equal(digits.train.inputs, before)


def test_an_empty_batch() -> None:
    assert rotate(torch.zeros(0, 1, 4, 4, dtype=torch.uint8), 30).shape == (0, 1, 4, 4)
    assert rotate(torch.zeros(0, 1, 4, 4), torch.zeros(0)).shape == (0, 1, 4, 4)


def test_the_number_of_angles_must_match() -> None:
    with pytest.raises(ValueError, match="2 angles for 3 images"):
        rotate(torch.zeros(3, 1, 4, 4), torch.zeros(2))


def angle(name: str) -> float:
    return float(name.removesuffix(" degrees"))


def test_a_task_rotates_training_and_test_images_by_the_same_angle(digits: Dataset) -> None:
    stream = rotated(digits, seed=3)
    assert len(stream.tasks) == len(stream.tests) == 20
    assert stream.classes == 10
    for number, (task, test) in enumerate(zip(stream.tasks, stream.tests, strict=True)):
        assert task.name == test.name
        assert test.since == number
        train_images, train_labels, _ = task.samples()
        assert torch.equal(train_labels, digits.train.labels)
        assert torch.equal(test.samples().labels, digits.test.labels)
        # The name is rounded to 0.01 degrees, which moves no pixel of a 5 x 5 image here.
        assert torch.equal(train_images, rotate(digits.train.inputs, angle(task.name)))
        assert torch.equal(test.samples().inputs, rotate(digits.test.inputs, angle(task.name)))


def test_angles_are_uniform_up_to_180_degrees_and_unsorted(digits: Dataset) -> None:
    angles = [[angle(task.name) for task in rotated(digits, seed=s).tasks] for s in range(50)]
    assert stats.kstest(np.ravel(angles), stats.uniform(0, 180).cdf).pvalue > 0.01
    assert np.min(angles) < 1
    assert 179 < np.max(angles) < 180
    assert all(each != sorted(each) for each in angles)


def test_test_samples_are_built_once_and_training_samples_again_after_release(
    digits: Dataset,
) -> None:
    stream = rotated(digits, seed=0)
    assert stream.tests[2].samples() is stream.tests[2].samples()
    first = stream.tasks[2].samples()
    assert stream.tasks[2].samples() is first
    stream.tasks[2].release()
    again = stream.tasks[2].samples()
    assert again is not first
    assert torch.equal(again.inputs, first.inputs)


def test_the_last_smaller_batch_is_kept(digits: Dataset) -> None:
    task = rotated(digits, seed=0).tasks[0]
    sizes = [len(batch.labels) for batch in task.epoch(50, torch.Generator())]
    assert sizes == [50] * (690 // 50) + [690 % 50]
    assert task.steps(50) == len(sizes)
