from __future__ import annotations

import inspect
import resource
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from perdure import Learner, Samples
from perdure.catalog import METHODS, find_learner
from perdure.memory import BalancedTaskBuffer, Reservoir, TaskBuffer
from perdure.sizes import format_bytes, parse_bytes

SIZE_OF_ROW = 4 * 6 + 8
REPLAY = sorted(
    name for name in METHODS if "buffer_size" in inspect.signature(find_learner(name)).parameters
)


def batch(count: int, seed: int = 0) -> Samples:
    draws = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=draws)
    return Samples(torch.rand(count, 6, generator=draws), labels)


def make(method: str, **arguments: Any) -> Learner:
    learner = find_learner(method)
    if "tasks" in inspect.signature(learner).parameters:
        arguments["tasks"] = 2
    torch.manual_seed(0)
    return learner(nn.Linear(6, 3), **arguments)


def train(learner: Learner) -> Learner:
    for seed in range(4):
        learner.observe(*batch(8, seed)[:2])
        if learner.needs_boundaries and seed % 2:
            learner.end_task(batch(30, seed))
    return learner


@pytest.mark.parametrize("method", REPLAY)
def test_bytes_give_the_rows_that_fit_and_the_same_learner(method: str) -> None:
    logits = 4 * 3 if method in ("der", "derpp", "fdr") else 0
    learner = train(make(method, buffer_bytes=10 * (SIZE_OF_ROW + logits) + 5))
    assert learner.memory is not None
    assert learner.memory.buffer_size == 10
    state = train(make(method, buffer_size=10)).state_dict()
    for name, weights in learner.network.state_dict().items():
        assert weights.equal(state["network"][name])
    assert f"{10 * (SIZE_OF_ROW + logits) + 5} bytes" in repr(learner)


@pytest.mark.parametrize("method", REPLAY)
def test_exactly_one_budget_is_given(method: str) -> None:
    for arguments in ({}, {"buffer_size": 10, "buffer_bytes": 1000}):
        with pytest.raises(ValueError, match="either buffer_size or buffer_bytes"):
            make(method, **arguments)


def test_too_small_a_budget_is_refused() -> None:
    memory = Reservoir(buffer_bytes=SIZE_OF_ROW - 1)
    with pytest.raises(ValueError, match="32 bytes"):
        memory.add(batch(2))
    assert (memory.filled, memory.buffer_size) == (0, 0)


@pytest.mark.parametrize("stop", [0, 2])
def test_state_resumes(stop: int) -> None:
    budget = 10 * SIZE_OF_ROW
    one, other = make("clser", buffer_bytes=budget), make("clser", buffer_bytes=budget)
    for seed in range(stop):
        one.observe(*batch(8, seed)[:2])
    other.load_state_dict(one.state_dict())
    for learner in (one, other):
        train(learner)
    assert repr(one) == repr(other)
    assert one.network.weight.equal(other.network.weight)  # type: ignore[operator,arg-type]
    with pytest.raises(ValueError, match="buffer_bytes"):
        make("clser", buffer_bytes=budget + 1).load_state_dict(one.state_dict())
    with pytest.raises(ValueError, match="buffer_size"):
        make("clser", buffer_size=9).load_state_dict(one.state_dict())


def test_a_budget_may_be_the_size_of_one_sample() -> None:
    memory = Reservoir(buffer_bytes=SIZE_OF_ROW)
    memory.add(batch(2))
    assert (memory.buffer_size, memory.filled) == (1, 1)


@pytest.mark.parametrize("kind", [BalancedTaskBuffer, partial(TaskBuffer, tasks=1)])
def test_a_task_may_fill_the_budget(kind: Any) -> None:
    memory = kind(buffer_bytes=10 * SIZE_OF_ROW)
    memory.add(batch(30))
    assert memory.counts == {0: 10}


def test_the_size_is_unknown_again_after_the_state_of_an_empty_memory() -> None:
    memory = Reservoir(buffer_bytes=1000)
    empty = memory.state_dict()
    memory.add(batch(2))
    memory.load_state_dict(empty)
    assert memory.buffer_size == 0
    assert not memory.full
    memory.load_state_dict(memory.state_dict())


@pytest.mark.parametrize(
    ("text", "count"),
    [("64MB", 64_000_000), ("1.5 GiB", 3 * 2**29), ("100", 100), ("2kB", 2000), (7, 7), ("9b", 9)],
)
def test_sizes_are_parsed(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count
    assert parse_bytes(format_bytes(count).removesuffix(" bytes")) == count


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "64 XB", 0, True, 1.5, "1e3", "0.1"])
def test_other_sizes_are_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="buffer_bytes is"):
        parse_bytes(text)


def test_repeated_rows_keep_the_last_sample() -> None:
    memory = Reservoir(5)
    rows = torch.tensor([0, 3, 0, 5, 3, 1, 5])
    assert memory._keep_last(rows).tolist() == [5, 5, 0, 5, 3, 1, 5]


@pytest.mark.parametrize(("method", "count"), [("er", 30_000), ("gss", 6_000)])
def test_memory_for_a_batch_is_linear_in_its_size(method: str, count: int) -> None:
    """A byte for each pair of rows would be 900 MB for ER, a float 144 MB for GSS."""
    learner = make(method, buffer_size=100)
    learner.observe(*batch(50)[:2])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    learner.observe(*batch(count)[:2])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_memories_keep_nothing_per_batch_size() -> None:
    memory = Reservoir(10)
    for count in range(1, 30):
        memory.add(batch(count))
    assert not any(isinstance(value, dict | list) for value in vars(memory).values())
