"""R-MNIST and P-MNIST: each task rotates or permutes all images in its own way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from perdure.data import Dataset
from perdure.randomness import generator
from perdure.records import Samples
from perdure.streams.augment import Scale
from perdure.streams.stream import Stream, Task, Test, checksum_of

CHUNK = 1024
"""Images rotated at once if each has its own angle; limits memory use."""


def _transformed(
    name: str,
    dataset: Dataset,
    transforms: Sequence[tuple[str, Callable[[Tensor], Tensor]]],
    checksum: str,
) -> Stream:
    """A stream whose tasks, given by name and function, each transform all images."""

    def apply(samples: Samples, transform: Callable[[Tensor], Tensor]) -> Samples:
        return Samples(transform(samples.inputs), samples.labels)

    n = len(dataset.train.labels)
    return Stream(
        name=name,
        data=dataset.name,
        classes=dataset.classes,
        shape=tuple(dataset.train.inputs.shape[1:]),
        tasks=[
            Task(task, partial(apply, dataset.train, transform), size=n, drop_last=False)
            for task, transform in transforms
        ],
        tests=[
            Test(task, cache(partial(apply, dataset.test, transform)), since=number)
            for number, (task, transform) in enumerate(transforms)
        ],
        normalise=Scale(),
        checksum=checksum,
    )


def rotated(dataset: Dataset, *, seed: int = 0, tasks: int = 20) -> Stream:
    """Create a stream whose tasks each rotate training and test images by one angle.

    Angles are uniform in [0, 180) and unsorted. All tasks have all classes and keep the last,
    smaller batch.

    Args:
        dataset: The images to rotate.
        seed: Seed of the angles.
        tasks: Number of tasks.

    >>> samples = Samples(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.arange(3))
    >>> stream = rotated(Dataset("tiny", samples, samples, classes=3, checksum=""), tasks=2)
    >>> [task.samples().inputs.shape[0] for task in stream.tasks]
    [3, 3]
    """
    draws = generator(seed, "angles")
    angles = 180 * torch.rand(tasks, generator=draws, dtype=torch.float64)
    transforms = [(f"{a:.2f} degrees", partial(rotate, degrees=a)) for a in angles.tolist()]
    checksum = checksum_of("r-mnist", dataset.checksum, seed, angles)
    return _transformed("r-mnist", dataset, transforms, checksum)


def permuted(dataset: Dataset, *, seed: int = 0, tasks: int = 20) -> Stream:
    """Create a stream whose tasks each apply one permutation to training and test images.

    The first task is permuted, too. All tasks have all classes and keep the last, smaller batch.

    Args:
        dataset: The images to permute.
        seed: Seed of the permutations.
        tasks: Number of tasks.

    >>> samples = Samples(torch.arange(4, dtype=torch.uint8).view(1, 1, 2, 2), torch.tensor([0]))
    >>> stream = permuted(Dataset("tiny", samples, samples, classes=1, checksum=""), tasks=2)
    >>> [task.samples().inputs.flatten().sort().values.tolist() for task in stream.tasks]
    [[0, 1, 2, 3], [0, 1, 2, 3]]
    """
    pixels = dataset.train.inputs[0].numel()
    draws = generator(seed, "permutations")
    permutations = torch.stack([torch.randperm(pixels, generator=draws) for _ in range(tasks)])
    transforms = [
        (f"permutation {number}", partial(_permute, permutation))
        for number, permutation in enumerate(permutations.to(dataset.train.inputs.device))
    ]
    checksum = checksum_of("p-mnist", dataset.checksum, seed, permutations)
    return _transformed("p-mnist", dataset, transforms, checksum)


def _permute(permutation: Tensor, inputs: Tensor) -> Tensor:
    pixels = inputs.flatten(1)
    return pixels.gather(1, permutation.expand(len(pixels), -1)).view_as(inputs)


def rotate(inputs: Tensor, degrees: float | Tensor) -> Tensor:
    """Rotate images counterclockwise about their centre and fill with zeros.

    The result equals Pillow's `Image.rotate` (nearest neighbour) in every pixel. Pillow computes
    source positions in 16.16 fixed point; rounding the exact positions instead changes pixels in
    9 % of MNIST's images.

    Args:
        inputs: Images [n, channels, height, width].
        degrees: One angle for all images, or a tensor [n] with one for each.

    >>> rotate(torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8), 90).tolist()
    [[[[2, 4], [1, 3]]]]
    """
    angles = torch.as_tensor(degrees, dtype=torch.float64, device="cpu")
    if angles.ndim and angles.shape != inputs.shape[:1]:
        raise ValueError(f"{len(angles)} angles for {len(inputs)} images; expected one for each")
    height, width = inputs.shape[-2:]
    steps = _fixed_point_steps(angles.reshape(-1), height, width).to(inputs.device)
    result = torch.empty_like(inputs, memory_format=torch.contiguous_format)
    chunk = CHUNK if angles.ndim else max(1, len(inputs))
    tensors = inputs.flatten(2), result.flatten(2), steps
    for part, out, step in zip(*(torch.split(tensor, chunk) for tensor in tensors), strict=True):
        source, outside = _sources(step, height, width)
        torch.gather(part, 2, source.unsqueeze(1).expand_as(part), out=out)
        out.masked_fill_(outside.unsqueeze(1), 0)
    return result


def _fixed_point_steps(angles: Tensor, height: int, width: int) -> Tensor:
    """Pillow's inverse affine map for each angle: six numbers in units of 1/65536 pixel, [m, 6].

    In order: x of the source for the first pixel, its change per column and per row; then y.
    Computed on the CPU so that rotations do not depend on the device.
    """
    radians = -torch.deg2rad(angles.remainder(360))
    cos, sin = radians.cos().round(decimals=15), radians.sin().round(decimals=15)
    x, y = width / 2, height / 2
    # The centre is fixed, and pixels are looked up at their middle.
    first_x = (cos * -x + sin * -y) + x + cos * 0.5 + sin * 0.5
    first_y = (-sin * -x + cos * -y) + y - sin * 0.5 + cos * 0.5
    map_ = torch.stack([first_x, cos, sin, first_y, -sin, cos], dim=1)
    return (map_ * 65536 + 0.5).floor().long()


def _sources(steps: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Flat source positions of the output pixels, [m, H * W], and which are outside the image."""
    row = torch.arange(height, device=steps.device)[:, None]
    column = torch.arange(width, device=steps.device)
    x, x_column, x_row, y, y_column, y_row = steps[..., None, None].unbind(1)
    x = (x + x_column * column + x_row * row) >> 16
    y = (y + y_column * column + y_row * row) >> 16
    outside = (x < 0) | (x >= width) | (y < 0) | (y >= height)
    return (y * width + x).masked_fill_(outside, 0).flatten(1), outside.flatten(1)
