"""iCaRL with exemplars mixed in proportion to their number, as in the paper's Algorithm 3.

Our iCaRL adds as many exemplars as new samples to every batch. To compare the two on a validation
split, run from this folder, with the full MNIST installed:

    perdure run s-mnist --method icarl --buffer-size 200 --seeds 0:3 --validation 0.1
    perdure run s-mnist --method icarl_mixing:SharedOut --buffer-size 200 --seeds 0:3 \
        --validation 0.1 --lr 0.1 --batch 10 --epochs 1 --weight-decay 0

(the second command has the published settings of the first).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from perdure.learners import ICaRL
from perdure.records import Samples


class SharedOut(ICaRL):
    """iCaRL that mixes exemplars into the stream as if both had been shuffled together."""

    capturable = False

    def __init__(self, *rest: Any, task_samples: int = 10_800, **named: Any) -> None:
        super().__init__(*rest, **named)
        self.task_samples = task_samples
        """Samples of an average task: 54,000 training digits in five tasks."""
        self.due = 0.0

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        """The step of iCaRL with another number of exemplars."""
        batch = Samples(inputs, labels)
        self.new.index_fill_(0, labels, True)
        self.due += len(labels) * self.memory.filled / self.task_samples
        count, self.due = int(self.due), self.due % 1
        exemplars = self.memory.draw(count) if count else None
        x, y = self.prepare(batch, exemplars) if exemplars else self.prepare(batch)
        outputs = self.network(x)
        targets = torch.zeros_like(outputs).scatter_(1, y[:, None], 1)
        taught = self.new
        if self.memory.filled:
            with torch.no_grad():
                q = self.previous.network(x).sigmoid()
            targets = torch.where(self.new, targets, q)
            taught = self.new | self.previous.known
        each = F.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
        self.optimizer_step((each * taught).sum(dim=1).mean())
