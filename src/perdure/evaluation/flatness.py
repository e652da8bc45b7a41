"""Flatness of minima: accuracy and loss under noise on the weights (Section 6.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perdure.evaluation.accuracy import OnScored, predict_rows
from perdure.evaluation.metrics import mean_std
from perdure.learners import Predictor
from perdure.randomness import generator
from perdure.records import Samples, join
from perdure.streams import ComposedTask, Task

SIGMAS = (0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15)
DRAWS = 5
MAX_COLLECTED = 100_000
"""Samples read from a task that composes its batches, which may be endless."""


@dataclass(frozen=True)
class Flatness:
    """Accuracy (percent) and cross-entropy on the same samples, for each noise level."""

    sigmas: list[float]
    """Noise levels: standard deviations of the noise."""
    draws: int
    """Number of draws of the noise."""
    samples: int
    """Number of samples."""
    accuracy: list[float]
    """Mean over the draws."""
    accuracy_std: list[float | None]
    """Standard deviation over the draws; None for a single draw."""
    loss: list[float | None]
    """Mean over the draws; None if not finite."""
    loss_std: list[float | None]
    """Standard deviation over the draws; None for a single draw or if not finite."""


def flatness(
    predictor: Predictor,
    samples: Samples,
    *,
    sigmas: Sequence[float] = SIGMAS,
    draws: int = DRAWS,
    noise: torch.Generator,
    on_scored: OnScored = lambda samples: None,
) -> Flatness:
    """Evaluate a predictor with σ·ε added to all parameters, ε being standard normal.

    Each draw of ε is used for all noise levels, so that curves are smooth. Buffers (BatchNorm's
    running statistics, iCaRL's class means) are not perturbed. The weights are restored. `noise`
    is a CPU generator: the same state gives the same noise on any device and for all networks of
    the same shape.
    """
    module = predictor.module
    rows = torch.arange(len(samples.labels), device=samples.labels.device)
    results: dict[float, list[tuple[float, float]]] = {sigma: [] for sigma in sigmas}
    for _ in range(draws):
        epsilon = [torch.randn(p.shape, generator=noise).to(p) for p in module.parameters()]
        for sigma, found in results.items():
            with _perturbed(module, epsilon, sigma):
                scores = predict_rows(predictor, samples.inputs, rows, on_scored=on_scored).float()
            correct = int((scores.argmax(dim=1) == samples.labels).sum())
            loss = float(F.cross_entropy(scores, samples.labels))
            found.append((100 * correct / len(rows), loss))
    accuracies, losses = (
        [mean_std([pair[i] for pair in found]) for found in results.values()] for i in range(2)
    )
    return Flatness(
        sigmas=list(sigmas),
        draws=draws,
        samples=len(samples.labels),
        accuracy=[mean for mean, _ in accuracies],
        accuracy_std=[std for _, std in accuracies],
        loss=[_if_finite(mean) for mean, _ in losses],
        loss_std=[_if_finite(std) for _, std in losses],
    )


@contextmanager
def _perturbed(module: nn.Module, epsilon: Sequence[Tensor], sigma: float) -> Iterator[None]:
    """Within the block, `sigma` times the noise is added to every parameter."""
    parameters = list(module.parameters())
    before = [p.detach().clone() for p in parameters]
    try:
        with torch.no_grad():
            for p, e in zip(parameters, epsilon, strict=True):
                p.add_(e, alpha=sigma)
        yield
    finally:
        with torch.no_grad():
            for p, b in zip(parameters, before, strict=True):
                p.copy_(b)


def _if_finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def training_samples(tasks: Sequence[Task], count: int, *, batch: int, seed: int) -> Samples:
    """Draw training samples with equal probability, without replacement, in the order of the tasks.

    All samples are returned if there are fewer. `batch` is for tasks that compose their batches.
    """
    sources = [
        _source(task, batch, generator(seed, f"composition {number}"))
        for number, task in enumerate(tasks)
    ]
    total = sum(size for size, _ in sources)
    draws = generator(seed, "training samples")
    chosen = torch.randperm(total, generator=draws)[:count].sort().values
    parts, start = [], 0
    for task, (size, samples) in zip(tasks, sources, strict=True):
        rows = chosen[(chosen >= start) & (chosen < start + size)] - start
        if len(rows):
            source = samples()
            parts.append(source.rows(rows.to(source.labels.device)))
        task.release()
        start += size
    return join(*parts)


def _source(task: Task, batch: int, order: torch.Generator) -> tuple[int, Callable[[], Samples]]:
    """The number of samples of a task, and a function that returns them."""
    if not isinstance(task, ComposedTask):
        size = task.steps(1)
        assert size is not None  # known for a task with a set of samples
        return size, task.samples
    parts: list[Samples] = []
    count = 0
    for part in task.epoch(batch, order):
        parts.append(part)
        count += len(part.labels)
        if count >= MAX_COLLECTED:
            break
    collected = join(*parts)
    return count, lambda: collected
