"""Checks of the arguments of learners."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

Augment = Callable[[Any, torch.Generator], Any]
"""Maps raw inputs, a tensor or a structure of tensors, and a generator to augmented ones."""


def check_counts(**values: int) -> None:
    """Raise ValueError unless all arguments are at least 1."""
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; expected 1 or more")


def check_weights(**values: float) -> None:
    """Raise ValueError unless all arguments are finite and not negative."""
    for name, value in values.items():
        if not 0 <= value < float("inf"):
            raise ValueError(f"{name} is {value}; expected a finite number, 0 or more")


def check_optimizer(optimizer: Optimizer, parameters: list[nn.Parameter]) -> None:
    """Raise ValueError unless the optimizer trains these parameters and needs no closure."""
    if not isinstance(optimizer, Optimizer):
        raise ValueError(
            f"optimizer is {optimizer!r}; expected an instance, such as "
            "torch.optim.Adam(network.parameters())"
        )
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"{type(optimizer).__name__}.step needs a closure; expected an optimizer that does not"
        )
    given = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not given <= {id(p) for p in parameters}:
        raise ValueError(
            "the optimizer has parameters that do not belong to the network; create it from "
            "network.parameters()"
        )
