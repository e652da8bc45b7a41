"""Records that streams, learners and memories exchange."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MAX_CHUNK = 1000
"""Inputs per forward pass without gradients, if they are small."""
SMALL_INPUT = 3 * 32 * 32
CHUNK_VALUES = 100 * 3 * 64 * 64
"""Values per forward pass of larger inputs: ResNet-18 then needs about 1 GB, and is no slower."""


def chunk_size(shape: Sequence[int]) -> int:
    """Inputs of a shape per forward pass that keep the memory for activations bounded.

    >>> chunk_size((3, 32, 32)), chunk_size((3, 64, 64)), chunk_size((3, 224, 224))
    (1000, 100, 8)
    """
    values = math.prod(shape)
    return MAX_CHUNK if values <= SMALL_INPUT else max(1, CHUNK_VALUES // values)


class Samples(NamedTuple):
    """A batch of labelled samples.

    Examples:
        >>> batch = Samples(torch.zeros(4, 1, 28, 28, dtype=torch.uint8), torch.arange(4))
        >>> len(batch.labels)
        4
    """

    inputs: Tensor
    """Raw inputs [n, ...], before augmentation and normalisation: uint8 or floats."""
    labels: Tensor
    """Class labels [n], int64."""
    logits: Tensor | None = None
    """Stored network outputs [n, classes], in memories that keep them."""

    def map(self, function: Callable[[Tensor], Tensor]) -> Samples:
        """Apply a function to the inputs, labels and logits."""
        return Samples(*(None if t is None else function(t) for t in self))  # type: ignore[arg-type]

    def rows(self, index: Tensor) -> Samples:
        """Return copies of the samples at the given rows."""
        return self.map(lambda t: t.index_select(0, index))

    def slice(self, start: int, stop: int) -> Samples:
        """Return a view of the samples from row `start` to row `stop` - 1."""
        return self.map(lambda t: t[start:stop])

    def to(self, device: torch.device | str) -> Samples:
        """Return the samples on `device`; tensors that are already there are not copied."""
        return self.map(lambda t: t.to(device))


def join(*parts: Samples) -> Samples:
    """Concatenate batches; logits are kept if all parts have them."""
    logits = [p.logits for p in parts if p.logits is not None]
    return Samples(
        torch.cat([p.inputs for p in parts]),
        torch.cat([p.labels for p in parts]),
        torch.cat(logits) if len(logits) == len(parts) else None,
    )
