"""MNIST-360: two digits at a time, slowly rotating, without task boundaries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from perdure.data import Dataset
from perdure.records import Samples
from perdure.streams.augment import Scale
from perdure.streams.stream import ComposedTask, Stream, Test, checksum_of
from perdure.streams.transformed import CHUNK, rotate

DIGITS = 9
"""Digits 0 to 8: a rotated 9 is a 6. The network still has ten outputs."""
ROUNDS = 3


def mnist360(dataset: Dataset, *, replacement: bool = False) -> Stream:
    """Create the stream of digit pairs (0, 1), (1, 2) … (8, 0), three rounds, as one task.

    The training images of each digit are divided into six chunks of n // 6 + 1 (the sixth is
    smaller), used in reverse order. A pair uses one chunk of each digit; each batch is divided in
    proportion to the images left of the two, and the pair ends when one chunk is empty. The last
    batch of a pair may therefore be smaller, and with small batches a few images are never shown
    (full MNIST: all 54,051 with batch size 16, 54,024 with batch size 1). The k-th image drawn of
    digit d is rotated by (d - 1) * 60 + k * 360 / n degrees; in the test, the k-th image of a
    digit by k * 360 / n. All draws come from the epoch's order generator.

    Departure from the published code, which draws with replacement inside a chunk and between
    batches of the test: here, every image of a chunk is drawn at most once and every test image
    exactly once.

    Args:
        dataset: MNIST, or another dataset of images of digits 0 to 8.
        replacement: Whether to draw training images with replacement, as the published code does.

    >>> samples = Samples(torch.zeros(650, 1, 4, 4, dtype=torch.uint8), torch.arange(650) % 10)
    >>> stream = mnist360(Dataset("tiny", samples, samples, classes=10, checksum=""))
    >>> [len(task.collect(16, torch.Generator()).labels) for task in stream.tasks]
    [585]
    """
    train, test = dataset.train, dataset.test
    rows = _rows_by_digit(train.labels)
    counts = [len(digit) for digit in rows]
    if not all(counts):
        raise ValueError(f"MNIST-360 needs images of digits 0 to 8; their numbers are {counts}")

    def compose(batch: int, order: torch.Generator) -> Iterator[Samples]:
        index, degrees, sizes = _plan(rows, batch, order, replacement)
        index = index.to(train.labels.device)
        group = max(1, CHUNK // batch)
        start = 0
        for i in range(0, len(sizes), group):
            parts = sizes[i : i + group]
            end = start + sum(parts)
            inputs, labels, _ = train.rows(index[start:end])
            inputs = rotate(inputs, degrees[start:end])
            yield from map(Samples, torch.split(inputs, parts), torch.split(labels, parts))
            start = end

    def steps(batch: int) -> int:
        return sum(len(pair.counts) for pair in _pairs(counts, batch))

    @cache
    def rotated_test() -> Samples:
        degrees = torch.full(test.labels.shape, torch.nan, dtype=torch.float64)
        for index in _rows_by_digit(test.labels):
            degrees[index] = torch.arange(len(index)).double() * 360 / len(index)
        index = degrees.isfinite().nonzero().squeeze(1)
        inputs, labels, _ = test.rows(index.to(test.labels.device))
        return Samples(rotate(inputs, degrees[index]), labels)

    name = "mnist-360"
    return Stream(
        name=name,
        data=dataset.name,
        classes=dataset.classes,
        shape=tuple(train.inputs.shape[1:]),
        tasks=[ComposedTask(name, compose, steps=steps)],
        tests=[Test(name, rotated_test)],
        normalise=Scale(),
        boundaries=False,
        checksum=checksum_of(name, dataset.checksum, *(["replacement"] if replacement else [])),
    )


def _rows_by_digit(labels: Tensor) -> list[Tensor]:
    """Rows of digits 0, 1 … 8, in the dataset's order, on the CPU."""
    labels = labels.cpu()
    return [(labels == digit).nonzero().squeeze(1) for digit in range(DIGITS)]


class _Pair(NamedTuple):
    """How the images of a pair of digits are presented."""

    digits: tuple[int, int]
    chunks: tuple[range, range]
    """Images of each digit, by their number within the digit."""
    counts: list[tuple[int, int]]
    """Numbers of images of each digit in each batch."""


def _pairs(counts: Sequence[int], batch: int) -> Iterator[_Pair]:
    """All 27 pairs of the stream, given the number of images of each digit."""
    chunks = [
        [range(n)[i * (n // 6 + 1) :][: n // 6 + 1] for i in range(2 * ROUNDS)] for n in counts
    ]
    for _ in range(ROUNDS):
        for digit in range(DIGITS):
            digits = digit, (digit + 1) % DIGITS
            chunk = chunks[digits[0]].pop(), chunks[digits[1]].pop()
            yield _Pair(digits, chunk, _batch_counts(len(chunk[0]), len(chunk[1]), batch))


def _batch_counts(first: int, second: int, batch: int) -> list[tuple[int, int]]:
    counts = []
    while first and second:
        one = min(first, round(batch * first / (first + second)))
        two = min(second, batch - one)
        counts.append((one, two))
        first, second = first - one, second - two
    return counts


def _plan(
    rows: Sequence[Tensor], batch: int, order: torch.Generator, replacement: bool
) -> tuple[Tensor, Tensor, list[int]]:
    """One epoch: row and angle in degrees of every sample, and the batch sizes."""
    index: list[Tensor] = []
    degrees: list[Tensor] = []
    sizes: list[int] = []
    shown = [0] * DIGITS
    for pair in _pairs([len(digit) for digit in rows], batch):
        counts = torch.tensor(pair.counts, dtype=torch.int64).view(-1, 2)
        member = torch.tensor([0, 1]).repeat(len(counts)).repeat_interleave(counts.flatten())
        pair_index, pair_degrees = torch.empty_like(member), member.double()
        for i, (digit, chunk) in enumerate(zip(pair.digits, pair.chunks, strict=True)):
            count = int(counts[:, i].sum())
            if replacement:
                draws = torch.randint(len(chunk), (count,), generator=order)
            else:
                draws = torch.randperm(len(chunk), generator=order)[:count]
            numbers = torch.arange(shown[digit], shown[digit] + len(draws), dtype=torch.float64)
            pair_index[member == i] = rows[digit][chunk.start + draws]
            pair_degrees[member == i] = (digit - 1) * 60 + numbers * (360 / len(rows[digit]))
            shown[digit] += len(draws)
        index.append(pair_index)
        degrees.append(pair_degrees)
        sizes += counts.sum(1).tolist()
    return torch.cat(index), torch.cat(degrees), sizes
