"""What arrives when: tasks that supply batches, and the tests that belong to them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from perdure.records import Samples, join
from perdure.state import State
from perdure.streams.checksum import checksum

Augment = Callable[[Tensor, torch.Generator], Tensor]
"""Raw images and the generator to draw from, to raw images of the same shape and dtype."""
Normaliser = Callable[[Tensor], Tensor]
"""Raw images to the float tensor that a network takes."""


class Task:
    """A stretch of the stream: samples that are presented, epoch by epoch, in random order.

    `make` builds the samples when training reaches the task (a rotated copy of MNIST, say);
    they are kept until `release`. With `drop_last` an epoch ends before its last short batch.
    Where `size`, the number of samples, is given, `steps` does not have to build them.

    >>> samples = Samples(torch.zeros(5, 1, 28, 28), torch.arange(5))
    >>> task = Task("digits", lambda: samples, drop_last=False)
    >>> [len(batch.labels) for batch in task.epoch(2, torch.Generator())]
    [2, 2, 1]
    """

    resumable = True
    """Whether `epoch` can start at a later batch in another process."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Samples],
        *,
        size: int | None = None,
        drop_last: bool = True,
    ) -> None:
        self.name = name
        self.drop_last = drop_last
        self._make = make
        self._size = size
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
        n = len(self.samples().labels) if self._size is None else self._size
        return n // batch if self.drop_last else -(-n // batch)

    def state_dict(self) -> State:
        """What, beside order and number of the batch, says where inside an epoch a run stands."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Let the next `epoch` start from where `state_dict` was asked."""
        del state

    def epoch(self, batch: int, order: torch.Generator, start: int = 0) -> Iterator[Samples]:
        """One pass in a fresh random order, from batch number `start` on.

        The order is drawn from `order`, a CPU generator, when the first batch is asked for.
        """
        samples = self.samples()
        rows = torch.randperm(len(samples.labels), generator=order).to(samples.labels.device)
        for index in itertools.islice(torch.split(rows, batch), start, None):
            if len(index) == batch or not self.drop_last:
                yield samples.rows(index)


class ComposedTask(Task):
    """A task that composes its batches itself: there is nothing to shuffle.

    `compose` is given the batch size and the CPU generator to draw from, and supplies the batches
    of one epoch; `steps` says how many they are, where that is known.
    """

    def __init__(
        self,
        name: str,
        compose: Callable[[int, torch.Generator], Iterator[Samples]],
        *,
        steps: Callable[[int], int | None] = lambda batch: None,
    ) -> None:
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
        """One pass as composed, from batch number `start` on; the earlier ones are passed over."""
        batches = self._compose(batch, order)
        passed = sum(1 for _ in itertools.islice(batches, start))
        if passed < start:
            raise ValueError(f"task {self.name!r} ended after {passed} batches, before {start}")
        return batches


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
    normalise: Normaliser
    augment: Augment | None = None
    boundaries: bool = True
    """Whether a learner may be told that a task has ended."""
    cumulative: bool = False
    """Whether each test covers all classes seen so far, so that tests overlap."""
    checksum: str = ""
    """Fingerprint of data and composition: equal streams have equal ones."""

    def joined(self, batch: int, order: torch.Generator) -> Stream:
        """All tasks' samples as one task, its last short batch kept: the upper bound JOINT.

        Tasks that compose their batches (MNIST-360) are collected as `batch` and the present state
        of `order` give them; `order` itself is left as it is, so that the samples are the same
        whenever they are made.
        """
        state = order.clone_state()

        def collect() -> Samples:
            draws = state.clone_state()
            parts = []
            for task in self.tasks:
                if isinstance(task, ComposedTask):
                    parts.append(task.collect(batch, draws))
                else:
                    parts.append(task.samples())
                    task.release()
            return join(*parts)

        return replace(
            self,
            tasks=(Task("joint", collect, drop_last=False),),
            tests=tuple(replace(test, since=0) for test in self.tests),
            checksum=self.checksum and checksum(self.checksum, "joint"),
        )
