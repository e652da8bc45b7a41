"""Function Distance Regularisation (Benjamin, Rolnick and Kording, ICLR 2019)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from perdure.learners.replay import ReplayLearner
from perdure.memory import BalancedTaskBuffer
from perdure.randomness import generator
from perdure.records import Samples
from perdure.structures import Inputs


class FDR(ReplayLearner):
    """Keeps the outputs on stored samples close to their values at the end of their task.

    The memory is divided equally between the tasks so far. The loss in the totals is the sum over
    both optimizer steps. Defaults are the published setting for S-CIFAR-10 with a buffer of 500.

    Args:
        network: Network to train, in place. It maps inputs [n, ...] to logits [n, classes]; with a
            softmax it is the paper's f.
        buffer_size: Maximum number of stored samples, with their logits at the end of their task,
            the paper's f_old.
        buffer_bytes: Their maximum size in bytes, such as "64MB", instead of `buffer_size`.
        memory_batch: Number of samples replayed per step.
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
        >>> learner = FDR(torch.nn.Linear(4, 3), buffer_size=20)
        >>> task = Samples(torch.rand(50, 4), torch.randint(3, (50,)))
        >>> learner.observe(task.inputs[:8], task.labels[:8])
        >>> learner.end_task(task)
        >>> learner.end_task(task)
        >>> learner.memory.counts
        {0: 10, 1: 10}
    """

    changes_weights_last = True
    needs_boundaries = True
    memory: BalancedTaskBuffer
    default_lr = 0.03
    stores_logits = True

    def create_memory(self, buffer_size: int | None, **options: Any) -> BalancedTaskBuffer:
        """Create the memory, and the generator that chooses what it stores."""
        self.choice = generator(self._seed, "task samples", self.device)
        return BalancedTaskBuffer(buffer_size, **options)

    def step(self, inputs: Inputs, labels: Tensor) -> None:
        """Take an optimizer step on the batch, then one towards f_old.

        Args:
            inputs: Raw inputs of the batch.
            labels: Their labels [n].
        """
        x, y = self.prepare(Samples(inputs, labels))
        cross_entropy = F.cross_entropy(self.logits(x), y)
        past = self.memory.draw(self.memory_batch)
        if past is None:
            self.optimizer_step(cross_entropy)
            return
        self.inner_step(cross_entropy)
        assert past.logits is not None  # the memory stores every sample with its logits
        distance = function_distance(self.logits(self.prepare(past)[0]), past.logits)
        self.optimizer_step(distance, cross_entropy=cross_entropy, function_distance=distance)

    def end_task(self, samples: Samples) -> None:
        """Store random samples of the task with the network's current logits.

        The logits come from training-mode passes over augmented batches of `memory_batch` samples,
        so BatchNorm uses batch statistics and updates its running ones. Where the task has enough
        samples, all batches are full; surplus samples are not stored.

        Args:
            samples: Training samples of the task.
        """
        assert self._input_spec is not None  # the samples have been checked
        shape = len(samples.labels), self._input_spec.classes
        logits_like = torch.empty(shape, dtype=self._dtype, device="meta")
        self.memory.reserve(samples._replace(logits=logits_like))
        share = self.memory.next_share
        if share == 0:  # more tasks than rows: older tasks keep their samples
            return
        batches = -(-share // self.memory_batch)
        order = torch.randperm(len(samples.labels), generator=self.choice, device=self.device)
        chosen = samples.rows(order[: batches * self.memory_batch])
        batches = -(-len(chosen.labels) // self.memory_batch)
        with torch.no_grad():
            # Batches of nearly equal size: BatchNorm cannot normalise a last batch of one.
            parts = torch.arange(len(chosen.labels)).tensor_split(batches)
            slices = [chosen.slice(int(part[0]), int(part[-1]) + 1) for part in parts]
            logits = [self.logits(self.prepare(part)[0]) for part in slices]
        self.memory.add(chosen._replace(logits=torch.cat(logits)))


def function_distance(logits: Tensor, old: Tensor) -> Tensor:
    """Return the mean Euclidean distance between the softmax of two sets of logits [n, classes].

    Examples:
        >>> float(function_distance(torch.tensor([[99.0, 0.0]]), torch.tensor([[0.0, 99.0]])))
        1.4142135381698608
    """
    # The gradient of vector_norm is 0 where the outputs are equal; that of a square root is NaN.
    distances: Tensor = torch.linalg.vector_norm(logits.softmax(1) - old.softmax(1), dim=1)
    return distances.mean()
