"""Base class of the memories that store samples."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from perdure.arguments import is_whole, plain_int
from perdure.files import memory_bytes
from perdure.memory.storage import Storage
from perdure.randomness import generator
from perdure.records import Samples, join
from perdure.sizes import format_bytes, parse_bytes
from perdure.state import State, get_state, load_state
from perdure.structures import get_structure, layout, load_structure, map_leaves
from perdure.undo import Undoable, postpone, save_generator, save_rows

MAX_SIZE = 2**40
"""Samples of the largest memory; the size of more in bytes could exceed what torch can count."""


class EpisodicMemory(Undoable):
    """Stores at most `buffer_size` samples; subclasses decide which.

    The host knows only the number of stored samples, which determines the size of a drawn batch.
    Storage is allocated at the first write and keeps its address.

    Args:
        buffer_size: Maximum number of samples. Give either this or `buffer_bytes`.
        buffer_bytes: Maximum size of the stored inputs, labels and logits, such as 64_000_000 or
            "64MB". `buffer_size` follows from it when the first samples are stored.
        seed: Seed of the random draws.
        device: Device of the network, to which samples are drawn.
        storage: Where the stored inputs are kept; by default on `device`.

    Raises:
        ValueError: If not exactly one of `buffer_size` and `buffer_bytes` is given, or if a value
            is invalid.
    """

    _settings: tuple[str, ...] = ()
    """Attributes that a state must agree with, in addition to `buffer_size` or `buffer_bytes`."""
    saved_by_itself: tuple[str, ...] = ("selection",)
    presented = 0
    """Number of samples that `note_added` was called for; not part of the state."""
    _draws: tuple[int, ...] = ()
    """Different numbers of samples that `draw` was called with."""
    buffer_size: int
    """Maximum number of samples; 0 until it is known, if the budget is in bytes."""

    def __init__(
        self,
        buffer_size: int | None = None,
        *,
        buffer_bytes: int | str | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        storage: Storage | None = None,
    ) -> None:
        if (buffer_size is None) == (buffer_bytes is None):
            raise ValueError("give either buffer_size or buffer_bytes")
        size = plain_int(buffer_size)
        if buffer_size is not None and not (is_whole(size) and 1 <= size <= MAX_SIZE):
            raise ValueError(
                f"buffer_size is {buffer_size!r}; expected a whole number, 1 or more (at most "
                f"{MAX_SIZE})"
            )
        self.buffer_bytes = None if buffer_bytes is None else parse_bytes(buffer_bytes)
        self.filled = 0
        """Number of stored samples."""
        self.device = torch.device(device)
        self.storage = storage or Storage()
        self.storage.check(self.device)
        self.selection = generator(seed, "replay", device)
        # Has one extra row, `buffer_size`: samples that are not kept are written there.
        self._stored: Samples | None = None
        self._create_state(seed)
        self._set_size(size or 0)

    def __repr__(self) -> str:
        if self.buffer_bytes is None:
            return f"{type(self).__name__}({self.filled} of {self.buffer_size} samples)"
        size = f" of {self.buffer_size}" if self.buffer_size else ""
        budget = format_bytes(self.buffer_bytes)
        return f"{type(self).__name__}({self.filled}{size} samples, {budget})"

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy; inputs move to where this memory keeps them."""
        vars(self).update(state)
        elsewhere = self.storage.folder is not None or self.storage.on_host(self.device)
        if self._stored is not None and elsewhere:
            copied, self._stored = self._stored, self._allocate(self._stored)
            for own, tensor in zip(self._stored.tensors(), copied.tensors(), strict=True):
                own.copy_(tensor)

    @property
    def full(self) -> bool:
        """Whether every row holds a sample."""
        return 0 < self.filled == self.buffer_size

    @property
    def capturable(self) -> bool:
        """Whether samples can be drawn and added inside a CUDA graph."""
        return self.storage.capturable(self.device)

    def _create_state(self, seed: int) -> None:
        """Create what a subclass needs besides the stored samples. No-op by default."""

    def _set_size(self, size: int) -> None:
        """Set the number of rows; 0 if it is not known yet. Called before samples are stored."""
        self.buffer_size = size

    def _create_rows(self) -> None:
        """Create what a subclass needs for each row. Called when storage is allocated."""

    def reserve(self, samples: Samples) -> None:
        """Set the number of rows and allocate storage, if that has not been done.

        Args:
            samples: Samples like those that will be stored.

        Raises:
            ValueError: If `buffer_bytes` is less than the size of one sample, the storage is larger
                than the memory of this machine, or stored samples have other dtypes or shapes.
        """
        if self._stored is not None:
            own, new = self._stored.tensors(), samples.tensors()
            if [(t.dtype, t.shape[1:]) for t in own] != [(t.dtype, t.shape[1:]) for t in new]:
                raise ValueError(
                    f"samples are {_layout(samples)}; the memory stores {_layout(self._stored)}"
                )
            return
        row = _row_bytes(samples)
        if self.buffer_bytes is not None:
            if self.buffer_bytes < row:
                raise ValueError(
                    f"buffer_bytes is {format_bytes(self.buffer_bytes)}, but one stored sample "
                    f"needs {format_bytes(row)}"
                )
            self._set_size(self.buffer_bytes // row)
        size, limit = row * (self.buffer_size + 1), memory_bytes()
        if size > limit and self.storage.in_host_memory(self.device):
            raise ValueError(
                f"a buffer of {self.buffer_size} samples takes {size / 1e9:.1f} GB, but this "
                f"machine has {limit / 1e9:.1f} GB of memory; use a smaller one, or memory_folder"
            )
        stored = self._allocate(samples)
        self._create_rows()
        self._stored = stored

    def draw(self, count: int) -> Samples | None:
        """Draw samples at random, without replacement.

        Args:
            count: Number of samples. If fewer are stored, all are returned.

        Returns:
            Copies of the samples, or None if the memory is empty.
        """
        if count not in self._draws:
            self._draws += (count,)
        if self._stored is None or not self.filled:
            return None
        rows = self._choose(count)
        self.storage.read_ahead(self._stored.inputs, rows)
        return self._stored.rows(rows).to(self.device)

    def host_state(self) -> Hashable:
        """Return the host values that drawing and adding samples depend on.

        While they are unchanged, a CUDA graph of these operations is valid.
        """
        return self.filled

    def note_added(self, count: int) -> None:
        """Note that `add`, or a CUDA graph of it, was given `count` samples.

        No-op by default: a graph is used only when no row is free.
        """

    def _choose(self, count: int) -> Tensor:
        """Choose the rows for `draw`."""
        save_generator(self.selection)
        return draw_rows(self.filled, count, self.selection)

    def contents(self) -> Samples | None:
        """Return a view of the stored samples in row order, or None if the memory is empty.

        Inputs in a file are on the CPU, whatever the device of the network.
        """
        return self._stored.slice(0, self.filled) if self._stored and self.filled else None

    def stored_logits(self) -> Tensor | None:
        """Return the storage of the logits, one row per sample; None if none are stored."""
        return None if self._stored is None else self._stored.logits

    def class_counts(self, classes: int) -> list[int]:
        """Count the stored samples of each class. Waits for the device.

        Args:
            classes: Number of classes.
        """
        contents = self.contents()
        if contents is None:
            return [0] * classes
        return torch.bincount(contents.labels.cpu(), minlength=classes).tolist()

    def _write(self, rows: Tensor, samples: Samples) -> None:
        """Store samples in the given rows, after `reserve`; row `buffer_size` discards them."""
        assert self._stored is not None
        for storage, values in zip(self._stored.tensors(), samples.tensors(), strict=True):
            place = storage.device
            copy_rows(storage, rows.to(place), values.detach().to(place))

    def _fill(self, samples: Samples) -> None:
        """Store samples in the first rows, a part at a time: the device may not hold all."""
        self.reserve(samples)
        count = len(samples.labels)
        for start in range(0, count, _PART):
            rows = torch.arange(start, min(start + _PART, count), device=self.device)
            self._write(rows, samples.slice(start, start + _PART))

    def _keep_last(self, rows: Tensor) -> Tensor:
        """Of several samples with the same row, keep the last, whatever the order of writing."""
        ordered, positions = rows.sort(stable=True)
        ordered[:-1].masked_fill_(ordered[:-1] == ordered[1:], self.buffer_size)
        return rows.index_copy_(0, positions, ordered)

    def _allocate(self, like: Samples) -> Samples:
        rows = self.buffer_size + 1
        inputs = self.storage.allocate(like.inputs, rows, self.device)
        others = Samples((), like.labels, like.logits)
        zeros = others.map(lambda t: t.new_zeros(rows, *t.shape[1:], device=self.device))
        return zeros._replace(inputs=inputs)

    def _parts(self) -> dict[str, object]:
        """Return the tensors and generators to save, in addition to the stored samples.

        Tensors with one entry per row are cut to the first `filled` entries.
        """
        return {"selection": self.selection}

    def state_dict(self) -> State:
        """Return everything needed to resume, including random state and copies of all samples.

        Raises:
            ValueError: If the samples are in a file and larger than the memory of the machine.
        """
        contents = self.contents()
        stored: State = {}
        if contents is not None:
            self.storage.check_copy(contents.inputs)
            # Inputs that the GPU need not hold are not copied to it.
            place = "cpu" if self.storage.on_host(self.device) else self.device
            copies = map_leaves(lambda leaf: leaf.to(place, copy=True), contents.inputs)
            inputs, structure = get_structure(copies)
            stored = {"inputs": inputs, "labels": contents.labels.clone()}
            stored |= {"structure": structure} if structure else {}
            stored |= {} if contents.logits is None else {"logits": contents.logits.clone()}
        return {
            **{name: getattr(self, name) for name in ("buffer_size", *self._settings)},
            **({} if self.buffer_bytes is None else {"buffer_bytes": self.buffer_bytes}),
            "filled": self.filled,
            "stored": stored,
            **{name: get_state(part) for name, part in self._parts().items()},
        }

    def load_state_dict(self, state: State) -> None:
        """Restore a state of a memory with the same settings.

        Raises:
            ValueError: If the state has another `buffer_size` or is inconsistent.
        """
        budget = "buffer_size" if self.buffer_bytes is None else "buffer_bytes"
        for name in (budget, *self._settings):
            if name not in state or int(state[name]) != getattr(self, name):
                raise ValueError(
                    f"the state has {name} {state.get(name)}; expected {getattr(self, name)}"
                )
        filled = int(state["filled"])
        stored = load_samples(state)
        found = 0 if stored is None else len(stored.labels)
        size = self.buffer_size
        if self.buffer_bytes is not None:
            size = 0 if stored is None else self.buffer_bytes // _row_bytes(stored)
        lengths = set() if stored is None else {len(tensor) for tensor in stored.tensors()}
        if int(state["buffer_size"]) != size or filled > size or filled != found:
            raise ValueError(f"the state claims {filled} samples but contains {found}")
        if lengths - {found}:
            raise ValueError(f"the state has {found} labels but other numbers of inputs or logits")
        self.filled = filled
        if stored is None or self._stored is None or _layout(self._stored) != _layout(stored):
            self._stored = None
            self._set_size(size)
        if stored is not None:
            self._fill(stored)
        for name, part in self._parts().items():
            load_state(part, state[name])


class GroupedMemory(EpisodicMemory):
    """A memory whose rows are ordered by group: one group per task or class."""

    def _create_state(self, seed: int) -> None:
        self.counts: dict[int, int] = {}
        """Number of stored samples of each group, in row order."""

    def groups(self) -> dict[int, Samples]:
        """Return a view of the stored samples of each group."""
        stored = self.contents()
        if stored is None:
            return {}
        ends = zip(self.counts, itertools.accumulate(self.counts.values()), strict=True)
        return {group: stored.slice(end - self.counts[group], end) for group, end in ends}

    def _replace(self, groups: dict[int, Samples]) -> None:
        """Replace all stored samples."""
        counts = {group: len(samples.labels) for group, samples in groups.items()}
        if self.storage.on_host(self.device):
            groups = {group: samples.to("cpu") for group, samples in groups.items()}
        self._fill(join(*groups.values()))
        self.counts, self.filled = counts, sum(counts.values())

    def state_dict(self) -> State:
        """Return everything needed to resume, including random state."""
        groups, counts = list(self.counts), list(self.counts.values())
        return {**super().state_dict(), "groups": groups, "counts": counts}

    def load_state_dict(self, state: State) -> None:
        """Restore a state of a memory with the same settings.

        Raises:
            ValueError: If the state has another `buffer_size` or is inconsistent.
        """
        counts = {int(k): int(n) for k, n in zip(state["groups"], state["counts"], strict=True)}
        if len(counts) < len(state["groups"]):
            raise ValueError("the state has two groups of the same name")
        if min(counts.values(), default=0) < 0 or sum(counts.values()) != int(state["filled"]):
            raise ValueError(
                f"the state has groups of {[*counts.values()]} samples, which do not add up to "
                f"{state['filled']}"
            )
        self._check_groups(counts, state)
        super().load_state_dict(state)
        self.counts = counts

    def _check_groups(self, counts: dict[int, int], state: State) -> None:
        """Raise ValueError if a state cannot have groups of these sizes. No-op by default."""


_PART = 8192
"""Samples that are written at a time when a memory is restored."""
_PERMUTED = 8192
"""Memories of at most this size are permuted to draw from them."""
_PERMUTED_PER_DRAW = 32
"""The same, for every row drawn."""


def draw_rows(
    filled: int, count: int, draws: torch.Generator, *, stored: Tensor | None = None, size: int = 0
) -> Tensor:
    """Draw `count` of the rows 0 to `filled` - 1 without replacement, in random order.

    The time depends on `count` only. The host does not wait for the device.

    Args:
        filled: Number of rows to choose from.
        count: Number of rows; if there are fewer, all are returned.
        draws: Generator, on the device of the result.
        stored: The same as `filled`, on the device. If given, operations do not depend on `filled`
            as long as `permutes` does not change, so that a CUDA graph of them stays valid.
        size: Number of rows of the memory, if `stored` is given.
    """
    if permutes(filled, count):
        if stored is None:
            return torch.randperm(filled, generator=draws, device=draws.device)[:count]
        rows = torch.arange(min(size, _permuted(count)), device=draws.device)
        keys = torch.rand(len(rows), dtype=torch.float64, device=draws.device, generator=draws)
        return keys.masked_fill_(rows >= stored, 1).argsort()[: min(count, filled)]
    # Without replacement is with replacement, skipping repeats. The number of draws is fixed, so
    # there are `spare_draws` more than needed. Draw i repeats an earlier one with probability
    # below i / filled whatever the others were, so the repeats are dominated by a sum of
    # independent variables with mean μ ≤ d(d - 1) / 2 filled for d draws, and by Chernoff's bound
    # more than s spare ones have probability at most exp(-μ) (eμ / (s + 1))^(s + 1), which is
    # below 10^-26 for every count. Float64 has 53 random bits: for 10^9 rows, their probabilities
    # differ by 10^-7 of their value.
    uniform = torch.rand(
        count + spare_draws(count), dtype=torch.float64, device=draws.device, generator=draws
    )
    uniform.mul_(filled if stored is None else stored)
    rows, positions = uniform.long().sort(stable=True)
    positions[1:] += len(rows) * (rows[1:] == rows[:-1])  # repeats go to the end
    return rows.index_select(0, positions.argsort()[:count])


def permutes(filled: int, count: int) -> bool:
    """Return whether `draw_rows` permutes all rows: the fastest way if there are few."""
    return filled <= _permuted(count)


def _permuted(count: int) -> int:
    return max(_PERMUTED, _PERMUTED_PER_DRAW * count)


def spare_draws(count: int) -> int:
    """Return how many draws `draw_rows` makes beyond `count`, to replace repeats."""
    return 16 + count // 8


def copy_rows(storage: Tensor, rows: Tensor, values: Tensor) -> None:
    """Copy values to rows of a contiguous tensor, if possible as 64-bit words.

    The cost of copying grows with the number of elements.
    """
    values = values.contiguous()
    row, size = math.prod(storage.shape[1:]), storage.element_size()
    if not row:
        return
    if row * size % 8 == 0:
        if values.storage_offset() * size % 8:
            values = values.clone()
        row = row * size // 8
        storage, values = (t.view(-1).view(torch.int64) for t in (storage, values))
    storage = storage.view(-1, row)
    write = partial(storage.index_copy_, 0, rows, values.view(-1, row))
    if not postpone(write):
        save_rows(storage, rows)
        write()


def _layout(samples: Samples) -> str:
    """Describe one stored sample."""
    logits = () if samples.logits is None else (samples.logits,)
    return layout((samples.inputs, samples.labels, *logits))


def _row_bytes(samples: Samples) -> int:
    """Return the size of one stored sample."""
    return sum(math.prod(t.shape[1:]) * t.element_size() for t in samples.tensors())


def load_samples(state: State) -> Samples | None:
    """Return the stored samples in the state of a memory, or None if it is empty."""
    if not state.get("stored"):
        return None
    parts = dict(state["stored"])
    inputs = load_structure(parts.pop("inputs"), parts.pop("structure", ""))
    return Samples(inputs, **parts)
