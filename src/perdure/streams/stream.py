"""Streams of tasks that supply batches, and the tests that belong to them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from perdure.records import Samples, join
from perdure.state import State
from perdure.streams.encoder import Encoder
from perdure.streams.holdout import hold_out
from perdure.structures import layout

Augment = Callable[[Any, torch.Generator], Any]
"""Raw inputs and the generator to draw from, to raw inputs of the same shape and dtype."""
Normaliser = Callable[[Any], Any]
"""Raw inputs to the inputs that a network expects."""


class Task:
    """A part of a stream: samples, by default in a new random order in each epoch.

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
        shuffle: bool = True,
        ids: Tensor | None = None,
    ) -> None:
        """Create a task.

        Args:
            name: Name for results and messages.
            make: Builds the samples when they are first needed (a rotated copy of MNIST, for
                example). They are kept until `release`.
            size: Number of samples, if known; `steps` then does not have to build them.
            drop_last: Whether an epoch omits the last batch if it is smaller than the others.
            shuffle: Whether each epoch has a random order of its own; otherwise the samples keep
                theirs.
            ids: An id for each sample. A validation split never separates samples with the same
                id, in this or in other tasks. By default every sample has its own.
        """
        self.name = name
        self.drop_last = drop_last
        self.shuffle = shuffle
        self.ids = ids
        self._make = make
        self._size = size
        self._samples: Samples | None = None

    def __repr__(self) -> str:
        size = "" if self._size is None else f", {self._size:,} samples"
        return f"{type(self).__name__}({self.name!r}{size})"

    def samples(self) -> Samples:
        """All training samples of the task."""
        if self._samples is None:
            self._samples = self._make()
        return self._samples

    def release(self) -> None:
        """Free the samples. They are built again if needed."""
        self._samples = None

    def steps(self, batch: int) -> int | None:
        """Number of batches in an epoch, or None if it is not known in advance.

        Args:
            batch: Batch size.
        """
        n = len(self.samples().labels) if self._size is None else self._size
        return n // batch if self.drop_last else -(-n // batch)

    def last_batch(self, batch: int) -> int | None:
        """Number of samples in the last batch of an epoch, or None if the size is not known.

        Args:
            batch: Batch size.
        """
        if self._size is None:
            return None
        return batch if self.drop_last else self._size % batch or batch

    def state_dict(self) -> State:
        """State within an epoch, in addition to the order and the number of the batch."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Restore a state; applies to the next call of `epoch`."""
        del state

    def epoch(self, batch: int, order: torch.Generator, start: int = 0) -> Iterator[Samples]:
        """Iterate once over the samples, in random order if the task is shuffled.

        Args:
            batch: Batch size.
            order: CPU generator from which the order is drawn, when the first batch is requested.
            start: Number of batches to skip.
        """
        samples = self.samples()
        n = len(samples.labels)
        rows = torch.randperm(n, generator=order) if self.shuffle else torch.arange(n)
        rows = rows.to(samples.labels.device)
        for index in itertools.islice(torch.split(rows, batch), start, None):
            if len(index) == batch or not self.drop_last:
                yield samples.rows(index)


class ComposedTask(Task):
    """A task that composes its batches itself instead of shuffling a set of samples."""

    def __init__(
        self,
        name: str,
        compose: Callable[[int, torch.Generator], Iterator[Samples]],
        *,
        steps: Callable[[int], int | None] = lambda batch: None,
    ) -> None:
        """Create a task.

        Args:
            name: Name for results and messages.
            compose: Returns the batches of one epoch, given the batch size and the CPU generator
                to draw from.
            steps: Number of batches in an epoch for a batch size, or None if not known.
        """
        super().__init__(name, make=self._no_samples)
        self._compose = compose
        self._steps = steps

    def _no_samples(self) -> Samples:
        raise ValueError(f"task {self.name!r} composes its batches and has no set of samples")

    def steps(self, batch: int) -> int | None:
        """Number of batches in an epoch, or None if it is not known in advance."""
        return self._steps(batch)

    def collect(self, batch: int, order: torch.Generator) -> Samples:
        """All samples of one epoch."""
        return join(*self._compose(batch, order))

    def epoch(self, batch: int, order: torch.Generator, start: int = 0) -> Iterator[Samples]:
        """Iterate over the composed batches; the first `start` are composed and skipped."""
        batches = self._compose(batch, order)
        skipped = sum(1 for _ in itertools.islice(batches, start))
        if skipped < start:
            raise ValueError(f"task {self.name!r} has {skipped} batches, fewer than {start}")
        return batches


@dataclass(frozen=True, eq=False)
class Test:
    """Test samples that belong to a task. Several tests may share a set of samples."""

    __test__ = False  # not a pytest class

    name: str
    """Name for results."""
    source: Callable[[], Samples]
    """Builds or returns a set of samples. Tests with the same source are evaluated in one pass."""
    rows: Tensor | None = None
    """Rows of the set that belong to this test; None for all."""
    classes: tuple[int, ...] | None = None
    """Classes of the task if tasks partition the classes (needed for Task-IL); None otherwise."""
    since: int = 0
    """Number of the task after which this test is evaluated."""

    def samples(self) -> Samples:
        """The samples of this test."""
        samples = self.source()
        return samples if self.rows is None else samples.rows(self.rows)


@dataclass(frozen=True, eq=False)
class Stream:
    """An ordered sequence of tasks and, for evaluation only, the tests that belong to them."""

    name: str
    """Name for results."""
    data: str
    """Name of the dataset in results: "mnist", "mnist5k", "own"."""
    classes: int
    """Number of outputs of the network, for all classes of all tasks; 0 if it is not known in
    advance, for learners that grow."""
    shape: Any
    """Shape of one input: a tuple; for a dict or tuple of tensors, a dict or tuple of shapes."""
    tasks: Sequence[Task]
    """Training data, in order."""
    tests: Sequence[Test]
    """Test data."""
    normalise: Normaliser
    """Turns raw inputs into the float tensor that the network expects."""
    augment: Augment | None = None
    """Augmentation of raw training inputs."""
    boundaries: bool = True
    """Whether learners are notified when a task ends."""
    cumulative: bool = False
    """Whether each test covers all classes seen so far, so that tests overlap."""
    checksum: str = ""
    """Identifies data and composition: equal streams have equal checksums. Empty if unknown."""
    class_names: tuple[str, ...] = ()
    """What each label stands for, if known."""
    encoder: Encoder | None = None
    """Turns new rows of the table, or new images, into inputs; None for other streams."""

    def __repr__(self) -> str:
        def count(n: int, what: str) -> str:
            return f"{n:,} {what}{'' if n == 1 else 'es' if what.endswith('s') else 's'}"

        parts = [
            count(len(self.tasks), "task"),
            count(self.classes, "class"),
            f"inputs {list(self.shape) if isinstance(self.shape, tuple) else self.shape}",
            count(len(self.tests), "test") if self.tests else "no tests",
        ]
        return f"Stream({self.name!r}: {', '.join(parts)})"

    def validation(self, share: float, seed: int = 0) -> Stream:
        """A stream for choosing hyperparameters: it does not contain the test samples.

        The same share of every class of every task is held out and becomes the tests: one for
        each task, or a single one if the stream has a single one. Samples with the same id
        (`keep_together`) are never separated.

        Args:
            share: Share of the training samples to hold out, between 0 and 1.
            seed: Seed of the choice.

        Raises:
            ValueError: If the share is invalid, or the samples of a task cannot be divided, as in
                a stream from batches.

        >>> task = Task("digits", lambda: Samples(torch.rand(10, 4), torch.arange(10) % 2))
        >>> stream = Stream("digits", "own", 2, (4,), [task], [], normalise=Tensor.float)
        >>> split = stream.validation(0.2)
        >>> len(split.tasks[0].samples().labels), len(split.tests[0].samples().labels)
        (8, 2)
        """
        for task in self.tasks:
            if isinstance(task, ComposedTask):
                raise ValueError(
                    f"the stream {self.name!r} cannot be split for validation: its task "
                    f"{task.name!r} supplies batches, not a set of samples; build the stream with "
                    "from_tensors or from_dataset"
                )
        labels, ids, used = [], [], 0
        for task in self.tasks:
            labels.append(task.samples().labels.cpu())
            task.release()
            n = len(labels[-1])
            ids.append(torch.arange(used, used + n) if task.ids is None else task.ids.cpu())
            used += n
        masks = hold_out(ids, labels, share, seed)
        tasks = [
            Task(
                task.name,
                partial(_rows, task, ~mask),
                size=int((~mask).sum()),
                drop_last=task.drop_last,
                shuffle=task.shuffle,
                ids=one[~mask],
            )
            for task, one, mask in zip(self.tasks, ids, masks, strict=True)
        ]
        parts = [partial(_rows, task, mask) for task, mask in zip(self.tasks, masks, strict=True)]
        if len(self.tests) == 1:
            single = cache(lambda: join(*(part() for part in parts)))
            tests = [Test(self.tests[0].name, single, classes=self.tests[0].classes)]
        else:
            own = [test.classes for test in self.tests]
            known = own if len(own) == len(tasks) and not self.cumulative else [None] * len(tasks)
            tests = [
                Test(task.name, cache(part), classes=classes, since=number)
                for number, (task, part, classes) in enumerate(
                    zip(tasks, parts, known, strict=True)
                )
            ]
        return replace(
            self,
            tasks=tasks,
            tests=tests,
            cumulative=False,
            checksum=self.checksum and checksum_of(self.checksum, "validation", share, seed),
        )

    def joined(self, batch: int, order: torch.Generator) -> Stream:
        """A stream with all samples in one task: the upper bound JOINT.

        The task keeps its last, smaller batch.

        Args:
            batch: Batch size with which tasks that compose their batches (MNIST-360) are read.
            order: Generator for composing those batches. Its current state is copied and the
                generator itself is not advanced.
        """
        state = order.clone_state()
        sizes = [task._size for task in self.tasks]
        size = None if None in sizes else sum(filter(None, sizes))

        def parts() -> Iterator[Samples]:
            draws = state.clone_state()
            for task in self.tasks:
                if isinstance(task, ComposedTask):
                    yield task.collect(batch, draws)
                else:
                    samples = task.samples()
                    task.release()
                    yield samples

        def collect() -> Samples:
            return join(*parts()) if size is None else _join_one_by_one(parts(), size)

        return replace(
            self,
            tasks=(Task("joint", collect, size=size, drop_last=False),),
            tests=tuple(replace(test, since=0) for test in self.tests),
            checksum=self.checksum and checksum_of(self.checksum, "joint"),
        )


def _join_one_by_one(parts: Iterator[Samples], size: int) -> Samples:
    """The samples of all parts, `size` in total; at most two parts are in memory at a time.

    Raises:
        ValueError: If the parts have another size, or inputs of different shapes or dtypes.
    """
    joined: Samples | None = None
    end = 0
    for part in parts:
        if joined is None:
            joined = part.map(lambda t: t.new_empty((size, *t.shape[1:])))
        start, end = end, end + len(part.labels)
        if end > size or layout(part.inputs) != layout(joined.inputs):
            raise ValueError(
                f"a task has {len(part.labels)} samples of {layout(part.inputs)}; expected at most "
                f"{size - start} of {layout(joined.inputs)}"
            )
        for whole, rows in zip(joined.tensors(), part.tensors(), strict=True):
            whole[start:end] = rows
    if joined is None or end < size:
        raise ValueError(f"the tasks have {end} samples; their sizes are {size} in total")
    return joined


def _rows(task: Task, mask: Tensor) -> Samples:
    """The samples of a task that a mask selects."""
    samples = task.samples()
    task.release()
    return samples.rows(mask.nonzero().squeeze(1).to(samples.labels.device))


def rows_of(labels: Tensor, classes: Sequence[int]) -> Tensor:
    """The rows whose label is one of these classes."""
    wanted = torch.tensor(classes, dtype=torch.int64, device=labels.device)
    return torch.isin(labels, wanted).nonzero().squeeze(1)


def checksum_of(*parts: str | int | float | Tensor) -> str:
    """SHA-256, in hex, of the parts in order; of a tensor, its dtype, shape and content.

    >>> checksum_of("s-mnist", 5) == checksum_of("s-mnist", 5)
    True
    >>> checksum_of("a", "b") == checksum_of("ab")
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            digest.update(f"{part.dtype} {list(part.shape)}\n".encode())
            digest.update(tensor_bytes(part))
        else:
            digest.update(f"{part!r}\n".encode())
    return digest.hexdigest()


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The content of a tensor."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
