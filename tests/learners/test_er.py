from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from perdure.learners import ER
from perdure.randomness import generator
from perdure.records import Samples


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)
        ).double()


def batches(steps: int) -> list[Samples]:
    draws = torch.Generator().manual_seed(1)
    return [
        Samples(
            torch.randn(4, 6, dtype=torch.float64, generator=draws),
            torch.randint(4, (4,), generator=draws),
        )
        for _ in range(steps)
    ]


def test_steps_match_reference_implementation() -> None:
    learner = ER(network(), buffer_size=9, memory_batch=5, lr=0.1, seed=2)
    reference = network()
    insertion, selection = generator(2, "reservoir"), generator(2, "replay")
    memory: list[tuple[torch.Tensor, torch.Tensor]] = []
    seen = 0
    for inputs, labels, _ in batches(100):
        learner.observe(inputs, labels)
        rows = torch.randperm(len(memory), generator=selection).tolist()[:5] if memory else []
        x = torch.stack([*inputs, *(memory[row][0] for row in rows)])
        y = torch.stack([*labels, *(memory[row][1] for row in rows)])
        parameters = list(reference.parameters())
        gradients = torch.autograd.grad(F.cross_entropy(reference(x), y), parameters)
        with torch.no_grad():
            for p, gradient in zip(parameters, gradients, strict=True):
                p.sub_(0.1 * gradient)
        chances = torch.rand(len(labels), dtype=torch.float64, generator=insertion).tolist()
        for sample, label, chance in zip(inputs, labels, chances, strict=True):
            if seen < 9:
                memory.append((sample, label))
            elif (v := math.floor(chance * (seen + 1))) < 9:
                memory[v] = (sample, label)
            seen += 1
    contents = learner.memory.contents()
    assert contents is not None
    assert contents.inputs.equal(torch.stack([sample for sample, _ in memory]))
    assert contents.labels.equal(torch.stack([label for _, label in memory]))
    for name, expected in reference.state_dict().items():
        torch.testing.assert_close(learner.network.state_dict()[name], expected, atol=1e-12, rtol=0)


def test_memory_holds_raw_inputs() -> None:
    learner = ER(
        nn.Sequential(nn.Flatten(), nn.Linear(4, 2)),
        buffer_size=8,
        augment=lambda inputs, _: 255 - inputs,
        normalise=lambda inputs: inputs.float() / 255 - 0.5,
    )
    inputs = torch.randint(256, (5, 1, 2, 2), dtype=torch.uint8)
    learner.observe(inputs, torch.tensor([0, 1, 0, 1, 1]))
    contents = learner.memory.contents()
    assert contents is not None
    assert contents.inputs.dtype == torch.uint8
    assert contents.inputs.equal(inputs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"buffer_size": 0}, "buffer_size is 0"), ({"memory_batch": 0}, "memory_batch is 0")],
)
def test_invalid_arguments_are_rejected(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ER(nn.Linear(3, 2), **{"buffer_size": 4, **arguments})  # type: ignore[arg-type]
