"""Your own network: a function of (input shape, classes) that returns a module.

    perdure run s-mnist --network own_network:convolutional
    python own_network.py

Any module that returns logits [n, classes] works.
"""

import torch
from torch import nn

import perdure


def convolutional(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two convolutions and a linear layer, for images [channels, height, width]."""
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
    torch.manual_seed(0)
    digits = perdure.data.load("mnist5k")
    stream = perdure.streams.split(digits, tasks=5, name="digits")
    learner = perdure.ER(
        convolutional(stream.shape, stream.classes), buffer_size=200, normalise=stream.normalise
    )
    perdure.fit(learner, stream, batch=10)
    correct = learner.predict(digits.test.inputs) == digits.test.labels
    print(f"accuracy on all ten digits after five tasks: {float(correct.double().mean()):.0%}")
