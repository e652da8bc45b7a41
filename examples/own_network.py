"""A network of your own: a function of (image shape, classes) that returns a module.

    perdure run s-mnist --network own_network:convolutional
    python own_network.py

Any module that returns logits [n, classes] will do.
"""

import torch
from torch import nn

import perdure


def convolutional(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two convolutions and a head, for images [channels, height, width]."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, classes),
    )


if __name__ == "__main__":
    learner = perdure.CLSER(convolutional((1, 28, 28), 10), buffer_size=200)
    inputs = torch.randint(0, 256, (32, 1, 28, 28), dtype=torch.uint8)
    learner.observe(inputs, torch.arange(32) % 10)
    print("probabilities", list(learner.predict_proba(inputs).shape))
