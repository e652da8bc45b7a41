"""A-GEM: the projection and the step against reference implementations."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from perdure.learners.agem import AGEM
from perdure.learners.sgd import SGD

from .toy import batches, learn, network, task


@given(st.integers(0, 10_000))
def test_projection_is_the_nearest_gradient_without_conflict(seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    g, reference = torch.randn(2, 7, generator=draws, dtype=torch.float64)
    found = AGEM(network(), buffer_size=10, tasks=2).project(g, reference)
    product = sum(a * b for a, b in zip(g.tolist(), reference.tolist(), strict=True))
    if product >= 0:
        assert found.equal(g)
    else:
        length = sum(b * b for b in reference.tolist())
        rule = [
            a - product / length * b for a, b in zip(g.tolist(), reference.tolist(), strict=True)
        ]
        assert found.tolist() == pytest.approx(rule, abs=1e-12)
        assert float(found @ reference) == pytest.approx(0, abs=1e-12)


def test_zero_reference_changes_nothing() -> None:
    g = torch.tensor([1.0, -2.0])
    assert AGEM(network(), buffer_size=10, tasks=2).project(g, torch.zeros(2)).equal(g)


def test_step_matches_reference_implementation() -> None:
    learner = AGEM(network(), buffer_size=30, tasks=3, memory_batch=8, lr=0.05, seed=1)
    learn(learner, task((0, 1), seed=0))
    learn(learner, task((2, 3), seed=1))
    already = learner.totals()["projected"]
    conflicts = 0
    for x, y in batches(task((0, 3), seed=9, count=200)):
        expected, memory = copy.deepcopy(learner.network), copy.deepcopy(learner.memory)
        past = memory.draw(8)
        assert past is not None
        assert len(past.labels) == 8
        reference, g = gradient(expected, past.inputs, past.labels), gradient(expected, x, y)
        if g @ reference < 0:
            g = g - (g @ reference) / (reference @ reference) * reference
            conflicts += 1
        weights = nn.utils.parameters_to_vector(expected.parameters()).detach()
        learner.observe(x, y)
        found = nn.utils.parameters_to_vector(learner.network.parameters()).detach()
        assert torch.allclose(found, weights - 0.05 * g, atol=1e-6)
    assert 0 < conflicts < 20
    assert learner.totals()["projected"] == already + conflicts


def gradient(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    module.zero_grad()
    F.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


def test_first_task_equals_sgd() -> None:
    ours, plain = AGEM(network(), buffer_size=30, tasks=3), SGD(network())
    for x, y in batches(task((0, 1), seed=0)):
        ours.observe(x, y)
        plain.observe(x, y)
    pairs = zip(ours.network.parameters(), plain.network.parameters(), strict=True)
    assert all(a.equal(b) for a, b in pairs)


def test_additional_task_is_rejected() -> None:
    learner = AGEM(network(), buffer_size=20, tasks=1)
    learner.end_task(task((0, 1), seed=0))
    with pytest.raises(ValueError, match="task 2 has ended"):
        learner.end_task(task((2, 3), seed=1))


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(ValueError, match="memory_batch is 0"):
        AGEM(network(), buffer_size=20, tasks=2, memory_batch=0)
    with pytest.raises(ValueError, match="buffer_size is 1"):
        AGEM(network(), buffer_size=1, tasks=2)


def test_memory_is_bounded() -> None:
    learner = AGEM(network(), buffer_size=21, tasks=2)
    learn(learner, task((0, 1), seed=0))
    learn(learner, task((2, 3), seed=1))
    stored = learner.memory.contents()
    assert stored is not None
    assert learner.memory.counts == {0: 10, 1: 10}
    assert len(stored.labels) == 20
