"""Base class of the memories that store samples."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from perdure.randomness import generator
from perdure.records import Samples, join
from perdure.state import State, get_state, load_state


class EpisodicMemory:
    """Stores at most `buffer_size` samples; subclasses decide which.

    The host knows only the number of stored samples, which determines the size of a drawn batch.
    Storage is allocated at the first write and keeps its address.

    Args:
        buffer_size: Maximum number of samples.
        seed: Seed of the random draws.
        device: Device that holds the samples.
    """

    _settings: tuple[str, ...] = ("buffer_size",)
    """Attributes that a state must agree with."""

    def __init__(
        self, buffer_size: int, *, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        if not isinstance(buffer_size, int) or buffer_size < 1:
            raise ValueError(f"buffer_size is {buffer_size!r}; expected a whole number, 1 or more")
        self.buffer_size = buffer_size
        self.filled = 0
        """Number of stored samples."""
        self.device = torch.device(device)
        self.selection = generator(seed, "replay", device)
        # Has one extra row, `buffer_size`: samples that are not kept are written there.
        self._stored: Samples | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.filled} of {self.buffer_size} samples)"

    @property
    def full(self) -> bool:
        """Whether every row holds a sample."""
        return self.filled == self.buffer_size

    def draw(self, count: int) -> Samples | None:
        """Draw samples at random, without replacement.

        Args:
            count: Number of samples. If fewer are stored, all are returned.

        Returns:
            Copies of the samples, or None if the memory is empty.
        """
        return None if self._stored is None else self._stored.rows(self._choose(count))

    def _choose(self, count: int) -> Tensor:
        """Choose the rows for `draw`."""
        rows = torch.randperm(self.filled, generator=self.selection, device=self.device)
        return rows[:count]

    def contents(self) -> Samples | None:
        """Return a view of the stored samples in row order, or None if the memory is empty."""
        return None if self._stored is None else self._stored.slice(0, self.filled)

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
        """Store samples in the given rows; row `buffer_size` discards them."""
        if self._stored is None:
            self._stored = self._allocate(samples)
        for storage, values in zip(self._stored, samples, strict=True):
            if storage is not None and values is not None:
                if storage.dtype != values.dtype or storage.shape[1:] != values.shape[1:]:
                    raise ValueError(
                        f"samples have rows of {values.dtype} {tuple(values.shape[1:])}; the "
                        f"memory stores {storage.dtype} {tuple(storage.shape[1:])}"
                    )
                _as_words(storage).index_copy_(0, rows, _as_words(values.detach()))

    def _keep_last(self, rows: Tensor) -> Tensor:
        """Of several samples with the same row, keep the last, whatever the order of writing."""
        overwritten = (rows[:, None] == rows).triu_(1).any(1)
        return rows.masked_fill_(overwritten, self.buffer_size)

    def _allocate(self, like: Samples) -> Samples:
        rows = self.buffer_size + 1
        return like.map(lambda t: t.new_zeros(rows, *t.shape[1:], device=self.device))

    def _parts(self) -> dict[str, object]:
        """Return the tensors and generators to save, in addition to the stored samples.

        Tensors with one entry per row are cut to the first `filled` entries.
        """
        return {"selection": self.selection}

    def state_dict(self) -> State:
        """Return everything needed to resume, including random state."""
        contents = self.contents()
        stored = {} if contents is None else contents._asdict()
        return {
            **{name: getattr(self, name) for name in self._settings},
            "filled": self.filled,
            "stored": {name: t.clone() for name, t in stored.items() if t is not None},
            **{name: get_state(part) for name, part in self._parts().items()},
        }

    def load_state_dict(self, state: State) -> None:
        """Restore a state of a memory with the same settings.

        Raises:
            ValueError: If the state has another `buffer_size` or is inconsistent.
        """
        for name in self._settings:
            if int(state[name]) != getattr(self, name):
                raise ValueError(
                    f"the state has {name} {state[name]}; expected {getattr(self, name)}"
                )
        filled = int(state["filled"])
        stored = Samples(**state["stored"]) if state.get("stored") else None
        found = 0 if stored is None else len(stored.labels)
        if filled > self.buffer_size or filled != found:
            raise ValueError(f"the state claims {filled} samples but contains {found}")
        self.filled = filled
        if stored is None:
            self._stored = None
        else:
            if self._stored is None or _layout(self._stored) != _layout(stored):
                self._stored = self._allocate(stored)
            self._write(torch.arange(filled, device=self.device), stored.to(self.device))
        for name, part in self._parts().items():
            load_state(part, state[name])


class GroupedMemory(EpisodicMemory):
    """A memory whose rows are ordered by group: one group per task or class."""

    def __init__(
        self, buffer_size: int, *, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(buffer_size, seed=seed, device=device)
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
        filled = sum(counts.values())
        self._write(torch.arange(filled, device=self.device), join(*groups.values()))
        self.counts, self.filled = counts, filled

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
        if sum(counts.values()) != int(state["filled"]):
            raise ValueError(f"counts {counts} do not add up to {state['filled']} samples")
        super().load_state_dict(state)
        self.counts = counts


def _as_words(rows: Tensor) -> Tensor:
    """View rows as 64-bit words if possible: the cost of copying grows with the element count."""
    flat = rows.reshape(len(rows), math.prod(rows.shape[1:]))
    size = flat.element_size()
    if any(n * size % 8 for n in (flat.shape[1], flat.storage_offset())):
        return flat
    return flat.view(torch.int64)


def _layout(samples: Samples) -> list[object]:
    return [None if t is None else (t.dtype, t.shape[1:]) for t in samples]
