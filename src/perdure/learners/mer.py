"""Meta-Experience Replay (Riemer et al., ICLR 2019)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perdure.learners.er import ER
from perdure.records import Samples


class MER(ER):
    """Replay whose steps are drawn back towards where they began, as Reptile does.

    In the paper's symbols: `inner_steps` is s, the number of inner batches for each arrival;
    `memory_batch` k − 1, the replay samples beside the new ones; `beta` β and `gamma` γ, the
    rates of the Reptile step within and across inner batches.

    The paper's Algorithm 1 takes k SGD steps of one sample each in an inner batch; here, as in
    the code behind the published figures, an inner batch is one step on all k together. With
    β = γ = 1, the published setting, both Reptile steps are identities, and one inner step is a
    step of ER.

    >>> learner = MER(nn.Linear(4, 3), buffer_size=20, beta=0.5, gamma=0.3, inner_steps=2)
    >>> for _ in range(3):
    ...     learner.observe(torch.rand(1, 4), torch.randint(3, (1,)))
    >>> learner.memory.filled, int(learner.steps)
    (3, 3)
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        buffer_size: int,
        memory_batch: int = 128,
        beta: float = 1.0,
        gamma: float = 1.0,
        inner_steps: int = 1,
        seed: int = 0,
        **common: Any,
    ) -> None:
        super().__init__(
            network, buffer_size=buffer_size, memory_batch=memory_batch, seed=seed, **common
        )
        for name, rate in (("beta", beta), ("gamma", gamma)):
            if not 0 < rate <= 1:
                raise ValueError(f"{name} is {rate}; expected a number above 0, at most 1")
        if inner_steps < 1:
            raise ValueError(f"inner_steps is {inner_steps}; expected 1 or more")
        self.beta = beta
        self.gamma = gamma
        self.inner_steps = inner_steps

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        """One round of Algorithm 1."""
        batch = Samples(inputs, labels)
        across = self._weights(unless=self.gamma)
        for to_come in reversed(range(self.inner_steps)):
            past = self.memory.draw(self.memory_batch)
            within = self._weights(unless=self.beta)
            x, y = self.prepare(batch, past) if past else self.prepare(batch)
            loss = F.cross_entropy(self.network(x), y)
            if to_come:
                self.move(loss)
            else:
                self.descend(loss)
            self._reptile(within, self.beta)
        self._reptile(across, self.gamma)
        self.memory.add(batch)

    def _weights(self, *, unless: float) -> list[Tensor]:
        """A copy of the weights; none where a rate of 1 makes the step from them an identity."""
        return [] if unless == 1 else [p.detach().clone() for p in self.network.parameters()]

    @torch.no_grad()
    def _reptile(self, start: list[Tensor], rate: float) -> None:
        """θ ← θ_0 + rate (θ − θ_0)."""
        if start:
            end = [p.detach() for p in self.network.parameters()]
            torch._foreach_lerp_(end, start, 1 - rate)
