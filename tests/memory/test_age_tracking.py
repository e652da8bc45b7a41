from __future__ import annotations

import pytest
import torch

from perdure.memory import AgeTrackingReservoir, Reservoir
from perdure.records import Samples


def numbered(first: int, count: int) -> Samples:
    numbers = torch.arange(first, first + count)
    return Samples(numbers[:, None].double(), numbers)


def after(steps: int, batch: int = 3) -> tuple[AgeTrackingReservoir, torch.Tensor]:
    """A memory after `steps` steps with `batch` samples each, and its clock."""
    clock = torch.zeros((), dtype=torch.int64)
    memory = AgeTrackingReservoir(8, clock=clock, seed=3)
    for step in range(1, steps + 1):
        clock.fill_(step)
        memory.add(numbered((step - 1) * batch, batch))
    return memory, clock


@pytest.mark.parametrize("later", [0, 1, 5000])
@pytest.mark.parametrize("steps", [1, 4, 60])
def test_ages_are_steps_since_storage_including_the_current_one(steps: int, later: int) -> None:
    memory, clock = after(steps)
    clock += later
    for _ in range(5):
        drawn = memory.draw(5)
        assert drawn is not None
        stored_at = drawn.labels // 3 + 1
        assert memory.drawn_ages().equal(steps + later + 1 - stored_at)


def test_stores_and_draws_the_same_samples_as_a_plain_reservoir() -> None:
    tracking, _ = after(40)
    plain = Reservoir(8, seed=3)
    for step in range(40):
        plain.add(numbered(3 * step, 3))
    for _ in range(3):
        one, other = tracking.draw(4), plain.draw(4)
        assert one is not None
        assert other is not None
        assert one.labels.equal(other.labels)


def test_state_contains_the_ages() -> None:
    memory, clock = after(30)
    other = AgeTrackingReservoir(8, clock=clock, seed=9)
    other.load_state_dict(memory.state_dict())
    for each in (memory, other):
        each.draw(8)
    assert other.drawn_ages().equal(memory.drawn_ages())
    assert len(set(memory.drawn_ages().tolist())) > 3


def test_ages_before_the_first_draw_are_an_error() -> None:
    memory, _ = after(2)
    with pytest.raises(ValueError, match="drawn"):
        memory.drawn_ages()
