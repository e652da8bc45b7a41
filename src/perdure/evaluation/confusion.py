"""Which class is taken for which."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Confusion:
    """Test samples by their class and by the answer."""

    classes: list[int]
    counts: list[list[int]]
    """A row for each true class, a column for each answer."""


def confusion(scores: Tensor, labels: Tensor) -> Confusion:
    """From scores [n, classes] and labels [n].

    >>> confusion(torch.eye(3)[[0, 1, 1]], torch.tensor([0, 1, 2])).counts
    [[1, 0, 0], [0, 1, 0], [0, 1, 0]]
    """
    classes = scores.shape[1]
    pairs = labels * classes + scores.argmax(dim=1)
    counts = torch.bincount(pairs, minlength=classes**2).view(classes, classes)
    return Confusion(list(range(classes)), counts.tolist())
