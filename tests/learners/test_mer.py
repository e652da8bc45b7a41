"""MER: equal to ER without Reptile updates, and to a reference implementation with them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perdure.learners.er import ER
from perdure.learners.mer import MER
from perdure.memory import Reservoir
from perdure.records import Samples

from .toy import batches, network, task


def with_batchnorm(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4)
    )


def jitter(inputs: Tensor, draws: torch.Generator) -> Tensor:
    return inputs + 0.1 * torch.rand(inputs.shape, generator=draws)


@pytest.mark.parametrize("size", [1, 7])
@pytest.mark.parametrize("make", [network, with_batchnorm])
def test_without_reptile_equals_er_bit_for_bit(make: Callable[[], nn.Module], size: int) -> None:
    samples = task((0, 1), seed=0)
    mer = MER(make(), buffer_size=30, memory_batch=12, augment=jitter, seed=3)
    er = ER(make(), buffer_size=30, memory_batch=12, augment=jitter, seed=3)
    for learner in (mer, er):
        # Start with several samples, since BatchNorm cannot normalise a single one.
        for x, y in [(samples.inputs[:5], samples.labels[:5]), *batches(samples, size)]:
            learner.observe(x, y)
    ours, theirs = mer.state_dict(), er.state_dict()
    assert ours.keys() == theirs.keys()
    assert flat(ours) == flat(theirs)


def flat(state: dict[str, object], prefix: str = "") -> dict[str, object]:
    leaves: dict[str, object] = {}
    for name, leaf in state.items():
        if isinstance(leaf, dict):
            leaves |= flat(leaf, f"{prefix}{name}/")
        else:
            leaves[prefix + name] = leaf.tolist() if isinstance(leaf, Tensor) else leaf
    return leaves


@pytest.mark.parametrize(
    ("beta", "gamma", "inner_steps"), [(0.3, 1, 1), (1, 0.4, 3), (0.5, 0.2, 2)]
)
def test_step_matches_reference_implementation(beta: float, gamma: float, inner_steps: int) -> None:
    learner = MER(
        network(),
        buffer_size=20,
        memory_batch=6,
        beta=beta,
        gamma=gamma,
        inner_steps=inner_steps,
        lr=0.1,
        seed=2,
    )
    reference, memory = copy.deepcopy(learner.network).double(), Reservoir(20, seed=2)
    for x, y in batches(task((0, 1), seed=0, count=40), 1):
        learner.observe(x, y)
        across = weights(reference)
        for _ in range(inner_steps):
            within = weights(reference)
            past = memory.draw(6)
            inputs = x if past is None else torch.cat([x, past.inputs])
            labels = y if past is None else torch.cat([y, past.labels])
            reference.zero_grad()
            F.cross_entropy(reference(inputs.double()), labels).backward()  # type: ignore[no-untyped-call]
            for p, start in zip(reference.parameters(), within, strict=True):
                assert p.grad is not None
                p.data = start + beta * (p.data - 0.1 * p.grad - start)
        for p, start in zip(reference.parameters(), across, strict=True):
            p.data = start + gamma * (p.data - start)
        memory.add(Samples(x, y))
    for found, expected in zip(learner.network.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(found.double(), expected, atol=1e-5)
    assert int(learner.steps) == 40


def weights(module: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in module.parameters()]


@pytest.mark.parametrize(
    "arguments",
    [{"beta": 0.0}, {"beta": 1.5}, {"gamma": 0.0}, {"gamma": float("nan")}, {"inner_steps": 0}],
)
def test_invalid_arguments_are_rejected(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(arguments))} is"):
        MER(network(), buffer_size=20, **arguments)  # type: ignore[arg-type]
