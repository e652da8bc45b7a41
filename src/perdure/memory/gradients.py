"""Gradient-based selection: samples whose gradients are unlike those already stored."""

from __future__ import annotations

import torch
from torch import Tensor

from perdure.memory.episodic import EpisodicMemory
from perdure.randomness import generator
from perdure.records import Samples
from perdure.state import State, give, take


class GradientMemory(EpisodicMemory):
    """Stored samples with the score that each had when it came: high is redundant.

    Free rows are filled in order. After that a candidate with score c names a victim with
    probability s_i / Σ s, s being the stored scores, and takes its row with probability
    s_i / (s_i + c). The candidates of one batch do this at the same moment, against the scores as
    they stand when the last free row has been taken; of several that win one row the last has it.

    >>> memory = GradientMemory(3)
    >>> batch = Samples(torch.rand(5, 2), torch.arange(5))
    >>> memory.add(batch, torch.tensor([1.5, 1.25, 0.25, 0.75, 1]), torch.tensor(False))
    >>> memory.contents().labels.tolist(), memory.scores[:3].tolist()
    ([0, 1, 2], [1.5, 1.25, 0.25])
    """

    def __init__(
        self, buffer_size: int, *, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(buffer_size, seed=seed, device=device)
        self.scores = torch.zeros(buffer_size + 1, dtype=torch.float64, device=device)
        self.insertion = generator(seed, "gradient selection", device)

    def add(self, samples: Samples, scores: Tensor, considered: Tensor) -> None:
        """Present samples with their scores [n].

        Unless `considered`, one boolean for the batch, only free rows are taken. It is a tensor so
        that the decision never leaves the device.
        """
        count = len(samples.labels)
        scores = scores.double()
        rows = self.filled + torch.arange(count, device=self.device)
        if self.filled + count > self.buffer_size:
            rows = self._contested(rows, scores, considered)
        self.scores.index_copy_(0, rows, scores)
        self._write(rows, samples)
        self.filled = min(self.buffer_size, self.filled + count)

    def _contested(self, rows: Tensor, scores: Tensor, considered: Tensor) -> Tensor:
        """The row of each sample, of which those past the capacity have to win one."""
        free = rows < self.buffer_size
        if not self.full:
            self.scores.index_copy_(0, rows.clamp(max=self.buffer_size), scores)
        cumulative = self.scores[: self.buffer_size].cumsum(0)
        chance, coin = torch.rand(
            2, len(rows), dtype=torch.float64, device=self.device, generator=self.insertion
        )
        victims = torch.searchsorted(cumulative, chance * cumulative[-1], right=True)
        victims.clamp_(max=self.buffer_size - 1)
        stored = self.scores[victims]
        wins = considered & (coin < stored / (stored + scores))
        rows = torch.where(free, rows, victims.masked_fill_(~wins, self.buffer_size))
        # Two samples of one batch in one row: the later one stays, whatever order the device
        # writes in.
        overwritten = (rows[:, None] == rows).triu_(1).any(1)
        return rows.masked_fill_(overwritten, self.buffer_size)

    def state_dict(self) -> State:
        """Capacity, generators, stored samples and their scores."""
        return {
            **super().state_dict(),
            "insertion": take(self.insertion),
            "scores": self.scores[: self.filled].clone(),
        }

    def load_state_dict(self, state: State) -> None:
        """Become the memory that the state describes; the capacity must be the same."""
        if len(state["scores"]) != int(state["filled"]):
            raise ValueError(f"{len(state['scores'])} scores for {state['filled']} samples")
        super().load_state_dict(state)
        give(self.insertion, state["insertion"])
        self.scores.zero_()
        give(self.scores[: self.filled], state["scores"])
