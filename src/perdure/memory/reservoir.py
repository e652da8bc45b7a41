"""Reservoir sampling (Algorithm 2 of the CLS-ER paper): a uniform sample of the stream so far.

Also the ages of stored samples, and a histogram of those that are replayed.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from perdure.memory.episodic import EpisodicMemory, copy_rows, draw_rows, permutes
from perdure.memory.storage import Storage
from perdure.randomness import generator
from perdure.records import Samples
from perdure.state import State, get_state, load_state
from perdure.undo import Undoable, postpone, save_generator, save_tensors

_BINS = 32
"""Bin k holds ages from 2^k to 2^(k+1) − 1, so that no stream exceeds the last bin."""


class Reservoir(EpisodicMemory):
    """Keeps each sample of the stream with equal probability.

    Rows are chosen on the device, without synchronisation with the host.

    Args:
        buffer_size: Maximum number of samples. Give either this or `buffer_bytes`.
        buffer_bytes: Maximum size of the stored samples, such as 64_000_000 or "64MB".
        seed: Seed of the random draws.
        device: Device of the network, to which samples are drawn.
        storage: Where the stored inputs are kept; by default on `device`.

    Examples:
        >>> memory = Reservoir(3)
        >>> memory.add(Samples(torch.arange(10.).reshape(5, 2), torch.tensor([0, 1, 2, 3, 4])))
        >>> memory.filled, int(memory.seen), len(memory.draw(8).labels)
        (3, 5, 3)
    """

    saved_by_itself: tuple[str, ...] = (*EpisodicMemory.saved_by_itself, "insertion")

    def _create_state(self, seed: int) -> None:
        self.seen = torch.zeros((), dtype=torch.int64, device=self.device)
        """Number of samples added so far."""
        self.insertion = generator(seed, "reservoir", self.device)

    def add(self, samples: Samples) -> None:
        """Present samples of the stream in order; each may replace a stored one.

        Args:
            samples: Next samples of the stream.
        """
        count = len(samples.labels)
        self.reserve(samples)
        self._write(self._slots(count), samples)
        self.note_added(count)

    def _slots(self, count: int) -> Tensor:
        """Draw a row for each of the next `count` samples; `buffer_size` means not kept."""
        position = torch.arange(1, count + 1, device=self.device) + self.seen
        save_generator(self.insertion)
        # Algorithm 2 draws an integer from [0, N] after N samples. Products in float32 would be
        # inexact from 10^7 samples on.
        uniform = torch.rand(
            count, dtype=torch.float64, device=self.device, generator=self.insertion
        )
        slots = uniform.mul_(position).long()
        if not self.full or self.device.type != "cpu":  # one CUDA graph serves both
            slots = torch.where(position <= self.buffer_size, position - 1, slots)
        slots.clamp_(max=self.buffer_size)
        self.seen += count
        return self._keep_last(slots)

    def host_state(self) -> Hashable:
        """Return the host values that drawing and adding samples depend on.

        On a GPU, a graph can be used while the memory is filling.
        """
        if self.device.type == "cpu" or not self.filled:
            return super().host_state()
        return tuple((min(self.filled, n), permutes(self.filled, n)) for n in self._draws)

    def note_added(self, count: int) -> None:
        """Note that `add`, or a CUDA graph of it, was given `count` samples."""
        self.presented += count
        self.filled = min(self.buffer_size, self.filled + count)

    def _choose(self, count: int) -> Tensor:
        if self.device.type == "cpu":
            return super()._choose(count)
        save_generator(self.selection)
        stored, size = self.seen.clamp(max=self.buffer_size), self.buffer_size
        return draw_rows(self.filled, count, self.selection, stored=stored, size=size)

    def _parts(self) -> dict[str, object]:
        return {**super()._parts(), "seen": self.seen, "insertion": self.insertion}


class AgeTrackingReservoir(Reservoir):
    """A reservoir that knows how many steps ago each sample was stored.

    Args:
        buffer_size: Maximum number of samples. Give either this or `buffer_bytes`.
        buffer_bytes: Maximum size of the stored samples, such as 64_000_000 or "64MB".
        clock: Scalar that counts steps; its owner advances it in place.
        seed: Seed of the random draws.
        device: Device of the network, to which samples are drawn.
        storage: Where the stored inputs are kept; by default on `device`.

    Examples:
        >>> clock = torch.tensor(3)
        >>> memory = AgeTrackingReservoir(4, clock=clock)
        >>> memory.add(Samples(torch.rand(2, 5), torch.tensor([0, 1])))
        >>> _ = clock.add_(2), memory.draw(2)
        >>> memory.drawn_ages()
        tensor([3, 3])
    """

    saved_by_itself = (*Reservoir.saved_by_itself, "stored_at", "_drawn")

    def __init__(
        self,
        buffer_size: int | None = None,
        *,
        clock: Tensor,
        buffer_bytes: int | str | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        storage: Storage | None = None,
    ) -> None:
        super().__init__(
            buffer_size, buffer_bytes=buffer_bytes, seed=seed, device=device, storage=storage
        )
        self.clock = clock
        self._drawn: Tensor | None = None

    def _set_size(self, size: int) -> None:
        super()._set_size(size)
        self.stored_at = torch.zeros(0, dtype=torch.int64, device=self.device)
        """Step after which each sample was stored; empty until storage is allocated."""

    def _create_rows(self) -> None:
        self.stored_at = self.stored_at.new_zeros(self.buffer_size + 1)

    def drawn_ages(self) -> Tensor:
        """Return the ages [n] in steps of the samples that `draw` returned last.

        The age includes the current step: in the step after a sample was stored, it is 1. Call
        this before `add`, which may overwrite the samples.
        """
        if self._drawn is None:
            raise ValueError("no samples have been drawn yet")
        return self.clock + 1 - self.stored_at.index_select(0, self._drawn)

    def _choose(self, count: int) -> Tensor:
        self._drawn = super()._choose(count)
        return self._drawn

    def _write(self, rows: Tensor, samples: Samples) -> None:
        super()._write(rows, samples)
        copy_rows(self.stored_at, rows, self.clock.expand(len(rows)))

    def _parts(self) -> dict[str, object]:
        return {**super()._parts(), "stored_at": self.stored_at[: self.filled]}


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

    saved_by_itself = ("counts", "_bounds", "_one")

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.counts = torch.zeros(2 * _BINS, dtype=torch.int64, device=device)
        """Samples that are not marked in each bin, then those that are."""
        self._bounds = torch.tensor([2**k for k in range(1, _BINS)], device=device)
        self._one = torch.ones(1, dtype=torch.int64, device=device)

    def add(self, ages: Tensor, marked: Tensor) -> None:
        """Count samples by their ages [n], at least 1, and whether they are marked [n]."""
        places = torch.bucketize(ages, self._bounds, right=True).add_(marked, alpha=_BINS)
        count = partial(self.counts.index_add_, 0, places, self._one.expand_as(places))
        if not postpone(count):
            save_tensors(self, [self.counts])
            count()

    def read(self) -> AgeCounts:
        """Return the counts. Waits for the device."""
        counts = self.counts.view(2, _BINS)
        total, marked = counts.sum(0).tolist(), counts[1].tolist()
        while total and not total[-1]:
            total.pop()
        return AgeCounts([2**k for k in range(len(total) + 1)], total, marked[: len(total)])

    def state_dict(self) -> State:
        """Return the counters."""
        return {"counts": get_state(self.counts)}

    def load_state_dict(self, state: State) -> None:
        """Restore a state in place.

        Raises:
            ValueError: If the counters are those of an earlier version.
        """
        if len(state["counts"]) == _BINS:
            raise ValueError("the counts of ages are in the format of an earlier version")
        load_state(self.counts, state["counts"])
