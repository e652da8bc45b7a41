"""GCIL-CIFAR-100: phases in which classes recur, with unequal numbers of samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from perdure.data import Dataset
from perdure.records import Samples
from perdure.streams.augment import CIFAR10, CropFlip
from perdure.streams.stream import Stream, Task, Test, checksum_of

Rows = npt.NDArray[np.int64]
DECAY = {"uniform": 1.0, "longtail": 0.984}
"""The weight of class c is this value to the power of c."""


@dataclass(frozen=True)
class MemoryDraws:
    """The random numbers that the memory consumes between two phases of a published stream.

    The published code draws its GCIL streams and its memory from one generator, so that a stream
    depends on the method. After a phase of n samples the learner takes epochs x (n // batch) steps.
    In each, every read permutes the stored samples; then every sample of the batch that finds the
    memory full draws a number.

    Args:
        buffer_size: Samples that the memory holds.
        reads: How often a step reads the memory: 1 for ER and CLS-ER, 2 for DER++.
        epochs: Passes over each phase.
        batch: Samples in each step.
    """

    buffer_size: int
    reads: int
    epochs: int
    batch: int

    def after_phase(self, random: np.random.RandomState, seen: int, size: int) -> int:
        """Draw the numbers of a phase; returns how many samples the memory has seen by then."""
        for _ in range(self.epochs * (size // self.batch)):
            for _ in range(self.reads if seen else 0):
                random.permutation(min(seen, self.buffer_size))
            bounds = np.arange(max(seen, self.buffer_size), seen + self.batch) + 1
            if len(bounds):
                random.randint(0, bounds)
            seen += self.batch
        return seen


def gcil(
    dataset: Dataset,
    *,
    weights: Literal["uniform", "longtail"] = "uniform",
    seed: int = 1993,
    phases: int = 20,
    size: int = 1000,
    most: int = 50,
    memory: MemoryDraws | None = None,
) -> Stream:
    """Create a stream for generalised class-incremental learning.

    A phase has 1 to `most` classes, their number and choice uniform among the classes with samples
    left. The number of samples of each is multinomial over the weights of the chosen classes
    (redrawn until each appears), but at most what is left. No sample is used twice. Labels are
    renumbered in order of first appearance, within a phase in the order in which the classes were
    drawn. A phase is tested on all test images of the classes seen so far.

    The draws come from NumPy's legacy generator in the order of the published code. On CIFAR-100
    with seed 1993, the uniform stream has 19,464 samples and the longtail stream 19,374. In the
    published code the learner's draws also influence the stream; `memory` does the same.

    Args:
        dataset: The dataset to draw from.
        weights: Whether all classes are equally frequent, or later classes rarer.
        seed: Seed of the composition.
        phases: Number of tasks.
        size: Number of samples in a phase, unless a class has too few left.
        most: Maximum number of classes in a phase.
        memory: What a learner of the published code draws between two phases; None for a stream
            that does not depend on the learner.

    >>> inputs = torch.zeros(400, 3, 8, 8, dtype=torch.uint8)
    >>> samples = Samples(inputs, torch.arange(400) % 4)
    >>> four = Dataset("four", samples, samples, classes=4, checksum="")
    >>> stream = gcil(four, phases=3, size=50, most=2)
    >>> [len(task.samples().labels) for task in stream.tasks]
    [50, 50, 50]
    """
    if weights not in DECAY:
        raise ValueError(f"weights are {weights!r}; expected 'uniform' or 'longtail'")
    if most < 1 or size < 10 * most:
        raise ValueError(f"{size} samples are too few for up to {most} classes in every phase")
    train, test = dataset.train, dataset.test
    labels = train.labels.cpu().numpy()
    shares = np.power(DECAY[weights], np.arange(dataset.classes))
    drawn = _draw(labels, shares, seed, phases, size, most, memory)
    number = _numbers_by_appearance(labels[np.concatenate(drawn)], dataset.classes)
    seen = np.maximum.accumulate([number[labels[rows]].max() + 1 for rows in drawn])

    device = train.labels.device
    rows = [torch.from_numpy(phase).to(device) for phase in drawn]
    renumber = torch.from_numpy(number).to(device)
    test_labels = renumber[test.labels]
    known = (test_labels >= 0).nonzero().squeeze(1)
    test_labels = test_labels[known]

    def train_samples(rows: Tensor) -> Samples:
        return Samples(train.inputs[rows], renumber[train.labels[rows]])

    @cache
    def test_samples() -> Samples:
        return Samples(test.inputs[known], test_labels)

    name = f"gcil-cifar100-{weights}"
    names = [f"phase {phase + 1}" for phase in range(phases)]
    return Stream(
        name=name,
        data=dataset.name,
        classes=dataset.classes,
        shape=tuple(train.inputs.shape[1:]),
        tasks=[
            Task(name, partial(train_samples, phase), size=len(phase))
            for name, phase in zip(names, rows, strict=True)
        ],
        tests=[
            Test(name, test_samples, (test_labels < int(seen[t])).nonzero().squeeze(1), since=t)
            for t, name in enumerate(names)
        ],
        normalise=CIFAR10,
        augment=CropFlip(),
        boundaries=False,
        cumulative=True,
        checksum=checksum_of(name, dataset.checksum, seed, *rows),
    )


def _draw(
    labels: Rows,
    weights: npt.NDArray[np.float64],
    seed: int,
    phases: int,
    size: int,
    most: int,
    memory: MemoryDraws | None,
) -> list[Rows]:
    """The rows of each phase, class by class as drawn.

    To reproduce the published totals, classes must be drawn from in the order of their first
    appearance in the training labels, and images before the next phase.
    """
    random = np.random.RandomState(seed)
    left = {c: np.flatnonzero(labels == c) for c in dict.fromkeys(labels.tolist())}
    drawn: list[Rows] = []
    seen = 0
    for phase in range(phases):
        available = [c for c, rows in left.items() if len(rows)]
        if not available:
            raise ValueError(f"no samples are left after {phase} of {phases} phases")
        chosen = random.choice(
            available, random.randint(min(len(available), most)) + 1, replace=False
        )
        share = weights[chosen] / weights[chosen].sum()
        counts = np.zeros(len(chosen), np.int64)
        while not counts.all():
            counts = np.bincount(random.choice(len(chosen), size, p=share), minlength=len(chosen))
        parts = []
        for c, count in zip(chosen.tolist(), counts.tolist(), strict=True):
            picked = random.permutation(len(left[c]))[:count]
            parts.append(left[c][picked])
            left[c] = np.delete(left[c], picked)
        drawn.append(np.concatenate(parts))
        if memory is not None:
            seen = memory.after_phase(random, seen, len(drawn[-1]))
    return drawn


def _numbers_by_appearance(labels: Rows, classes: int) -> Rows:
    """The new number of each class, [classes]; -1 for classes without labels."""
    present, first = np.unique(labels, return_index=True)
    number = np.full(classes, -1)
    number[present[first.argsort()]] = np.arange(len(present))
    return number
