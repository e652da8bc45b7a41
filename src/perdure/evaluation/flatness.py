"""Flat minima: accuracy and loss under noise on the weights (Section 6.1)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perdure.evaluation.answers import scores_of
from perdure.evaluation.metrics import mean_std
from perdure.learners import Predictor
from perdure.records import Samples

SIGMAS = (0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15)
DRAWS = 5


@dataclass(frozen=True)
class Flatness:
    """Accuracy (percent) and cross-entropy on the same samples, by the strength of the noise."""

    sigmas: list[float]
    """Standard deviations of the noise."""
    draws: int
    samples: int
    accuracy: list[float]
    """Mean over the draws, for each strength; so are the losses."""
    accuracy_std: list[float | None]
    """Over the draws; None for a single one."""
    loss: list[float | None]
    """None where a loss was infinite or not a number."""
    loss_std: list[float | None]


def flatness(
    predictor: Predictor,
    samples: Samples,
    *,
    sigmas: Sequence[float] = SIGMAS,
    draws: int = DRAWS,
    noise: torch.Generator,
) -> Flatness:
    """Add σ·ε to every parameter, ε being standard normal and independent, and look again.

    Each draw of ε serves all strengths, so a curve is not jagged by chance. Buffers (BatchNorm's
    running statistics, iCaRL's class means) stay as they are. `noise` is a CPU generator: the same
    one gives the same draws on any device, and to networks of the same shape. The weights are
    left as they were found.
    """
    module = predictor.module
    found = {sigma: _Found([], []) for sigma in sigmas}
    for _ in range(draws):
        epsilon = [torch.randn(p.shape, generator=noise).to(p) for p in module.parameters()]
        for sigma, seen in found.items():
            with perturbed(module, epsilon, sigma):
                seen.look(predictor, samples)
    return Flatness(
        sigmas=list(sigmas),
        draws=draws,
        samples=len(samples.labels),
        accuracy=[mean_std(seen.accuracy)[0] for seen in found.values()],
        accuracy_std=[mean_std(seen.accuracy)[1] for seen in found.values()],
        loss=[_if_finite(mean_std(seen.loss)[0]) for seen in found.values()],
        loss_std=[_if_finite(mean_std(seen.loss)[1]) for seen in found.values()],
    )


@dataclass
class _Found:
    accuracy: list[float]
    loss: list[float]

    def look(self, predictor: Predictor, samples: Samples) -> None:
        rows = torch.arange(len(samples.labels), device=samples.labels.device)
        scores = scores_of(predictor, samples.inputs, rows).float()
        right = int((scores.argmax(dim=1) == samples.labels).sum())
        self.accuracy.append(100 * right / len(rows))
        self.loss.append(float(F.cross_entropy(scores, samples.labels)))


@contextmanager
def perturbed(module: nn.Module, epsilon: Sequence[Tensor], sigma: float) -> Iterator[None]:
    """Inside, every parameter is moved by `sigma` times its noise."""
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
