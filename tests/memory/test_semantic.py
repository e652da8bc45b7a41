from __future__ import annotations

import math
from fractions import Fraction
from itertools import accumulate
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from perdure.memory import SemanticMemory


def line(weight: float) -> nn.Linear:
    network = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        network.weight.fill_(weight)
    return network


def value(network: nn.Module) -> float:
    return float(next(network.parameters()).detach())


def memory_at(working: nn.Linear, weight: float, **rest: float | str | None) -> SemanticMemory:
    """A memory of a working network, with its only weight set to `weight`."""
    memory = SemanticMemory(working, **{"decay": 0.9, "rate": 1.0, "name": "it", **rest})  # type: ignore[arg-type]
    with torch.no_grad():
        next(memory.network.parameters()).fill_(weight)
    return memory


@pytest.mark.parametrize(
    ("step", "decay", "effective"),
    [
        (1, 0.999, 0.5),
        (2, 0.999, 2 / 3),
        (10, 0.999, 10 / 11),
        (998, 0.999, 998 / 999),
        (999, 0.999, 0.999),
        (10**6, 0.999, 0.999),
        (1, 0.3, 0.3),
        (1, 0.0, 0.0),
        (5, 0.0, 0.0),
    ],
)
def test_average_warms_up_with_the_number_of_steps(
    step: int, decay: float, effective: float
) -> None:
    memory = memory_at(line(1.0), 0.0, decay=decay)
    memory.update(torch.tensor(step))
    assert value(memory.network) == pytest.approx(1 - effective, abs=1e-15)


def test_average_follows_the_working_network() -> None:
    working = line(0.0)
    memory = SemanticMemory(working, decay=0.9, rate=1.0, name="it")
    expected = 0.0
    for step in range(1, 50):
        with torch.no_grad():
            working.weight.fill_(math.sin(step))
        memory.update(torch.tensor(step))
        decay = min(1 - 1 / (step + 1), 0.9)
        expected = decay * expected + (1 - decay) * math.sin(step)
        assert value(memory.network) == pytest.approx(expected, abs=1e-14)


def changes(memory: SemanticMemory, steps: int) -> list[bool]:
    """Return for each step whether the memory changed at all."""
    found = []
    for step in range(1, steps + 1):
        before = value(memory.network)
        memory.update(torch.tensor(step))
        found.append(value(memory.network) != before)
    return found


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_random_updates_have_the_given_rate(rate: float) -> None:
    found = changes(memory_at(line(1e9), 1 / 3, decay=0.999, rate=rate), 2000)
    assert stats.binomtest(sum(found), 2000, rate).pvalue > 0.01


def test_rate_of_one_updates_at_every_step() -> None:
    assert all(changes(memory_at(line(1e9), 1 / 3, rate=1.0), 100))


@pytest.mark.parametrize(
    ("rate", "due"),
    [
        (0.1, [10, 20, 30, 40]),
        (0.25, [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]),
        (0.7, [2, 3, 5, 6, 8, 9, 10, 12, 13, 15, 16, 18, 19, 20]),
        (0.9, [n for n in range(1, 41) if n % 10 != 1]),
        (1.0, list(range(1, 41))),
    ],
)
def test_regular_updates_are_evenly_spaced(rate: float, due: list[int]) -> None:
    memory = memory_at(line(1e9), 1 / 3, decay=0.999, rate=rate, update="regular")
    found = [step for step, it in enumerate(changes(memory, 40), 1) if it]
    assert found[: len(due)] == due


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.15, 1 / 3, 0.7, 0.9, 0.95])
def test_regular_updates_have_exactly_the_given_rate(rate: float) -> None:
    memory = memory_at(line(1e9), 1 / 3, decay=0.999, rate=rate, update="regular")
    found = changes(memory, 2000)
    share = Fraction(rate).limit_denominator(1000)
    so_far = list(accumulate(found))
    assert all(so_far[n - 1] == math.floor(n * share) for n in range(1, 2001))


def test_unknown_update_is_rejected() -> None:
    with pytest.raises(ValueError, match="update is 'never'; expected random or regular"):
        memory_at(line(1.0), 0.0, update="never")


def test_random_updates_depend_on_seed_and_name() -> None:
    def updates(seed: int, name: str) -> list[bool]:
        working = line(1e9)
        memory = SemanticMemory(working, decay=0.999, rate=0.5, name=name, seed=seed)
        with torch.no_grad():
            next(memory.network.parameters()).fill_(1 / 3)
        return changes(memory, 60)

    assert updates(0, "stable") == updates(0, "stable")
    assert updates(0, "stable") != updates(0, "plastic")
    assert updates(0, "stable") != updates(1, "stable")


def test_warm_up_counts_steps_without_update() -> None:
    memory = memory_at(line(1.0), 0.0, decay=0.9999, rate=0.2)
    first = changes(memory, 100).index(True) + 1
    assert first > 1
    again = memory_at(line(1.0), 0.0, decay=0.9999, rate=0.2)
    for step in range(1, first + 1):
        again.update(torch.tensor(step))
    assert value(again.network) == pytest.approx(1 / (first + 1), abs=1e-15)


@pytest.mark.parametrize(("window", "decay"), [(0.1, 0.999), (0.05, 0.9), (1.0, 0.999)])
def test_windowed_average_matches_its_formula(window: float, decay: float) -> None:
    working, expected = line(0.0), 7.0
    memory = memory_at(working, 7.0, decay=decay, window=window)
    for n in range(1, 200):
        with torch.no_grad():
            working.weight.fill_(math.sin(n))
        memory.update(torch.tensor(n))
        weight = max(1 / (1 + window * (n - 1)), 1 - decay)
        expected += weight * (math.sin(n) - expected)
        assert value(memory.network) == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_window_counts_the_updates_of_as_many_steps_as_it_may(rate: float) -> None:
    working, expected, updates = line(0.0), 7.0, 0
    memory = memory_at(working, 7.0, decay=0.99, window=0.5, rate=rate, update="regular")
    for step in range(1, 100):
        with torch.no_grad():
            working.weight.fill_(math.sin(step))
        memory.update(torch.tensor(step), torch.tensor(step / 8))
        if step == 1 or step * rate == int(step * rate):
            expected += (math.sin(step) - expected) / (1 + 0.5 * min(updates, step / 8 * rate))
            updates += 1
        assert value(memory.network) == pytest.approx(expected, abs=1e-13)
    assert int(memory.updates) == updates


def test_window_of_one_is_the_mean_of_all_updates() -> None:
    working = line(0.0)
    memory = memory_at(working, 99.0, decay=0.9999, window=1.0)
    for n in range(1, 100):
        with torch.no_grad():
            working.weight.fill_(n)
        memory.update(torch.tensor(n))
    assert value(memory.network) == pytest.approx(50, abs=1e-10)


@pytest.mark.parametrize("update", ["random", "regular"])
def test_windowed_memory_copies_the_network_at_the_first_step_and_counts_updates(
    update: str,
) -> None:
    working = line(1e9)
    memory = memory_at(working, 1 / 3, decay=0.9999, rate=0.2, window=0.1, update=update)
    memory.update(torch.tensor(1))
    assert value(memory.network) == 1e9
    updates, expected = 1, 1e9
    for step in range(2, 300):
        with torch.no_grad():
            working.weight.fill_(step)
        before = value(memory.network)
        memory.update(torch.tensor(step))
        if value(memory.network) != before:
            expected += (step - expected) / (1 + 0.1 * updates)
            updates += 1
        assert value(memory.network) == pytest.approx(expected)
    assert int(memory.updates) == updates
    assert stats.binomtest(updates, 299, 0.2).pvalue > 0.01


@pytest.mark.parametrize("steps", [100, 1000, 5000])
def test_window_keeps_its_share_whatever_the_length(steps: int) -> None:
    """About two thirds of the weight lie on the last tenth of the updates."""
    working = line(0.0)
    memory = memory_at(working, 1.0, decay=0.9999, window=0.1)
    for n in range(1, steps + 1):
        if n == steps - steps // 10:
            with torch.no_grad():
                working.weight.fill_(1.0)
        memory.update(torch.tensor(n))
    assert 0.6 < value(memory.network) < 0.7


@pytest.mark.parametrize("window", [0.0, -0.1, math.nan, 1.1, "a"])
def test_invalid_window_is_rejected(window: Any) -> None:
    with pytest.raises(ValueError, match="it window is"):
        memory_at(line(0.0), 0.0, window=window)


class Buffered(nn.Module):
    """A module with parameters, BatchNorm statistics and another buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("temperature", torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x))  # type: ignore[no-any-return]


def test_parameters_are_averaged_and_buffers_are_not() -> None:
    working = Buffered()
    memory = SemanticMemory(working, decay=0.0, rate=1.0, name="it")
    working(torch.randn(8, 3))
    with torch.no_grad():
        for each in (*working.parameters(), working.temperature):
            assert isinstance(each, Tensor)
            each.add_(1)
    buffers = {name: buffer.clone() for name, buffer in memory.network.named_buffers()}
    memory.update(torch.tensor(1))
    for own, other in zip(memory.network.parameters(), working.parameters(), strict=True):
        torch.testing.assert_close(own, other.detach())
    for name, buffer in memory.network.named_buffers():
        assert buffer.equal(buffers[name]), name


def test_running_statistics_come_from_own_forward_passes() -> None:
    working = Buffered()
    memory = SemanticMemory(working, decay=0.9, rate=0.1, name="it")
    x = torch.randn(8, 3)
    expected = 0.1 * working.linear(x).mean(0).detach()
    logits = memory(x)
    assert not logits.requires_grad
    torch.testing.assert_close(memory.network.norm.running_mean, expected)  # type: ignore[union-attr]
    # The batch is normalised by its own statistics.
    torch.testing.assert_close(logits.mean(0), torch.zeros(4), atol=1e-6, rtol=0)
    assert working.norm.num_batches_tracked == 0


def test_memory_is_a_copy_without_gradients_in_training_mode() -> None:
    working = Buffered().eval()
    memory = SemanticMemory(working, decay=0.9, rate=0.1, name="it")
    assert memory.network.training
    assert not any(p.requires_grad for p in memory.network.parameters())
    assert all(p.requires_grad for p in working.parameters())
    assert not working.training


def test_weights_keep_their_addresses() -> None:
    memory = memory_at(line(1.0), 0.0)
    address = next(memory.network.parameters()).data_ptr()
    memory.update(torch.tensor(1))
    memory.load_state_dict(memory.state_dict())
    assert next(memory.network.parameters()).data_ptr() == address


@pytest.mark.parametrize("window", [None, 0.1])
def test_resumed_memory_continues_identically(window: float | None) -> None:
    one, other = (memory_at(line(5.0), w, rate=0.5, window=window) for w in (0.0, 1.0))
    changes(one, 20)
    other.load_state_dict(one.state_dict())
    for step in range(21, 60):
        one.update(torch.tensor(step))
        other.update(torch.tensor(step))
        assert value(one.network) == value(other.network)


@pytest.mark.parametrize("decay", [1.0, -0.1, math.nan, 2.0, "0.5", None])
def test_invalid_decay_is_rejected(decay: Any) -> None:
    with pytest.raises(ValueError, match="stable decay is"):
        SemanticMemory(line(0.0), decay=decay, rate=0.5, name="stable")


@pytest.mark.parametrize("rate", [0.0, -0.1, math.nan, 1.01, "0.5", None])
def test_invalid_rate_is_rejected(rate: Any) -> None:
    with pytest.raises(ValueError, match="plastic rate is"):
        SemanticMemory(line(0.0), decay=0.5, rate=rate, name="plastic")
