"""A small network and tasks that tests of several methods share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from perdure.learners import Learner
from perdure.records import Samples


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def task(classes: tuple[int, ...], seed: int, count: int = 200) -> Samples:
    """Noisy points around some of four centres."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes)[torch.randint(len(classes), (count,), generator=draws)]
    noise = torch.randn(count, 8, generator=draws)
    return Samples(0.5 + torch.eye(4).repeat(1, 2)[labels] + 0.3 * noise, labels)


def batches(samples: Samples, size: int = 10) -> list[tuple[Tensor, Tensor]]:
    inputs, labels, _ = samples
    return list(zip(torch.split(inputs, size), torch.split(labels, size), strict=True))


def learn(learner: Learner, samples: Samples, size: int = 10) -> None:
    """Train on a whole task and end it."""
    for x, y in batches(samples, size):
        learner.observe(x, y)
    learner.end_task(samples)
