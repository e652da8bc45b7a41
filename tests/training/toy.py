"""Small streams and learners with predictable steps, and a callback that records its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perdure import CLSER, ER, SGD, Learner, Samples, Stream, from_tensors
from perdure.state import State
from perdure.streams import CropFlip
from perdure.training import Callback, Progress, Run

CLASSES = 8
GROUPS = [(0, 1), (2, 3), (4, 5), (6, 7)]
PER_TASK = 24


def inputs(count: int, seed: int) -> Samples:
    """Noisy inputs [count, 1, 4, 4] with two brighter pixels per class, and classes in turn."""
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
    """A network with dropout, which draws from torch's global generator."""
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


class RecordingLearner(SGD):
    """Records its calls; its loss is NaN at step `nan_at`."""

    needs_boundaries = True

    def __init__(self, network: nn.Module, *, nan_at: int = 0, lr: float = 0.1) -> None:
        super().__init__(network, lr=lr)
        self.nan_at = nan_at
        self.calls: list[str] = []
        self.ended: list[Samples] = []

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        self.calls.append(f"step on {sorted(set(labels.tolist()))}")
        x, y = self.prepare(Samples(inputs, labels))
        loss = F.cross_entropy(self.network(x), y)
        self.optimizer_step(loss * float("nan") if int(self.steps) + 1 == self.nan_at else loss)

    def end_task(self, samples: Samples) -> None:
        self.calls.append("end of task")
        self.ended.append(samples)


class Recorder(Callback):
    """Records the calls that it receives."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []
        self.metrics: list[tuple[int, dict[str, float]]] = []
        self.tasks: list[tuple[int, int]] = []
        self.progress: list[Progress] = []
        self.checkpoints: list[int] = []

    def on_step(self, run: Run) -> None:
        self.steps.append((run.seed, run.step))

    def on_metrics(self, run: Run, metrics: Mapping[str, float]) -> None:
        self.metrics.append((run.step, dict(metrics)))

    def on_task(self, run: Run, task: int) -> None:
        self.tasks.append((task, run.step))

    def on_progress(self, progress: Progress) -> None:
        self.progress.append(progress)

    def on_checkpoint(self, runs: Sequence[Run]) -> None:
        self.checkpoints.append(runs[0].step)


def assert_same(one: State, other: State, path: str = "") -> None:
    """Two states are equal bit for bit."""
    assert one.keys() == other.keys(), path
    for key, value in one.items():
        if isinstance(value, dict):
            assert_same(value, other[key], f"{path}{key}/")
        elif isinstance(value, Tensor):
            assert value.dtype == other[key].dtype, f"{path}{key}"
            assert torch.equal(value, other[key]), f"{path}{key}"
        else:
            assert value == other[key], f"{path}{key}"
