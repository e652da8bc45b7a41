"""GCIL-CIFAR-100: phases with classes that come, go and recur, in unequal numbers."""

from __future__ import annotations

from functools import cache, partial
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from perdure.data.dataset import Dataset
from perdure.records import Samples
from perdure.streams.augment import CIFAR10, CropFlip
from perdure.streams.checksum import checksum
from perdure.streams.stream import Stream, Task, Test

Rows = npt.NDArray[np.int64]
DECAY = {"uniform": 1.0, "longtail": 0.984}
"""Weight of class c: this to the power of c."""


def gcil(
    dataset: Dataset,
    *,
    weights: Literal["uniform", "longtail"] = "uniform",
    seed: int = 1993,
    phases: int = 20,
    size: int = 1000,
    most: int = 50,
) -> Stream:
    """Generalised class-incremental learning: `phases` tasks of up to `size` samples.

    A phase has 1 to `most` classes among those that have samples left, number and choice uniform;
    how many samples of each is multinomial over the weights of the chosen (redrawn until every one
    appears), but no more than are left. No sample comes twice. Labels are renumbered in order of
    first appearance, within a phase in the order in which the classes were drawn. The test of a
    phase holds all test images of the classes seen up to it.

    The draws come from NumPy's legacy generator at `seed`, in the order of the published code, and
    depend on nothing else: on CIFAR-100 at seed 1993 the uniform stream has 19,464 samples and the
    longtail one 19,374. (In the published code the learner's draws shift the stream's.)

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
    drawn = _draw(labels, shares, seed, phases, size, most)
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
        checksum=checksum(name, dataset.checksum, seed, *rows),
    )


def _draw(
    labels: Rows, weights: npt.NDArray[np.float64], seed: int, phases: int, size: int, most: int
) -> list[Rows]:
    """The rows of each phase, class by class as drawn.

    The published totals come out only if the classes are offered in the order in which the
    training labels first show them, and each class's images are drawn before the next phase.
    """
    random = np.random.RandomState(seed)
    left = {c: np.flatnonzero(labels == c) for c in dict.fromkeys(labels.tolist())}
    drawn = []
    for phase in range(phases):
        offered = [c for c, rows in left.items() if len(rows)]
        if not offered:
            raise ValueError(f"no samples are left after {phase} of {phases} phases")
        chosen = random.choice(offered, random.randint(min(len(offered), most)) + 1, replace=False)
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
    return drawn


def _numbers_by_appearance(labels: Rows, classes: int) -> Rows:
    """The new number of each class, [classes]; -1 for a class that is not among the labels."""
    present, first = np.unique(labels, return_index=True)
    number = np.full(classes, -1)
    number[present[first.argsort()]] = np.arange(len(present))
    return number
