from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from perdure.memory import DatedReservoir, Reservoir
from perdure.records import Samples


def numbered(first: int, count: int) -> Samples:
    numbers = torch.arange(first, first + count)
    return Samples(numbers[:, None].double(), numbers)


def filled(steps: int, batch: int = 3, buffer_size: int = 8) -> tuple[DatedReservoir, torch.Tensor]:
    """A memory after so many steps, in each of which `batch` samples came; and its clock."""
    clock = torch.zeros((), dtype=torch.int64)
    memory = DatedReservoir(buffer_size, clock=clock, seed=3)
    for step in range(1, steps + 1):
        clock.fill_(step)
        memory.add(numbered((step - 1) * batch, batch))
    return memory, clock


@given(steps=st.integers(1, 60), later=st.integers(0, 5000), marks=st.integers(0, 31))
def test_counts_the_samples_drawn_by_age(steps: int, later: int, marks: int) -> None:
    memory, clock = filled(steps)
    clock += later
    drawn = memory.draw(5)
    assert drawn is not None
    marked = [bool(marks >> i & 1) for i in range(len(drawn.labels))]
    memory.count(torch.tensor(marked))
    ages = [steps + later + 1 - (number // 3 + 1) for number in drawn.labels.tolist()]
    bins = [age.bit_length() - 1 for age in ages]
    found = memory.ages()
    assert found.edges == [2**k for k in range(max(bins) + 2)]
    assert found.total == [bins.count(k) for k in range(max(bins) + 1)]
    both = [k for k, it in zip(bins, marked, strict=True) if it]
    assert found.marked == [both.count(k) for k in range(max(bins) + 1)]


def test_a_draw_is_counted_once() -> None:
    memory, _ = filled(20)
    memory.count(torch.tensor([True]))
    assert memory.ages() == ([1], [], [])
    memory.draw(4)
    for _ in range(3):
        memory.count(torch.tensor([True] * 4))
    assert (sum(memory.ages().total), sum(memory.ages().marked)) == (4, 4)


def test_counts_add_up_over_a_long_stream() -> None:
    memory, _ = filled(20)
    for _ in range(100):
        memory.draw(8)
        memory.count(torch.tensor([True, False] * 4))
    assert (sum(memory.ages().total), sum(memory.ages().marked)) == (800, 400)


def test_keeps_and_draws_what_a_plain_reservoir_would() -> None:
    dated, _ = filled(40)
    plain = Reservoir(8, seed=3)
    for step in range(40):
        plain.add(numbered(3 * step, 3))
    for _ in range(3):
        one, other = dated.draw(4), plain.draw(4)
        assert one is not None
        assert other is not None
        assert one.labels.equal(other.labels)


def test_dates_and_counts_are_part_of_the_state() -> None:
    memory, clock = filled(30)
    memory.draw(8)
    memory.count(torch.tensor([True, False] * 4))
    other = DatedReservoir(8, clock=clock.clone(), seed=9)
    other.load_state_dict(memory.state_dict())
    assert other.ages() == memory.ages()
    for each in (memory, other):
        each.draw(8)
        each.count(torch.tensor([False, True] * 4))
    assert other.ages() == memory.ages()
    assert len(memory.ages().total) > 3


def test_samples_of_a_plain_reservoir_count_as_stored_now() -> None:
    plain = Reservoir(8, seed=3)
    plain.add(numbered(0, 8))
    memory = DatedReservoir(8, clock=torch.tensor(100))
    memory.load_state_dict(plain.state_dict())
    memory.draw(8)
    memory.count(torch.tensor([True] * 8))
    assert memory.ages() == ([1, 2], [8], [8])
