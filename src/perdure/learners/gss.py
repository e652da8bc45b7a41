"""Gradient-based Sample Selection, greedy (Aljundi, Lin, Goujaud and Bengio, NeurIPS 2019)."""

from __future__ import annotations

from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from perdure.arguments import as_count
from perdure.learners.checks import Augment
from perdure.learners.gradient_similarity import (
    compare_gradients,
    compare_linear_layers,
    has_only_linear_layers,
)
from perdure.learners.predictor import Normalise, evaluation_mode
from perdure.learners.replay import ReplayLearner
from perdure.memory import GradientBuffer
from perdure.records import Samples
from perdure.structures import Inputs

FIRST_SCORE = 0.1
"""Score of samples that arrive while the memory is empty."""


class GSS(ReplayLearner):
    """Replay from a memory that prefers samples with dissimilar gradients.

    The score c = max_i cos(g, G_i) + 1 of a sample compares its gradient g with the gradients G of
    random samples in the memory. It lies between 0 and 2 and is stored with the sample. Defaults
    are the published setting for S-CIFAR-10 with a buffer of 500.

    Args:
        network: Network to train, in place. It maps inputs [n, ...] to logits [n, classes].
        buffer_size: Maximum number of samples in the memory M.
        buffer_bytes: Their maximum size in bytes, such as "64MB", instead of `buffer_size`.
        memory_batch: Number of samples replayed per step.
        gss_batch: Number n of stored samples that new ones are compared with.
        inner_steps: Number of optimizer steps per batch, each with a new replay batch.
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
        >>> learner = GSS(nn.Linear(4, 3), buffer_size=20)
        >>> for _ in range(3):
        ...     learner.observe(torch.rand(8, 4), torch.randint(3, (8,)))
        >>> learner.memory.filled
        20
    """

    replays_with_batch = True
    memory: GradientBuffer
    default_lr = 0.03

    def __init__(
        self,
        network: nn.Module,
        *,
        buffer_size: int | None = None,
        buffer_bytes: int | str | None = None,
        memory_batch: int = 32,
        gss_batch: int = 32,
        inner_steps: int = 1,
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
        self.gss_batch = as_count("gss_batch", gss_batch)
        self.inner_steps = as_count("inner_steps", inner_steps)
        self._linear = has_only_linear_layers(network)

    def create_memory(self, buffer_size: int | None, **options: Any) -> GradientBuffer:
        """Create the memory."""
        return GradientBuffer(buffer_size, **options)

    def step(self, inputs: Inputs, labels: Tensor) -> None:
        """Train on new and replayed samples, then present the new ones to the memory.

        Args:
            inputs: Raw inputs of the batch.
            labels: Their labels [n].
        """
        batch = Samples(inputs, labels)
        for remaining in reversed(range(self.inner_steps)):
            past = self.memory.draw(self.memory_batch)
            x, y = self.prepare(batch, past)
            loss = F.cross_entropy(self.logits(x), y)
            if remaining:
                self.inner_step(loss)
            else:
                self.optimizer_step(loss)
        self.select(batch)

    def select(self, batch: Samples) -> None:
        """Algorithm 2: score the samples and present them to M.

        Scores use inputs without augmentation. Samples may replace stored ones only if the score
        of the batch's mean gradient is below 1.

        Args:
            batch: Raw inputs and labels of the batch.
        """
        stored = self.memory.draw(self.gss_batch)
        x, y = self.normalise(batch.inputs), batch.labels
        if stored is None:
            first = torch.full_like(y, FIRST_SCORE, dtype=torch.float64)
            self.memory.add(batch, first, first[0] < 1)
            return
        # Full precision: under autocast, vmap does not support BatchNorm on every device.
        with evaluation_mode(self.network), torch.autocast(self.device.type, enabled=False):
            x_m = self.normalise(stored.inputs)
            compare = compare_linear_layers if self._linear else compare_gradients
            scores = compare(self.network, Samples(x, y), Samples(x_m, stored.labels))
            considered = scores.batch < 1
            self.tally(considered=considered)
            # On a CPU this branch costs nothing and saves the gradients of the single samples.
            if self.device.type == "cpu" and self.memory.full and not considered:
                return
            per_sample = scores.per_sample()
        self.memory.add(batch, per_sample, considered)
