"""Checks of the batches that users pass to a learner."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class InputSpec(NamedTuple):
    """What a network accepts and returns, known after the first batch."""

    shape: tuple[int, ...]
    """Shape of one input."""
    dtype: str
    classes: int
    """Number of logits."""


def check_inputs(inputs: Tensor, spec: InputSpec | None, *, values: bool) -> None:
    """Raise ValueError unless inputs are a non-empty tensor like earlier ones, without NaN."""
    if not isinstance(inputs, Tensor) or inputs.ndim < 2:
        raise ValueError(f"inputs are {describe(inputs)}; expected a tensor [n, ...]")
    if inputs.dtype != torch.uint8 and not inputs.dtype.is_floating_point:
        raise ValueError(f"inputs have dtype {inputs.dtype}; expected uint8 or floats")
    if len(inputs) == 0:
        raise ValueError("the batch is empty; expected at least one sample")
    shape = tuple(inputs.shape[1:])
    if spec and shape != spec.shape:
        raise ValueError(f"inputs have shape {shape}; earlier inputs had {spec.shape}")
    if spec and str(inputs.dtype) != spec.dtype:
        raise ValueError(f"inputs have dtype {inputs.dtype}; earlier inputs had {spec.dtype}")
    if values and inputs.dtype.is_floating_point and not inputs.isfinite().all():
        raise ValueError("inputs contain infinite or NaN values")


def check_labels(labels: Tensor, count: int, classes: int | None, *, values: bool) -> None:
    """Raise ValueError unless labels are a tensor of `count` integers from 0 to `classes` - 1.

    Without `classes`, any label from 0 is allowed.
    """
    if not isinstance(labels, Tensor) or labels.ndim != 1:
        raise ValueError(f"labels are {describe(labels)}; expected a tensor of rank 1")
    if labels.dtype.is_floating_point or labels.dtype in (torch.bool, torch.complex64):
        raise ValueError(f"labels have dtype {labels.dtype}; expected integers")
    if len(labels) != count:
        raise ValueError(f"the batch has {count} inputs but {len(labels)} labels")
    if values:
        low, high = labels.aminmax()
        if classes is None and low < 0:
            raise ValueError(f"labels range from {int(low)} to {int(high)}; expected 0 or more")
        if classes is not None and (low < 0 or high >= classes):
            raise ValueError(
                f"labels range from {int(low)} to {int(high)}; the network has {classes} outputs, "
                f"so expected 0 to {classes - 1}"
            )


def describe(value: object) -> str:
    """Describe an unexpected argument."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"of type {type(value).__name__}"
