"""P-MNIST: each task permutes the pixels of all images in its own way."""

from __future__ import annotations

from functools import cache, partial

import torch
from torch import Tensor

from perdure.data import Dataset
from perdure.randomness import generator
from perdure.records import Samples
from perdure.streams.augment import Scale
from perdure.streams.stream import Stream, Task, Test, checksum_of


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
    on_device = permutations.to(dataset.train.inputs.device)
    names = [f"permutation {number}" for number in range(tasks)]
    return Stream(
        name="p-mnist",
        data=dataset.name,
        classes=dataset.classes,
        shape=tuple(dataset.train.inputs.shape[1:]),
        tasks=[
            Task(
                name,
                partial(_permute, dataset.train, permutation),
                size=len(dataset.train.labels),
                drop_last=False,
            )
            for name, permutation in zip(names, on_device, strict=True)
        ],
        tests=[
            Test(name, cache(partial(_permute, dataset.test, permutation)), since=task)
            for task, (name, permutation) in enumerate(zip(names, on_device, strict=True))
        ],
        normalise=Scale(),
        checksum=checksum_of("p-mnist", dataset.checksum, seed, permutations),
    )


def _permute(samples: Samples, permutation: Tensor) -> Samples:
    pixels = samples.inputs.flatten(1)
    inputs = pixels.gather(1, permutation.expand(len(pixels), -1))
    return Samples(inputs.view_as(samples.inputs), samples.labels)
