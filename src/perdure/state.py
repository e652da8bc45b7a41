"""States as nested dictionaries of tensors and plain values, and the file format for them.

State files are safetensors; values that are not tensors are sorted JSON under one metadata key.
Equal states give equal bytes, and reading a file never executes code from it.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.optim import Optimizer

from perdure.files import memory_bytes, open_regular, write_atomic

State = dict[str, Any]
"""A nested dictionary with string keys; leaves are tensors or JSON values."""

FORMAT = 1
_METADATA_KEY = "perdure"
_DTYPES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Names of dtypes in the safetensors format, in the order of their tensors in a file."""


@runtime_checkable
class Stateful(Protocol):
    """An object whose state can be saved and restored."""

    def state_dict(self) -> State:
        """Return everything needed to resume."""

    def load_state_dict(self, state: State, /) -> None:
        """Restore a state."""


def is_stateful(value: object) -> bool:
    """Return whether `value` has a state to save."""
    return isinstance(value, Tensor | torch.Generator | nn.Module | Optimizer | Stateful)


def get_state(part: object) -> Any:
    """Return a copy of the state of a tensor, generator, module, optimizer or `Stateful`."""
    if isinstance(part, Tensor):
        return part.detach().clone()
    if isinstance(part, torch.Generator):
        return part.get_state()
    if isinstance(part, Optimizer):
        return _get_optimizer_state(part)
    state = cast(Stateful, part).state_dict()
    return {k: v.detach().clone() if isinstance(v, Tensor) else v for k, v in state.items()}


def load_state(part: object, state: Any) -> None:
    """Restore a state from `get_state` in place; tensors keep their addresses.

    Raises:
        ValueError: If a tensor in the state has the wrong shape.
    """
    if isinstance(part, Tensor):
        if part.shape != state.shape:
            raise ValueError(f"shape is {tuple(state.shape)}; expected {tuple(part.shape)}")
        with torch.no_grad():
            part.copy_(state)
    elif isinstance(part, torch.Generator):
        part.set_state(state.cpu())
    elif isinstance(part, Optimizer):
        _load_optimizer_state(part, state)
    elif isinstance(part, nn.Module):
        _load_module_state(part, state)
    else:
        cast(Stateful, part).load_state_dict(state)


def _load_module_state(module: nn.Module, state: State) -> None:
    """Restore weights and buffers; the error for the first that does not fit is one sentence."""
    own = module.state_dict()
    for name in [*own, *state]:
        if name not in state:
            raise ValueError(f"the state has no {name}")
        if name not in own:
            raise ValueError(f"the state has {name}, which the network does not have")
        if isinstance(own[name], Tensor) and own[name].shape != state[name].shape:
            raise ValueError(
                f"{name} has the shape {tuple(state[name].shape)} in the state and "
                f"{tuple(own[name].shape)} in the network"
            )
    module.load_state_dict(state)


def _get_optimizer_state(optimizer: Optimizer) -> State:
    packed = optimizer.state_dict()
    groups = [
        {k: float(v) if isinstance(v, Tensor) else v for k, v in group.items() if k != "params"}
        for group in packed["param_groups"]
    ]
    state = {
        str(i): {k: v.clone() if isinstance(v, Tensor) else v for k, v in values.items()}
        for i, values in packed["state"].items()
    }
    return {"class": type(optimizer).__name__, "groups": groups, "state": state}


def _load_optimizer_state(optimizer: Optimizer, state: State) -> None:
    current = optimizer.state_dict()["param_groups"]
    # "params", which assigns parameters to groups, is not saved: the optimizer's own is kept.
    groups = [
        {**own, **{k: v for k, v in group.items() if k in own or k == "initial_lr"}}
        for own, group in zip(current, state["groups"], strict=True)
    ]
    values = {int(i): dict(v) for i, v in state.get("state", {}).items()}
    optimizer.load_state_dict({"param_groups": groups, "state": values})


def flatten(state: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Iterate over the leaves of a state, empty dictionaries included, with their paths."""
    for key, leaf in state.items():
        if isinstance(leaf, Mapping) and leaf:
            yield from flatten(leaf, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", leaf


def to_host(state: Any) -> Any:
    """Return the state with its tensors in host memory."""
    if isinstance(state, Mapping):
        return {key: to_host(part) for key, part in state.items()}
    return state.cpu() if isinstance(state, Tensor) else state


def write_file(path: Path, state: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Write a state with a description of the object that it belongs to, atomically."""
    write_atomic(path, as_bytes(state, about))


def as_bytes(state: Mapping[str, Any], about: Mapping[str, Any]) -> bytes:
    """Return the content of a state file; equal states give equal bytes."""
    flat = dict(flatten(state))
    # Copied because parameters may share storage, which safetensors does not allow.
    tensors = {
        name: leaf.detach().cpu().contiguous().clone()
        for name, leaf in flat.items()
        if isinstance(leaf, Tensor)
    }
    values = {name: leaf for name, leaf in flat.items() if name not in tensors}
    meta = {"format": FORMAT, "about": about, "values": values}
    meta["crc32"] = _checksum(tensors, meta)
    text = json.dumps(meta, sort_keys=True, separators=(",", ":"))
    return to_bytes(tensors, {_METADATA_KEY: text})


def to_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return a safetensors file, byte for byte as the library of that name writes it.

    That library makes ctypes allocate a type for every distinct size of a tensor, which is never
    freed. The memory of a learner has another size at every checkpoint until it is full.

    Raises:
        ValueError: If the format has no name for a dtype.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    parts, end = list[bytes](), 0
    order = list(_DTYPES)
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            raise ValueError(f"{name} is of {tensor.dtype}, which cannot be saved")
    for name in sorted(tensors, key=lambda name: (order.index(tensors[name].dtype), name)):
        tensor = tensors[name]
        parts.append(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        start, end = end, end + len(parts[-1])
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def read_file(path: Path) -> tuple[State, dict[str, Any]]:
    """Return the state and the description in a file written by `write_file`.

    Raises:
        ValueError: If the file is missing, damaged or not a state file.
    """
    try:
        _check_readable(path)
        with safe_open(path, framework="pt") as file:
            meta = json.loads((file.metadata() or {}).get(_METADATA_KEY, "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    except (SafetensorError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a complete safetensors file: {error}") from None
    if not isinstance(meta, dict):
        raise ValueError(f"{path} was not written by perdure: its metadata is missing")
    if meta.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {meta.get('format')}; this version reads format {FORMAT}"
        )
    if not all(isinstance(meta.get(key), dict) for key in ("values", "about")):
        raise ValueError(f"{path} was not written by perdure: its metadata is incomplete")
    if "crc32" in meta and meta.pop("crc32") != _checksum(tensors, meta):
        raise ValueError(f"{path} is damaged: its checksum does not match its content")
    state: State = {}
    for name, leaf in {**meta["values"], **tensors}.items():
        *folders, key = name.split("/")
        node = state
        for folder in folders:
            node = node.setdefault(folder, {})
            if not isinstance(node, dict):
                raise ValueError(f"{path} has both a value and a group named {name!r}")
        node[key] = leaf
    return state, meta["about"]


def _check_readable(path: Path) -> None:
    """Raise OSError unless this is a regular file that fits into memory."""
    file = open_regular(path, os.O_RDONLY)
    size = os.fstat(file).st_size
    os.close(file)
    if size > memory_bytes():
        raise OSError(errno.EFBIG, f"{size} bytes, more than the memory of this machine", str(path))


def _checksum(tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> int:
    """Compute the checksum of a file's content, except the checksum itself."""
    crc = zlib.crc32(json.dumps(meta, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        crc = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), crc)
        crc = zlib.crc32(tensor.flatten().view(torch.uint8).numpy().data, crc)
    return crc
