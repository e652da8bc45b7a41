"""Streams from any iterable of batches: a DataLoader, a generator, a queue that never ends."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from perdure.records import Samples
from perdure.state import State, Stateful
from perdure.streams.augment import Scale
from perdure.streams.checked import Pair, checked_samples, checked_tests
from perdure.streams.stream import Augment, ComposedTask, Normaliser, Stream, Task


def from_batches(
    batches: Iterable[Pair] | Mapping[str, Iterable[Pair]],
    *,
    classes: int,
    shape: tuple[int, ...],
    test: Pair | None = None,
    tests: Sequence[Pair] | None = None,
    name: str = "own",
    augment: Augment | None = None,
    normalise: Normaliser | None = None,
) -> Stream:
    """A stream over batches (images, labels) of any size, or over several such, by task name.

    Batches come as the iterable gives them, whatever batch size and order a run asks for; each is
    checked against `classes` and `shape` (of one image) and then forgotten, so that the iterable
    may be endless (only `joined` reads all of it). To go on from a later batch, an iterable with
    `state_dict` and `load_state_dict` is asked to; else the earlier batches are read again and
    passed over. An iterator, which can be read only once, serves one epoch and cannot be resumed.
    The checksum is empty: nothing is known about the data.

    >>> batches = [(torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 0, 1]))] * 3
    >>> stream = from_batches(batches, classes=2, shape=(1, 8, 8))
    >>> sum(len(batch.labels) for batch in stream.tasks[0].epoch(32, torch.Generator()))
    12
    """
    parts = batches if isinstance(batches, Mapping) else {name: batches}
    if not parts:
        raise ValueError("there are no tasks among the batches")
    return Stream(
        name=name,
        data="own",
        classes=classes,
        shape=tuple(shape),
        tasks=[SuppliedTask(task, part, tuple(shape), classes) for task, part in parts.items()],
        tests=checked_tests(list(parts), test, tests, shape=tuple(shape), classes=classes),
        normalise=normalise or Scale(),
        augment=augment,
        boundaries=isinstance(batches, Mapping),
    )


class SuppliedTask(ComposedTask):
    """A task whose batches a user's iterable supplies.

    To go on from a later batch, an iterable with `state_dict` and `load_state_dict` is told to go
    there itself; one that can be iterated again is read from the start, and what is passed over
    must be what was learned: a checksum says so. An iterator can do neither.
    """

    def __init__(
        self, name: str, batches: Iterable[Pair], shape: tuple[int, ...], classes: int
    ) -> None:
        super().__init__(name, self._read, steps=self._count)
        self.batches = batches
        self.shape = shape
        self.classes = classes
        self.keeps_place = isinstance(batches, Stateful)
        self.resumable = self.keeps_place or not isinstance(batches, Iterator)
        self.spent = False
        self.checksum = 0
        """Of the batches of this epoch, where the iterable does not keep its own place."""
        self._state: State | None = None

    def _count(self, batch: int) -> int | None:
        try:
            return len(self.batches)  # type: ignore[arg-type]
        except TypeError:
            return None

    def _read(
        self, batch: int, order: torch.Generator, *, inside: bool = False
    ) -> Iterator[Samples]:
        if self.spent:
            raise ValueError(
                f"the batches of task {self.name!r} come from an iterator, which serves one epoch "
                "only"
            )
        self.spent = isinstance(self.batches, Iterator)
        self.checksum = 0
        return self._checked(inside)

    def _checked(self, inside: bool) -> Iterator[Samples]:
        count = 0
        for count, pair in enumerate(self.batches, 1):  # noqa: B007
            samples = checked_samples("batch", pair, shape=self.shape, classes=self.classes)
            if not self.keeps_place and self.resumable:
                for tensor in (samples.inputs, samples.labels):
                    self.checksum = zlib.crc32(_bytes(tensor), self.checksum)
            yield samples
        if not (count or inside):
            raise ValueError(f"task {self.name!r} has no batches")

    def epoch(self, batch: int, order: torch.Generator, start: int = 0) -> Iterator[Samples]:
        """One pass; from batch number `start` on, after `load_state_dict` exactly as it was."""
        state, self._state = self._state, None
        if state is not None and isinstance(self.batches, Stateful):
            self.batches.load_state_dict(state["place"])
            return self._read(batch, order, inside=start > 0)
        batches = super().epoch(batch, order, start)
        if state is not None and start and self.checksum != state["checksum"]:
            raise ValueError(
                f"the batches of task {self.name!r} came in another order or were other ones when "
                "they were read again, so the run cannot go on exactly; give the iterable "
                "state_dict and load_state_dict, or start again without --resume"
            )
        return batches

    def state_dict(self) -> State:
        """The iterable's own state, or the checksum of what it has supplied in this epoch."""
        if isinstance(self.batches, Stateful):
            return {"place": dict(self.batches.state_dict())}
        return {"checksum": self.checksum}

    def load_state_dict(self, state: State) -> None:
        """Let the next `epoch` start from where `state_dict` was asked."""
        if not self.resumable:
            raise ValueError(not_resumable(self))
        self._state = state


def not_resumable(task: Task) -> str:
    """Why a run over this task cannot go on in another process, and what would let it."""
    return (
        f"the batches of task {task.name!r} come from an iterator, which cannot be read again, so "
        "the run cannot be resumed; give from_batches an iterable that can be iterated again or "
        "has state_dict and load_state_dict, or start again without --resume"
    )


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
