"""Networks for inference."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from perdure.structures import Inputs, as_tensors, call, map_leaves
from perdure.undo import on_failure

Normalise = Callable[[Any], Any]
"""Maps raw inputs, a tensor or a structure of tensors, to network inputs."""

_enable_gradients = torch._C._set_grad_enabled


class Predictor:
    """A network for inference: maps raw inputs to scores, in evaluation mode.

    Args:
        module: Holds every weight that the scores depend on.
        normalise: Maps raw inputs to the inputs of `module`.
    """

    def __init__(self, module: nn.Module, normalise: Normalise) -> None:
        self.module = module
        self.normalise = normalise

    def __call__(self, inputs: Inputs) -> Tensor:
        """Return scores [n, classes]; a softmax turns them into probabilities.

        Args:
            inputs: Raw inputs as for `observe`: a tensor [n, ...], or a dict or tuple of them.
        """
        # Not `with torch.no_grad(), evaluation_mode(…)`: Ctrl-C can interrupt how they end, but not
        # this single call.
        restore = _restoring(self.module)
        try:
            _enable_gradients(False)
            self.module.eval()
            return call(self.module, self.normalise(as_tensors(inputs)))
        finally:
            deque(restore, 0)


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


def _restoring(module: nn.Module) -> Iterator[object]:
    """Return calls in C that restore the mode of every submodule and of autograd."""
    training = [part for part in module.modules() if part.training]
    on_failure(_set_training, training)
    modes = [partial(_setter(part), part, "training", True) for part in training]
    return map(operator.call, [*modes, partial(_enable_gradients, torch.is_grad_enabled())])


def _setter(part: nn.Module) -> Callable[[Any, str, Any], None]:
    """Return a function in C that sets an attribute; a scripted module needs its own, in Python."""
    return setattr if isinstance(part, torch.jit.ScriptModule) else object.__setattr__


def _set_training(parts: list[nn.Module]) -> None:
    for part in parts:
        part.training = True


def unit_range(inputs: Inputs) -> Inputs:
    """Scale uint8 inputs to floats in [0, 1] and return other inputs unchanged."""
    return map_leaves(_unit_range, inputs)


def _unit_range(leaf: Tensor) -> Tensor:
    return leaf.to(torch.float32).div_(255) if leaf.dtype == torch.uint8 else leaf
