"""Dark Experience Replay (Buzzega, Boschini, Porrello, Abati and Calderara, NeurIPS 2020)."""

from __future__ import annotations

from os import PathLike

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from perdure.arguments import check_weights
from perdure.learners.checks import Augment
from perdure.learners.predictor import Normalise
from perdure.learners.replay import ReplayLearner
from perdure.memory import Reservoir
from perdure.records import Samples
from perdure.structures import Inputs


class DER(ReplayLearner):
    """Replay that keeps the logits of stored samples close to their values when stored.

    Defaults are the published setting for S-CIFAR-10 with a buffer of 500.

    Args:
        network: Network h_θ to train, in place. It maps inputs [n, ...] to logits [n, classes].
        buffer_size: Maximum number of samples in the memory M, with their logits z'.
        buffer_bytes: Their maximum size in bytes, such as "64MB", instead of `buffer_size`.
        memory_batch: Number of samples replayed per step.
        alpha: Weight α of the distance between current and stored logits.
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
        >>> import torch
        >>> learner = DER(nn.Linear(4, 3), buffer_size=20)
        >>> for _ in range(3):
        ...     learner.observe(torch.rand(8, 4), torch.randint(3, (8,)))
        >>> learner.memory.contents().logits.shape
        torch.Size([20, 3])
    """

    changes_weights_last = True
    memory: Reservoir
    default_lr = 0.03
    stores_logits = True

    def __init__(
        self,
        network: nn.Module,
        *,
        buffer_size: int | None = None,
        buffer_bytes: int | str | None = None,
        memory_batch: int = 32,
        alpha: float = 0.3,
        lr: float | None = None,
        optimizer: Optimizer | None = None,
        augment: Augment | None = None,
        normalise: Normalise | None = None,
        grow: bool = False,
        head: str | None = None,
        memory_device: torch.device | str | None = None,
        memory_folder: str | PathLike[str] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            network,
            buffer_size=buffer_size,
            buffer_bytes=buffer_bytes,
            memory_batch=memory_batch,
            lr=lr,
            optimizer=optimizer,
            augment=augment,
            normalise=normalise,
            grow=grow,
            head=head,
            memory_device=memory_device,
            memory_folder=memory_folder,
            seed=seed,
        )
        check_weights(alpha=alpha)
        self.alpha = alpha

    def step(self, inputs: Inputs, labels: Tensor) -> None:
        """Equation 4: L = CE(h(x), y) + α MSE(h(x'), z'); then M stores x with z = h(x).

        Args:
            inputs: Raw inputs of the batch.
            labels: Their labels [n].
        """
        past = self.memory.draw(self.memory_batch)
        x, y = self.prepare(Samples(inputs, labels))
        if past is None:
            z = self.logits(x)
            self.optimizer_step(F.cross_entropy(z, y))
        else:
            assert past.logits is not None  # M stores every sample with its logits
            z, replayed = self.forward_batches(x, self.prepare(past)[0])
            cross_entropy = F.cross_entropy(z, y)
            distance = F.mse_loss(replayed, past.logits)
            self.optimizer_step(
                cross_entropy + self.alpha * distance,
                cross_entropy=cross_entropy,
                logit_distance=distance,
            )
        self.memory.add(Samples(inputs, labels, z))
