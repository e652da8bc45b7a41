"""A dataset as uint8 tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from perdure.randomness import generator
from perdure.records import Samples


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples: images uint8 [n, channels, height, width], labels int64 [n]."""

    name: str
    """Name under which results refer to it."""
    train: Samples
    """Training samples."""
    test: Samples
    """Test samples."""
    classes: int
    """Number of classes; labels are 0 to classes - 1."""
    checksum: str
    """Identifies the content: equal datasets have equal checksums."""

    def to(self, device: torch.device | str) -> Dataset:
        """The same dataset on another device."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def validation(self, fraction: float, seed: int = 0) -> Dataset:
        """A dataset for choosing hyperparameters: it does not contain the test samples.

        Args:
            fraction: Share of the training samples, drawn at random, that become test samples;
                between 0 and 1. The others remain training samples.
            seed: Seed of the draw.

        Raises:
            ValueError: If `fraction` is not between 0 and 1.
        """
        if not 0 < fraction < 1:
            raise ValueError(
                f"validation fraction is {fraction}; expected a number between 0 and 1"
            )
        labels = self.train.labels
        rows = torch.randperm(len(labels), generator=generator(seed, "validation"))
        rows = rows.to(labels.device)
        held_out = max(1, round(len(labels) * fraction))
        return replace(
            self,
            name=f"{self.name}-validation",
            train=self.train.rows(rows[held_out:].sort().values),
            test=self.train.rows(rows[:held_out].sort().values),
            checksum=f"{self.checksum}/validation-{fraction}-{seed}",
        )
