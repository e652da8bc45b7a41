"""ER with Asymmetric Cross-Entropy (Caccia et al., ICLR 2022)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from perdure.learners.replay import ReplayLearner
from perdure.memory import Reservoir
from perdure.records import Samples
from perdure.structures import Inputs


class ERACE(ReplayLearner):
    """ER whose new samples compete only with the other classes of their batch.

    In ER, a batch of new classes also lowers the logits of all old ones, which disrupts what the
    network has learned about them. Here the loss of new samples leaves out the classes that are
    not in the batch; only the loss of replayed samples weighs all classes against each other.

    Args:
        network: Network f_θ to train, in place. It maps inputs [n, ...] to logits [n, classes].
        buffer_size: Maximum number of stored samples.
        buffer_bytes: Their maximum size in bytes, such as "64MB", instead of `buffer_size`.
        memory_batch: Number of samples replayed per step.
        lr: Learning rate of the default optimizer, plain SGD; 0.03 by default.
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
        >>> learner = ERACE(torch.nn.Linear(4, 3), buffer_size=20)
        >>> for _ in range(3):
        ...     learner.observe(torch.rand(8, 4), torch.randint(3, (8,)))
        >>> sorted(learner.totals())
        ['cross_entropy', 'loss', 'replay_cross_entropy']
    """

    changes_weights_last = True
    memory: Reservoir
    default_lr = 0.03

    def step(self, inputs: Inputs, labels: Tensor) -> None:
        """L = CE(X_in, C_curr) + CE(X_bf, all classes), C_curr being the classes of the batch.

        Args:
            inputs: Raw inputs of the batch.
            labels: Their labels [n].
        """
        batch = Samples(inputs, labels)
        past = self.memory.draw(self.memory_batch)
        x, y = self.prepare(batch)
        if past is None:
            self.optimizer_step(_within_batch(self.logits(x), y))
        else:
            replayed, past_labels = self.prepare(past)
            logits, replayed_logits = self.forward_batches(x, replayed)
            cross_entropy = _within_batch(logits, y)
            replay_cross_entropy = F.cross_entropy(replayed_logits, past_labels)
            self.optimizer_step(
                cross_entropy + replay_cross_entropy,
                cross_entropy=cross_entropy,
                replay_cross_entropy=replay_cross_entropy,
            )
        self.memory.add(batch)


def _within_batch(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy over the classes that the labels contain."""
    absent = torch.ones(logits.shape[1], dtype=torch.bool, device=logits.device)
    absent = absent.index_fill(0, labels, False)
    return F.cross_entropy(logits.masked_fill(absent, -torch.inf), labels)
