"""Replay that is held to what semantic memories say: the loss that CLS-ER and Mean-ER share."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from perdure.learners.er import ER
from perdure.learners.passes import Passes
from perdure.records import Samples


class ConsistentReplay(ER):
    """Equation 1: L = CE(f(X), Y) + λ MSE(f(X_m), Z), Z being the memories' replay logits."""

    def __init__(self, network: nn.Module, *, consistency_weight: float, **rest: Any) -> None:
        super().__init__(network, **rest)
        if not 0 <= consistency_weight < float("inf"):
            raise ValueError(
                f"consistency_weight is {consistency_weight}; expected a number from 0 on"
            )
        self.consistency_weight = consistency_weight
        self.logits = Passes(network)

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        """One round of Algorithm 1."""
        batch = Samples(inputs, labels)
        past = self.memory.draw(self.memory_batch)
        if past is None:
            x, y = self.prepare(batch)
            self.descend(F.cross_entropy(self.network(x), y))
        else:
            x, y = self.prepare(batch, past)
            x_m, y_m = x[len(labels) :], y[len(labels) :]
            z = self.replay_logits(x_m, y_m)
            replayed, logits = self._working(x, x_m)
            consistency = F.mse_loss(replayed, z)
            loss = F.cross_entropy(logits, y) + self.consistency_weight * consistency
            self.descend(loss, consistency=consistency)
        self.memory.add(batch)
        self.consolidate()

    def _working(self, x: Tensor, x_m: Tensor) -> tuple[Tensor, Tensor]:
        """f(X_m) and f(X).

        BatchNorm makes the replay batch alone another input than the same images inside the
        union, so the network runs on both, replay first; taking f(X_m) from the union makes
        training diverge. Where each sample's output depends on that sample only, the two are
        the same.
        """
        if self.logits.per_sample:
            logits = self.network(x)
            return logits[-len(x_m) :], logits
        replayed, logits = self.logits(x_m, x)
        return replayed, logits

    @abstractmethod
    def replay_logits(self, x: Tensor, y: Tensor) -> Tensor:
        """What the semantic memories say of a replay batch, without gradient."""

    @abstractmethod
    def consolidate(self) -> None:
        """Update the semantic memories after the working network's step."""
