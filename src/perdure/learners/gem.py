"""Gradient Episodic Memory (Lopez-Paz and Ranzato, NeurIPS 2017)."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perdure.learners.learner import Learner
from perdure.memory.ring import TaskMemory
from perdure.records import Samples


class GuardedDescent(Learner):
    """Descent by a gradient in which memories of past tasks have a say: what GEM and A-GEM share.

    The memory holds `buffer_size // tasks` random samples of every task that has ended. Each
    reference gradient is one batch's, in training mode, taken before the stream's: BatchNorm
    normalises every reference batch by itself, and its running statistics follow them too.
    """

    needs_boundaries = True

    def __init__(
        self, network: nn.Module, *, buffer_size: int, tasks: int, seed: int = 0, **common: Any
    ) -> None:
        super().__init__(network, seed=seed, **common)
        self.memory = TaskMemory(buffer_size, tasks, seed=seed, device=self.device)

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        """Descend by the stream's gradient g; once a task has ended, by its projection g̃."""
        reference = self.reference()
        x, y = self.prepare(Samples(inputs, labels))
        loss = F.cross_entropy(self.network(x), y)
        if reference is None:
            self.descend(loss)
        else:
            with self.optimizer.register_step_pre_hook(lambda *_: self._replace(reference)):
                self.descend(loss)

    @abstractmethod
    def reference(self) -> Tensor | None:
        """The gradients on the memory that count at this step; None before a task has ended."""

    @abstractmethod
    def project(self, gradient: Tensor, reference: Tensor) -> Tensor:
        """The gradient g̃ [parameters] to descend by, from the stream's and the reference."""

    def end_task(self, samples: Samples) -> None:
        """Keep the task's share of the memory; ValueError if more tasks end than were announced."""
        self.memory.add(Samples(*self._checked(samples.inputs, samples.labels, values=True)))

    def host_state(self) -> int:
        """How much is stored decides the sizes of the reference batches."""
        return self.memory.filled

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """∇ CE(f(x), y) with respect to what the optimizer moves, as one vector."""
        loss = F.cross_entropy(self.network(x), y)
        return _flat(torch.autograd.grad(loss, self._moved(), materialize_grads=True))

    def _moved(self) -> list[Tensor]:
        groups = self.optimizer.param_groups
        return [p for group in groups for p in group["params"] if p.requires_grad]

    @torch.no_grad()
    def _replace(self, reference: Tensor) -> None:
        """Put g̃ where the optimizer is about to read g."""
        parameters = self._moved()
        for p in parameters:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        gradients = [p.grad for p in parameters if p.grad is not None]
        with torch.autocast(self.device.type, enabled=False):  # products need full precision
            projected = self.project(_flat(gradients), reference)
        pieces = torch.split(projected, [g.numel() for g in gradients])
        for own, piece in zip(gradients, pieces, strict=True):
            own.copy_(piece.view(own.shape))


class GEM(GuardedDescent):
    """Descent by the nearest gradient that raises the loss on no past task's memory.

    In the paper's symbols: g is the stream's gradient, G [past tasks, parameters] those on the
    memories, v the dual variables and `gamma` the margin γ that they keep from zero.

    >>> learner = GEM(nn.Linear(4, 3), buffer_size=20, tasks=2)
    >>> inputs, labels = torch.rand(12, 4), torch.randint(3, (12,))
    >>> learner.observe(inputs, labels)
    >>> learner.end_task(Samples(inputs, labels))
    >>> learner.observe(inputs, labels)
    >>> learner.memory.counts
    [10]
    """

    capturable = False  # the programme is solved on the host

    def __init__(
        self,
        network: nn.Module,
        *,
        buffer_size: int,
        tasks: int,
        gamma: float = 0.5,
        seed: int = 0,
        **common: Any,
    ) -> None:
        super().__init__(network, buffer_size=buffer_size, tasks=tasks, seed=seed, **common)
        if not 0 <= gamma < float("inf"):
            raise ValueError(f"gamma is {gamma}; expected a number from 0 on")
        self.gamma = gamma

    def reference(self) -> Tensor | None:
        """G: the gradient on each past task's memory."""
        memory = self.memory.contents()
        if memory is None:
            return None
        x, y = self.prepare(memory)
        counts = self.memory.counts
        parts = zip(torch.split(x, counts), torch.split(y, counts), strict=True)
        return torch.stack([self.gradient(*part) for part in parts])

    def project(self, gradient: Tensor, reference: Tensor) -> Tensor:
        """Equation 11: g̃ = Gᵀv + g, with v ≥ γ minimising ½ vᵀGGᵀv + gᵀGᵀv.

        The programme is solved only if some past task's loss would rise.
        """
        products = reference @ gradient
        self.tally(projected=(products < 0).any())
        products = products.double().cpu()
        if not (products < 0).any():
            return gradient
        wide = reference.double()
        gram = (wide @ wide.T).cpu()
        if not (gram.isfinite().all() and products.isfinite().all()):
            return gradient  # the run has diverged, which its loss tells
        return gradient + dual_variables(gram, products, self.gamma).to(reference) @ reference


def dual_variables(gram: Tensor, products: Tensor, margin: float) -> Tensor:
    """The v ≥ margin minimising ½ vᵀ(GGᵀ + εI)v + (Gg)ᵀv, from GGᵀ and Gg in double precision.

    ε is 10⁻³, as in the authors' code; more only for gradients so large (‖G‖² above 10⁹) that
    rounding would leave GGᵀ + εI singular.
    """
    import quadprog

    identity, bounds = torch.eye(len(gram)).double(), torch.full_like(products, margin)
    quadratic = gram + max(1e-3, 1e-12 * float(gram.trace())) * identity
    scale = quadratic.diagonal().mean()  # unscaled, quadprog gives up where gradients are large
    arrays = (quadratic / scale, -products / scale, identity, bounds)
    return torch.from_numpy(quadprog.solve_qp(*(t.numpy() for t in arrays))[0])


def _flat(gradients: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
    return torch.cat([g.reshape(-1) for g in gradients])
