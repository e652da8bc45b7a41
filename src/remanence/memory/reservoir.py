"""Reservoir sampling (the paper's Algorithm 2): a uniform sample of everything seen so far."""

from __future__ import annotations

import torch
from torch import Tensor

from remanence.randomness import generator
from remanence.records import Samples
from remanence.state import State, give, take


class Reservoir:
    """At most `capacity` samples; each sample of the stream is in it with equal probability.

    Insertion and drawing need no answer from the device: slots and rows are computed there. The
    host knows only how far the memory is filled, which decides the size of a drawn batch.

    >>> memory = Reservoir(3)
    >>> memory.add(Samples(torch.arange(10.).reshape(5, 2), torch.tensor([0, 1, 2, 3, 4])))
    >>> memory.filled, int(memory.seen), len(memory.draw(8).labels)
    (3, 5, 3)
    """

    def __init__(self, capacity: int, *, seed: int = 0, device: torch.device | str = "cpu") -> None:
        if capacity < 1:
            raise ValueError(f"buffer size is {capacity}; expected 1 or more")
        self.capacity = capacity
        self.filled = 0
        self.seen = torch.zeros((), dtype=torch.int64, device=device)
        self.insertion = generator(seed, "reservoir", device)
        self.selection = generator(seed, "replay", device)
        # One row more than the capacity: samples that are not kept are written there.
        self._stored: Samples | None = None

    def add(self, samples: Samples) -> None:
        """Present samples in order; chance decides which are kept and which they replace."""
        stored = self._stored = self._stored or self._allocate(samples)
        slots = self._slots(len(samples.labels))
        for storage, rows in zip(stored, samples, strict=True):
            if storage is not None and rows is not None:
                storage.index_copy_(0, slots, rows.detach())
        self.filled = min(self.capacity, self.filled + len(samples.labels))

    def draw(self, count: int) -> Samples | None:
        """`count` samples without replacement (all, if there are fewer); None while empty."""
        if self._stored is None:
            return None
        rows = torch.randperm(self.filled, generator=self.selection, device=self.seen.device)
        return self._stored.rows(rows[:count])

    def contents(self) -> Samples | None:
        """All that is stored, in slot order; None while empty."""
        if self._stored is None:
            return None
        return Samples(*(None if t is None else t[: self.filled] for t in self._stored))  # type: ignore[arg-type]

    def _slots(self, count: int) -> Tensor:
        """Where each of the next `count` samples goes; `capacity` means nowhere."""
        position = torch.arange(count, device=self.seen.device).add_(self.seen)
        # Algorithm 2 draws from [0, N], N samples having been seen. Float64 is exact far beyond
        # any stream; float32 would be wrong from 10^7 samples on.
        uniform = torch.rand(
            count, dtype=torch.float64, device=self.seen.device, generator=self.insertion
        )
        drawn = uniform.mul_(position + 1).long()
        slots = torch.where(position < self.capacity, position, drawn).clamp_(max=self.capacity)
        # Two samples of one batch in one slot: the later one stays, whatever order the device
        # writes in.
        overwritten = (slots[:, None] == slots).triu_(1).any(1)
        self.seen += count
        return slots.masked_fill_(overwritten, self.capacity)

    def _allocate(self, like: Samples) -> Samples:
        rows = self.capacity + 1
        return Samples(
            *(
                None
                if t is None
                else torch.zeros(rows, *t.shape[1:], dtype=t.dtype, device=t.device)  # type: ignore[arg-type]
                for t in like
            )
        )

    def state_dict(self) -> State:
        """Count, generators and the stored samples."""
        contents = self.contents()
        stored = {} if contents is None else contents._asdict()
        return {
            "filled": self.filled,
            "seen": take(self.seen),
            "insertion": take(self.insertion),
            "selection": take(self.selection),
            "stored": {name: t.clone() for name, t in stored.items() if t is not None},
        }

    def load_state_dict(self, state: State) -> None:
        """Become the reservoir that the state describes; the capacity must be the same."""
        filled = int(state["filled"])
        stored = Samples(**state["stored"]) if state.get("stored") else None
        if filled > self.capacity or filled != (0 if stored is None else len(stored.labels)):
            raise ValueError(f"{filled} stored samples do not fit a buffer of {self.capacity}")
        if int(state["seen"]) > filled and filled < self.capacity:
            raise ValueError(f"the buffer was one of {filled} samples, not of {self.capacity}")
        give(self.seen, state["seen"])
        give(self.insertion, state["insertion"])
        give(self.selection, state["selection"])
        self.filled = filled
        if stored is None:
            self._stored = None
            return
        self._stored = self._stored or self._allocate(stored.to(self.seen.device))
        for storage, rows in zip(self._stored, stored, strict=True):
            if storage is not None and rows is not None:
                storage[:filled].copy_(rows)
