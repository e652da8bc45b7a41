"""SGD: training on the stream alone, the lower bound for methods that prevent forgetting."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from perdure.learners.learner import Learner
from perdure.records import Samples
from perdure.structures import Inputs


class SGD(Learner):
    """Trains on each batch as it arrives, without a memory.

    Args:
        network: Network to train, in place. It maps inputs [n, ...] to logits [n, classes].
        lr: Learning rate of the default optimizer, plain SGD; 0.1 by default.
        optimizer: Any torch optimizer over parameters of `network` whose `step` needs no closure,
            instead of `lr`.
        augment: Random augmentation `augment(inputs, generator)` of training batches.
        normalise: Maps raw inputs to network inputs; by default, scales uint8 to [0, 1].
        grow: Whether the networks grow when a label arrives for which they have no output.
        head: Name of the layer that grows, an `nn.Linear`; by default the last one.
        seed: Seed of all random draws.

    Examples:
        >>> import torch
        >>> learner = SGD(torch.nn.Linear(4, 3))
        >>> learner.observe(torch.rand(8, 4), torch.randint(3, (8,)))
        >>> learner.predict(torch.rand(2, 4)).shape
        torch.Size([2])
    """

    changes_weights_last = True

    def step(self, inputs: Inputs, labels: Tensor) -> None:
        """θ ← θ − η ∇ CE(f(X), Y).

        Args:
            inputs: Raw inputs of the batch.
            labels: Their labels [n].
        """
        x, y = self.prepare(Samples(inputs, labels))
        self.optimizer_step(F.cross_entropy(self.logits(x), y))
