"""How often the networks of a learner answer alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Agreement:
    """The share of samples on which two predictors answer the same class, for every two."""

    predictors: list[str]
    matrix: list[list[float]]


def agreement(scores: Mapping[str, Tensor]) -> Agreement:
    """From each predictor's scores [n, classes] for the same samples.

    >>> import torch
    >>> agreement({"a": torch.eye(4), "b": torch.eye(4)[[0, 1, 2, 2]]}).matrix
    [[1.0, 0.75], [0.75, 1.0]]
    """
    answers = [found.argmax(dim=1) for found in scores.values()]
    matrix = [[float((a == b).double().mean()) for b in answers] for a in answers]
    return Agreement(list(scores), matrix)
