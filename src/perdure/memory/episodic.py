"""What memories of stored samples share: their rows, drawing from them, and their state."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from perdure.randomness import generator
from perdure.records import Samples
from perdure.state import State, give, take


class EpisodicMemory:
    """At most `capacity` samples, drawn without replacement; a subclass decides which are kept.

    The host knows only how many rows are filled, which decides the size of a drawn batch. Rows
    keep their addresses from the first write on.
    """

    def __init__(
        self, buffer_size: int, *, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        if buffer_size < 1:
            raise ValueError(f"buffer_size is {buffer_size}; expected 1 or more")
        self.buffer_size = buffer_size
        self.filled = 0
        self.device = torch.device(device)
        self.selection = generator(seed, "replay", device)
        # One row more than the capacity: samples that are not kept are written there.
        self._stored: Samples | None = None

    @property
    def full(self) -> bool:
        """Whether a new sample needs another one's row."""
        return self.filled == self.buffer_size

    def draw(self, count: int) -> Samples | None:
        """`count` samples without replacement (all, if there are fewer); None while empty."""
        if self._stored is None:
            return None
        return self._stored.rows(self._choose(count))

    def _choose(self, count: int) -> Tensor:
        """The rows of the next `draw`."""
        rows = torch.randperm(self.filled, generator=self.selection, device=self.device)
        return rows[:count]

    def contents(self) -> Samples | None:
        """All that is stored, in row order, not copied; None while empty."""
        if self._stored is None:
            return None
        return Samples(*(None if t is None else t[: self.filled] for t in self._stored))  # type: ignore[arg-type]

    def class_counts(self, classes: int) -> list[int]:
        """How many samples of each class are stored. Waits for the device."""
        contents = self.contents()
        if contents is None:
            return [0] * classes
        return torch.bincount(contents.labels.cpu(), minlength=classes).tolist()

    def _write(self, rows: Tensor, samples: Samples) -> None:
        """Put samples into rows; those at row `capacity` are dropped."""
        if self._stored is None:
            self._stored = self._allocate(samples)
        for storage, values in zip(self._stored, samples, strict=True):
            if storage is not None and values is not None:
                if storage.dtype != values.dtype or storage.shape[1:] != values.shape[1:]:
                    raise ValueError(
                        f"rows of {values.dtype} {tuple(values.shape[1:])} do not fit a memory of "
                        f"{storage.dtype} {tuple(storage.shape[1:])}"
                    )
                _words(storage).index_copy_(0, rows, _words(values.detach()))

    def _allocate(self, like: Samples) -> Samples:
        rows = self.buffer_size + 1
        return Samples(
            *(
                None
                if t is None
                else torch.zeros(rows, *t.shape[1:], dtype=t.dtype, device=self.device)  # type: ignore[arg-type]
                for t in like
            )
        )

    def state_dict(self) -> State:
        """Capacity, generator and the stored samples."""
        contents = self.contents()
        stored = {} if contents is None else contents._asdict()
        return {
            "buffer_size": self.buffer_size,
            "filled": self.filled,
            "selection": take(self.selection),
            "stored": {name: t.clone() for name, t in stored.items() if t is not None},
        }

    def load_state_dict(self, state: State) -> None:
        """Become the memory that the state describes; the capacity must be the same."""
        filled = int(state["filled"])
        stored = Samples(**state["stored"]) if state.get("stored") else None
        if int(state["buffer_size"]) != self.buffer_size:
            raise ValueError(
                f"the state has buffer_size {state['buffer_size']}; expected {self.buffer_size}"
            )
        if filled > self.buffer_size or filled != (0 if stored is None else len(stored.labels)):
            raise ValueError(f"{filled} samples are announced; their rows say otherwise")
        give(self.selection, state["selection"])
        self.filled = filled
        if stored is None:
            self._stored = None
            return
        if self._stored is None or not _alike(self._stored, stored):
            self._stored = self._allocate(stored)
        self._write(torch.arange(filled, device=self.device), stored.to(self.device))


def _words(rows: Tensor) -> Tensor:
    """The same memory as rows of 64-bit words, where they divide into them.

    Copying rows costs by the element: bytes take six times as long.
    """
    flat = rows.reshape(len(rows), math.prod(rows.shape[1:]))
    size = flat.element_size()
    if any(n * size % 8 for n in (flat.shape[1], flat.storage_offset())):
        return flat
    return flat.view(torch.int64)


def _alike(a: Samples, b: Samples) -> bool:
    """Whether rows of one could hold rows of the other."""
    kinds = [[None if t is None else (t.dtype, t.shape[1:]) for t in s] for s in (a, b)]
    return kinds[0] == kinds[1]
