"""Base class of the memories that store samples."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from perdure.randomness import generator
from perdure.records import Samples
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

    def __init__(
        self, buffer_size: int, *, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        if buffer_size < 1:
            raise ValueError(f"buffer_size is {buffer_size}; expected 1 or more")
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
        if self._stored is None:
            return None
        return self._stored.rows(self._choose(count))

    def _choose(self, count: int) -> Tensor:
        """Choose the rows for `draw`."""
        rows = torch.randperm(self.filled, generator=self.selection, device=self.device)
        return rows[:count]

    def contents(self) -> Samples | None:
        """Return a view of the stored samples in row order, or None if the memory is empty."""
        if self._stored is None:
            return None
        return Samples(*(None if t is None else t[: self.filled] for t in self._stored))  # type: ignore[arg-type]

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
        """Return the stored samples and the state of the random generators."""
        contents = self.contents()
        stored = {} if contents is None else contents._asdict()
        return {
            "buffer_size": self.buffer_size,
            "filled": self.filled,
            "selection": get_state(self.selection),
            "stored": {name: t.clone() for name, t in stored.items() if t is not None},
        }

    def load_state_dict(self, state: State) -> None:
        """Restore a state of a memory of the same size.

        Raises:
            ValueError: If the state has another `buffer_size` or is inconsistent.
        """
        filled = int(state["filled"])
        stored = Samples(**state["stored"]) if state.get("stored") else None
        if int(state["buffer_size"]) != self.buffer_size:
            raise ValueError(
                f"the state has buffer_size {state['buffer_size']}; expected {self.buffer_size}"
            )
        found = 0 if stored is None else len(stored.labels)
        if filled > self.buffer_size or filled != found:
            raise ValueError(f"the state claims {filled} samples but contains {found}")
        load_state(self.selection, state["selection"])
        self.filled = filled
        if stored is None:
            self._stored = None
            return
        if self._stored is None or not _same_layout(self._stored, stored):
            self._stored = self._allocate(stored)
        self._write(torch.arange(filled, device=self.device), stored.to(self.device))


def _as_words(rows: Tensor) -> Tensor:
    """View rows as 64-bit words if possible: the cost of copying grows with the element count."""
    flat = rows.reshape(len(rows), math.prod(rows.shape[1:]))
    size = flat.element_size()
    if any(n * size % 8 for n in (flat.shape[1], flat.storage_offset())):
        return flat
    return flat.view(torch.int64)


def _same_layout(a: Samples, b: Samples) -> bool:
    """Return whether the rows of `a` and `b` have the same dtypes and shapes."""
    kinds = [[None if t is None else (t.dtype, t.shape[1:]) for t in s] for s in (a, b)]
    return kinds[0] == kinds[1]
