"""A small dataset whose images can be identified even after a rotation."""

from __future__ import annotations

import pytest
import torch

from perdure.data import Dataset
from perdure.records import Samples


def _samples(counts: list[int], seed: int) -> Samples:
    """Random 5 x 5 images with three channels; the middle pixel encodes the row in base 256."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=draws)]
    inputs = torch.randint(256, (len(labels), 3, 5, 5), generator=draws, dtype=torch.uint8)
    rows = torch.arange(len(labels))
    inputs[:, :, 2, 2] = torch.stack([rows // 65536, rows // 256 % 256, rows % 256], 1).byte()
    return Samples(inputs, labels)


@pytest.fixture(scope="session")
def digits() -> Dataset:
    """Ten classes with 60 to 78 training images and 5 to 14 test images."""
    train = _samples([60 + 2 * c for c in range(10)], seed=0)
    test = _samples([5 + c for c in range(10)], seed=1)
    return Dataset("digits", train, test, classes=10, checksum="digits")
