"""A method of your own: a subclass, its arguments, one step.

    perdure run s-mnist --method own_method:RecentFirst --buffer 200
    perdure run s-mnist --method own_method:RecentFirst --set past_weight=0.5
    python own_method.py

The script runs the conformance checks on it.
"""

from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from perdure import ER, Samples
from perdure.testing import check_learner


class RecentFirst(ER):
    """Two steps on each batch: on the new samples, then on past ones, scaled by `past_weight`."""

    replays_with_batch = False  # new and past samples pass through the network separately

    def __init__(self, network: nn.Module, *, past_weight: float = 1.0, **common: Any) -> None:
        super().__init__(network, **common)
        if not 0 < past_weight < float("inf"):
            raise ValueError(f"past_weight is {past_weight}; expected a number above 0")
        self.past_weight = past_weight

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        """Learn from one batch."""
        batch = Samples(inputs, labels)
        past = self.memory.draw(self.memory_batch)  # None while the memory is empty
        x, y = self.prepare(batch)
        loss = F.cross_entropy(self.logits(x), y)
        if past is not None:
            self.inner_step(loss)  # every step on a batch except the last
            x, y = self.prepare(past)
            loss = self.past_weight * F.cross_entropy(self.logits(x), y)
        self.optimizer_step(loss)  # the last step; it counts the batch
        self.memory.add(batch)


if __name__ == "__main__":
    check_learner(partial(RecentFirst, buffer_size=20, memory_batch=8))
    print("RecentFirst passes all checks")
