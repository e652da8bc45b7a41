"""Networks for inference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Normalise = Callable[[Tensor], Tensor]


class Predictor:
    """A network for inference: maps raw inputs to scores, in evaluation mode.

    Args:
        module: Holds every weight that the scores depend on.
        normalise: Maps raw inputs to the inputs of `module`.
    """

    def __init__(self, module: nn.Module, normalise: Normalise) -> None:
        self.module = module
        self.normalise = normalise

    @torch.no_grad()
    def __call__(self, inputs: Tensor) -> Tensor:
        """Return scores [n, classes]; a softmax turns them into probabilities.

        Args:
            inputs: Raw inputs [n, ...].
        """
        with evaluation_mode(self.module):
            return self.module(self.normalise(inputs))  # type: ignore[no-any-return]


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Switch a module to evaluation mode and restore the mode of every submodule afterwards."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def unit_range(inputs: Tensor) -> Tensor:
    """Scale uint8 inputs to floats in [0, 1] and return float inputs unchanged."""
    return inputs.to(torch.float32).div_(255) if inputs.dtype == torch.uint8 else inputs
