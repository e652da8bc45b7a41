"""MNIST-360: two digits at a time, all slowly turning; no task boundaries at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from perdure.data.dataset import Dataset
from perdure.records import Samples
from perdure.streams.augment import Scale
from perdure.streams.checksum import checksum
from perdure.streams.rotated import CHUNK, rotate
from perdure.streams.stream import ComposedTask, Stream, Test

DIGITS = 9
"""Digits 0 to 8: a turned 9 is a 6. The head keeps its tenth output."""
ROUNDS = 3


def mnist360(dataset: Dataset, *, replacement: bool = False) -> Stream:
    """The stream of pairs (0, 1), (1, 2) … (8, 0), three rounds of them, as one task.

    The training images of each digit are cut into six chunks of n // 6 + 1 (the sixth is shorter),
    used last first. A pair takes a chunk of either digit; each batch is divided in proportion to
    what remains of the two, and the pair ends when one is empty. Hence the last batch of a pair
    may be short, and with small batches a few images are never shown (full MNIST: all 54,051 at
    batch 16, 54,024 at batch 1). The k-th image drawn of digit d is turned by
    (d - 1) * 60 + k * 360 / n degrees; in the test, the k-th image of a digit by k * 360 / n.

    Departure from the published code: that draws with replacement inside a chunk and between
    batches of the test; here every image of a chunk is drawn at most once and every test image
    exactly once. `replacement` draws the training images as that code does. The draws, and so the
    composition, come from the order generator of the epoch.

    >>> samples = Samples(torch.zeros(650, 1, 4, 4, dtype=torch.uint8), torch.arange(650) % 10)
    >>> stream = mnist360(Dataset("tiny", samples, samples, classes=10, checksum=""))
    >>> [len(task.collect(16, torch.Generator()).labels) for task in stream.tasks]
    [585]
    """
    train, test = dataset.train, dataset.test
    rows = _rows_by_digit(train.labels)
    counts = [len(digit) for digit in rows]
    if not all(counts):
        raise ValueError(f"MNIST-360 needs images of digits 0 to 8; found {counts} of them")

    def compose(batch: int, order: torch.Generator) -> Iterator[Samples]:
        index, degrees, sizes = _plan(rows, batch, order, replacement)
        index = index.to(train.labels.device)
        group = max(1, CHUNK // batch)
        start = 0
        for i in range(0, len(sizes), group):
            parts = sizes[i : i + group]
            end = start + sum(parts)
            images, labels, _ = train.rows(index[start:end])
            images = rotate(images, degrees[start:end])
            yield from map(Samples, torch.split(images, parts), torch.split(labels, parts))
            start = end

    def steps(batch: int) -> int:
        return sum(len(pair.takes) for pair in _pairs(counts, batch))

    @cache
    def turned_test() -> Samples:
        degrees = torch.full(test.labels.shape, torch.nan, dtype=torch.float64)
        for index in _rows_by_digit(test.labels):
            degrees[index] = torch.arange(len(index)).double() * 360 / len(index)
        index = degrees.isfinite().nonzero().squeeze(1)
        images, labels, _ = test.rows(index.to(test.labels.device))
        return Samples(rotate(images, degrees[index]), labels)

    name = "mnist-360"
    return Stream(
        name=name,
        data=dataset.name,
        classes=dataset.classes,
        shape=tuple(train.inputs.shape[1:]),
        tasks=[ComposedTask(name, compose, steps=steps)],
        tests=[Test(name, turned_test)],
        normalise=Scale(),
        boundaries=False,
        checksum=checksum(name, dataset.checksum, *(["replacement"] if replacement else [])),
    )


def _rows_by_digit(labels: Tensor) -> list[Tensor]:
    """Which rows show digit 0, 1 … 8, in the dataset's order, on the CPU."""
    labels = labels.cpu()
    return [(labels == digit).nonzero().squeeze(1) for digit in range(DIGITS)]


class _Pair(NamedTuple):
    """How a pair of digits is used up."""

    digits: tuple[int, int]
    chunks: tuple[range, range]
    """Which images of either digit, by their number within the digit."""
    takes: list[tuple[int, int]]
    """How many of either go into each batch."""


def _pairs(counts: Sequence[int], batch: int) -> Iterator[_Pair]:
    """All 27 pairs of the stream, given the number of images of each digit."""
    chunks = [
        [range(n)[i * (n // 6 + 1) :][: n // 6 + 1] for i in range(2 * ROUNDS)] for n in counts
    ]
    for _ in range(ROUNDS):
        for digit in range(DIGITS):
            digits = digit, (digit + 1) % DIGITS
            chunk = chunks[digits[0]].pop(), chunks[digits[1]].pop()
            yield _Pair(digits, chunk, _takes(len(chunk[0]), len(chunk[1]), batch))


def _takes(first: int, second: int, batch: int) -> list[tuple[int, int]]:
    takes = []
    while first and second:
        one = min(first, round(batch * first / (first + second)))
        two = min(second, batch - one)
        takes.append((one, two))
        first, second = first - one, second - two
    return takes


def _plan(
    rows: Sequence[Tensor], batch: int, order: torch.Generator, replacement: bool
) -> tuple[Tensor, Tensor, list[int]]:
    """One epoch: the row and the angle in degrees of every sample, and the sizes of the batches."""
    index: list[Tensor] = []
    degrees: list[Tensor] = []
    sizes: list[int] = []
    shown = [0] * DIGITS
    for pair in _pairs([len(digit) for digit in rows], batch):
        takes = torch.tensor(pair.takes, dtype=torch.int64).view(-1, 2)
        member = torch.tensor([0, 1]).repeat(len(takes)).repeat_interleave(takes.flatten())
        pair_index, pair_degrees = torch.empty_like(member), member.double()
        for i, (digit, chunk) in enumerate(zip(pair.digits, pair.chunks, strict=True)):
            count = int(takes[:, i].sum())
            if replacement:
                draws = torch.randint(len(chunk), (count,), generator=order)
            else:
                draws = torch.randperm(len(chunk), generator=order)[:count]
            turns = torch.arange(shown[digit], shown[digit] + len(draws), dtype=torch.float64)
            pair_index[member == i] = rows[digit][chunk.start + draws]
            pair_degrees[member == i] = (digit - 1) * 60 + turns * (360 / len(rows[digit]))
            shown[digit] += len(draws)
        index.append(pair_index)
        degrees.append(pair_degrees)
        sizes += takes.sum(1).tolist()
    return torch.cat(index), torch.cat(degrees), sizes
