"""Checks of the arguments and batches that users pass to a learner."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from perdure.records import label_remedy
from perdure.structures import (
    Inputs,
    as_tensors,
    check_unmasked,
    dtype_name,
    leaves,
    length,
    map_leaves,
)

Augment = Callable[[Any, torch.Generator], Any]
"""Maps raw inputs, a tensor or a structure of tensors, and a generator to augmented ones."""

Labels: TypeAlias = Tensor | npt.NDArray[Any] | Sequence[int]
"""Integer class labels [n]."""

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_LABELS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_INPUTS = (*_FLOATS, *_LABELS, torch.bool)
_LARGEST_PIXEL = 255
_LARGEST_SCALED = 16
"""Standardised images have smaller values than this."""


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


def check_device(device: torch.device) -> torch.device:
    """Return the device of a network; ValueError if learners cannot compute on it."""
    if device.type not in ("cpu", "cuda"):
        raise ValueError(
            f"the network is on the device {device}; expected the CPU or a CUDA GPU: move it there "
            "before you create the learner"
        )
    return device


def read_inputs(inputs: Any, dtype: torch.dtype) -> Inputs:
    """Return inputs as a structure of dense tensors, detached from the caller's graph.

    Args:
        inputs: Tensors or arrays, or dicts and tuples of them.
        dtype: Floating dtype of the network, which replaces float64.

    Raises:
        ValueError: If the inputs are no such structure, or empty.
    """
    found = as_tensors(inputs)
    if isinstance(found, Tensor) and found.ndim < 2:
        raise ValueError(f"inputs are {describe(found)}; expected a tensor [n, ...]")
    sizes = set()
    for leaf in leaves(found):
        _check_dense("inputs", leaf)
        if leaf.dtype not in _INPUTS:
            names = ", ".join(map(dtype_name, _INPUTS))
            raise ValueError(f"inputs have dtype {dtype_name(leaf.dtype)}; expected one of {names}")
        if not leaf.ndim:
            raise ValueError("inputs contain a scalar; expected tensors [n, ...]")
        sizes.add(len(leaf))
    if len(sizes) > 1:
        raise ValueError(
            f"inputs have tensors of {' and '.join(map(str, sorted(sizes)))} samples; expected a "
            "common first dimension"
        )
    if 0 in sizes:
        raise ValueError("the batch is empty; expected at least one sample")
    return map_leaves(lambda leaf: _plain(leaf, dtype), found)


def _plain(leaf: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor that the caller's graph does not contain, in the network's precision."""
    if leaf.dtype == torch.float64 and dtype != torch.float64:
        leaf = leaf.to(dtype)
    if leaf.is_inference() and not torch.is_inference_mode_enabled():
        leaf = leaf.clone()  # autograd refuses inference tensors
    return leaf.detach() if leaf.requires_grad else leaf


def read_labels(labels: Labels, inputs: Inputs) -> Tensor:
    """Return labels as a tensor; ValueError unless they are integers, one for each input."""
    if isinstance(labels, Tensor):
        found = labels
    elif isinstance(labels, list | tuple) or hasattr(labels, "__array__"):
        check_unmasked(labels, "labels")
        try:
            array = np.asarray(labels)
        except ValueError as error:  # lists of different lengths
            raise ValueError(f"labels cannot be read: {error}") from None
        if array.dtype.kind not in "biuf":
            raise ValueError(
                f"labels have dtype {array.dtype}; expected integers, so number the classes from 0"
            )
        found = as_tensors(array, "labels")
    else:
        raise ValueError(f"labels are {describe(labels)}; expected one integer per sample, [n]")
    _check_dense("labels", found)
    if found.ndim != 1:
        raise ValueError(
            f"labels are {describe(found)}; expected one integer per sample, [n]"
            f"{label_remedy(found)}"
        )
    if found.dtype not in _LABELS:
        names = ", ".join(map(dtype_name, _LABELS))
        raise ValueError(
            f"labels have dtype {dtype_name(found.dtype)}; expected integers, one of {names}"
            f"{label_remedy(found)}"
        )
    if len(found) != length(inputs):
        hint = "; the network gets the parts of a list or tuple as several arguments"
        raise ValueError(
            f"the batch has {length(inputs)} inputs but {len(found)} labels"
            f"{hint if isinstance(inputs, tuple) else ''}"
        )
    return found


def check_labels(labels: Tensor, classes: int | None) -> None:
    """Raise ValueError unless labels range from 0 to `classes` - 1. Waits for the device.

    Without `classes`, any label from 0 is allowed.
    """
    low, high = labels.aminmax()
    if classes is None:
        if low < 0:
            raise ValueError(f"labels range from {int(low)} to {int(high)}; expected 0 or more")
    elif low < 0 or high >= classes:
        remedy = "" if low < 0 else "; create the learner with grow=True to add outputs"
        if low >= 1 and high == classes > 1:
            remedy = "; if classes are numbered from 1, subtract 1 from the labels"
        elif low == 0 and high == classes == 1:
            remedy = "; two classes need a network with two outputs"
        raise ValueError(
            f"labels range from {int(low)} to {int(high)}; the network has {count_outputs(classes)}"
            f", so expected {f'0 to {classes - 1}' if classes > 1 else '0'}{remedy}"
        )


def count_outputs(number: int) -> str:
    """Return a number of outputs, as text.

    >>> count_outputs(1), count_outputs(2)
    ('1 output', '2 outputs')
    """
    return f"{number} output{'s' * (number != 1)}"


def check_parameters(network: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a network that are trained; ValueError if there are none.

    Also refuses networks of which no learner can be created.
    """
    if any(isinstance(module, torch.jit.ScriptModule) for module in network.modules()):
        raise ValueError(
            "the network was compiled with torch.jit, and a learner cannot copy its state; pass "
            "the network that was compiled"
        )
    found = [p for p in network.parameters() if p.requires_grad]
    if not found:
        raise ValueError("the network has no parameters to train; frozen ones do not count")
    if any(map(nn.parameter.is_lazy, found)):
        raise ValueError(
            "the network has layers without a size, such as nn.LazyLinear; pass one batch through "
            "the network before you create the learner"
        )
    return found


def check_file(path: Path) -> None:
    """Raise ValueError unless a file may be written here, as far as its folder shows."""
    if not path.name or path.is_dir():
        raise ValueError(f"{str(path)!r} is a folder; expected the name of a file")
    if not path.parent.is_dir():
        raise ValueError(f"the folder {path.parent} does not exist; create it, then save {path}")


def has_unscaled_images(inputs: Inputs) -> bool:
    """Return whether network inputs look like float images with values from 0 to 255."""
    for leaf in leaves(inputs):
        if leaf.is_floating_point() and leaf.ndim >= 3:
            low, high = leaf.aminmax()
            if low >= 0 and _LARGEST_SCALED < high <= _LARGEST_PIXEL:
                return True
    return False


def find_unscaled_column(inputs: Inputs, network: nn.Module) -> int | None:
    """Return the column of the largest magnitude if inputs are rows of numbers and it is large.

    The mean magnitude of a batch is far below the limit for standardised columns, even with an
    outlier. Networks that normalise their inputs first accept any magnitude.
    """
    table = isinstance(inputs, Tensor) and inputs.ndim == 2 and inputs.shape[1] > 0
    if not (table and inputs.is_floating_point()):
        return None
    layers = (module for module in network.modules() if not list(module.children()))
    if isinstance(next(layers), _BatchNorm | nn.LayerNorm):
        return None
    means = inputs.abs().mean(dim=0, dtype=torch.float32).nan_to_num(0, posinf=0)
    largest, column = means.max(dim=0)
    return int(column) if largest > _LARGEST_PIXEL else None


def _check_dense(what: str, tensor: Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise ValueError(f"{what} are a sparse or nested tensor; expected a dense one")
    if tensor.device.type == "meta":
        raise ValueError(f"{what} are on the meta device and have no values")


def describe(value: object) -> str:
    """Describe an unexpected argument."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, type):
        return f"the class {value.__name__}, not an instance of it"
    return f"of type {type(value).__name__}"
