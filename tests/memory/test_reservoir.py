from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from perdure.memory import Reservoir, TaskBuffer
from perdure.memory.episodic import MAX_SIZE
from perdure.randomness import generator
from perdure.records import Samples
from perdure.state import as_bytes


def samples(first: int, count: int) -> Samples:
    """Samples whose labels and inputs are their numbers in the stream."""
    numbers = torch.arange(first, first + count)
    return Samples(numbers[:, None].expand(-1, 2).float(), numbers)


def labels(memory: Reservoir) -> list[int]:
    contents = memory.contents()
    return [] if contents is None else contents.labels.tolist()


# -- sampling -------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 3, 10])
def test_every_sample_is_kept_in_order_until_full(batch: int) -> None:
    memory = Reservoir(10)
    for first in range(0, 9, batch):
        memory.add(samples(first, min(batch, 9 - first)))
        assert labels(memory) == list(range(memory.filled))
    assert (memory.filled, int(memory.seen)) == (9, 9)
    assert not memory.full


@given(st.integers(1, 6), st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 99))
@settings(max_examples=150)
def test_batches_match_algorithm_2_sample_by_sample(
    buffer_size: int, sizes: list[int], seed: int
) -> None:
    memory = Reservoir(buffer_size, seed=seed)
    draws = generator(seed, "reservoir")
    kept: list[int] = []
    seen = 0
    for size in sizes:
        memory.add(samples(seen, size))
        for chance in torch.rand(size, dtype=torch.float64, generator=draws).tolist():
            if seen < buffer_size:
                kept.append(seen)
            elif (v := math.floor(chance * (seen + 1))) < buffer_size:
                kept[v] = seen
            seen += 1
    assert labels(memory) == kept
    contents = memory.contents()
    assert contents is not None
    assert contents.inputs[:, 1].tolist() == kept
    assert (memory.filled, int(memory.seen)) == (min(buffer_size, seen), seen)
    assert memory.full == (seen >= buffer_size)


class OneTooFew(Reservoir):
    """Draws from [0, n) instead of [0, n], a common mistake."""

    def _slots(self, count: int) -> Tensor:
        return self._kept(self._drawn(count, beyond=0))

    def _drawn(self, count: int, beyond: int) -> Tensor:
        position = self.seen + torch.arange(count)
        self.seen += count
        chances = torch.rand(count, dtype=torch.float64, generator=self.insertion)
        drawn = (chances * (position + beyond)).long()
        return torch.where(position < self.buffer_size, position, drawn).clamp_(
            max=self.buffer_size
        )

    def _kept(self, slots: Tensor) -> Tensor:
        later = (slots[:, None] == slots).triu_(1).any(1)
        return slots.masked_fill_(later, self.buffer_size)


class FirstStays(OneTooFew):
    """Draws correctly but keeps the first of several samples of a batch in one slot."""

    def _slots(self, count: int) -> Tensor:
        slots = self._drawn(count, beyond=1)
        earlier = (slots[:, None] == slots).tril_(-1).any(1)
        return slots.masked_fill_(earlier, self.buffer_size)


class Correct(OneTooFew):
    """The same code without the mistake."""

    def _slots(self, count: int) -> Tensor:
        return self._kept(self._drawn(count, beyond=1))


def uniformity(memory: Reservoir, stream: int, batch: int, trials: int) -> float:
    """Return the p-value of the hypothesis that all sets of samples are equally likely."""
    met: Counter[tuple[int, ...]] = Counter()
    for _ in range(trials):
        memory.seen.zero_()
        memory.filled = 0
        for first in range(0, stream, batch):
            memory.add(samples(first, min(batch, stream - first)))
        met[tuple(sorted(labels(memory)))] += 1
    sets = list(combinations(range(stream), memory.buffer_size))
    assert met.keys() <= set(sets)
    return float(stats.chisquare([met[kept] for kept in sets]).pvalue)


@pytest.mark.parametrize("batch", [1, 2, 6])
def test_every_set_of_samples_is_equally_likely_to_be_kept(batch: int) -> None:
    assert uniformity(Reservoir(2, seed=1), 6, batch, 1500) > 0.01


@pytest.mark.parametrize(("wrong", "batch"), [(OneTooFew, 3), (OneTooFew, 6), (FirstStays, 6)])
def test_uniformity_test_rejects_a_wrong_reservoir(wrong: type[Reservoir], batch: int) -> None:
    assert uniformity(wrong(2, seed=1), 6, batch, 1500) < 1e-6
    assert uniformity(Correct(2, seed=1), 6, batch, 1500) > 0.01


def test_wrong_range_is_detected_in_a_longer_stream() -> None:
    # With 8 of 40 samples, draws from [0, n) favour late samples by only a few percent.
    def late(memory: Reservoir) -> int:
        count = 0
        for _ in range(1500):
            memory.seen.zero_()
            memory.filled = 0
            memory.add(samples(0, 40))
            count += sum(label >= 8 for label in labels(memory))
        return count

    expected = 8 * 32 / 40
    deviation = math.sqrt(1500 * stats.hypergeom(40, 32, 8).var())
    assert abs(late(Reservoir(8, seed=3)) - 1500 * expected) < 3 * deviation
    assert late(OneTooFew(8, seed=3)) - 1500 * expected > 6 * deviation


MANY = 10**8


def test_draws_are_uniform_after_100_million_samples() -> None:
    buffer_size, batches, batch = 4_000_000, 200, 1000
    memory = Reservoir(buffer_size, seed=2)
    memory.seen.fill_(MANY)
    slots = torch.cat([memory._slots(batch) for _ in range(batches)])
    assert int(memory.seen) == MANY + batches * batch
    kept = slots[slots < buffer_size]
    chance = buffer_size / (MANY + batches * batch / 2)
    assert stats.binomtest(len(kept), batches * batch, chance).pvalue > 0.01
    assert stats.chisquare(torch.histc(kept.double(), 100, 0, buffer_size).tolist()).pvalue > 0.01
    # Draws in float32 would only reach every sixth slot.
    assert stats.chisquare(torch.bincount(kept % 6).tolist()).pvalue > 0.01


@pytest.mark.parametrize(("dtype", "exact"), [(torch.float64, True), (torch.float32, False)])
def test_slots_are_exact_after_100_million_samples(dtype: torch.dtype, exact: bool) -> None:
    """Products in float64 have no rounding error; products in float32 would."""
    memory = Reservoir(MANY + 500, seed=4)
    memory.seen.fill_(MANY + 500)
    slots = memory._slots(500).tolist()
    chances = torch.rand(500, dtype=torch.float64, generator=generator(4, "reservoir"))
    positions = range(MANY + 501, MANY + 1001)
    assert slots == [
        min(math.floor(Fraction(chance) * n), MANY + 500)
        for chance, n in zip(chances.tolist(), positions, strict=True)
    ]
    products = chances.to(dtype) * torch.tensor(positions, dtype=dtype)
    assert (products.long().clamp_(max=MANY + 500).tolist() == slots) == exact


# -- storage --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_inputs_keep_their_dtype_and_values(dtype: torch.dtype) -> None:
    memory = Reservoir(4)
    inputs = (torch.rand(3, 2, 5, 5) * 255).to(dtype)
    memory.add(Samples(inputs, torch.arange(3)))
    contents, drawn = memory.contents(), memory.draw(9)
    assert contents is not None
    assert drawn is not None
    assert contents.inputs.dtype == drawn.inputs.dtype == dtype
    assert contents.inputs.equal(inputs)
    assert contents.logits is None


def test_inputs_may_have_any_size_and_start_anywhere_in_memory() -> None:
    for size, start in product((7, 8, 9, 16), range(10)):
        inputs = torch.arange(start + 3 * size, dtype=torch.uint8)[start:].view(3, size)
        memory = Reservoir(3)
        memory.add(Samples(inputs, torch.arange(3)))
        contents = memory.contents()
        assert contents is not None
        assert contents.inputs.equal(inputs)


def test_logits_are_stored_without_gradient() -> None:
    memory = Reservoir(4)
    logits = torch.rand(3, 2, requires_grad=True) * 2
    memory.add(Samples(torch.rand(3, 5), torch.arange(3), logits))
    drawn = memory.draw(3)
    assert drawn is not None
    assert drawn.logits is not None
    assert not drawn.logits.requires_grad
    assert drawn.logits.equal(logits.detach()[drawn.labels])


def test_stored_samples_are_copies() -> None:
    memory = Reservoir(4)
    given_samples = samples(0, 4)
    memory.add(given_samples)
    given_samples.labels.fill_(9)
    drawn = memory.draw(4)
    assert drawn is not None
    drawn.labels.fill_(8)
    assert labels(memory) == [0, 1, 2, 3]


@pytest.mark.parametrize("buffer_size", [0, -3, 2.5, True, MAX_SIZE + 1])
def test_invalid_buffer_size_is_rejected(buffer_size: Any) -> None:
    with pytest.raises(ValueError, match=f"buffer_size is {buffer_size}"):
        Reservoir(buffer_size)


def test_extreme_buffer_sizes_are_accepted() -> None:
    assert Reservoir(MAX_SIZE).buffer_size == MAX_SIZE
    assert TaskBuffer(3, tasks=3).share == 1
    with pytest.raises(ValueError, match="3 tasks"):
        TaskBuffer(2, tasks=3)


# -- drawing --------------------------------------------------------------------------------


def test_an_empty_memory_has_no_sample_of_any_class() -> None:
    memory = Reservoir(3)
    assert memory.class_counts(2) == [0, 0]
    memory.add(Samples(torch.rand(2, 2), torch.tensor([1, 1])))
    assert memory.class_counts(2) == [0, 2]


def test_draw_from_an_empty_memory_is_none() -> None:
    memory = Reservoir(4)
    for _ in range(2):
        assert memory.draw(3) is None
        assert memory.contents() is None
        memory.reserve(samples(0, 3))


@pytest.mark.parametrize(("filled", "count"), [(3, 2), (3, 3), (3, 9), (20, 4)])
def test_draws_are_without_replacement_from_stored_samples(filled: int, count: int) -> None:
    memory = Reservoir(10)
    memory.add(samples(0, filled))
    stored = set(labels(memory))
    for _ in range(20):
        drawn = memory.draw(count)
        assert drawn is not None
        assert len(drawn.labels) == min(count, memory.filled) == len(set(drawn.labels.tolist()))
        assert set(drawn.labels.tolist()) <= stored
        assert drawn.inputs[:, 0].equal(drawn.labels.float())


def test_all_pairs_are_drawn_equally_often() -> None:
    memory = Reservoir(5, seed=1)
    memory.add(samples(0, 5))
    met: Counter[tuple[int, ...]] = Counter()
    for _ in range(3000):
        drawn = memory.draw(2)
        assert drawn is not None
        met[tuple(drawn.labels.tolist())] += 1
    assert len(met) == 20
    assert stats.chisquare(list(met.values())).pvalue > 0.01


def test_drawing_does_not_affect_what_is_stored() -> None:
    drawn, other = Reservoir(5), Reservoir(5)
    for first in range(0, 60, 4):
        drawn.draw(3)
        drawn.add(samples(first, 4))
        other.add(samples(first, 4))
    assert labels(drawn) == labels(other)


# -- state ----------------------------------------------------------------------------------


def grown(buffer_size: int, seen: int, seed: int = 0) -> Reservoir:
    memory = Reservoir(buffer_size, seed=seed)
    for first in range(0, seen, 4):
        memory.add(samples(first, min(4, seen - first)))
    return memory


@pytest.mark.parametrize("seen", [0, 3, 10, 50])
def test_resumed_memory_continues_identically(seen: int) -> None:
    memory, other = grown(10, seen), grown(10, 30, seed=1)
    other.load_state_dict(memory.state_dict())
    for first in range(seen, seen + 40, 4):
        for each in (memory, other):
            each.add(samples(first, 4))
        one, two = memory.draw(6), other.draw(6)
        assert one is not None
        assert two is not None
        assert one.labels.equal(two.labels)
        assert one.inputs.equal(two.inputs)
    assert labels(memory) == labels(other)


def test_state_is_a_snapshot() -> None:
    memory = grown(6, 20)
    state = memory.state_dict()
    before = state["stored"]["labels"].clone()
    memory.add(samples(100, 60))
    assert state["stored"]["labels"].equal(before)
    assert int(state["seen"]) == 20


@pytest.mark.parametrize(("was", "seen", "now"), [(10, 30, 8), (10, 30, 12), (10, 9, 8)])
def test_state_with_another_buffer_size_is_rejected(was: int, seen: int, now: int) -> None:
    memory = grown(now, 3)
    with pytest.raises(ValueError, match="buffer_size"):
        memory.load_state_dict(grown(was, seen).state_dict())
    assert labels(memory) == [0, 1, 2]


def test_inconsistent_state_is_rejected() -> None:
    state = grown(6, 20).state_dict()
    with pytest.raises(ValueError, match="claims 5 samples but contains 6"):
        Reservoir(6).load_state_dict({**state, "filled": 5})
    with pytest.raises(ValueError, match="claims 6 samples but contains 0"):
        Reservoir(6).load_state_dict({**state, "stored": {}})


@pytest.mark.parametrize(
    "other",
    [
        Samples(torch.ones(2, 2).double(), torch.arange(2)),
        Samples(torch.ones(2, 3), torch.arange(2)),
        Samples(torch.ones(2, 2), torch.arange(2), torch.ones(2, 4)),
        Samples(torch.ones(2, 2), torch.arange(2).int()),
    ],
    ids=["another dtype", "another shape", "with logits", "other labels"],
)
def test_samples_unlike_the_stored_ones_are_rejected(other: Samples) -> None:
    memory = grown(6, 3)
    before = as_bytes(memory.state_dict(), {})
    with pytest.raises(ValueError, match="the memory stores"):
        memory.add(other)
    assert as_bytes(memory.state_dict(), {}) == before


def test_groups_must_add_up() -> None:
    memory = TaskBuffer(4, tasks=2)
    memory.add(samples(0, 5))
    state = memory.state_dict()
    TaskBuffer(4, tasks=2).load_state_dict(state)
    with pytest.raises(ValueError, match="add up"):
        TaskBuffer(4, tasks=2).load_state_dict({**state, "counts": [1]})
    with pytest.raises(ValueError, match=r"zip|add up"):
        TaskBuffer(4, tasks=2).load_state_dict({**state, "counts": [2, 0]})


@pytest.mark.parametrize(
    "other",
    [
        Samples(torch.rand(5, 2) - 0.5, torch.arange(5)),
        Samples(torch.rand(5, 2), torch.arange(5), torch.rand(5, 3)),
        Samples(torch.rand(5, 3, 3), torch.arange(5)),
    ],
    ids=["another dtype", "with logits", "another shape"],
)
def test_state_may_have_other_dtypes_and_shapes(other: Samples) -> None:
    memory, source = Reservoir(5), Reservoir(5)
    memory.add(Samples(torch.ones(5, 2, dtype=torch.uint8), torch.arange(5)))
    source.add(other)
    memory.load_state_dict(source.state_dict())
    contents = memory.contents()
    assert contents is not None
    for mine, theirs in zip(contents, other, strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or theirs is None or mine.equal(theirs)
