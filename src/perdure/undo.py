"""Undoing a step that failed, so that everything is as it was before.

Before a step, a `Snapshot` saves what is small: counters, buffers, attributes. What is large or
rarely changes is saved just before a step changes it, with the functions of this module: weights,
rows of a memory, generators. They do nothing unless a step is under way.

Copies of all weights would take too long for small networks. Where a step does not read weights
or stored samples after it has changed them, `postpone` executes the changes at its end instead:
operations in place, in one call that no Python code and therefore no signal can interrupt. If one
of them fails, those before it are not undone.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import call
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer
from torch.optim import Optimizer

from perdure.state import Stateful

_RETRIES = 3
"""How often a failed step is undone again after an error; then an action that fails is left out."""


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

    actions: list[tuple[Callable[..., object], tuple[Any, ...]]]
    """Actions that undo changes, in the order of the changes."""
    _dicts: list[tuple[dict[Any, Any], dict[Any, Any]]]
    saved: set[object]
    """Keys of the tensors, and the generators, that this step has saved."""

    def __init__(self, owner: Undoable) -> None:
        self._owner = owner
        self._contents: _Contents | None = None
        self._copies: dict[object, tuple[list[Tensor], list[torch.dtype]]] = {}
        """Memory for copies, by who needs it, and dtypes; it is used again in every step."""
        self._outer: Snapshot | None = None
        self.taken = False
        """Whether a step is under way."""
        self.postponed: list[Callable[[], object]] | None = None
        """Operations to execute at the end of the step; None if that is not possible."""
        self._gradients: bool | None = None
        """Whether gradients were enabled: an interrupted `no_grad` leaves them disabled."""
        self._keep = partial(setattr, self, "taken", False)

    def take(self, *, may_postpone: bool = False) -> None:
        """Save the state, and what this thread saves until `commit` or `restore`.

        Args:
            may_postpone: Whether `postpone` may have an effect.
        """
        outer = _current.snapshot
        self._outer = None if outer is self else outer
        self.actions, self.saved = [], set()
        self._gradients = torch.is_grad_enabled()
        contents = self._contents
        if contents is None or (dicts := contents.copy_dicts()) is None:
            contents = self._contents = _Contents(self._owner)
            dicts = contents.copy_dicts()
            assert dicts is not None
            self._copies.pop(None, None)
        self._dicts = dicts
        for generator in contents.generators:
            self.actions.append((generator.set_state, (generator.get_state(),)))
        for part in contents.stateful:
            self.actions.append((part.load_state_dict, (part.state_dict(),)))
        if contents.scalars:
            values = [scalar.item() for scalar in contents.scalars]
            self.actions.append((_fill, (contents.scalars, values)))
        if contents.tensors:
            _enable_gradients(False)
            self.save(None, contents.tensors)
            _enable_gradients(self._gradients)
        self.postponed = [] if may_postpone else None
        self.taken = True
        _current.snapshot = self

    def save(self, key: object, tensors: list[Tensor]) -> None:
        """Copy tensors, unless this step has copied those with the same key already.

        Called with gradients disabled if a tensor requires them.
        """
        if key in self.saved or not tensors:
            return
        copies, dtypes = self._copies.get(key, ([], []))
        try:
            if [tensor.dtype for tensor in tensors] != dtypes:
                raise RuntimeError
            torch._foreach_copy_(copies, tensors)
        except RuntimeError:  # other tensors than in the last step
            copies = [tensor.detach().clone() for tensor in tensors]
            self._copies[key] = copies, [copy.dtype for copy in copies]
        self.actions.append((_copy, (tensors, copies)))
        self.saved.add(key)

    def commit(self) -> None:
        """Execute postponed operations and keep all changes."""
        _current.snapshot = self._outer
        if self.postponed:
            reset = _ENABLE if self._gradients else _DISABLE
            final: list[Callable[[], object]] = [_DISABLE, *self.postponed, reset, self._keep]
            deque(map(_call, final), maxlen=0)
        # No calls from here on: they could be interrupted, and the changes are final.
        self.taken, self._gradients, self.postponed = False, None, None
        self.actions, self._dicts = [], []

    def restore(self) -> None:
        """Undo all changes since `take`, also if that was interrupted.

        Allocates no tensors. An interruption or an error in the meantime is raised afterwards.
        """
        interruption: BaseException | None = None
        failures = 0
        enabled = self._gradients is not False
        if self._gradients is not None:
            _enable_gradients(enabled)
        while self.taken:
            try:
                _enable_gradients(False)
                for function, arguments in reversed(self.actions):
                    try:
                        function(*arguments)
                    except Exception as error:  # of a signal handler or a user's load_state_dict
                        interruption = error
                        failures += 1
                        if failures <= _RETRIES:
                            raise
                for current, before in reversed(self._dicts):
                    current.update(before)
                    _remove_new(current, set(before))
                self._copies, self._contents, self.postponed = {}, None, None
                _enable_gradients(enabled)
                self.commit()
            except BaseException as error:  # undo everything again
                interruption = error
        if interruption is not None:
            raise interruption

    def add_optimizer(self, optimizer: Optimizer, *, in_place: bool) -> None:
        """Save the state of an optimizer and the parameters that it updates."""
        if not in_place:
            dicts = [*optimizer.param_groups, optimizer.state, *optimizer.state.values()]
            self._dicts += [(current, current.copy()) for current in dicts]
        if optimizer in self.saved:
            return
        tensors: list[Tensor] = []
        for group in optimizer.param_groups:
            tensors += group["params"]
        for values in optimizer.state.values():
            tensors += (value for value in values.values() if isinstance(value, Tensor))
        self.save(optimizer, tensors)


def _copy(tensors: list[Tensor], copies: list[Tensor]) -> None:
    for tensor, copy in zip(tensors, copies, strict=True):
        tensor.copy_(copy)


def _fill(scalars: list[Tensor], values: list[float]) -> None:
    for scalar, value in zip(scalars, values, strict=True):
        scalar.fill_(value)


class _Contents:
    """What is saved of an object, found once and used until an attribute is replaced."""

    def __init__(self, owner: Undoable) -> None:
        self._entries: list[
            tuple[dict[Any, Any], int, list[tuple[Any, Any]], list[tuple[Any, type]]]
        ] = []
        """Dicts, with their sizes, the items that `_note` has found and, unless they belong to an
        object of perdure, the types of others."""
        self.tensors: list[Tensor] = []
        self.scalars: list[Tensor] = []
        """Single numbers on a CPU, such as counters: faster to read than to copy."""
        self.generators: list[torch.Generator] = []
        self.stateful: list[Stateful] = []
        self._add_object(owner)

    def copy_dicts(self) -> list[tuple[dict[Any, Any], dict[Any, Any]]] | None:
        """Return all dicts with copies of them, or None if something was replaced or added."""
        # Plain loops: iterators in C take twice as long here, where a step has emptied the caches.
        pairs = []
        for current, size, items, others in self._entries:
            before = current.copy()
            if len(before) != size:
                return None
            for key, value in items:
                if before.get(key) is not value:
                    return None
            for key, kind in others:
                if type(before.get(key)) is not kind:  # a number may have become a tensor
                    return None
            pairs.append((current, before))
        return pairs

    def _note(
        self, current: dict[Any, Any], ignored: tuple[str, ...] = (), *, known: bool = True
    ) -> list[Any]:
        """Return the values of a dict that may change in place or are not set yet."""
        found = [(k, v) for k, v in current.items() if k not in ignored and _may_change(v)]
        keys = {key for key, _ in found}.union(current if known else ignored)
        others = [(k, type(v)) for k, v in current.items() if k not in keys]
        self._entries.append((current, len(current), found, others))
        return [value for _, value in found]

    def _add_object(self, part: Undoable) -> None:
        for value in self._note(vars(part), part.saved_by_itself, known=_is_known(part)):
            if isinstance(value, nn.Module):
                for module in value.modules():
                    self._add_dict(module._buffers, getattr(module, "saved_by_itself", ()))
            elif isinstance(value, Tensor):
                self._add_tensor(value)
            elif isinstance(value, torch.Generator):
                self.generators.append(value)
            elif isinstance(value, Undoable):
                self._add_object(value)
            elif isinstance(value, dict):
                self._add_dict(value)
            elif value is not None and not isinstance(value, Optimizer):
                self.stateful.append(value)

    def _add_dict(self, current: dict[Any, Any], ignored: tuple[str, ...] = ()) -> None:
        for value in self._note(current, ignored):
            if isinstance(value, Tensor):
                self._add_tensor(value)

    def _add_tensor(self, tensor: Tensor) -> None:
        is_scalar = not tensor.ndim and tensor.device.type == "cpu"
        (self.scalars if is_scalar else self.tensors).append(tensor)


def _is_known(part: object) -> bool:
    """Whether the class of an object is one of perdure, whose attributes keep their kinds."""
    return type(part).__module__.startswith("perdure.")


def _may_change(value: object) -> bool:
    """Whether a value, or one that it refers to, may change in place."""
    kinds = (Tensor, torch.Generator, nn.Module, Undoable, dict, Optimizer)
    if type(value) is UninitializedBuffer:
        return False
    return value is None or isinstance(value, kinds) or hasattr(type(value), "load_state_dict")


class _Current(threading.local):
    snapshot: Snapshot | None = None
    """Snapshot of the step under way in this thread."""


_current = _Current()


_enable_gradients = torch._C._set_grad_enabled  # the public function is written in Python
_call: Callable[[Callable[[], object]], object] = call
_ENABLE, _DISABLE = partial(_enable_gradients, True), partial(_enable_gradients, False)


def postpone(*operations: Callable[[], object]) -> bool:
    """Execute operations at the end of the step, if that is possible; return whether it is.

    Args:
        *operations: Change tensors in place and allocate nothing; each is a `functools.partial` of
            a function of torch, not of Python code.
    """
    snapshot = _current.snapshot
    if snapshot is None or snapshot.postponed is None:
        return False
    snapshot.postponed.extend(operations)
    return True


def on_failure(function: Callable[..., object], *arguments: Any) -> None:
    """Register an action that undoes a change about to be made."""
    if _current.snapshot is not None:
        _current.snapshot.actions.append((function, arguments))


def save_generator(generator: torch.Generator) -> None:
    """Save a generator that is about to draw."""
    snapshot = _current.snapshot
    if snapshot is not None and generator not in snapshot.saved:
        snapshot.actions.append((generator.set_state, (generator.get_state(),)))
        snapshot.saved.add(generator)


def save_rows(tensor: Tensor, rows: Tensor) -> None:
    """Save rows that are about to be overwritten."""
    if _current.snapshot is not None:
        before = tensor.index_select(0, rows)
        _current.snapshot.actions.append((tensor.index_copy_, (0, rows, before)))


def save_parameters(network: nn.Module) -> None:
    """Save which parameters the modules of a network have, before some are replaced for a call."""
    for module in network.modules() if _current.snapshot is not None else ():
        on_failure(module._parameters.update, module._parameters.copy())


def save_hooks(network: nn.Module) -> None:
    """Save which hooks the modules of a network have, before some are added for a call.

    Hooks that are removed in the meantime stay so: a lazy module removes its own.
    """
    for module in network.modules() if _current.snapshot is not None else ():
        on_failure(_remove_new, module._forward_pre_hooks, set(module._forward_pre_hooks))


def _remove_new(current: dict[Any, Any], before: set[Any]) -> None:
    for key in current.keys() - before:
        del current[key]


def save_tensors(owner: object, tensors: list[Tensor]) -> None:
    """Save tensors that are about to change: those that the owner changes in every step."""
    if _current.snapshot is not None:
        _current.snapshot.save(id(owner), tensors)


def save_optimizer(optimizer: Optimizer, *, in_place: bool = False) -> None:
    """Save the state of an optimizer and the parameters that it is about to update.

    Args:
        optimizer: Optimizer.
        in_place: Whether it only changes tensors in place.
    """
    if _current.snapshot is not None:
        _current.snapshot.add_optimizer(optimizer, in_place=in_place)
