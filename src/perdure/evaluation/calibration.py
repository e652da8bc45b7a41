"""Calibration: whether a predictor is right as often as it says (Guo et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BINS = 15


@dataclass(frozen=True)
class Bin:
    """The answers whose confidence lies from `lower` to below `upper` (the last: up to 1)."""

    lower: float
    upper: float
    count: int
    accuracy: float | None
    """Share of them that is right; None if there are none."""
    confidence: float | None
    """Their mean confidence; None if there are none."""


@dataclass(frozen=True)
class Calibration:
    """A reliability diagram and the figure that sums it up."""

    ece: float
    """Expected calibration error: |accuracy − confidence|, weighted by count, as a share."""
    bins: list[Bin]


def calibration(scores: Tensor, labels: Tensor, *, bins: int = BINS) -> Calibration:
    """From scores [n, classes] and labels [n]; the confidence is the largest softmax output.

    In float64: float32 calls a margin of 17 certain.

    >>> scores = torch.tensor([[0.0, 3.0], [0.0, 3.0], [3.0, 0.0], [3.0, 0.0]])
    >>> found = calibration(scores, torch.tensor([1, 1, 0, 1]), bins=2)
    >>> round(found.ece, 3), [part.accuracy for part in found.bins]
    (0.203, [None, 0.75])
    """
    confidence, answer = scores.double().softmax(dim=1).max(dim=1)
    right = (answer == labels).double()
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=scores.device)
    place = (torch.bucketize(confidence, edges, right=True) - 1).clamp_(max=bins - 1)
    counts, sure, correct = (
        torch.zeros(bins, dtype=torch.float64, device=scores.device)
        .index_add_(0, place, values)
        .tolist()
        for values in (torch.ones_like(right), confidence, right)
    )
    found = [
        Bin(
            lower=lower,
            upper=upper,
            count=int(count),
            accuracy=hits / count if count else None,
            confidence=total / count if count else None,
        )
        for lower, upper, count, hits, total in zip(
            edges[:-1].tolist(), edges[1:].tolist(), counts, correct, sure, strict=True
        )
    ]
    gaps = sum(abs(hits - total) for hits, total in zip(correct, sure, strict=True))
    return Calibration(ece=gaps / len(labels), bins=found)
