"""Function Distance Regularisation (Benjamin, Rolnick and Kording, ICLR 2019)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perdure.learners.learner import Learner
from perdure.memory.shares import TaskShares
from perdure.randomness import generator
from perdure.records import Samples


class FDR(Learner):
    """The network's outputs on stored samples stay near those it gave when their task ended.

    In the paper's symbols: `network` with a softmax is f; what it said at the end of a task, f_old,
    is kept as logits in a memory that the tasks seen share equally. Defaults are the published
    S-CIFAR-10 setting for a buffer of 500. `totals["loss"]` adds up both optimizer steps.

    >>> learner = FDR(nn.Linear(4, 3), buffer_size=20)
    >>> task = Samples(torch.rand(50, 4), torch.randint(3, (50,)))
    >>> learner.observe(task.inputs[:8], task.labels[:8])
    >>> learner.end_task(task)
    >>> learner.end_task(task)
    >>> learner.memory.held
    [10, 10]
    """

    needs_boundaries = True

    def __init__(
        self,
        network: nn.Module,
        *,
        buffer_size: int,
        memory_batch: int = 32,
        lr: float = 0.03,
        seed: int = 0,
        **common: Any,
    ) -> None:
        super().__init__(network, lr=lr, seed=seed, **common)
        if memory_batch < 1:
            raise ValueError(f"memory_batch is {memory_batch}; expected 1 or more")
        self.memory_batch = memory_batch
        self.memory = TaskShares(buffer_size, seed=seed, device=self.device)
        self.choice = generator(seed, "task samples", self.device)

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        """One optimizer step on the batch; then one towards f_old, from the weights it left."""
        x, y = self.prepare(Samples(inputs, labels))
        cross_entropy = F.cross_entropy(self.network(x), y)
        past = self.memory.draw(self.memory_batch)
        if past is None:
            self.descend(cross_entropy)
            return
        self.move(cross_entropy)
        assert past.logits is not None  # every sample here was stored with its logits
        distance = function_distance(self.network(self.prepare(past)[0]), past.logits)
        self.descend(distance, cross_entropy=cross_entropy, function_distance=distance)

    def host_state(self) -> int:
        """How far the memory is filled decides the size of the replay batch."""
        return self.memory.filled

    def end_task(self, samples: Samples) -> None:
        """Store a random share of the task's samples with what the network says of them now.

        The pass is one of training: augmented images, training mode, batches of `memory_batch`,
        so BatchNorm normalises by each batch and its running statistics move. The batches are
        whole, as far as the task has samples; what is over the share is not stored.
        """
        inputs, labels = self._checked(samples.inputs, samples.labels, values=True)
        share = self.memory.next_share
        if share == 0:  # more tasks than rows: the older tasks keep theirs
            return
        batches = -(-share // self.memory_batch)
        order = torch.randperm(len(labels), generator=self.choice, device=self.device)
        chosen = Samples(inputs, labels).rows(order[: batches * self.memory_batch])
        batches = -(-len(chosen.labels) // self.memory_batch)
        with self.randomness(), torch.no_grad():
            logits = [
                self.network(self.prepare(Samples(x, y))[0])
                # Parts of nearly equal size: a last batch of one would have no variance.
                for x, y in zip(
                    chosen.inputs.tensor_split(batches),
                    chosen.labels.tensor_split(batches),
                    strict=True,
                )
            ]
        self.memory.add_task(chosen._replace(logits=torch.cat(logits)))


def function_distance(logits: Tensor, old: Tensor) -> Tensor:
    """The mean over samples of the Euclidean distance between the two softmax outputs.

    >>> float(function_distance(torch.tensor([[99.0, 0.0]]), torch.tensor([[0.0, 99.0]])))
    1.4142135381698608
    """
    # vector_norm has the gradient 0 where the two are equal; a square root would have none.
    distances: Tensor = torch.linalg.vector_norm(logits.softmax(1) - old.softmax(1), dim=1)
    return distances.mean()
