"""Calibration: whether accuracy equals confidence (Guo et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BINS = 15


@dataclass(frozen=True)
class Bin:
    """Predictions with a confidence in [lower, upper); the last bin includes 1."""

    lower: float
    upper: float
    count: int
    accuracy: float | None
    """Share of correct predictions; None for an empty bin."""
    confidence: float | None
    """Mean confidence; None for an empty bin."""


@dataclass(frozen=True)
class Calibration:
    """Reliability diagram and expected calibration error."""

    ece: float
    """Expected calibration error: mean of |accuracy − confidence| of the bins, by their counts."""
    bins: list[Bin]


def calibration(scores: Tensor, labels: Tensor, *, bins: int = BINS) -> Calibration:
    """Compare confidence, the largest softmax output, with accuracy, in bins of equal width.

    Computed in float64: in float32 a difference of 17 between logits already gives confidence 1.

    >>> scores = torch.tensor([[0.0, 3.0], [0.0, 3.0], [3.0, 0.0], [3.0, 0.0]])
    >>> found = calibration(scores, torch.tensor([1, 1, 0, 1]), bins=2)
    >>> round(found.ece, 3), [part.accuracy for part in found.bins]
    (0.203, [None, 0.75])
    """
    confidence, predicted = scores.double().softmax(dim=1).max(dim=1)
    correct = (predicted == labels).double()
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=scores.device)
    bin_of = (torch.bucketize(confidence, edges, right=True) - 1).clamp_(max=bins - 1)
    counts, confidences, hits = (
        torch.zeros(bins, dtype=torch.float64, device=scores.device)
        .index_add_(0, bin_of, values)
        .tolist()
        for values in (torch.ones_like(correct), confidence, correct)
    )
    found = [
        Bin(
            lower=lower,
            upper=upper,
            count=int(count),
            accuracy=hit / count if count else None,
            confidence=total / count if count else None,
        )
        for lower, upper, count, hit, total in zip(
            edges[:-1].tolist(), edges[1:].tolist(), counts, hits, confidences, strict=True
        )
    ]
    gaps = sum(abs(hit - total) for hit, total in zip(hits, confidences, strict=True))
    return Calibration(ece=gaps / len(labels), bins=found)
