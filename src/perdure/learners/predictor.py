"""Networks for inference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from perdure.structures import Inputs, as_tensors, call, map_leaves
from perdure.undo import on_failure

Normalise = Callable[[Any], Any]
"""Maps raw inputs, a tensor or a structure of tensors, to network inputs."""


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
    def __call__(self, inputs: Inputs) -> Tensor:
        """Return scores [n, classes]; a softmax turns them into probabilities.

        Args:
            inputs: Raw inputs as for `observe`: a tensor [n, ...], or a dict or tuple of them.
        """
        with evaluation_mode(self.module):
            return call(self.module, self.normalise(as_tensors(inputs)))


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Switch a module to evaluation mode and restore the mode of every submodule afterwards."""
    training = [part for part in module.modules() if part.training]
    on_failure(_set_training, training)
    try:
        module.eval()
        yield
    finally:
        _set_training(training)


def _set_training(parts: list[nn.Module]) -> None:
    for part in parts:
        part.training = True


def unit_range(inputs: Inputs) -> Inputs:
    """Scale uint8 inputs to floats in [0, 1] and return other inputs unchanged."""
    return map_leaves(_unit_range, inputs)


def _unit_range(leaf: Tensor) -> Tensor:
    return leaf.to(torch.float32).div_(255) if leaf.dtype == torch.uint8 else leaf
