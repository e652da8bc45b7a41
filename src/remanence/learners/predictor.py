"""A network that answers: evaluation, analyses and users see learners through this alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Predictor:
    """Raw images to scores [n, classes], in evaluation mode, leaving the module as it was.

    `module` holds every weight that the answer depends on, so saving its state keeps the
    predictor.
    """

    def __init__(self, module: nn.Module, normalise: Callable[[Tensor], Tensor]) -> None:
        self.module = module
        self.normalise = normalise

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Scores of raw images; the largest is the prediction, softmax makes them probabilities."""
        training = [m for m in self.module.modules() if m.training]
        self.module.eval()
        try:
            return self.module(self.normalise(images))  # type: ignore[no-any-return]
        finally:
            for module in training:
                module.training = True
