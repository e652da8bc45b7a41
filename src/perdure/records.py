"""The records that travel between streams, learners and memories."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Samples(NamedTuple):
    """Images with their labels, row by row.

    >>> batch = Samples(torch.zeros(4, 1, 28, 28, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))
    >>> len(batch.labels)
    4
    """

    inputs: Tensor
    """[n, ...], raw: uint8 where they came so, before augmentation and normalisation."""
    labels: Tensor
    """[n], int64."""
    logits: Tensor | None = None
    """[n, classes], where a memory keeps what the network said when it stored the sample."""

    def rows(self, index: Tensor) -> Samples:
        """The samples at these rows, copied."""
        logits = None if self.logits is None else self.logits.index_select(0, index)
        return Samples(
            self.inputs.index_select(0, index), self.labels.index_select(0, index), logits
        )

    def to(self, device: torch.device | str) -> Samples:
        """The same samples on another device (themselves where they are there already)."""
        return Samples(*(None if t is None else t.to(device) for t in self))  # type: ignore[arg-type]


def join(*parts: Samples) -> Samples:
    """One batch after another."""
    return Samples(
        torch.cat([p.inputs for p in parts]),
        torch.cat([p.labels for p in parts]),
    )
