"""Base of the methods that replay batches from an episodic memory."""

from __future__ import annotations

from os import PathLike
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from perdure.arguments import as_count
from perdure.learners.checks import Augment
from perdure.learners.learner import Learner
from perdure.learners.multi_batch import MultiBatchForward
from perdure.learners.predictor import Normalise
from perdure.memory import EpisodicMemory, Reservoir, Storage


class ReplayLearner(Learner):
    """A learner with an episodic memory, by default a reservoir.

    Args:
        network: Network to train, in place. It maps inputs [n, ...] to logits [n, classes].
        buffer_size: Maximum number of stored samples.
        buffer_bytes: Their maximum size in bytes, such as "64MB", instead of `buffer_size`.
        memory_batch: Number of samples replayed per step.
        lr: Learning rate of the default optimizer, plain SGD; `default_lr` by default.
        optimizer: Any torch optimizer over parameters of `network` whose `step` needs no closure,
            instead of `lr`.
        augment: Random augmentation `augment(inputs, generator)` of new and replayed samples.
        normalise: Maps raw inputs to network inputs; by default, scales uint8 to [0, 1].
        grow: Whether the networks grow when a label arrives for which they have no output.
        head: Name of the layer that grows, an `nn.Linear`; by default the last one.
        memory_device: "cpu" keeps stored inputs in host memory although the network is on a GPU.
        memory_folder: Folder for a temporary file that holds the stored inputs instead of memory.
        seed: Seed of all random draws.
    """

    memory: EpisodicMemory

    def __init__(
        self,
        network: nn.Module,
        *,
        buffer_size: int | None = None,
        buffer_bytes: int | str | None = None,
        memory_batch: int = 32,
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
            lr=lr,
            optimizer=optimizer,
            augment=augment,
            normalise=normalise,
            grow=grow,
            head=head,
            seed=seed,
        )
        self.memory_batch = as_count("memory_batch", memory_batch)
        self.memory = self.create_memory(
            buffer_size,
            buffer_bytes=buffer_bytes,
            seed=seed,
            device=self.device,
            storage=Storage(memory_device, memory_folder),
        )
        self.forward_batches = MultiBatchForward(network)

    def create_memory(self, buffer_size: int | None, **options: Any) -> EpisodicMemory:
        """Create the memory from the arguments of `EpisodicMemory`."""
        return Reservoir(buffer_size, **options)
