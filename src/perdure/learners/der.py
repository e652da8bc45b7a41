"""Dark Experience Replay (Buzzega, Boschini, Porrello, Abati and Calderara, NeurIPS 2020)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from perdure.learners.er import ER
from perdure.learners.passes import Passes
from perdure.records import Samples


class DER(ER):
    """Replay that is held to what the network said of a sample when it was stored.

    In the paper's symbols: `network` is h_θ, which gives logits; `alpha` is α; the memory M holds
    pairs (x', z') of an image and its logits. Defaults are the published S-CIFAR-10 setting for a
    buffer of 500.

    >>> import torch
    >>> learner = DER(nn.Linear(4, 3), buffer_size=20)
    >>> for _ in range(3):
    ...     learner.observe(torch.rand(8, 4), torch.randint(3, (8,)))
    >>> learner.memory.contents().logits.shape
    torch.Size([20, 3])
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        buffer_size: int,
        memory_batch: int = 32,
        alpha: float = 0.3,
        lr: float = 0.03,
        seed: int = 0,
        **common: Any,
    ) -> None:
        super().__init__(
            network, buffer_size=buffer_size, memory_batch=memory_batch, lr=lr, seed=seed, **common
        )
        if not 0 <= alpha < float("inf"):
            raise ValueError(f"alpha is {alpha}; expected a number from 0 on")
        self.alpha = alpha
        self.logits = Passes(network)

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        """Equation 4: L = CE(h(x), y) + α MSE(h(x'), z'); then M takes (x, z = h(x))."""
        past = self.memory.draw(self.memory_batch)
        x, y = self.prepare(Samples(inputs, labels))
        if past is None:
            z = self.network(x)
            self.descend(F.cross_entropy(z, y))
        else:
            assert past.logits is not None  # every sample here was stored with its logits
            z, replayed = self.logits(x, self.prepare(past)[0])
            cross_entropy = F.cross_entropy(z, y)
            distance = F.mse_loss(replayed, past.logits)
            self.descend(
                cross_entropy + self.alpha * distance,
                cross_entropy=cross_entropy,
                logit_distance=distance,
            )
        self.memory.add(Samples(inputs, labels, z))
