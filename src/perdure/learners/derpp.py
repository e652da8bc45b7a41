"""Dark Experience Replay++: stored labels as well as stored logits (Buzzega et al., 2020)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from perdure.learners.der import DER
from perdure.records import Samples


class DERPP(DER):
    """DER with a second, independent replay batch whose labels are learned.

    In the paper's symbols: `network` is h_θ, which gives logits; `alpha` is α, the weight of the
    stored logits z'; `beta` is β, the weight of the stored labels y''. Defaults are the published
    S-CIFAR-10 setting for a buffer of 500.

    >>> import torch
    >>> learner = DERPP(nn.Linear(4, 3), buffer_size=20)
    >>> for _ in range(3):
    ...     learner.observe(torch.rand(8, 4), torch.randint(3, (8,)))
    >>> sorted(learner.totals())
    ['cross_entropy', 'logit_distance', 'loss', 'replay_cross_entropy']
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        buffer_size: int,
        memory_batch: int = 32,
        alpha: float = 0.2,
        beta: float = 0.5,
        lr: float = 0.03,
        seed: int = 0,
        **common: Any,
    ) -> None:
        super().__init__(
            network,
            buffer_size=buffer_size,
            memory_batch=memory_batch,
            alpha=alpha,
            lr=lr,
            seed=seed,
            **common,
        )
        if not 0 <= beta < float("inf"):
            raise ValueError(f"beta is {beta}; expected a number from 0 on")
        self.beta = beta

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        """Equation 6: L = CE(h(x), y) + α MSE(h(x'), z') + β CE(h(x''), y''); then M takes x."""
        past1 = self.memory.draw(self.memory_batch)
        past2 = self.memory.draw(self.memory_batch)
        x, y = self.prepare(Samples(inputs, labels))
        if past1 is None or past2 is None:
            z = self.network(x)
            self.descend(F.cross_entropy(z, y))
        else:
            assert past1.logits is not None  # every sample here was stored with its logits
            x1, _ = self.prepare(past1)
            x2, y2 = self.prepare(past2)
            z, replayed1, replayed2 = self.logits(x, x1, x2)
            cross_entropy = F.cross_entropy(z, y)
            distance = F.mse_loss(replayed1, past1.logits)
            replay_cross_entropy = F.cross_entropy(replayed2, y2)
            self.descend(
                cross_entropy + self.alpha * distance + self.beta * replay_cross_entropy,
                cross_entropy=cross_entropy,
                logit_distance=distance,
                replay_cross_entropy=replay_cross_entropy,
            )
        self.memory.add(Samples(inputs, labels, z))
