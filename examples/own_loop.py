"""CLS-ER in your own training loop, without streams, tasks or files.

    python own_loop.py

A small network learns six noisy patterns, two at a time, and is then tested on all of them.
"""

import torch
from torch import Tensor, nn

from perdure import CLSER, SGD, Learner

PATTERNS = torch.rand(6, 64, generator=torch.Generator().manual_seed(0)) > 0.5


def batch(classes: tuple[int, ...], size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy patterns [size, 64] of these classes, and their labels."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes)[torch.randint(len(classes), (size,), generator=draws)]
    return PATTERNS[labels] + 0.8 * torch.randn(size, 64, generator=draws), labels


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 6))


def train_and_test(learner: Learner) -> float:
    for classes in ((0, 1), (2, 3), (4, 5)):  # the data change; the learner is not notified
        for step in range(100):
            learner.observe(*batch(classes, 16, seed=100 * classes[0] + step))
    inputs, labels = batch((0, 1, 2, 3, 4, 5), 600, seed=10_000)
    return float((learner.predict(inputs) == labels).double().mean())


if __name__ == "__main__":
    print("accuracy on all six patterns")
    print(f"  SGD     {train_and_test(SGD(network())):4.0%}")
    print(f"  CLS-ER  {train_and_test(CLSER(network(), buffer_size=60)):4.0%}")
