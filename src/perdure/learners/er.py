"""Experience Replay (Riemer et al., 2018) with reservoir sampling (Vitter, 1985)."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from perdure.learners.replay import ReplayLearner
from perdure.memory import Reservoir
from perdure.records import Samples
from perdure.structures import Inputs


class ER(ReplayLearner):
    """Trains on each batch together with samples from a reservoir of past ones.

    Args:
        network: Network to train, in place. It maps inputs [n, ...] to logits [n, classes].
        buffer_size: Maximum number of stored samples.
        buffer_bytes: Their maximum size in bytes, such as "64MB", instead of `buffer_size`.
        memory_batch: Number of samples replayed per step.
        lr: Learning rate of the default optimizer, plain SGD; 0.1 by default.
        optimizer: Any torch optimizer over parameters of `network` whose `step` needs no closure,
            instead of `lr`.
        augment: Random augmentation `augment(inputs, generator)` of new and replayed samples.
        normalise: Maps raw inputs to network inputs; by default, scales uint8 to [0, 1].
        grow: Whether the networks grow when a label arrives for which they have no output.
        head: Name of the layer that grows, an `nn.Linear`; by default the last one.
        memory_device: "cpu" keeps stored inputs in host memory although the network is on a GPU.
        memory_folder: Folder for a temporary file that holds the stored inputs instead of memory.
        seed: Seed of all random draws.

    Examples:
        >>> import torch
        >>> learner = ER(torch.nn.Linear(4, 3), buffer_size=20)
        >>> for _ in range(3):
        ...     learner.observe(torch.rand(8, 4), torch.randint(3, (8,)))
        >>> learner
        ER(network=15 parameters, memory=Reservoir(20 of 20 samples), steps=3)
    """

    changes_weights_last = True
    replays_with_batch = True
    memory: Reservoir

    def step(self, inputs: Inputs, labels: Tensor) -> None:
        """Minimise the mean loss over new and replayed samples, then present the new ones to M.

        Args:
            inputs: Raw inputs of the batch.
            labels: Their labels [n].
        """
        batch = Samples(inputs, labels)
        past = self.memory.draw(self.memory_batch)
        x, y = self.prepare(batch, past)
        self.optimizer_step(F.cross_entropy(self.logits(x), y))
        self.memory.add(batch)
