"""Averaged Gradient Episodic Memory (Chaudhry et al., ICLR 2019)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from perdure.learners.gem import GuardedDescent


class AGEM(GuardedDescent):
    """Descent by the nearest gradient that raises no loss on a random batch of past samples.

    In the paper's symbols: g is the stream's gradient, g_ref the one on `memory_batch` samples
    drawn from the memory of past tasks.

    >>> from perdure.records import Samples
    >>> learner = AGEM(nn.Linear(4, 3), buffer_size=20, tasks=2)
    >>> inputs, labels = torch.rand(12, 4), torch.randint(3, (12,))
    >>> learner.observe(inputs, labels)
    >>> learner.end_task(Samples(inputs, labels))
    >>> learner.observe(inputs, labels)
    >>> learner.memory.counts
    [10]
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        buffer_size: int,
        tasks: int,
        memory_batch: int = 32,
        seed: int = 0,
        **common: Any,
    ) -> None:
        super().__init__(network, buffer_size=buffer_size, tasks=tasks, seed=seed, **common)
        if memory_batch < 1:
            raise ValueError(f"memory_batch is {memory_batch}; expected 1 or more")
        self.memory_batch = memory_batch

    def reference(self) -> Tensor | None:
        """g_ref: the gradient on one batch drawn from all past tasks."""
        past = self.memory.draw(self.memory_batch)
        return None if past is None else self.gradient(*self.prepare(past))

    def project(self, gradient: Tensor, reference: Tensor) -> Tensor:
        """Equation 11: g̃ = g − (gᵀg_ref / g_refᵀg_ref) g_ref where gᵀg_ref < 0, else g.

        Decided on the device, so that a captured step may take either way.
        """
        product = gradient @ reference
        conflict = product < 0
        self.tally(projected=conflict)
        share = product / (reference @ reference)
        return torch.where(conflict, gradient - share * reference, gradient)
