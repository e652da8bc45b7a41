"""Drawing from memories that are too large to be permuted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from perdure.memory import Reservoir, episodic
from perdure.memory.episodic import draw_rows, permutes, spare_draws
from perdure.randomness import generator
from perdure.records import Samples
from perdure.undo import Snapshot

SMALLEST = 8193
"""The smallest memory that is not permuted, if few rows are drawn."""

Draw = Callable[[int, int, torch.Generator], list[int]]


def samples(first: int, count: int) -> Samples:
    numbers = torch.arange(first, first + count)
    return Samples(numbers[:, None].float(), numbers)


def draw(memory: Reservoir, count: int) -> list[int]:
    drawn = memory.draw(count)
    assert drawn is not None
    return drawn.labels.tolist()


@pytest.mark.parametrize(
    ("filled", "count"),
    [(1, 1), (500, 32), (5120, 32), (SMALLEST - 1, 1), (32 * 1000, 1000), (20, 30)],
)
def test_small_memories_are_permuted(filled: int, count: int) -> None:
    rows = draw_rows(filled, count, generator(1, "replay"))
    permutation = torch.randperm(filled, generator=generator(1, "replay"))
    assert rows.equal(permutation[:count])


@pytest.mark.parametrize(
    ("filled", "count"), [(SMALLEST, 1), (SMALLEST, 32), (SMALLEST, 256), (32_001, 1000)]
)
def test_rows_are_distinct_and_stored(filled: int, count: int) -> None:
    draws = generator(2, "replay")
    for _ in range(200):
        rows = draw_rows(filled, count, draws).tolist()
        assert len(rows) == count == len(set(rows))
        assert min(rows) >= 0
        assert max(rows) < filled


@pytest.mark.parametrize("filled", [1, 20, 32, 33, 500, 5120, 20_000])
def test_rows_of_a_filling_memory_are_distinct_and_stored(filled: int) -> None:
    draws, stored = generator(2, "replay"), torch.tensor(filled)
    for _ in range(50):
        rows = draw_rows(filled, 32, draws, stored=stored, size=25_000).tolist()
        assert len(rows) == min(filled, 32) == len(set(rows))
        assert 0 <= min(rows) <= max(rows) < filled


def test_every_row_is_drawn_equally_often() -> None:
    draws, counts = generator(3, "replay"), torch.zeros(SMALLEST, dtype=torch.int64)
    for _ in range(1000):
        counts[draw_rows(SMALLEST, 128, draws)] += 1
    assert int(counts.sum()) == 128_000
    # The rows of one draw are distinct, which lowers the variance of the counts.
    statistic = stats.chisquare(counts).statistic / (1 - 128 / SMALLEST)
    assert 0.005 < stats.chi2.sf(statistic, SMALLEST - 1) < 0.995


def few_rows(filled: int, count: int, draws: torch.Generator) -> list[int]:
    """Draw from few rows as from many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(episodic, "_PERMUTED", 0)
        patch.setattr(episodic, "_PERMUTED_PER_DRAW", 0)
        return draw_rows(filled, count, draws).tolist()


def filling_rows(filled: int, count: int, draws: torch.Generator) -> list[int]:
    """Draw from a memory of 50 rows that is not full, whose number of samples the device knows."""
    return draw_rows(filled, count, draws, stored=torch.tensor(filled), size=50).tolist()


def filling_many_rows(filled: int, count: int, draws: torch.Generator) -> list[int]:
    """The same, as from many rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(episodic, "_PERMUTED", 0)
        patch.setattr(episodic, "_PERMUTED_PER_DRAW", 0)
        return filling_rows(filled, count, draws)


def smallest_rows(filled: int, count: int, draws: torch.Generator) -> list[int]:
    """A mistake: drops surplus rows after sorting them."""
    uniform = torch.rand(count + 2, dtype=torch.float64, generator=draws)
    rows = sorted(set(uniform.mul_(filled).long().tolist()))[:count]
    return [rows[i] for i in torch.randperm(len(rows), generator=draws).tolist()]


@pytest.mark.parametrize(
    ("draw_few", "uniform"),
    [
        (few_rows, True),
        (filling_rows, True),
        (filling_many_rows, True),
        (smallest_rows, False),
    ],
)
def test_every_sequence_of_rows_is_equally_likely(draw_few: Draw, uniform: bool) -> None:
    draws, met = generator(4, "replay"), Counter[tuple[int, ...]]()
    for _ in range(3000):
        met[tuple(draw_few(5, 2, draws))] += 1
    pairs = list(permutations(range(5), 2))
    pvalue = float(stats.chisquare([met[pair] for pair in pairs]).pvalue)
    assert pvalue > 0.01 if uniform else pvalue < 1e-6


@pytest.mark.parametrize("filled", [10**9, 10**12])
def test_drawing_from_huge_memories_is_uniform_and_needs_no_permutation(filled: int) -> None:
    draws = generator(5, "replay")
    rows = torch.cat([draw_rows(filled, 1000, draws) for _ in range(100)])
    assert stats.chisquare(torch.histc(rows.double(), 100, 0, filled).tolist()).pvalue > 0.01
    # Float32 would reach only every 60th of 10^9 rows, or fewer.
    assert stats.chisquare(torch.bincount(rows % 7).tolist()).pvalue > 0.01


def missing(filled: int, count: int) -> float:
    """Return the probability that there are fewer than `count` distinct draws."""
    chances = np.zeros(count + 1)  # of each number of distinct draws; the last: or more
    chances[0] = 1
    known = np.arange(count + 1)
    for _ in range(count + spare_draws(count)):
        new = chances[:-1] * (filled - known[:-1]) / filled
        chances[:-1] -= new
        chances[:-1] = np.maximum(chances[:-1], 0)
        chances[1:] += new
    return float(chances[:-1].sum())


def chernoff_bound(filled: int, count: int) -> float:
    """Return the bound on the same probability that the code states, as a logarithm."""
    spare = spare_draws(count)
    total = count + spare
    mean = total * (total - 1) / (2 * filled)
    return (spare + 1) * (1 + math.log(mean / (spare + 1))) - mean


def test_spare_draws_almost_always_suffice() -> None:
    for count in [*range(1, 3000), 10**4, 10**5, 10**6, 10**8]:
        assert chernoff_bound(max(SMALLEST, 32 * count + 1), count) < math.log(1e-26)
    for count in (1, 10, 32, 128, 255, 256, 512, 1000):  # exactly
        filled = max(SMALLEST, 32 * count + 1)
        assert math.log(missing(filled, count) + 1e-300) < chernoff_bound(filled, count)


@pytest.mark.parametrize("buffer_size", [SMALLEST, 20_000])
def test_resumed_memory_draws_the_same(buffer_size: int) -> None:
    memory, other = Reservoir(buffer_size), Reservoir(buffer_size, seed=1)
    memory.add(samples(0, buffer_size + 500))
    draw(memory, 32)
    other.load_state_dict(memory.state_dict())
    for first in range(buffer_size + 500, buffer_size + 900, 100):
        assert draw(memory, 32) == draw(other, 32)
        for each in (memory, other):
            each.add(samples(first, 100))
    assert memory.seen.equal(other.seen)


def test_failed_step_does_not_advance_the_draws() -> None:
    memory = Reservoir(SMALLEST)
    memory.add(samples(0, SMALLEST))
    snapshot = Snapshot(memory)
    snapshot.take()
    drawn = draw(memory, 32)
    snapshot.restore()
    assert draw(memory, 32) == drawn


def keep_last(rows: Tensor, buffer_size: int) -> list[int]:
    """What `_keep_last` does, row by row."""
    values = rows.tolist()
    return [buffer_size if row in values[i + 1 :] else row for i, row in enumerate(values)]


@pytest.mark.parametrize("buffer_size", [3, 40, 10**12])
@pytest.mark.parametrize("count", [1, 2, 10, 200])
def test_last_sample_of_a_row_is_kept_whatever_the_size(buffer_size: int, count: int) -> None:
    draws = torch.Generator().manual_seed(count)
    rows = torch.randint(buffer_size + 1, (count,), generator=draws)
    assert Reservoir(buffer_size)._keep_last(rows.clone()).tolist() == keep_last(rows, buffer_size)


def test_a_graph_depends_on_every_number_of_samples_drawn() -> None:
    """The way of drawing few samples changes before that of drawing many."""
    memory = Reservoir(20_000)
    memory.add(Samples(torch.rand(8192, 1), torch.zeros(8192, dtype=torch.int64)))
    memory.draw(1000)
    memory.draw(10)
    memory.device = torch.device("cuda")
    before = memory.host_state()
    memory.note_added(1)
    assert permutes(memory.filled, 1000)
    assert not permutes(memory.filled, 10)
    assert memory.host_state() != before
