"""Records that streams, learners and memories exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from perdure.structures import Inputs, concatenate, leaves, map_leaves


class Samples(NamedTuple):
    """A batch of labelled samples.

    Examples:
        >>> batch = Samples(torch.zeros(4, 1, 28, 28, dtype=torch.uint8), torch.arange(4))
        >>> len(batch.labels)
        4
    """

    inputs: Inputs
    """Raw inputs before augmentation and normalisation: a tensor [n, ...], or a dict or tuple,
    also nested, of tensors with the same first dimension."""
    labels: Tensor
    """Class labels [n], int64."""
    logits: Tensor | None = None
    """Stored network outputs [n, classes], in memories that keep them."""

    def map(self, function: Callable[[Tensor], Tensor]) -> Samples:
        """Apply a function to every tensor of the inputs, to the labels and to the logits."""
        logits = None if self.logits is None else function(self.logits)
        return Samples(map_leaves(function, self.inputs), function(self.labels), logits)

    def tensors(self) -> list[Tensor]:
        """Return the tensors of the inputs, the labels and, if there are any, the logits."""
        found = [*leaves(self.inputs), self.labels]
        return found if self.logits is None else [*found, self.logits]

    def rows(self, index: Tensor) -> Samples:
        """Return copies of the samples at the given rows, on the devices of the samples."""
        return self.map(lambda t: t.index_select(0, index.to(t.device)))

    def slice(self, start: int, stop: int) -> Samples:
        """Return a view of the samples from row `start` to row `stop` - 1."""
        return self.map(lambda t: t[start:stop])

    def to(self, device: torch.device | str) -> Samples:
        """Return the samples on `device`; tensors that are already there are not copied."""
        return self.map(lambda t: t.to(device))


def label_remedy(labels: Tensor) -> str:
    """Return what turns labels into integers [n], as the end of a message; empty if unknown.

    >>> label_remedy(torch.eye(3))
    '; if they are one-hot, pass labels.argmax(1)'
    """
    if labels.ndim == 2 and labels.shape[1] == 1:
        return "; pass labels.squeeze(1)"
    if labels.ndim == 2:
        return "; if they are one-hot, pass labels.argmax(1)"
    if labels.ndim == 1 and (labels.is_floating_point() or labels.dtype == torch.bool):
        return "; if they are class numbers, pass labels.long(), or labels.astype(int) of an array"
    return ""


def join(*parts: Samples) -> Samples:
    """Concatenate batches; logits are kept if all parts have them."""
    logits = [p.logits for p in parts if p.logits is not None]
    return Samples(
        concatenate([p.inputs for p in parts]),
        torch.cat([p.labels for p in parts]),
        torch.cat(logits) if len(logits) == len(parts) else None,
    )
