"""Reservoir sampling (the paper's Algorithm 2): a uniform sample of everything seen so far."""

from __future__ import annotations

import torch
from torch import Tensor

from perdure.memory.episodic import EpisodicMemory
from perdure.randomness import generator
from perdure.records import Samples
from perdure.state import State, give, take


class Reservoir(EpisodicMemory):
    """At most `capacity` samples; each sample of the stream is in it with equal probability.

    Where a sample goes is computed on the device, which is never asked for it.

    >>> memory = Reservoir(3)
    >>> memory.add(Samples(torch.arange(10.).reshape(5, 2), torch.tensor([0, 1, 2, 3, 4])))
    >>> memory.filled, int(memory.seen), len(memory.draw(8).labels)
    (3, 5, 3)
    """

    def __init__(
        self, buffer_size: int, *, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(buffer_size, seed=seed, device=device)
        self.seen = torch.zeros((), dtype=torch.int64, device=device)
        self.insertion = generator(seed, "reservoir", device)
        # 1, 2 … n for each batch size n that came: all are kept, since graphs refer to them.
        self._ordinals: dict[int, Tensor] = {}

    def add(self, samples: Samples) -> None:
        """Present samples in order; chance decides which are kept and which they replace."""
        count = len(samples.labels)
        self._write(self._slots(count), samples)
        self.filled = min(self.buffer_size, self.filled + count)

    def _slots(self, count: int) -> Tensor:
        """Where each of the next `count` samples goes; `capacity` means nowhere."""
        if count not in self._ordinals:
            self._ordinals[count] = torch.arange(1, count + 1, device=self.device)
        seen_with_it = self._ordinals[count] + self.seen
        # Algorithm 2 draws from [0, N], N samples having been seen. Float64 is exact far beyond
        # any stream; float32 would be wrong from 10^7 samples on.
        uniform = torch.rand(
            count, dtype=torch.float64, device=self.device, generator=self.insertion
        )
        slots = uniform.mul_(seen_with_it).long()
        if not self.full:
            slots = torch.where(seen_with_it <= self.buffer_size, seen_with_it - 1, slots)
        slots.clamp_(max=self.buffer_size)
        # Two samples of one batch in one slot: the later one stays, whatever order the device
        # writes in.
        overwritten = (slots[:, None] == slots).triu_(1).any(1)
        self.seen += count
        return slots.masked_fill_(overwritten, self.buffer_size)

    def state_dict(self) -> State:
        """Stored samples, the count of all that were seen, and the generators."""
        own = {"seen": take(self.seen), "insertion": take(self.insertion)}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: State) -> None:
        """Become the reservoir that the state describes; the capacity must be the same."""
        super().load_state_dict(state)
        give(self.seen, state["seen"])
        give(self.insertion, state["insertion"])
