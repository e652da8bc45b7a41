"""Streams from any iterable of batches: a DataLoader, a generator, a queue that never ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from remanence.records import Samples
from remanence.streams.augment import Scale
from remanence.streams.checked import Pair, checked_samples, checked_tests
from remanence.streams.stream import Augment, ComposedTask, Normaliser, Stream


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
    may be endless (only `joined` reads all of it). To go on from a later batch, the earlier ones
    are read and passed over. An iterator, which can be read only once, serves one epoch. The
    checksum is empty: nothing is known about the data.

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
        tasks=[_task(task, part, tuple(shape), classes) for task, part in parts.items()],
        tests=checked_tests(list(parts), test, tests, shape=tuple(shape), classes=classes),
        normalise=normalise or Scale(),
        augment=augment,
        boundaries=isinstance(batches, Mapping),
    )


def _task(name: str, batches: Iterable[Pair], shape: tuple[int, ...], classes: int) -> ComposedTask:
    spent = False

    def compose(batch: int, order: torch.Generator) -> Iterator[Samples]:
        nonlocal spent
        if spent:
            raise ValueError(
                f"the batches of task {name!r} come from an iterator, which serves one epoch only"
            )
        spent = isinstance(batches, Iterator)
        return read()

    def read() -> Iterator[Samples]:
        count = 0
        for count, pair in enumerate(batches, 1):  # noqa: B007
            yield checked_samples("batch", pair, shape=shape, classes=classes)
        if not count:
            raise ValueError(f"task {name!r} has no batches")

    def steps(batch: int) -> int | None:
        try:
            return len(batches)  # type: ignore[arg-type]
        except TypeError:
            return None

    return ComposedTask(name, compose, steps=steps)
