"""A network that answers: evaluation, analyses and users see learners through this alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
    def __call__(self, inputs: Tensor) -> Tensor:
        """Scores of raw images; the largest is the prediction, softmax makes them probabilities."""
        with answering(self.module):
            return self.module(self.normalise(inputs))  # type: ignore[no-any-return]


@contextmanager
def answering(module: nn.Module) -> Iterator[None]:
    """Inside, the module is in evaluation mode: each output depends on its own input alone."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True
