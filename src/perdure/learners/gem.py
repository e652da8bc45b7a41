"""Gradient Episodic Memory (Lopez-Paz and Ranzato, NeurIPS 2017)."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from os import PathLike

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from perdure.arguments import as_count, check_weights
from perdure.learners.checks import Augment
from perdure.learners.learner import Learner
from perdure.learners.predictor import Normalise
from perdure.memory import Storage, TaskBuffer
from perdure.records import Samples
from perdure.structures import Inputs, select


class ProjectedGradient(Learner):
    """Training with a gradient that is projected by past tasks' gradients: base of GEM and A-GEM.

    The memory holds random samples of every task that has ended. Reference gradients are computed
    before the gradient of the new batch, each on a batch of its own in training mode, so BatchNorm
    normalises each batch by its own statistics and updates the running ones.
    """

    needs_boundaries = True
    memory: TaskBuffer

    def step(self, inputs: Inputs, labels: Tensor) -> None:
        """Compute the gradient g; after the first task, replace it by its projection g̃; step.

        Args:
            inputs: Raw inputs of the batch.
            labels: Their labels [n].
        """
        reference = self.reference()
        x, y = self.prepare(Samples(inputs, labels))
        loss = F.cross_entropy(self.logits(x), y)
        self.backward(loss)
        if reference is not None:
            self._project_gradients(reference)
        self.apply_gradients(loss)

    @abstractmethod
    def reference(self) -> Tensor | None:
        """Compute the gradients on the memory; None before a task has ended."""

    @abstractmethod
    def project(self, gradient: Tensor, reference: Tensor) -> Tensor:
        """Return g̃ [parameters], the gradient to apply.

        Args:
            gradient: Gradient g of the new batch [parameters].
            reference: Result of `reference`.
        """

    def end_task(self, samples: Samples) -> None:
        """Store random samples of the task.

        Args:
            samples: Training samples of the task.

        Raises:
            ValueError: If the samples do not fit the network, or if more than `tasks` tasks end.
        """
        self.memory.add(samples)

    def gradient(self, x: Inputs, y: Tensor) -> Tensor:
        """Return ∇ CE(f(x), y) with respect to the trained parameters, as one vector.

        Args:
            x: Network inputs, from `prepare`.
            y: Their labels [n].
        """
        loss = F.cross_entropy(self.logits(x), y)
        return _flatten(torch.autograd.grad(loss, self._trained(), materialize_grads=True))

    def _trained(self) -> list[Tensor]:
        groups = self.optimizer.param_groups
        return [p for group in groups for p in group["params"] if p.requires_grad]

    @torch.no_grad()
    def _project_gradients(self, reference: Tensor) -> None:
        """Replace the gradients of the trained parameters by their projection."""
        parameters = self._trained()
        for p in parameters:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        gradients = [p.grad for p in parameters if p.grad is not None]
        with torch.autocast(self.device.type, enabled=False):  # products need full precision
            projected = self.project(_flatten(gradients), reference)
        pieces = torch.split(projected, [g.numel() for g in gradients])
        for own, piece in zip(gradients, pieces, strict=True):
            own.copy_(piece.view(own.shape))


class GEM(ProjectedGradient):
    """Projects the gradient so that the loss on the stored samples of no past task increases.

    Args:
        network: Network to train, in place. It maps inputs [n, ...] to logits [n, classes].
        buffer_size: Maximum number of stored samples, divided equally between the tasks.
        buffer_bytes: Their maximum size in bytes, such as "64MB", instead of `buffer_size`.
        tasks: Number of tasks of the stream.
        gamma: Margin γ, the lower bound of the dual variables v.
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
        >>> learner = GEM(nn.Linear(4, 3), buffer_size=20, tasks=2)
        >>> inputs, labels = torch.rand(12, 4), torch.randint(3, (12,))
        >>> learner.observe(inputs, labels)
        >>> learner.end_task(Samples(inputs, labels))
        >>> learner.observe(inputs, labels)
        >>> learner.memory.counts
        {0: 10}
    """

    changes_weights_last = True
    capturable = False  # the quadratic programme is solved on the host

    def __init__(
        self,
        network: nn.Module,
        *,
        buffer_size: int | None = None,
        buffer_bytes: int | str | None = None,
        tasks: int,
        gamma: float = 0.5,
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
        check_weights(gamma=gamma)
        self.memory = TaskBuffer(
            buffer_size,
            tasks=as_count("tasks", tasks),
            buffer_bytes=buffer_bytes,
            seed=seed,
            device=self.device,
            storage=Storage(memory_device, memory_folder),
        )
        self.gamma = gamma

    def reference(self) -> Tensor | None:
        """Return G [past tasks, parameters], the gradient on each past task's samples."""
        memory = self.memory.contents()
        if memory is None:
            return None
        x, y = self.prepare(memory.to(self.device))
        counts = list(self.memory.counts.values())
        ends = itertools.accumulate(counts)
        parts = [slice(end - count, end) for count, end in zip(counts, ends, strict=True)]
        return torch.stack([self.gradient(select(x, part), y[part]) for part in parts])

    def project(self, gradient: Tensor, reference: Tensor) -> Tensor:
        """Equation 11: g̃ = Gᵀv + g, where v ≥ γ minimises ½ vᵀGGᵀv + gᵀGᵀv.

        The programme is solved only if the loss of some past task would increase.

        Args:
            gradient: Gradient g of the new batch [parameters].
            reference: Gradients G of the past tasks [tasks, parameters].
        """
        products = reference @ gradient
        self.tally(projected=(products < 0).any())
        products = products.double().cpu()
        if not (products < 0).any():
            return gradient
        wide = reference.double()
        gram = (wide @ wide.T).cpu()
        if not (gram.isfinite().all() and products.isfinite().all()):
            return gradient  # training has diverged, which the loss shows
        return gradient + dual_variables(gram, products, self.gamma).to(reference) @ reference


def dual_variables(gram: Tensor, products: Tensor, margin: float) -> Tensor:
    """Return the v ≥ margin that minimises ½ vᵀ(GGᵀ + εI)v + (Gg)ᵀv, given GGᵀ and Gg as doubles.

    ε is 10⁻³, as in the authors' code, unless gradients are so large (‖G‖² above 10⁹) that rounding
    would leave GGᵀ + εI singular.
    """
    import quadprog

    identity, bounds = torch.eye(len(gram)).double(), torch.full_like(products, margin)
    quadratic = gram + max(1e-3, 1e-12 * float(gram.trace())) * identity
    scale = quadratic.diagonal().mean()  # quadprog fails on large unscaled values
    arrays = (quadratic / scale, -products / scale, identity, bounds)
    return torch.from_numpy(quadprog.solve_qp(*(t.numpy() for t in arrays))[0])


def _flatten(gradients: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
    return torch.cat([g.reshape(-1) for g in gradients])
