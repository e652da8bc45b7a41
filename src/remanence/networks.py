"""The two networks of the paper's experiments."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MLP(nn.Sequential):
    """Two hidden layers of ReLU units; Xavier-uniform weights, zero biases.

    >>> sum(p.numel() for p in MLP(784, 10).parameters())
    89610
    """

    def __init__(self, inputs: int, classes: int, hidden: int = 100) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(inputs, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )
        for layer in self:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)


class _Block(nn.Module):
    """Two 3 x 3 convolutions with a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 for small images: a 3 x 3 stem of stride 1, no max-pool, PyTorch's default init.

    >>> sum(p.numel() for p in ResNet18(10).parameters())
    11173962
    """

    def __init__(self, classes: int, channels: int = 3, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        blocks = []
        inputs = width
        for stage in range(4):
            outputs = width * 2**stage
            blocks += [
                _Block(inputs, outputs, stride=1 if stage == 0 else 2),
                _Block(outputs, outputs, stride=1),
            ]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [n, classes] for float images [n, channels, height, width]."""
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))  # type: ignore[no-any-return]


def mlp(shape: tuple[int, ...], classes: int) -> MLP:
    """The network of the MNIST streams, for images of any shape."""
    return MLP(int(torch.Size(shape).numel()), classes)


def resnet18(shape: tuple[int, ...], classes: int) -> ResNet18:
    """The network of the CIFAR and Tiny-ImageNet streams."""
    return ResNet18(classes, channels=shape[0])
