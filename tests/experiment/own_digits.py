"""Digits as a user's own stream, and a network with BatchNorm and dropout."""

from torch import nn

import perdure
from perdure.data import load


def stream() -> perdure.Stream:
    digits = load("mnist5k")
    return perdure.from_tensors(
        digits.train.inputs[::4],
        digits.train.labels[::4],
        groups=[(0, 1, 2), (3, 4, 5), (6, 7)],
        test=(digits.test.inputs[::4], digits.test.labels[::4]),
        classes=10,
        name="own-digits",
    )


def convolutional(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(shape[0], 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, classes),
    )
