"""The state of an object as nested dicts of tensors and plain values, and its file format.

Files are safetensors with one metadata key that holds sorted JSON for all that is no tensor, so
equal states give equal bytes, and reading a file never runs code from it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn
from torch.optim import Optimizer

from perdure.files import write_atomic

State = dict[str, Any]
"""Nested: string keys; leaves are tensors or what JSON can hold."""

FORMAT = 1
_METADATA_KEY = "perdure"


@runtime_checkable
class Stateful(Protocol):
    """Anything that can give and take its state."""

    def state_dict(self) -> State:
        """All that is needed to go on."""

    def load_state_dict(self, state: State, /) -> None:
        """Become what the state says."""


def holds_state(value: object) -> bool:
    """Whether an attribute's value changes as its owner learns."""
    return isinstance(value, Tensor | torch.Generator | nn.Module | Optimizer | Stateful)


def take(part: object) -> Any:
    """The state of one part: a tensor, a generator, or anything with a state of its own."""
    if isinstance(part, Tensor):
        return part.detach().clone()
    if isinstance(part, torch.Generator):
        return part.get_state()
    if isinstance(part, Optimizer):
        return _take_optimizer(part)
    state = cast(Stateful, part).state_dict()
    return {k: v.detach().clone() if isinstance(v, Tensor) else v for k, v in state.items()}


def give(part: object, state: Any) -> None:
    """Set a part to a state, in place: tensors keep their addresses."""
    if isinstance(part, Tensor):
        if part.shape != state.shape:
            raise ValueError(f"shape {tuple(state.shape)} where {tuple(part.shape)} is expected")
        with torch.no_grad():
            part.copy_(state)
    elif isinstance(part, torch.Generator):
        part.set_state(state.cpu())
    elif isinstance(part, Optimizer):
        _give_optimizer(part, state)
    else:
        cast(Stateful, part).load_state_dict(state)


def _take_optimizer(optimizer: Optimizer) -> State:
    packed = optimizer.state_dict()
    groups = [
        {k: float(v) if isinstance(v, Tensor) else v for k, v in group.items() if k != "params"}
        for group in packed["param_groups"]
    ]
    state = {
        str(i): {k: v.clone() if isinstance(v, Tensor) else v for k, v in values.items()}
        for i, values in packed["state"].items()
    }
    return {"groups": groups, "state": state}


def _give_optimizer(optimizer: Optimizer, state: State) -> None:
    own = optimizer.state_dict()["param_groups"]
    groups = [
        {**mine, **group} for mine, group in zip(own, state["groups"], strict=True)
    ]  # which parameters belong to a group is the optimizer's own business
    values = {int(i): dict(v) for i, v in state.get("state", {}).items()}
    optimizer.load_state_dict({"param_groups": groups, "state": values})


def to_host(state: Any) -> Any:
    """The same state with its tensors in the memory of the host."""
    if isinstance(state, Mapping):
        return {key: to_host(part) for key, part in state.items()}
    return state.cpu() if isinstance(state, Tensor) else state


def write_file(path: Path, state: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Write a state whole or not at all; `about` says what it is the state of."""
    write_atomic(path, as_bytes(state, about))


def as_bytes(state: Mapping[str, Any], about: Mapping[str, Any]) -> bytes:
    """The content of a state's file: the same bytes for the same state."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}

    def flatten(prefix: str, node: Mapping[str, Any]) -> None:
        for key, leaf in node.items():
            name = f"{prefix}{key}"
            if isinstance(leaf, Mapping) and leaf:
                flatten(f"{name}/", leaf)
            elif isinstance(leaf, Tensor):
                # A copy: parameters may share storage, which the format does not allow.
                tensors[name] = leaf.detach().cpu().contiguous().clone()
            else:
                values[name] = leaf

    flatten("", state)
    meta = {"format": FORMAT, "about": about, "values": values}
    meta["crc32"] = _checksum(tensors, meta)
    text = json.dumps(meta, sort_keys=True, separators=(",", ":"))
    return to_bytes(tensors, metadata={_METADATA_KEY: text})


def read_file(path: Path) -> tuple[State, dict[str, Any]]:
    """The state in a file and what it is the state of. ValueError if it cannot be one of ours."""
    try:
        with safe_open(path, framework="pt") as file:
            meta = json.loads((file.metadata() or {}).get(_METADATA_KEY, "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from None
    if not isinstance(meta, dict):
        raise ValueError(f"{path} was not written by perdure: its metadata is missing")
    if meta.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {meta.get('format')}; this version reads format {FORMAT}"
        )
    if not all(isinstance(meta.get(key), dict) for key in ("values", "about")):
        raise ValueError(f"{path} was not written by perdure: its metadata is not of this kind")
    if "crc32" in meta and meta.pop("crc32") != _checksum(tensors, meta):
        raise ValueError(f"{path} is damaged: its checksum is not that of what it holds")
    state: State = {}
    for name, leaf in {**meta["values"], **tensors}.items():
        *folders, key = name.split("/")
        node = state
        for folder in folders:
            node = node.setdefault(folder, {})
            if not isinstance(node, dict):
                raise ValueError(f"{path} holds both a value and a group under {name!r}")
        node[key] = leaf
    return state, meta["about"]


def _checksum(tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> int:
    """Of all that a file holds but the checksum itself."""
    found = zlib.crc32(json.dumps(meta, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        found = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), found)
        found = zlib.crc32(tensor.flatten().view(torch.uint8).numpy().data, found)
    return found
