"""P-MNIST: every task shows all images with their pixels in another order."""

from __future__ import annotations

from functools import cache, partial

import torch
from torch import Tensor

from perdure.data.dataset import Dataset
from perdure.randomness import generator
from perdure.records import Samples
from perdure.streams.augment import Scale
from perdure.streams.checksum import checksum
from perdure.streams.stream import Stream, Task, Test


def permuted(dataset: Dataset, *, seed: int = 0, tasks: int = 20) -> Stream:
    """A stream whose tasks each permute the pixels their own way, in training and test alike.

    The permutations (the first task has one too) come from `seed` alone. All classes are there
    throughout, and the last short batch is kept.

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
        checksum=checksum("p-mnist", dataset.checksum, seed, permutations),
    )


def _permute(samples: Samples, permutation: Tensor) -> Samples:
    pixels = samples.inputs.flatten(1)
    moved = pixels.gather(1, permutation.expand(len(pixels), -1))
    return Samples(moved.view_as(samples.inputs), samples.labels)
