"""Gradient-based Sample Selection, greedy (Aljundi, Lin, Goujaud and Bengio, NeurIPS 2019)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from remanence.learners.learner import Learner
from remanence.learners.predictor import answering
from remanence.memory.gradients import GradientMemory
from remanence.records import Samples

FIRST_SCORE = 0.1
"""The score of samples that come when there is nothing to compare them with."""
AT_ONCE = 16
"""Gradients are as large as the network: this many are held beside those of the reference."""

T = TypeVar("T")


class GSS(Learner):
    """Replay from a memory that prefers samples whose gradients point where no other's do.

    In the paper's symbols: g is a sample's gradient, G those of `gss_batch` (n) random samples of
    the memory M; the score c = max_i cos(g, G_i) + 1 lies between 0 and 2 and is stored in C.
    Each batch is learned `inner_steps` times. Defaults are the published S-CIFAR-10 setting for a
    buffer of 500.

    >>> learner = GSS(nn.Linear(4, 3), buffer_size=20)
    >>> for _ in range(3):
    ...     learner.observe(torch.rand(8, 4), torch.randint(3, (8,)))
    >>> learner.memory.filled
    20
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        buffer_size: int,
        memory_batch: int = 32,
        gss_batch: int = 32,
        inner_steps: int = 1,
        lr: float = 0.03,
        seed: int = 0,
        **common: Any,
    ) -> None:
        super().__init__(network, lr=lr, seed=seed, **common)
        counts = {"memory_batch": memory_batch, "gss_batch": gss_batch, "inner_steps": inner_steps}
        for name, count in counts.items():
            if count < 1:
                raise ValueError(f"{name} is {count}; expected 1 or more")
        self.memory_batch = memory_batch
        self.gss_batch = gss_batch
        self.inner_steps = inner_steps
        self.memory = GradientMemory(buffer_size, seed=seed, device=self.device)

    def step(self, images: Tensor, labels: Tensor) -> None:
        """Learn from stream and replay together, then let the batch compete for the memory."""
        batch = Samples(images, labels)
        for to_come in reversed(range(self.inner_steps)):
            past = self.memory.draw(self.memory_batch)
            x, y = self.prepare(batch, past) if past else self.prepare(batch)
            loss = F.cross_entropy(self.network(x), y)
            if to_come:
                self.move(loss)
            else:
                self.descend(loss)
        self.select(batch)

    def host_state(self) -> int:
        """How far the memory is filled decides the size of the batches drawn from it."""
        return self.memory.filled

    def select(self, batch: Samples) -> None:
        """Algorithm 2: score the samples and present them to M.

        Images are not augmented here: a score belongs to the sample. The batch as one, by its mean
        gradient, is scored too: a full memory considers its samples only if that score is below 1.
        """
        stored = self.memory.draw(self.gss_batch)
        x, y = self.normalise(batch.images), batch.labels
        if stored is None:
            first = torch.full_like(y, FIRST_SCORE, dtype=torch.float64)
            self.memory.add(batch, first, first[0] < 1)
            return
        # In full precision: under autocast vmap has no rule for BatchNorm on every device.
        with answering(self.network), torch.autocast(self.device.type, enabled=False):
            reference = gradients(self.network, self.normalise(stored.images), stored.labels)
            considered = score(gradient(self.network, x, y), reference) < 1
            self.tally(considered=considered)
            # A CPU can be asked without waiting, and is spared all gradients but the batch's.
            if self.device.type == "cpu" and self.memory.full and not considered:
                return
            scores = _of_each(lambda x, y: score(gradient(self.network, x, y), reference), x, y)
        self.memory.add(batch, scores, considered)


class Gradient(NamedTuple):
    """A gradient, or in tensors of one dimension more the gradients of several samples."""

    parts: dict[str, Tensor]
    """By parameter, flat: [size] or [n, size]."""
    length: Tensor
    """The Euclidean norm over all parts: [] or [n]."""


def gradient(network: nn.Module, x: Tensor, y: Tensor) -> Gradient:
    """The gradient of the mean cross-entropy over x [n, ...] and y [n]."""
    parameters = {name: p.detach() for name, p in network.named_parameters() if p.requires_grad}

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(functional_call(network, parameters, (x,)), y)

    parts = {name: part.flatten() for name, part in grad(loss)(parameters).items()}
    lengths = torch.stack([torch.linalg.vector_norm(part) for part in parts.values()])
    return Gradient(parts, torch.linalg.vector_norm(lengths))


def gradients(network: nn.Module, x: Tensor, y: Tensor) -> Gradient:
    """The gradient of each sample of x [n, ...] and y [n]."""
    return _of_each(lambda x, y: gradient(network, x, y), x, y)


def score(candidate: Gradient, reference: Gradient) -> Tensor:
    """The score c = max_i cos(g, G_i) + 1, a cosine being 0 where a gradient vanishes."""
    products = torch.stack([reference.parts[n] @ part for n, part in candidate.parts.items()])
    cosines = products.sum(0) / (candidate.length * reference.length).clamp(min=1e-16)
    return cosines.max() + 1


def _of_each(function: Callable[[Tensor, Tensor], T], x: Tensor, y: Tensor) -> T:
    """The function of batches that hold one sample each, the results put together."""
    each = vmap(function, randomness="different", chunk_size=AT_ONCE)
    return each(x[:, None], y[:, None])
