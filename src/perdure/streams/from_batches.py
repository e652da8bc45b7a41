"""Streams from any iterable of batches: a DataLoader, a generator, an endless queue."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch

from perdure.records import Samples
from perdure.state import State, Stateful
from perdure.streams.augment import Scale
from perdure.streams.pairs import Pair, check_samples, make_tests
from perdure.streams.stream import (
    Augment,
    ComposedTask,
    Normaliser,
    Stream,
    Task,
    Test,
    checksum_of,
    tensor_bytes,
)
from perdure.structures import as_shape


def from_batches(
    batches: Iterable[Pair] | Mapping[str, Iterable[Pair]],
    *,
    classes: int | None = None,
    shape: Any,
    test: Pair | None = None,
    tests: Sequence[Pair] | None = None,
    name: str = "own",
    augment: Augment | None = None,
    normalise: Normaliser | None = None,
) -> Stream:
    """Create a stream from an iterable of batches.

    Batches are used in the order and size in which the iterable yields them, so `fit` and the
    command refuse a batch size, except for JOINT, which mixes all samples. They are not kept, so
    the iterable may be endless (only `joined` reads all of it). A run can be resumed if the
    iterable has `state_dict` and `load_state_dict`, or if it can be iterated again and then yields
    the same batches. An iterator can be read only once: it serves one epoch and cannot be resumed.

    The stream's checksum is empty, because it is created without reading the batches. A run of the
    command that reads all of them stores their checksum in `result.json` (`data_checksum`), if they
    can be read again in the same order.

    Args:
        batches: Batches (inputs, labels), or dicts with the key "labels", of a single task; or a
            mapping from task names to such iterables.
        classes: Number of outputs; labels are 0 to classes - 1. None if it is not known in advance:
            the learner then needs `grow=True`, which `perdure run` sets.
        shape: Shape of one input: a tuple, or for inputs that are dicts or tuples of tensors, a
            dict or tuple of such shapes.
        test: Test inputs and labels for the whole stream.
        tests: Test inputs and labels for each task, instead of `test`.
        name: Name in tables and reports.
        augment: Augmentation of raw training inputs, such as `CropFlip`.
        normalise: Turns raw inputs into the float tensor that the network expects; by default
            bytes are scaled to [0, 1].

    Raises:
        ValueError: If the test data do not fit, and during iteration if a batch does not.

    >>> batches = [(torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 0, 1]))] * 3
    >>> stream = from_batches(batches, classes=2, shape=(1, 8, 8))
    >>> sum(len(batch.labels) for batch in stream.tasks[0].epoch(32, torch.Generator()))
    12
    """
    parts = batches if isinstance(batches, Mapping) else {name: batches}
    if not parts:
        raise ValueError("the mapping from task names to batches is empty")
    for part in parts.values():
        if not (hasattr(part, "__iter__") or hasattr(part, "__getitem__")):
            call = ", so call it" if callable(part) else ""
            kind = type(part).__name__
            raise ValueError(f"batches are of type {kind}; expected an iterable of batches{call}")
    shape = as_shape(shape)
    return Stream(
        name=name,
        data="own",
        classes=classes or 0,
        shape=shape,
        tasks=[IterableTask(task, part, shape, classes) for task, part in parts.items()],
        tests=make_tests(list(parts), test, tests, shape, classes),
        normalise=normalise or Scale(),
        augment=augment,
        boundaries=isinstance(batches, Mapping),
    )


class IterableTask(ComposedTask):
    """A task whose batches come from an iterable.

    To start at a later batch, an iterable with `state_dict` and `load_state_dict` restores its own
    position; any other is read from the start, and a checksum verifies that the skipped batches
    are those that were learned.
    """

    def __init__(self, name: str, batches: Iterable[Pair], shape: Any, classes: int | None) -> None:
        super().__init__(name, self._read, steps=self._count)
        self.batches = batches
        self.shape = shape
        self.classes = classes
        self.stateful = isinstance(batches, Stateful)
        self.resumable = self.stateful or not isinstance(batches, Iterator)
        self.exhausted = False
        self.checksum = 0
        """Of the batches read in this epoch, unless the iterable restores its own position."""
        self.epochs_read = list[int]()
        """Checksums of the epochs that were read to the end; two if they are not all the same."""
        self._state: State | None = None

    def _count(self, batch: int) -> int | None:
        try:
            return len(self.batches)  # type: ignore[arg-type]
        except TypeError:
            return None

    def _read(
        self, batch: int, order: torch.Generator, *, resumed: bool = False
    ) -> Iterator[Samples]:
        if self.exhausted:
            raise ValueError(
                f"the batches of task {self.name!r} come from an iterator, which can be read only "
                "once: train for one epoch, or use an iterable that can be iterated again"
            )
        self.exhausted = isinstance(self.batches, Iterator)
        self.checksum = 0
        return self._checked(resumed)

    def _checked(self, resumed: bool) -> Iterator[Samples]:
        count = checksum = 0  # of this epoch: several runs may read the task at the same time
        for count, pair in enumerate(self.batches, 1):  # noqa: B007
            samples = self._samples_of(pair)
            if not self.stateful and self.resumable:
                self.checksum = checksum = _add(samples, checksum)
            yield samples
        if not (count or resumed):
            raise ValueError(f"task {self.name!r} has no batches")
        if not self.stateful and self.resumable and checksum not in self.epochs_read:
            self.epochs_read = [*self.epochs_read, checksum][:2]

    def _samples_of(self, pair: Pair) -> Samples:
        return check_samples("batch", pair, shape=self.shape, classes=self.classes)

    def epoch(self, batch: int, order: torch.Generator, start: int = 0) -> Iterator[Samples]:
        """Iterate over the batches from number `start`; exactly as before after a restored state.

        Raises:
            ValueError: If the batches read again differ from those that were learned.
        """
        state, self._state = self._state, None
        if state is not None and isinstance(self.batches, Stateful):
            self.batches.load_state_dict(state["position"])
            return self._read(batch, order, resumed=start > 0)
        batches = super().epoch(batch, order, start)
        if state is not None and start and self.checksum != state["checksum"]:
            raise ValueError(
                f"the batches of task {self.name!r} differ from those read before the "
                "interruption, so the run cannot be resumed exactly; give the iterable "
                "state_dict and load_state_dict, or start over with --restart"
            )
        return batches

    def state_dict(self) -> State:
        """The iterable's own state, or the checksum of the batches read in this epoch."""
        if isinstance(self.batches, Stateful):
            return {"position": dict(self.batches.state_dict())}
        return {"checksum": self.checksum}

    def load_state_dict(self, state: State) -> None:
        """Restore a state; applies to the next call of `epoch`."""
        if not self.resumable:
            raise ValueError(not_resumable(self))
        self._state = state

    def repeats(self) -> bool:
        """Whether the first batch is the same when it is read again, unlike in a random order."""
        try:
            with torch.random.fork_rng(devices=[]):
                one, other = (
                    [_add(self._samples_of(pair), 0) for pair in islice(self.batches, 1)]
                    for _ in range(2)
                )
        except Exception:  # the iterable is a user's, and training has ended
            return False
        return one == other


def _add(samples: Samples, checksum: int) -> int:
    """A checksum continued with the content of a batch."""
    for tensor in samples.tensors():
        checksum = zlib.crc32(tensor_bytes(tensor), checksum)
    return checksum


def supplies_batches(stream: Stream) -> bool:
    """Whether the batches of a stream come from iterables, so that no batch size applies."""
    return all(isinstance(task, IterableTask) for task in stream.tasks)


def read_checksum(tasks: Sequence[Task], tests: Sequence[Test]) -> str:
    """Checksum of the batches that were read from these tasks, and of the tests.

    Empty unless all tasks come from iterables and were read to the end, with the same batches in
    every epoch. It does not depend on the number of epochs.
    """
    read = [task.epochs_read if isinstance(task, IterableTask) else [] for task in tasks]
    if any(len(checksums) != 1 for checksums in read):
        return ""
    sources = dict.fromkeys(test.source for test in tests)
    tested = [tensor for source in sources for tensor in source().tensors()]
    return checksum_of(*(checksums[0] for checksums in read), *tested)


def not_resumable(task: Task) -> str:
    """The error message for a task whose batches cannot be read again."""
    return (
        f"the batches of task {task.name!r} come from an iterator, which can be read only once, so "
        "the run cannot be resumed; use an iterable that can be iterated again or that has "
        "state_dict and load_state_dict, or start over with --restart"
    )
