"""Structures of tensors: the inputs of a network as one tensor, or as dicts and tuples of tensors.

Dicts are in the order of their keys and sequences are tuples after `as_tensors`, so that equal
structures have their tensors in the same order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

Inputs: TypeAlias = Any
"""A tensor [n, ...], or a dict or tuple, also nested, of tensors with the same first dimension."""

MAX_CHUNK = 1000
"""Samples per forward pass without gradients, if they are small."""
SMALL_INPUT = 3 * 32 * 32
MAX_GPU_CHUNK = 5000
"""Samples per forward pass without gradients on a GPU, if they are tiny."""
TINY_INPUT = 32 * 32
CHUNK_VALUES = 50 * 3 * 64 * 64
"""Values per forward pass of larger inputs: ResNet-18 then needs less than 1 GB."""
GPU_CHUNK_VALUES = 4 * CHUNK_VALUES
"""The same on a GPU, which is slow at small passes."""


def as_tensors(value: Any, name: str = "inputs") -> Inputs:
    """Turn mappings into dicts, sequences into tuples and arrays into tensors.

    Arrays share their memory with the tensors where torch supports that.

    Raises:
        ValueError: If the structure is empty or contains anything else.
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray):
        return _from_array(value, name)
    found: Inputs
    verb = "are" if name == "inputs" else "is"
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise ValueError(f"a key of {name} is not a string; expected argument names")
        found = {key: as_tensors(value[key], f"{name}[{key!r}]") for key in sorted(value)}
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        found = tuple(as_tensors(part, f"{name}[{i}]") for i, part in enumerate(value))
    else:
        remedy = ""
        if hasattr(value, "to_numpy"):  # of pandas, polars or pyarrow
            remedy = "; convert it with .to_numpy()"
        elif isinstance(value, int | float | np.number):
            remedy = "; convert a list of numbers or of rows with torch.tensor(rows)"
        raise ValueError(
            f"{name} {verb} of type {type(value).__name__}; expected a tensor, an array, or a dict "
            f"or tuple of them{remedy}"
        )
    if not found:
        raise ValueError(f"{name} {verb} an empty {type(value).__name__}; expected tensors")
    return found


def check_unmasked(values: Any, name: str) -> None:
    """Raise ValueError if a NumPy masked array masks values, which torch would read."""
    if np.ma.is_masked(values):
        raise ValueError(
            f"the array in {name} has masked values; replace them with .filled(value), or "
            "leave out their samples"
        )


def _from_array(array: np.ndarray[Any, Any], name: str) -> Tensor:
    check_unmasked(array, name)
    # Torch supports neither negative strides nor memory that it must not write to.
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise ValueError(f"torch does not support the array in {name}: {error}") from None


def leaves(inputs: Inputs) -> Iterator[Tensor]:
    """Iterate over the tensors of a structure."""
    if isinstance(inputs, Tensor):
        yield inputs
    else:
        for part in inputs.values() if isinstance(inputs, dict) else inputs:
            yield from leaves(part)


def map_leaves(function: Callable[..., Any], inputs: Inputs, *others: Inputs) -> Any:
    """Apply a function to every tensor, together with the tensors of equal structures."""
    if isinstance(inputs, dict):
        return {
            key: map_leaves(function, part, *(other[key] for other in others))
            for key, part in inputs.items()
        }
    if isinstance(inputs, tuple):
        return tuple(map_leaves(function, *parts) for parts in zip(inputs, *others, strict=True))
    return function(inputs, *others)


def length(inputs: Inputs) -> int:
    """Return the number of samples."""
    return next(leaves(inputs)).shape[0]  # len() would fix the batch size of an export


def select(inputs: Inputs, rows: slice | Tensor) -> Inputs:
    """Return the samples in the given rows."""
    return map_leaves(lambda leaf: leaf[rows], inputs)


def to_device(inputs: Inputs, device: torch.device) -> Inputs:
    """Return the samples as contiguous tensors on a device."""
    return map_leaves(lambda leaf: leaf.to(device).contiguous(), inputs)


def chunk_size(inputs: Inputs) -> int:
    """Return the samples per forward pass that keep the memory for activations bounded.

    >>> [chunk_size(torch.empty(1, 3, side, side)) for side in (32, 64, 224)]
    [1000, 50, 4]
    """
    values = sum(math.prod(leaf.shape[1:]) for leaf in leaves(inputs))
    on_gpu = next(leaves(inputs)).is_cuda
    if on_gpu and values <= TINY_INPUT:
        return MAX_GPU_CHUNK
    if values <= SMALL_INPUT:
        return MAX_CHUNK
    return max(1, (GPU_CHUNK_VALUES if on_gpu else CHUNK_VALUES) // values)


def concatenate(parts: Sequence[Inputs]) -> Inputs:
    """Join equal structures along the first dimension."""
    return map_leaves(lambda *tensors: torch.cat(tensors), *parts)


def shapes(inputs: Inputs) -> Any:
    """Return the shape of one sample: a tuple for a tensor, otherwise a structure of tuples."""
    return map_leaves(lambda leaf: tuple(leaf.shape[1:]), inputs)


def as_shape(value: Any) -> Any:
    """Return a shape in the form that `shapes` has, given lists instead of tuples, as in JSON."""
    if isinstance(value, Mapping):
        return {key: as_shape(value[key]) for key in sorted(value)}
    return tuple(part if isinstance(part, int) else as_shape(part) for part in value)


def layout(inputs: Inputs) -> str:
    """Describe the structure, dtypes and shapes of one sample.

    Examples:
        >>> layout({"mask": torch.ones(2, 5), "ids": torch.ones(2, 5, dtype=torch.int64)})
        "{'mask': float32 [5], 'ids': int64 [5]}"
    """
    if isinstance(inputs, dict):
        return "{" + ", ".join(f"{key!r}: {layout(part)}" for key, part in inputs.items()) + "}"
    if isinstance(inputs, tuple):
        return "(" + ", ".join(map(layout, inputs)) + ")"
    return f"{dtype_name(inputs.dtype)} {list(inputs.shape[1:])}"


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without the prefix "torch."."""
    return str(dtype).removeprefix("torch.")


# -- networks -------------------------------------------------------------------------------


def arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments: those of a tuple and of a dict, or one tensor."""
    if isinstance(inputs, dict):
        return (), inputs
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def call(network: nn.Module, inputs: Inputs) -> Tensor:
    """Return the logits of a network: its output, or the output's `logits`."""
    if isinstance(inputs, Tensor):
        return logits_of(network(inputs))
    positional, named = arguments(inputs)
    return logits_of(network(*positional, **named))


def logits_of(output: Any) -> Tensor:
    """Return the output of a network if it is a tensor, otherwise the logits that it contains."""
    if isinstance(output, Tensor):
        return output
    found = output.get("logits") if isinstance(output, Mapping) else None
    found = getattr(output, "logits", found)
    if not isinstance(found, Tensor):
        raise ValueError(
            f"the network returned an object of type {type(output).__name__}; expected logits "
            "[n, classes], or an object with logits"
        )
    return found


# -- states ---------------------------------------------------------------------------------


def get_structure(inputs: Inputs) -> tuple[Tensor | dict[str, Tensor], str]:
    """Return the tensors of a structure, and the structure as text; empty for a single tensor."""
    if isinstance(inputs, Tensor):
        return inputs, ""
    found = {str(i): leaf for i, leaf in enumerate(leaves(inputs))}
    numbers = iter(range(len(found)))
    return found, json.dumps(map_leaves(lambda _: next(numbers), inputs))


def load_structure(tensors: Any, text: str) -> Inputs:
    """Restore a structure from the result of `get_structure`.

    Raises:
        ValueError: If the structure does not use every tensor exactly once.
    """
    if not text:
        return tensors
    used: list[str] = []

    def build(part: Any) -> Inputs:
        if isinstance(part, dict):
            return {key: build(part[key]) for key in sorted(part)}
        if isinstance(part, list):
            return tuple(map(build, part))
        used.append(str(part))
        return tensors[used[-1]]

    found = build(json.loads(text))
    if sorted(used) != sorted(tensors):
        raise ValueError(f"the structure uses {len(used)} tensors; expected each of {len(tensors)}")
    return found
