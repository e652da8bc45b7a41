"""Meta-Experience Replay (Riemer et al., ICLR 2019)."""

from __future__ import annotations

from functools import partial
from os import PathLike

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from perdure.arguments import as_count, is_number
from perdure.learners.checks import Augment
from perdure.learners.predictor import Normalise
from perdure.learners.replay import ReplayLearner
from perdure.memory import Reservoir
from perdure.records import Samples
from perdure.structures import Inputs
from perdure.undo import postpone


class MER(ReplayLearner):
    """Replay with Reptile meta-updates, which pull the weights back towards their start.

    Algorithm 1 of the paper takes k SGD steps on one sample each per inner batch. Here, as in the
    code behind the published results, an inner batch is one step on all k samples. With β = γ = 1,
    the published setting, the Reptile updates have no effect, and one inner step equals ER.

    Args:
        network: Network to train, in place. It maps inputs [n, ...] to logits [n, classes].
        buffer_size: Maximum number of stored samples.
        buffer_bytes: Their maximum size in bytes, such as "64MB", instead of `buffer_size`.
        memory_batch: Number k − 1 of samples replayed with each batch.
        beta: Rate β of the Reptile update within an inner batch, in (0, 1].
        gamma: Rate γ of the Reptile update across inner batches, in (0, 1].
        inner_steps: Number s of inner batches per batch of the stream.
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
        >>> learner = MER(nn.Linear(4, 3), buffer_size=20, beta=0.5, gamma=0.3, inner_steps=2)
        >>> for _ in range(3):
        ...     learner.observe(torch.rand(1, 4), torch.randint(3, (1,)))
        >>> learner.memory.filled, int(learner.steps)
        (3, 3)
    """

    changes_weights_last = True
    replays_with_batch = True
    memory: Reservoir

    def __init__(
        self,
        network: nn.Module,
        *,
        buffer_size: int | None = None,
        buffer_bytes: int | str | None = None,
        memory_batch: int = 128,
        beta: float = 1.0,
        gamma: float = 1.0,
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
        for name, rate in (("beta", beta), ("gamma", gamma)):
            if not (is_number(rate) and 0 < rate <= 1):
                raise ValueError(f"{name} is {rate!r}; expected a number above 0, at most 1")
        self.beta = beta
        self.gamma = gamma
        self.inner_steps = as_count("inner_steps", inner_steps)

    def step(self, inputs: Inputs, labels: Tensor) -> None:
        """One iteration of Algorithm 1.

        Args:
            inputs: Raw inputs of the batch.
            labels: Their labels [n].
        """
        batch = Samples(inputs, labels)
        across = self._copy_weights(self.gamma)
        for remaining in reversed(range(self.inner_steps)):
            past = self.memory.draw(self.memory_batch)
            within = self._copy_weights(self.beta)
            x, y = self.prepare(batch, past)
            loss = F.cross_entropy(self.logits(x), y)
            if remaining:
                self.inner_step(loss)
            else:
                self.optimizer_step(loss)
            self._reptile(within, self.beta, last=not remaining)
        self._reptile(across, self.gamma, last=True)
        self.memory.add(batch)

    def _copy_weights(self, rate: float) -> list[Tensor]:
        """Copy the weights for a Reptile update; a rate of 1 needs no copy."""
        return [] if rate == 1 else [p.detach().clone() for p in self._parameters]

    @torch.no_grad()
    def _reptile(self, start: list[Tensor], rate: float, *, last: bool) -> None:
        """θ ← θ_0 + rate (θ − θ_0); like the last optimizer step, at the end of the step."""
        if start:
            end = [p.detach() for p in self._parameters]
            update = partial(torch._foreach_lerp_, end, start, 1 - rate)
            if not (last and postpone(update)):
                update()
