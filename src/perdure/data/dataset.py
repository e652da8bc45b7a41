"""What a reader returns: a dataset as uint8 tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from perdure.randomness import generator
from perdure.records import Samples


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples: images uint8 [n, channels, height, width], labels int64 [n]."""

    name: str
    train: Samples
    test: Samples
    classes: int
    checksum: str
    """Fingerprint of the files it was read from."""

    def to(self, device: torch.device | str) -> Dataset:
        """The same dataset on another device."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def validation(self, fraction: float, seed: int = 0) -> Dataset:
        """A dataset whose test samples are a random `fraction` of the training samples.

        For choosing hyperparameters: the real test samples are not in it.
        """
        if not 0 < fraction < 1:
            raise ValueError(
                f"validation fraction is {fraction}; expected a number between 0 and 1"
            )
        n = len(self.train.labels)
        rows = torch.randperm(n, generator=generator(seed, "validation")).to(
            self.train.labels.device
        )
        held = max(1, round(n * fraction))
        return replace(
            self,
            name=f"{self.name}-validation",
            train=self.train.rows(rows[held:].sort().values),
            test=self.train.rows(rows[:held].sort().values),
            checksum=f"{self.checksum}/validation-{fraction}-{seed}",
        )
