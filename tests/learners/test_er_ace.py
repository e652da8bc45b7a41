from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from perdure.learners import ERACE
from perdure.randomness import generator


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5)
        ).double()


def cross_entropy(logits: torch.Tensor, labels: list[int], classes: set[int]) -> torch.Tensor:
    """The paper's loss, sample by sample: a softmax over the given classes."""
    losses = [
        torch.logsumexp(torch.stack([row[c] for c in sorted(classes)]), 0) - row[label]
        for row, label in zip(logits, labels, strict=True)
    ]
    return torch.stack(losses).mean()


def test_steps_match_reference_implementation() -> None:
    learner = ERACE(network(), buffer_size=9, memory_batch=5, lr=0.1, seed=2)
    reference = network()
    insertion, selection = generator(2, "reservoir"), generator(2, "replay")
    draws = torch.Generator().manual_seed(1)
    memory: list[tuple[torch.Tensor, int]] = []
    seen = 0
    for step in range(60):
        inputs = torch.randn(4, 6, dtype=torch.float64, generator=draws)
        labels = torch.randint(1 + step // 15, (4,), generator=draws)  # at first, only one class
        learner.observe(inputs, labels)
        loss = cross_entropy(reference(inputs), labels.tolist(), set(labels.tolist()))
        if memory:
            rows = torch.randperm(len(memory), generator=selection).tolist()[:5]
            replayed = reference(torch.stack([memory[row][0] for row in rows]))
            loss = loss + cross_entropy(replayed, [memory[row][1] for row in rows], set(range(5)))
        parameters = list(reference.parameters())
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for p, gradient in zip(parameters, gradients, strict=True):
                p.sub_(0.1 * gradient)
        chances = torch.rand(len(labels), dtype=torch.float64, generator=insertion).tolist()
        for sample, label, chance in zip(inputs, labels.tolist(), chances, strict=True):
            if seen < 9:
                memory.append((sample, label))
            elif (v := math.floor(chance * (seen + 1))) < 9:
                memory[v] = (sample, label)
            seen += 1
    for name, expected in reference.state_dict().items():
        torch.testing.assert_close(learner.network.state_dict()[name], expected, atol=1e-12, rtol=0)


def test_new_samples_do_not_move_the_weights_of_absent_classes() -> None:
    """With nothing to replay, only the outputs of the batch's classes learn."""
    head = nn.Linear(6, 5)
    before = head.weight.detach().clone()
    learner = ERACE(head, buffer_size=4)
    learner.observe(torch.rand(8, 6), torch.tensor([1, 3, 1, 3, 1, 3, 1, 3]))
    changed = (head.weight != before).any(1)
    assert changed.tolist() == [False, True, False, True, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"buffer_size": 0}, "buffer_size is 0"), ({"memory_batch": 0}, "memory_batch is 0")],
)
def test_invalid_arguments_are_rejected(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ERACE(nn.Linear(3, 2), **{"buffer_size": 4, **arguments})  # type: ignore[arg-type]
