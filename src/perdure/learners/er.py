"""Experience Replay (Riemer et al., 2018; reservoir of Vitter, 1985)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from perdure.learners.learner import Learner
from perdure.memory import Reservoir
from perdure.records import Samples


class ER(Learner):
    """Each batch is joined by one drawn from a reservoir of past samples.

    >>> import torch
    >>> learner = ER(torch.nn.Linear(4, 3), buffer_size=20)
    >>> for _ in range(3):
    ...     learner.observe(torch.rand(8, 4), torch.randint(3, (8,)))
    >>> learner.memory.filled
    20
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        buffer_size: int,
        memory_batch: int = 32,
        seed: int = 0,
        **common: Any,
    ) -> None:
        super().__init__(network, seed=seed, **common)
        if memory_batch < 1:
            raise ValueError(f"memory_batch is {memory_batch}; expected 1 or more")
        self.memory_batch = memory_batch
        self.memory = Reservoir(buffer_size, seed=seed, device=self.device)

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        """Descend on one mean over stream and replay together, then present the batch."""
        batch = Samples(inputs, labels)
        past = self.memory.draw(self.memory_batch)
        x, y = self.prepare(batch, past) if past else self.prepare(batch)
        self.descend(F.cross_entropy(self.network(x), y))
        self.memory.add(batch)

    def host_state(self) -> int:
        """How far the memory is filled decides the size of the replay batch."""
        return self.memory.filled
