"""Histogram of the ages of replayed samples."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from perdure.state import State, get_state, load_state
from perdure.undo import Undoable

_BINS = 32
"""Bin k holds ages from 2^k to 2^(k+1) − 1, so that no stream exceeds the last bin."""
_MARK = 2**32
"""Each counter holds two counts: all samples in the low 32 bits, marked ones in the high bits."""


class AgeCounts(NamedTuple):
    """Number of samples in each bin of ages."""

    edges: list[int]
    """Bin k holds ages from `edges[k]` to `edges[k + 1] - 1`. Empty bins at the end are omitted."""
    total: list[int]
    marked: list[int]


class AgeHistogram(Undoable):
    """Counts samples, and those among them that are marked, by age.

    Examples:
        >>> histogram = AgeHistogram()
        >>> histogram.add(torch.tensor([3, 2]), torch.tensor([True, False]))
        >>> histogram.read()
        AgeCounts(edges=[1, 2, 4], total=[0, 2], marked=[0, 1])
    """

    saved_by_itself = ("_bounds", "_unmarked", "_marked")

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.counts = torch.zeros(_BINS, dtype=torch.int64, device=device)
        self._bounds = torch.tensor([2**k for k in range(1, _BINS)], device=device)
        self._unmarked, self._marked = torch.tensor([1, 1 + _MARK], device=device)

    def add(self, ages: Tensor, marked: Tensor) -> None:
        """Count samples by their ages [n], at least 1, and whether they are marked [n]."""
        bins = torch.bucketize(ages, self._bounds, right=True)
        self.counts.index_add_(0, bins, torch.where(marked, self._marked, self._unmarked))

    def read(self) -> AgeCounts:
        """Return the counts. Waits for the device."""
        counts = self.counts.tolist()
        while counts and not counts[-1]:
            counts.pop()
        return AgeCounts(
            edges=[2**k for k in range(len(counts) + 1)],
            total=[count % _MARK for count in counts],
            marked=[count // _MARK for count in counts],
        )

    def state_dict(self) -> State:
        """Return the counters."""
        return {"counts": get_state(self.counts)}

    def load_state_dict(self, state: State) -> None:
        """Restore a state in place."""
        load_state(self.counts, state["counts"])
