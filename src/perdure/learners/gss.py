"""Gradient-based Sample Selection, greedy (Aljundi, Lin, Goujaud and Bengio, NeurIPS 2019)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perdure.learners import likeness
from perdure.learners.learner import Learner
from perdure.learners.predictor import answering
from perdure.memory.gradients import GradientMemory
from perdure.records import Samples

FIRST_SCORE = 0.1
"""The score of samples that come when there is nothing to compare them with."""


class GSS(Learner):
    """Replay from a memory that prefers samples whose gradients point where no other's do.

    In the paper's symbols: g is a sample's gradient, G those of `gss_batch` (n) random samples of
    the memory M; the score c = max_i cos(g, G_i) + 1 lies between 0 and 2 and is stored in C.
    Each batch is learned `inner_steps` times. Defaults are the published S-CIFAR-10 setting for a
    buffer of 500.

    >>> learner = GSS(nn.Linear(4, 3), buffer_size=20)
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
        gss_batch: int = 32,
        inner_steps: int = 1,
        lr: float = 0.03,
        seed: int = 0,
        **common: Any,
    ) -> None:
        super().__init__(network, lr=lr, seed=seed, **common)
        counts = {"memory_batch": memory_batch, "gss_batch": gss_batch, "inner_steps": inner_steps}
        for name, count in counts.items():
            if count < 1:
                raise ValueError(f"{name} is {count}; expected 1 or more")
        self.memory_batch = memory_batch
        self.gss_batch = gss_batch
        self.inner_steps = inner_steps
        self.memory = GradientMemory(buffer_size, seed=seed, device=self.device)
        self._compare = (
            likeness.of_linear_layers if likeness.is_linear(network) else likeness.of_any
        )

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        """Learn from stream and replay together, then let the batch compete for the memory."""
        batch = Samples(inputs, labels)
        for to_come in reversed(range(self.inner_steps)):
            past = self.memory.draw(self.memory_batch)
            x, y = self.prepare(batch, past) if past else self.prepare(batch)
            loss = F.cross_entropy(self.network(x), y)
            if to_come:
                self.move(loss)
            else:
                self.descend(loss)
        self.select(batch)

    def host_state(self) -> int:
        """How far the memory is filled decides the size of the batches drawn from it."""
        return self.memory.filled

    def select(self, batch: Samples) -> None:
        """Algorithm 2: score the samples and present them to M.

        Images are not augmented here: a score belongs to the sample. The batch as one, by its mean
        gradient, is scored too: a full memory considers its samples only if that score is below 1.
        """
        stored = self.memory.draw(self.gss_batch)
        x, y = self.normalise(batch.inputs), batch.labels
        if stored is None:
            first = torch.full_like(y, FIRST_SCORE, dtype=torch.float64)
            self.memory.add(batch, first, first[0] < 1)
            return
        # In full precision: under autocast vmap has no rule for BatchNorm on every device.
        with answering(self.network), torch.autocast(self.device.type, enabled=False):
            x_m = self.normalise(stored.inputs)
            compared = self._compare(self.network, Samples(x, y), Samples(x_m, stored.labels))
            considered = compared.batch < 1
            self.tally(considered=considered)
            # A CPU can be asked without waiting, and is spared all gradients but the batch's.
            if self.device.type == "cpu" and self.memory.full and not considered:
                return
            scores = compared.each()
        self.memory.add(batch, scores, considered)
