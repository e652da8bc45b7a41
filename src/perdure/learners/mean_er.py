"""Mean-ER: CLS-ER with a single semantic memory, the paper's ablation (its section on Mean-ER)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from perdure.learners.consistency import ConsistentReplay
from perdure.learners.predictor import Predictor
from perdure.memory import SemanticMemory
from perdure.memory.semantic import Update


class MeanER(ConsistentReplay):
    """One running average of the network provides the replay logits and answers.

    >>> import torch
    >>> learner = MeanER(torch.nn.Linear(4, 3), buffer_size=20)
    >>> learner.observe(torch.rand(8, 4), torch.randint(3, (8,)))
    >>> list(learner.predictors())
    ['mean', 'working']
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        buffer_size: int,
        memory_batch: int = 32,
        consistency_weight: float = 0.15,
        decay: float = 0.999,
        rate: float = 0.5,
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
        self.mean = SemanticMemory(
            network, decay=decay, rate=rate, name="mean", update=update, seed=seed
        )

    def replay_logits(self, x: Tensor, y: Tensor) -> Tensor:
        """The one memory's logits."""
        return self.mean(x)

    def consolidate(self) -> None:
        """Move the memory towards the working network, at the steps that its rate says."""
        self.mean.update(self.steps)

    def predictors(self) -> dict[str, Predictor]:
        """The semantic memory answers; the working network can be asked too."""
        return {"mean": Predictor(self.mean.network, self.normalise), **super().predictors()}
