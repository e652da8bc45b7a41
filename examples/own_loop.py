"""CLS-ER in a training loop of your own: no tasks, no streams, no files.

    python own_loop.py

A small network sees six shapes of noise, two at a time, and is then asked about all of them.
"""

import torch
from torch import Tensor, nn

from perdure import CLSER, SGD, Learner

SHAPES = torch.rand(6, 64, generator=torch.Generator().manual_seed(0)) > 0.5


def batch(classes: tuple[int, ...], size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images [size, 64] of these classes, and their labels."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes)[torch.randint(len(classes), (size,), generator=draws)]
    return SHAPES[labels] + 0.8 * torch.randn(size, 64, generator=draws), labels


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 6))


def accuracy(learner: Learner) -> float:
    images, labels = batch((0, 1, 2, 3, 4, 5), 600, seed=10_000)
    for classes in ((0, 1), (2, 3), (4, 5)):  # what arrives changes; the learner is not told
        for step in range(100):
            learner.observe(*batch(classes, 16, seed=100 * classes[0] + step))
    return float((learner.predict(images) == labels).double().mean())


if __name__ == "__main__":
    print(f"SGD     {accuracy(SGD(network())):.0%} of all six are known at the end")
    # The defaults suit long streams; on one of 300 steps the memories must move faster.
    clser = CLSER(network(), buffer_size=60, stable_decay=0.95, stable_rate=0.5, plastic_decay=0.9)
    print(f"CLS-ER  {accuracy(clser):.0%}")
