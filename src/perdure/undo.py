"""Undoing a step that failed, so that everything is as it was before.

Before a step, a `Snapshot` saves what is small: counters, buffers, attributes. What is large or
rarely changes is saved just before a step changes it, with the functions of this module: weights,
rows of a memory, generators. They do nothing unless a step is under way.

Copies of all weights would take too long for small networks. Where a step does not read weights
after it has changed them, `postpone` executes the changes at its end instead: operations in place,
which allocate nothing, in one call that no Python code and therefore no signal can interrupt.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer
from torch.optim import Optimizer

from perdure.state import Stateful


class Undoable:
    """An object whose attributes hold all its state, so that a step can be undone.

    Attributes that are tensors, generators, buffers of modules, dicts of tensors or objects with a
    state may change in place; others are only replaced.
    """

    saved_by_itself: tuple[str, ...] = ()
    """Attributes that are only replaced although they could change in place, or that the object
    saves before it changes them."""


class Snapshot:
    """The state of an object before a step.

    Args:
        owner: Object that the step changes.
    """

    def __init__(self, owner: Undoable) -> None:
        self._owner = owner
        self._attributes: dict[int, _Attributes] = {}
        self._copies: dict[object, list[Tensor]] = {}
        """Memory for copies, by who needs it; it is used again in every step."""
        self._outer: Snapshot | None = None
        self._taken = False
        self.postponed: list[Callable[[], object]] | None = None
        """Operations to execute at the end of the step; None if that is not possible."""
        self._gradients: bool | None = None
        """Whether gradients were enabled: an interrupted `no_grad` leaves them disabled."""
        self._clear()

    def _clear(self) -> None:
        self.actions: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        """Actions that undo changes, in the order of the changes."""
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._tensors: list[Tensor] = []
        self._saved: dict[object, bool] = {}

    def take(self, *, may_postpone: bool = False) -> None:
        """Save the state, and what this thread saves until `commit` or `restore`.

        Args:
            may_postpone: Whether `postpone` may have an effect.
        """
        self._outer = None if _current.snapshot is self else _current.snapshot
        self._clear()
        self._gradients = torch.is_grad_enabled()
        self._add_object(self._owner)
        self.save(None, self._tensors)
        self.postponed = [] if may_postpone else None
        self._taken = True
        _current.snapshot = self

    def save(self, key: object, tensors: list[Tensor]) -> None:
        """Copy tensors, unless this step has copied those with the same key already.

        Called with gradients disabled if a tensor requires them.
        """
        if key in self._saved or not tensors:
            return
        copies = self._copies.get(key)
        try:
            if copies is None or len(copies) != len(tensors) or copies[0].dtype != tensors[0].dtype:
                raise RuntimeError
            torch._foreach_copy_(copies, tensors)
        except RuntimeError:  # other tensors than in the last step
            copies = self._copies[key] = [tensor.detach().clone() for tensor in tensors]
        self.actions.append((_copy, (tensors, copies)))
        self._saved[key] = True

    def commit(self) -> None:
        """Execute postponed operations and keep all changes."""
        _current.snapshot = self._outer
        if self.postponed:
            keep = partial(setattr, self, "_taken", False)
            disable = partial(_enable_gradients, False)
            reset = partial(_enable_gradients, bool(self._gradients))
            deque(map(_call, [keep, disable, *self.postponed, reset]), maxlen=0)
        # No calls from here on: they could be interrupted, and the changes are final.
        self._taken, self._gradients, self.postponed = False, None, None
        self.actions, self._dicts, self._tensors, self._saved = [], [], [], {}

    def restore(self) -> None:
        """Undo all changes since `take`, also if that was interrupted.

        Allocates no tensors. An interruption in the meantime is raised afterwards.
        """
        interruption: KeyboardInterrupt | None = None
        if self._gradients is not None:
            torch.set_grad_enabled(self._gradients)
        while self._taken:
            try:
                self._restore()
                self._copies, self.postponed = {}, None
                self.commit()
            except KeyboardInterrupt as error:
                interruption = error
        if interruption is not None:
            raise interruption

    def _restore(self) -> None:
        with torch.no_grad():
            for function, arguments in reversed(self.actions):
                function(*arguments)
            for current, before in self._dicts:
                current.update(before)
                for key in current.keys() - before.keys():
                    del current[key]

    def _add_object(self, part: Undoable) -> None:
        attributes = vars(part)
        before = attributes.copy()
        self._dicts.append((attributes, before))
        known = self._attributes.get(id(part))
        if known is None or not known.apply_to(before):
            known = self._attributes[id(part)] = _Attributes(part)
        for name, add in known.adds:
            add(self, before[name])
        for buffers in known.buffers:
            self._add_dict(buffers)

    def _add_tensor(self, tensor: Tensor) -> None:
        self._tensors.append(tensor.detach() if tensor.requires_grad else tensor)

    def _add_generator(self, generator: torch.Generator) -> None:
        self.actions.append((generator.set_state, (generator.get_state(),)))

    def _add_dict(self, current: dict[Any, Any]) -> None:
        before = current.copy()
        self._dicts.append((current, before))
        for value in before.values():
            if isinstance(value, Tensor) and type(value) is not UninitializedBuffer:
                self._tensors.append(value)

    def _add_stateful(self, part: Stateful) -> None:
        self.actions.append((part.load_state_dict, (part.state_dict(),)))

    def add_optimizer(self, optimizer: Optimizer) -> None:
        """Save the state of an optimizer and the parameters that it updates."""
        if optimizer in self._saved:
            return
        outer, self._tensors = self._tensors, []
        for group in optimizer.param_groups:
            self._dicts.append((group, group.copy()))
            self._tensors += group["params"]
        self._dicts.append((optimizer.state, dict(optimizer.state)))
        for values in optimizer.state.values():
            self._add_dict(values)
        tensors, self._tensors = self._tensors, outer
        self.save(optimizer, tensors)


def _copy(tensors: list[Tensor], copies: list[Tensor]) -> None:
    for tensor, copy in zip(tensors, copies, strict=True):
        tensor.copy_(copy)


class _Attributes:
    """Which attributes of an object are saved, and how."""

    def __init__(self, part: Undoable) -> None:
        self.part = part  # keeps its id from being used again
        values = {k: v for k, v in vars(part).items() if k not in part.saved_by_itself}
        found = ((name, _find_add(value)) for name, value in values.items())
        self.adds = [(name, add) for name, add in found if add is not None]
        modules = {k: v for k, v in values.items() if isinstance(v, nn.Module)}
        inner = [module for each in modules.values() for module in each.modules()]
        self.buffers = [module._buffers for module in inner if module._buffers]
        unset = [name for name, value in values.items() if value is None]
        self._names = [*modules, *unset]
        self._values = [*modules.values(), *(None for _ in unset)]

    def apply_to(self, attributes: dict[str, Any]) -> bool:
        """Return whether the object has the same modules, and nothing that was missing."""
        return [attributes[name] for name in self._names] == self._values


def _find_add(value: object) -> Callable[[Snapshot, Any], None] | None:
    if isinstance(value, Optimizer | nn.Module):  # their tensors are saved separately
        return None
    for kind, add in (
        (Tensor, Snapshot._add_tensor),
        (torch.Generator, Snapshot._add_generator),
        (Undoable, Snapshot._add_object),
        (dict, Snapshot._add_dict),
    ):
        if isinstance(value, kind):
            return add
    return Snapshot._add_stateful if hasattr(type(value), "load_state_dict") else None


class _Current(threading.local):
    snapshot: Snapshot | None = None
    """Snapshot of the step under way in this thread."""


_current = _Current()


_call = methodcaller("__call__")
_enable_gradients = torch._C._set_grad_enabled  # the public function is written in Python


def postpone(operation: Callable[[], object]) -> bool:
    """Execute an operation at the end of the step, if that is possible; return whether it is.

    Args:
        operation: Changes tensors in place and allocates nothing; a `functools.partial` of a
            function of torch, not of Python code.
    """
    snapshot = _current.snapshot
    if snapshot is None or snapshot.postponed is None:
        return False
    snapshot.postponed.append(operation)
    return True


def on_failure(function: Callable[..., object], *arguments: Any) -> None:
    """Register an action that undoes a change about to be made."""
    if _current.snapshot is not None:
        _current.snapshot.actions.append((function, arguments))


def save_generator(generator: torch.Generator) -> None:
    """Save a generator that is about to draw."""
    if _current.snapshot is not None:
        _current.snapshot.actions.append((generator.set_state, (generator.get_state(),)))


def save_rows(tensor: Tensor, rows: Tensor) -> None:
    """Save rows that are about to be overwritten."""
    if _current.snapshot is not None:
        before = tensor.index_select(0, rows)
        _current.snapshot.actions.append((tensor.index_copy_, (0, rows, before)))


def save_parameters(network: nn.Module) -> None:
    """Save which parameters the modules of a network have, before some are replaced for a call."""
    for module in network.modules() if _current.snapshot is not None else ():
        on_failure(module._parameters.update, module._parameters.copy())


def save_tensors(owner: object, tensors: list[Tensor]) -> None:
    """Save tensors that are about to change: those that the owner changes in every step."""
    if _current.snapshot is not None:
        _current.snapshot.save(id(owner), tensors)


def save_optimizer(optimizer: Optimizer) -> None:
    """Save the state of an optimizer and the parameters that it is about to update."""
    if _current.snapshot is not None:
        _current.snapshot.add_optimizer(optimizer)
