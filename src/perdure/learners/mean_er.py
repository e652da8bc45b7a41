"""Mean-ER: CLS-ER with a single semantic memory, an ablation in the CLS-ER paper."""

from __future__ import annotations

from os import PathLike

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from perdure.arguments import check_weights
from perdure.learners.checks import Augment
from perdure.learners.consistency import ConsistentReplay, ReplayLogits
from perdure.learners.predictor import Normalise, Predictor
from perdure.memory import SemanticMemory, Update
from perdure.structures import Inputs


class MeanER(ConsistentReplay):
    """Experience replay with one running average of the network, which also predicts.

    Args:
        network: Working network to train, in place. It maps inputs [n, ...] to logits
            [n, classes].
        buffer_size: Maximum number of stored samples.
        buffer_bytes: Their maximum size in bytes, such as "64MB", instead of `buffer_size`.
        memory_batch: Number of samples replayed per step.
        consistency_weight: Weight λ of the consistency loss.
        window: Share of the past updates that the semantic memory averages over; None for the
            published warm-up (see `SemanticMemory`).
        decay: Decay of the semantic memory, which limits the length of its average.
        rate: Share of the steps that update the semantic memory.
        update: When the memory is updated: at "random" steps, as published, or at "regular"
            intervals with the same mean rate.
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
        >>> learner = MeanER(torch.nn.Linear(4, 3), buffer_size=20)
        >>> learner.observe(torch.rand(8, 4), torch.randint(3, (8,)))
        >>> list(learner.predictors())
        ['mean', 'working']
    """

    changes_weights_last = True

    def __init__(
        self,
        network: nn.Module,
        *,
        buffer_size: int | None = None,
        buffer_bytes: int | str | None = None,
        memory_batch: int = 32,
        consistency_weight: float = 0.5,
        window: float | None = 0.05,
        decay: float = 0.9999,
        rate: float = 1.0,
        update: Update = "random",
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
        check_weights(consistency_weight=consistency_weight)
        self.consistency_weight = consistency_weight
        self.mean = SemanticMemory(
            network, window=window, decay=decay, rate=rate, name="mean", update=update, seed=seed
        )

    def replay_logits(self, x: Inputs, y: Tensor) -> ReplayLogits:
        """Return the logits of the semantic memory.

        Args:
            x: Prepared inputs X_m of the replayed samples.
            y: Their labels [n].
        """
        return ReplayLogits(self.with_shared_draws(lambda: self.mean(x)))

    def consolidate(self) -> None:
        """Update the semantic memory if this step is one of its own."""
        self.mean.update(self.steps)

    def predictors(self) -> dict[str, Predictor]:
        """Return the semantic memory, which predicts, and the working network."""
        return {"mean": Predictor(self.mean.network, self.normalise), **super().predictors()}
