"""SGD: learn from the stream and nothing else. What forgetting looks like."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from perdure.learners.learner import Learner
from perdure.records import Samples


class SGD(Learner):
    """Plain training on each batch as it comes.

    >>> import torch
    >>> learner = SGD(torch.nn.Linear(4, 3))
    >>> learner.observe(torch.rand(8, 4), torch.randint(3, (8,)))
    >>> learner.predict(torch.rand(2, 4)).shape
    torch.Size([2])
    """

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        """θ ← θ − η ∇ CE(f(X), Y)."""
        x, y = self.prepare(Samples(inputs, labels))
        self.descend(F.cross_entropy(self.network(x), y))
