"""CLS-ER: two semantic memories and an episodic one (Arani, Sarfraz and Zonooz, ICLR 2022)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from perdure.learners.consistency import ConsistentReplay
from perdure.learners.predictor import Predictor
from perdure.memory import DatedReservoir, SemanticMemory
from perdure.memory.semantic import Update


class CLSER(ConsistentReplay):
    """The paper's method. Defaults are its S-CIFAR-10 setting for a buffer of 500.

    In the paper's symbols: `network` is θ_W; `consistency_weight` λ; the stable memory θ_S has
    `stable_decay` α_S and `stable_rate` r_S, the plastic memory θ_P `plastic_decay` α_P and
    `plastic_rate` r_P; `buffer_size` is the budget of the episodic memory M. With `update="every"`
    the memories are updated at regular steps instead of random ones, at the same mean rates.

    >>> learner = CLSER(nn.Linear(4, 3), buffer_size=20)
    >>> for _ in range(3):
    ...     learner.observe(torch.rand(8, 4), torch.randint(3, (8,)))
    >>> list(learner.predictors())
    ['stable', 'plastic', 'working']
    """

    memory: DatedReservoir

    def __init__(
        self,
        network: nn.Module,
        *,
        buffer_size: int,
        memory_batch: int = 32,
        consistency_weight: float = 0.15,
        stable_decay: float = 0.999,
        stable_rate: float = 0.1,
        plastic_decay: float = 0.999,
        plastic_rate: float = 0.9,
        update: Update = "coin",
        seed: int = 0,
        **common: Any,
    ) -> None:
        super().__init__(
            network,
            buffer_size=buffer_size,
            memory_batch=memory_batch,
            consistency_weight=consistency_weight,
            seed=seed,
            **common,
        )
        self.memory = DatedReservoir(buffer_size, clock=self.steps, seed=seed, device=self.device)
        self.plastic = SemanticMemory(
            network,
            decay=plastic_decay,
            rate=plastic_rate,
            name="plastic",
            update=update,
            seed=seed,
        )
        self.stable = SemanticMemory(
            network,
            decay=stable_decay,
            rate=stable_rate,
            name="stable",
            update=update,
            seed=seed,
        )

    def replay_logits(self, x: Tensor, y: Tensor) -> Tensor:
        """Lines 4 and 5 of Algorithm 1: for each sample, the memory that knows its class better.

        Compared by the odds, which order samples as the probabilities do but do not saturate: in
        float32 a probability is 1 from a margin of 17 on. A tie goes to the stable memory.
        """
        plastic, stable = self.plastic(x), self.stable(x)
        doubt = _doubt(torch.stack([plastic, stable]), y)
        plastic_knows = doubt[0] < doubt[1]
        self.memory.count(plastic_knows)
        return torch.where(plastic_knows[:, None], plastic, stable)

    def totals(self) -> dict[str, float]:
        """With how many replayed samples had their logits from either memory."""
        ages = self.memory.ages()
        plastic = sum(ages.marked)
        used = {"stable_used": float(sum(ages.total) - plastic), "plastic_used": float(plastic)}
        return {**super().totals(), **used}

    def histograms(self) -> dict[str, dict[str, list[int]]]:
        """`ages`: how often the stable memory provided, and either, by the age of the sample.

        Bin k holds ages (steps since the sample was stored) from `edges[k]` to below
        `edges[k + 1]`.
        """
        edges, total, plastic = self.memory.ages()
        stable = [t - p for t, p in zip(total, plastic, strict=True)]
        return {"ages": {"edges": edges, "stable": stable, "total": total}}

    def consolidate(self) -> None:
        """Lines 8 to 10: both memories move towards the working network, each at its own steps."""
        self.plastic.update(self.steps)
        self.stable.update(self.steps)

    def predictors(self) -> dict[str, Predictor]:
        """The stable memory answers; plastic and working networks can be asked too."""
        return {
            "stable": Predictor(self.stable.network, self.normalise),
            "plastic": Predictor(self.plastic.network, self.normalise),
            **super().predictors(),
        }


def _doubt(logits: Tensor, labels: Tensor) -> Tensor:
    """The log-odds against each sample's own class, from logits [m, n, classes] to [m, n]."""
    own = labels.expand(len(logits), -1).unsqueeze(2)
    others = logits.scatter(2, own, -torch.inf).logsumexp(2)
    return others - logits.gather(2, own).squeeze(2)
