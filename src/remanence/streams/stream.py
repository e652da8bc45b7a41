"""What arrives when: tasks that supply batches, and the tests that belong to them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from remanence.records import Samples, join

Augment = Callable[[Tensor, torch.Generator], Tensor]
"""Raw images and the generator to draw from, to raw images of the same shape and dtype."""
Normalise = Callable[[Tensor], Tensor]
"""Raw images to the float tensor that a network takes."""


class Task:
    """A stretch of the stream: samples that are presented, epoch by epoch, in random order.

    `make` builds the samples when training reaches the task (a rotated copy of MNIST, say);
    they are kept until `release`. With `drop_last` an epoch ends before its last short batch.
    """

    def __init__(self, name: str, make: Callable[[], Samples], *, drop_last: bool = True) -> None:
        self.name = name
        self.drop_last = drop_last
        self._make = make
        self._samples: Samples | None = None

    def samples(self) -> Samples:
        """All training samples of the task."""
        if self._samples is None:
            self._samples = self._make()
        return self._samples

    def release(self) -> None:
        """Let go of the samples: training has left the task."""
        self._samples = None

    def steps(self, batch: int) -> int | None:
        """Batches in one epoch, or None where that is not known beforehand."""
        n = len(self.samples().labels)
        return n // batch if self.drop_last else -(-n // batch)

    def epoch(self, batch: int, order: torch.Generator, start: int = 0) -> Iterator[Samples]:
        """One pass in a fresh random order, from batch number `start` on.

        The order is drawn from `order`, a CPU generator, when the first batch is asked for.
        """
        samples = self.samples()
        rows = torch.randperm(len(samples.labels), generator=order).to(samples.labels.device)
        for index in itertools.islice(rows.split(batch), start, None):
            if len(index) == batch or not self.drop_last:
                yield samples.rows(index)


@dataclass(frozen=True, eq=False)
class Test:
    """Test samples that belong to a task; several tests may be rows of one set of samples."""

    __test__ = False  # not a pytest class

    name: str
    samples: Callable[[], Samples]
    """Builds or returns the samples; tests with the same callable are evaluated in one pass."""
    rows: Tensor | None = None
    """Which rows of the samples; None: all of them."""
    classes: tuple[int, ...] | None = None
    """The classes of the task, where tasks partition the classes (Task-IL); else None."""
    since: int = 0
    """Number of the task after which this test counts as seen."""


@dataclass(frozen=True, eq=False)
class Stream:
    """An ordered supply of batches with, for evaluation only, the tests that belong to it."""

    name: str
    data: str
    """The dataset behind it, as results name it: "mnist", "mnist5k", "own"."""
    classes: int
    """Outputs of the head, all there from the start."""
    shape: tuple[int, ...]
    """Shape of one image."""
    tasks: Sequence[Task]
    tests: Sequence[Test]
    normalise: Normalise
    augment: Augment | None = None
    boundaries: bool = True
    """Whether a learner may be told that a task has ended."""
    cumulative: bool = False
    """Whether each test covers all classes seen so far, so that tests overlap."""
    checksum: str = ""
    """Fingerprint of data and composition: equal streams have equal ones."""

    def joined(self, batch: int, order: torch.Generator) -> Stream:
        """All tasks' samples as one task, its last short batch kept: the upper bound JOINT.

        Tasks that compose their batches (MNIST-360) are collected as `batch` and `order` give
        them.
        """

        def collect() -> Samples:
            parts = [task.collect(batch, order) if isinstance(task, ComposedTask) else task.samples() for task in self.tasks]
            for task in self.tasks:
                task.release()
            return join(*parts)

        return replace(
            self,
            tasks=(Task("joint", collect, drop_last=False),),
            tests=tuple(replace(test, since=0) for test in self.tests),
        )


class ComposedTask(Task):
    """A task that composes its batches itself: there is nothing to shuffle."""

    def __init__(self, name: str, compose: Callable[[int, torch.Generator], Iterator[Samples]], *, steps: Callable[[int], int | None] = lambda batch: None) -> None:
        super().__init__(name, make=self._no_samples)
        self._compose = compose
        self._steps = steps

    def _no_samples(self) -> Samples:
        raise ValueError(f"task {self.name!r} composes its batches and has no set of samples")

    def steps(self, batch: int) -> int | None:
        """Batches in one epoch, or None where that is not known beforehand."""
        return self._steps(batch)

    def collect(self, batch: int, order: torch.Generator) -> Samples:
        """All batches of one epoch, joined."""
        return join(*self._compose(batch, order))

    def epoch(self, batch: int, order: torch.Generator, start: int = 0) -> Iterator[Samples]:
        """One pass as composed, from batch number `start` on."""
        return itertools.islice(self._compose(batch, order), start, None)
