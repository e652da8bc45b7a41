"""Gradient buffers that add up their scores in blocks."""

from __future__ import annotations

import resource

import pytest
import torch
from scipy import stats

from perdure.memory import GradientBuffer, gradient_buffer
from perdure.records import Samples
from perdure.undo import Snapshot

SIZE = 10_000
YES, NO = torch.tensor(True), torch.tensor(False)


def samples(count: int, first: int = 0) -> Samples:
    return Samples(torch.rand(count, 2), torch.arange(first, first + count))


def fill(memory: GradientBuffer, parts: int = 3) -> GradientBuffer:
    draws = torch.Generator().manual_seed(0)
    scores = torch.rand(SIZE, generator=draws).square()
    for part in torch.arange(SIZE).tensor_split(parts):
        memory.add(samples(len(part), int(part[0])), scores[part], NO)
    assert memory.full
    return memory


def labels(memory: GradientBuffer) -> list[int]:
    contents = memory.contents()
    assert contents is not None
    return contents.labels.tolist()


def test_blocks_select_the_rows_that_one_sum_over_all_scores_selects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_blocks = fill(GradientBuffer(SIZE))
    monkeypatch.setattr(gradient_buffer, "_BLOCKS_FROM", SIZE + 1)
    at_once = fill(GradientBuffer(SIZE))
    assert (len(in_blocks._sums), len(at_once._sums)) == (10, 1)
    draws = torch.Generator().manual_seed(1)
    for number in range(200):
        count = 5 if number % 5 else 50
        scores = torch.rand(count, generator=draws)
        for memory in (in_blocks, at_once):
            memory.add(samples(count, SIZE + 100 * number), scores, YES)
    assert labels(in_blocks) == labels(at_once)
    assert sum(label >= SIZE for label in labels(in_blocks)) > 500
    assert in_blocks.scores[:SIZE].equal(at_once.scores[:SIZE])


def test_rows_are_selected_in_proportion_to_their_scores() -> None:
    memory = fill(GradientBuffer(SIZE))
    draws = torch.Generator().manual_seed(2)
    uniform = torch.rand(20_000, 9, dtype=torch.float64, generator=draws)
    rows = torch.cat([memory._select(part) for part in uniform])
    scores = memory.scores[:SIZE]
    assert int(rows.max()) < SIZE
    group = torch.arange(SIZE) % 100  # too few draws for single rows
    found = torch.bincount(group[rows], minlength=100)
    expected = torch.bincount(group, weights=scores) / scores.sum() * len(rows)
    assert stats.chisquare(found, expected).pvalue > 0.01


@pytest.mark.parametrize("size", [3, SIZE])
def test_samples_with_a_score_of_zero_stay(size: int) -> None:
    memory = GradientBuffer(size)
    memory.add(samples(size), torch.zeros(size), NO)
    for score in (0.0, 1.0):
        memory.add(samples(2, size), torch.full((2,), score), YES)
    assert labels(memory) == list(range(size))


def test_memory_for_a_large_batch_is_linear() -> None:
    """Copies of a block for each sample would take 800 MB."""
    memory = fill(GradientBuffer(SIZE))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory.add(samples(100_000), torch.rand(100_000), YES)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


@pytest.mark.parametrize("count", [3, 500])
def test_sums_are_exact_and_restored_after_a_failed_step(count: int) -> None:
    memory = fill(GradientBuffer(SIZE))
    snapshot = Snapshot(memory)
    before = memory._sums.clone()
    snapshot.take()
    for number in range(20):
        memory.add(samples(count, SIZE + number), torch.rand(count), YES)
    assert not memory._sums.equal(before)
    padded = torch.zeros(10 * 1024, dtype=torch.float64)
    padded[:SIZE] = memory.scores[:SIZE]
    torch.testing.assert_close(memory._sums, padded.view(10, 1024).sum(1), rtol=1e-14, atol=0)
    snapshot.restore()
    assert memory._sums.equal(before)
    memory.add(samples(count), torch.rand(count), NO)
    assert memory._sums.equal(before)


def test_resumed_memory_continues_identically() -> None:
    memory, other = fill(GradientBuffer(SIZE), parts=1), GradientBuffer(SIZE, seed=3)
    memory.add(samples(50, SIZE), torch.rand(50), YES)
    other.add(samples(700), torch.rand(700), YES)
    other.load_state_dict(memory.state_dict())
    for number in range(30):
        scores = torch.rand(20)
        for each in (memory, other):
            each.add(samples(20, 2 * SIZE + number), scores, YES)
    assert labels(memory) == labels(other)
    assert memory._sums.equal(other._sums)
