"""Small streams and learners whose every step can be foreseen."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perdure import CLSER, ER, SGD, Learner, Samples, Stream, from_tensors
from perdure.streams import CropFlip
from perdure.training import Run

CLASSES = 8
GROUPS = [(0, 1), (2, 3), (4, 5), (6, 7)]
PER_TASK = 24


def inputs(count: int, seed: int) -> Samples:
    """Noisy images [count, 1, 4, 4] with the classes in turn, one bright row for each two."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    pixels = torch.randint(0, 128, (count, 1, 4, 4), generator=draws, dtype=torch.uint8)
    pixels.view(count, 8, 2)[torch.arange(count), labels] += 127
    return Samples(pixels, labels)


def split(**other: Any) -> Stream:
    """Four tasks of two classes, 24 samples each."""
    train, test = inputs(len(GROUPS) * PER_TASK, 0), inputs(40, 1)
    return from_tensors(*train[:2], groups=GROUPS, test=test, **other)


def domain(tasks: int = 3) -> Stream:
    """The same classes in every task."""
    train = inputs(tasks * PER_TASK, 0)
    rows = torch.arange(len(train.labels)).chunk(tasks)
    return from_tensors(*train[:2], tasks=rows, tests=[inputs(16, t + 1) for t in range(tasks)])


def network(seed: int = 0) -> nn.Module:
    """With dropout, which draws from torch's global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.Dropout(0.2), nn.Linear(12, 8))


def learner(kind: str, seed: int = 0) -> Learner:
    if kind == "sgd":
        return SGD(network(seed), seed=seed, augment=CropFlip(1))
    if kind == "er":
        return ER(network(seed), buffer_size=20, memory_batch=6, seed=seed, augment=CropFlip(1))
    return CLSER(network(seed), buffer_size=20, memory_batch=6, seed=seed, augment=CropFlip(1))


def run(kind: str = "sgd", seed: int = 0, stream: Stream | None = None, **other: Any) -> Run:
    return Run(learner(kind, seed), stream or split(), seed=seed, **{"batch": 6, **other})


class Listener(SGD):
    """Remembers what it was shown and told; its loss is not a number at step `poison`."""

    needs_boundaries = True

    def __init__(self, network: nn.Module, *, poison: int = 0, **common: Any) -> None:
        super().__init__(network, **common)
        self.poison = poison
        self.heard: list[str] = []
        self.ended: list[Samples] = []

    def step(self, images: Tensor, labels: Tensor) -> None:
        self.heard.append(f"step on {sorted(set(labels.tolist()))}")
        x, y = self.prepare(Samples(images, labels))
        loss = F.cross_entropy(self.network(x), y)
        self.optimizer_step(loss * float("nan") if int(self.steps) + 1 == self.poison else loss)

    def end_task(self, samples: Samples) -> None:
        self.heard.append("end of task")
        self.ended.append(samples)
