"""Records that streams, learners and memories exchange."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


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

    def rows(self, index: Tensor) -> Samples:
        """Return copies of the samples at the given rows."""
        logits = None if self.logits is None else self.logits.index_select(0, index)
        return Samples(
            self.inputs.index_select(0, index), self.labels.index_select(0, index), logits
        )

    def to(self, device: torch.device | str) -> Samples:
        """Return the samples on `device`; tensors that are already there are not copied."""
        return Samples(*(None if t is None else t.to(device) for t in self))  # type: ignore[arg-type]


def join(*parts: Samples) -> Samples:
    """Concatenate the inputs and labels of several batches."""
    return Samples(
        torch.cat([p.inputs for p in parts]),
        torch.cat([p.labels for p in parts]),
    )
