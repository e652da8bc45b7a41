"""Undoing a step that failed, so that everything is as it was before.

Before a step, everything that it can change is copied into buffers that are allocated once. Stored
samples are too large for that: memories call `save_rows` for the rows that they overwrite. Other
changes are undone by actions that `on_failure` registers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.optim import Optimizer

from perdure.state import Stateful


class Undoable:
    """An object whose attributes hold all its state, so that a step can be undone.

    Attributes that are tensors, generators, modules, optimizers, dicts of tensors or objects with a
    state may change in place; others are only replaced.
    """

    saved_by_row: tuple[str, ...] = ()
    """Tensors in which a step only overwrites rows, after `save_rows`."""


class Snapshot:
    """The state of an object before a step.

    Args:
        owner: Object that the step changes.
        fixed: Tensors that no step changes.
    """

    def __init__(self, owner: Undoable, fixed: Iterable[Tensor] = ()) -> None:
        self._owner = owner
        self._fixed = {id(tensor) for tensor in fixed}
        self._module_dicts: dict[int, tuple[nn.Module, list[dict[str, Any]]]] = {}
        self._copies: list[Tensor] = []
        self._layout: list[Any] = []
        self._taken = False
        self._clear()

    def _clear(self) -> None:
        self.actions: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        """Actions that undo further changes, in the order of the changes."""
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._tensors: dict[int, Tensor] = {}
        self._generators: list[tuple[torch.Generator, Tensor]] = []
        self._states: list[tuple[Stateful, Any]] = []

    def take(self) -> None:
        """Copy the state and collect what this thread registers, until `discard` or `restore`."""
        self._outer = None if _current.snapshot is self else _current.snapshot
        self._clear()
        self._add_object(self._owner)
        tensors = self._tensors
        for key in self._fixed & tensors.keys():
            del tensors[key]
        layout = [(t.shape, t.dtype) for t in tensors.values()]
        with torch.no_grad():
            if layout != self._layout:
                self._layout = []
                self._copies = [torch.empty_like(t) for t in tensors.values()]
                self._layout = layout
            torch._foreach_copy_(self._copies, list(tensors.values()))
        self._taken = True
        _current.snapshot = self

    def discard(self) -> None:
        """Keep all changes."""
        self._taken = False
        _current.snapshot = self._outer
        self._clear()

    def restore(self) -> None:
        """Undo all changes since `take`, if it was completed.

        Allocates no tensors. An interruption in the meantime is raised afterwards.
        """
        interruption: KeyboardInterrupt | None = None
        while self._taken:
            try:
                self._restore()
                self.discard()
            except KeyboardInterrupt as error:
                interruption = error
        if interruption is not None:
            raise interruption

    def _restore(self) -> None:
        for function, arguments in reversed(self.actions):
            function(*arguments)
        for current, before in self._dicts:
            current.update(before)
            for key in current.keys() - before.keys():
                del current[key]
        with torch.no_grad():
            for tensor, copy in zip(self._tensors.values(), self._copies, strict=True):
                tensor.copy_(copy)
        for generator, state in self._generators:
            generator.set_state(state)
        for part, state in self._states:
            part.load_state_dict(state)

    def _add_object(self, part: Undoable) -> None:
        attributes = vars(part)
        saved = attributes.copy()
        self._dicts.append((attributes, saved))
        for name, value in saved.items():
            kind = type(value)
            if kind not in _ADD:
                _ADD[kind] = _find_add(kind)
            add = _ADD[kind]
            if add is not None and name not in part.saved_by_row:
                add(self, value)

    def _add_tensor(self, tensor: Tensor) -> None:
        self._tensors[id(tensor)] = tensor

    def _add_generator(self, generator: torch.Generator) -> None:
        self._generators.append((generator, generator.get_state()))

    def _add_module(self, module: nn.Module) -> None:
        known = self._module_dicts.get(id(module))
        if known is None:
            dicts = [d for part in module.modules() for d in (part._parameters, part._buffers)]
            known = self._module_dicts[id(module)] = module, [d for d in dicts if d]
        for each in known[1]:
            self._add_dict(each)

    def _add_optimizer(self, optimizer: Optimizer) -> None:
        self._dicts += [(group, group.copy()) for group in optimizer.param_groups]
        self._dicts.append((optimizer.state, dict(optimizer.state)))
        for values in optimizer.state.values():
            self._add_dict(values)

    def _add_dict(self, current: dict[Any, Any]) -> None:
        before = current.copy()
        self._dicts.append((current, before))
        for value in before.values():
            if isinstance(value, Tensor) and type(value) not in _WITHOUT_VALUES:
                self._tensors[id(value)] = value

    def _add_stateful(self, part: Stateful) -> None:
        self._states.append((part, part.state_dict()))


class _Current(threading.local):
    snapshot: Snapshot | None = None
    """Snapshot of the step under way in this thread."""


_current = _Current()
_WITHOUT_VALUES = (UninitializedParameter, UninitializedBuffer)
_ADD: dict[type, Callable[[Snapshot, Any], None] | None] = {}
"""How attributes of a type are saved; None if they are not."""


def _find_add(kind: type) -> Callable[[Snapshot, Any], None] | None:
    for base, add in (
        (Tensor, Snapshot._add_tensor),
        (torch.Generator, Snapshot._add_generator),
        (nn.Module, Snapshot._add_module),
        (Optimizer, Snapshot._add_optimizer),
        (Undoable, Snapshot._add_object),
        (dict, Snapshot._add_dict),
        (Stateful, Snapshot._add_stateful),
    ):
        if issubclass(kind, base):
            return add
    return None


def on_failure(function: Callable[..., object], *arguments: Any) -> None:
    """Register an action that undoes a change about to be made, if a step is under way."""
    if _current.snapshot is not None:
        _current.snapshot.actions.append((function, arguments))


def save_rows(tensor: Tensor, rows: Tensor) -> None:
    """Save rows that are about to be overwritten, if a step is under way."""
    if _current.snapshot is not None:
        before = tensor.index_select(0, rows)
        _current.snapshot.actions.append((tensor.index_copy_, (0, rows, before)))
