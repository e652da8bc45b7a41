"""A reservoir that knows how old its samples are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from perdure.memory.reservoir import Reservoir
from perdure.records import Samples
from perdure.state import State, give, take

BINS = 32
"""Bins of ages: bin k holds 2^k to below 2^(k+1) steps. No stream has so many doublings."""
_MARK = 2**32
"""One number holds two counts: all samples below this, marked ones above."""


class Ages(NamedTuple):
    """Counts of drawn samples by their age when they were drawn."""

    edges: list[int]
    """Bin k holds ages from `edges[k]` to below `edges[k + 1]`; the last one is not empty."""
    total: list[int]
    marked: list[int]


class DatedReservoir(Reservoir):
    """A reservoir that notes when each sample was stored, and counts by age what is made of them.

    `clock` is a scalar that counts the steps taken; its owner advances it in place. A sample's age
    counts the step that is being taken too, so it is 1 in the step after it was stored.

    >>> clock = torch.tensor(3)
    >>> memory = DatedReservoir(4, clock=clock)
    >>> memory.add(Samples(torch.rand(2, 5), torch.tensor([0, 1])))
    >>> _ = clock.add_(2), memory.draw(2)
    >>> memory.count(torch.tensor([True, False]))
    >>> memory.ages()  # both were 3 steps old
    Ages(edges=[1, 2, 4], total=[0, 2], marked=[0, 1])
    """

    def __init__(
        self, buffer_size: int, *, clock: Tensor, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(buffer_size, seed=seed, device=device)
        self.clock = clock
        self.stored_at = torch.zeros(buffer_size + 1, dtype=torch.int64, device=device)
        self.counts = torch.zeros(BINS, dtype=torch.int64, device=device)
        self._drawn: Tensor | None = None
        self._bounds = torch.tensor([2**k - 1 for k in range(1, BINS)], device=device)
        self._plain, self._marked = torch.tensor([1, 1 + _MARK], device=device)

    def count(self, marked: Tensor) -> None:
        """Count the samples of the last draw by age, and those of them that are `marked` [n].

        A draw is counted once: without another one there is nothing to count.
        """
        if self._drawn is None:
            return
        passed = self.clock - self.stored_at.index_select(0, self._drawn)
        age = torch.bucketize(passed, self._bounds, right=True)
        self.counts.index_add_(0, age, torch.where(marked, self._marked, self._plain))
        self._drawn = None

    def ages(self) -> Ages:
        """What was counted. Waits for the device."""
        counts = self.counts.tolist()
        while counts and not counts[-1]:
            counts.pop()
        return Ages(
            edges=[2**k for k in range(len(counts) + 1)],
            total=[count % _MARK for count in counts],
            marked=[count // _MARK for count in counts],
        )

    def _choose(self, count: int) -> Tensor:
        self._drawn = super()._choose(count)
        return self._drawn

    def _write(self, rows: Tensor, samples: Samples) -> None:
        super()._write(rows, samples)
        self.stored_at.index_copy_(0, rows, self.clock.expand(len(rows)))

    def state_dict(self) -> State:
        """That of a reservoir, the dates and the counts."""
        dates = self.stored_at[: self.filled].clone()
        return {**super().state_dict(), "stored_at": dates, "counts": take(self.counts)}

    def load_state_dict(self, state: State) -> None:
        """Become the reservoir that the state describes.

        The state of a plain reservoir has no dates: its samples count as stored now.
        """
        super().load_state_dict(state)
        if "stored_at" in state:
            give(self.stored_at[: self.filled], state["stored_at"])
            give(self.counts, state["counts"])
