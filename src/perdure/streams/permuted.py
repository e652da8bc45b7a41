"""P-MNIST: each task permutes the pixels of all images in its own way."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from perdure.data import Dataset
from perdure.randomness import generator
from perdure.streams.stream import Stream, checksum_of, transformed


def permuted(dataset: Dataset, *, seed: int = 0, tasks: int = 20) -> Stream:
    """Create a stream whose tasks each apply one permutation to training and test images.

    The first task is permuted, too. All tasks have all classes and keep the last, smaller batch.

    Args:
        dataset: The images to permute.
        seed: Seed of the permutations.
        tasks: Number of tasks.

    >>> from perdure import Samples
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
    return transformed("p-mnist", dataset, transforms, checksum)


def _permute(permutation: Tensor, inputs: Tensor) -> Tensor:
    pixels = inputs.flatten(1)
    return pixels.gather(1, permutation.expand(len(pixels), -1)).view_as(inputs)
