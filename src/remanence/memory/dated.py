"""A reservoir that knows how old its samples are."""

from __future__ import annotations

import torch
from torch import Tensor

from remanence.memory.reservoir import Reservoir
from remanence.records import Samples
from remanence.state import State, give

AGES = 32
"""Bins of ages: more than any stream has doublings."""


class DatedReservoir(Reservoir):
    """A reservoir that notes the step at which each sample was stored.

    `clock` is a scalar that counts the steps taken; its owner advances it in place. A sample's age
    counts the step that is being taken too, so it is 1 in the step after it was stored.

    >>> clock = torch.tensor(3)
    >>> memory = DatedReservoir(4, clock=clock)
    >>> memory.add(Samples(torch.rand(1, 5), torch.tensor([0])))
    >>> _ = clock.add_(6), memory.draw(1)
    >>> memory.age_bins().tolist()  # 7 steps: from 2² to below 2³
    [2]
    """

    def __init__(
        self, capacity: int, *, clock: Tensor, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(capacity, seed=seed, device=device)
        self.clock = clock
        self.stored_at = torch.zeros(capacity + 1, dtype=torch.int64, device=device)
        self._drawn = torch.zeros(0, dtype=torch.int64, device=device)
        self._bounds = torch.tensor([2**k - 1 for k in range(1, AGES)], device=device)

    def age_bins(self) -> Tensor:
        """For each sample of the last draw the bin k of its age, from 2^k to below 2^(k+1), [n]."""
        passed = self.clock - self.stored_at.index_select(0, self._drawn)
        return torch.bucketize(passed, self._bounds, right=True)

    def _choose(self, count: int) -> Tensor:
        self._drawn = super()._choose(count)
        return self._drawn

    def _write(self, rows: Tensor, samples: Samples) -> None:
        super()._write(rows, samples)
        self.stored_at.index_copy_(0, rows, self.clock.expand(len(rows)))

    def state_dict(self) -> State:
        """That of a reservoir, and the dates."""
        return {**super().state_dict(), "stored_at": self.stored_at[: self.filled].clone()}

    def load_state_dict(self, state: State) -> None:
        """Become the reservoir that the state describes.

        The state of a plain reservoir has no dates: its samples count as stored now.
        """
        super().load_state_dict(state)
        if "stored_at" in state:
            give(self.stored_at[: self.filled], state["stored_at"])
