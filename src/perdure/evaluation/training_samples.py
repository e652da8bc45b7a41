"""Some of the training samples of a stream's tasks, chosen with equal chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from perdure.randomness import generator
from perdure.records import Samples, join
from perdure.streams import ComposedTask, Task

MOST_COLLECTED = 100_000
"""Samples read from a task that composes its batches, which may be endless."""


def training_samples(tasks: Sequence[Task], count: int, *, batch: int, seed: int) -> Samples:
    """`count` samples (all, if there are fewer) out of all these tasks, in their order.

    Tasks that compose their batches are composed anew, from `seed`, in batches of `batch`.
    """
    supplies = [
        _supply(task, batch, generator(seed, f"composition {number}"))
        for number, task in enumerate(tasks)
    ]
    total = sum(size for size, _ in supplies)
    draws = generator(seed, "training samples")
    chosen = torch.randperm(total, generator=draws)[:count].sort().values
    parts, start = [], 0
    for task, (size, samples) in zip(tasks, supplies, strict=True):
        rows = chosen[(chosen >= start) & (chosen < start + size)] - start
        if len(rows):
            source = samples()
            parts.append(source.rows(rows.to(source.labels.device)))
        task.release()
        start += size
    return join(*parts)


def _supply(task: Task, batch: int, order: torch.Generator) -> tuple[int, Callable[[], Samples]]:
    """How many samples a task has, and how to get them."""
    if not isinstance(task, ComposedTask):
        size = task.steps(1)
        assert size is not None  # a task that holds its samples knows how many
        return size, task.samples
    parts: list[Samples] = []
    count = 0
    for part in task.epoch(batch, order):
        parts.append(part)
        count += len(part.labels)
        if count >= MOST_COLLECTED:
            break
    collected = join(*parts)
    return count, lambda: collected
