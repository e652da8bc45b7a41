"""Averaged Gradient Episodic Memory (Chaudhry et al., ICLR 2019)."""

from __future__ import annotations

from os import PathLike

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from perdure.arguments import as_count
from perdure.learners.checks import Augment
from perdure.learners.gem import ProjectedGradient
from perdure.learners.predictor import Normalise
from perdure.memory import Storage, TaskBuffer


class AGEM(ProjectedGradient):
    """Projects the gradient so that the loss on a random batch of past samples does not increase.

    Args:
        network: Network to train, in place. It maps inputs [n, ...] to logits [n, classes].
        buffer_size: Maximum number of stored samples, divided equally between the tasks.
        buffer_bytes: Their maximum size in bytes, such as "64MB", instead of `buffer_size`.
        tasks: Number of tasks of the stream.
        memory_batch: Number of past samples for the reference gradient g_ref.
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
        >>> from perdure.records import Samples
        >>> learner = AGEM(nn.Linear(4, 3), buffer_size=20, tasks=2)
        >>> inputs, labels = torch.rand(12, 4), torch.randint(3, (12,))
        >>> learner.observe(inputs, labels)
        >>> learner.end_task(Samples(inputs, labels))
        >>> learner.observe(inputs, labels)
        >>> learner.memory.counts
        {0: 10}
    """

    changes_weights_last = True

    def __init__(
        self,
        network: nn.Module,
        *,
        buffer_size: int | None = None,
        buffer_bytes: int | str | None = None,
        tasks: int,
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
        self.memory = TaskBuffer(
            buffer_size,
            tasks=as_count("tasks", tasks),
            buffer_bytes=buffer_bytes,
            seed=seed,
            device=self.device,
            storage=Storage(memory_device, memory_folder),
        )
        self.memory_batch = as_count("memory_batch", memory_batch)

    def reference(self) -> Tensor | None:
        """Return g_ref, the gradient on one batch drawn from all past tasks."""
        past = self.memory.draw(self.memory_batch)
        return None if past is None else self.gradient(*self.prepare(past))

    def project(self, gradient: Tensor, reference: Tensor) -> Tensor:
        """Equation 11: g̃ = g − (gᵀg_ref / g_refᵀg_ref) g_ref if gᵀg_ref < 0, else g.

        The decision stays on the device, so that the step can be captured in a CUDA graph.

        Args:
            gradient: Gradient g of the new batch [parameters].
            reference: Gradient g_ref on the stored samples [parameters].
        """
        product = gradient @ reference
        conflict = product < 0
        self.tally(projected=conflict)
        share = product / (reference @ reference)
        return torch.where(conflict, gradient - share * reference, gradient)
