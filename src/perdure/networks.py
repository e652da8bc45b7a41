"""The two networks of the paper's experiments."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

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


class BatchNorm(nn.BatchNorm2d):
    """BatchNorm with what follows it in a residual network: a sum and a ReLU.

    On a GPU, in training, all three are one operation. `parts`, where set, are the sizes of
    batches that were joined and that each have statistics of their own.
    """

    def __init__(self, channels: int, *, relu: bool) -> None:
        super().__init__(channels)
        self.relu = relu
        self.parts: tuple[int, ...] | None = None

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """relu(norm(x) + shortcut), of which this layer may leave out the last two."""
        parts = self.parts or (len(x),)
        if self.training and self.momentum is not None and _fuses(x, parts):
            from perdure.kernels.norm import norm_add_relu

            return norm_add_relu(x, shortcut, self, parts, relu=self.relu)
        if self.training and len(parts) > 1:
            y = torch.cat(
                [super(BatchNorm, self).forward(part) for part in torch.split(x, list(parts))]
            )
        else:
            y = super().forward(x)
        return _add_relu(y, shortcut, relu=self.relu)

    def synchronised(self) -> nn.Module:
        """The same layer for batches that are divided over processes, with statistics over all."""
        return _SyncBatchNorm(self)


class _SyncBatchNorm(nn.SyncBatchNorm):
    """A BatchNorm of ours, of which it has the weights, with statistics over all processes."""

    def __init__(self, norm: BatchNorm) -> None:
        super().__init__(norm.num_features, norm.eps, norm.momentum or 0.0)
        self.relu = norm.relu
        self.weight, self.bias = norm.weight, norm.bias
        self.running_mean, self.running_var = norm.running_mean, norm.running_var
        self.num_batches_tracked = norm.num_batches_tracked
        self.train(norm.training)

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """relu(norm(x) + shortcut), of which this layer may leave out the last two."""
        return _add_relu(super().forward(x), shortcut, relu=self.relu)


def _add_relu(y: Tensor, shortcut: Tensor | None, *, relu: bool) -> Tensor:
    if shortcut is not None:
        y = y + shortcut
    return F.relu(y) if relu else y


def _fuses(x: Tensor, parts: tuple[int, ...]) -> bool:
    """Whether the kernels take this input."""
    return (
        x.is_cuda
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and len(parts) <= 3
        and min(parts) * x.shape[2] * x.shape[3] > 1
        and x.numel() < 2**31
        and x.is_contiguous(memory_format=torch.channels_last)
        and not torch.compiler.is_compiling()
        and _has_triton()
    )


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


class _Stem(nn.Conv2d):
    """The convolution of the images themselves.

    On a GPU, in training, their channels are filled up to eight with zeros: from eight on, the
    card's matrix units do the work.
    """

    def forward(self, x: Tensor) -> Tensor:
        missing = -self.in_channels % 8
        if not (missing and self.training and x.is_cuda):
            return super().forward(x)
        autocast = torch.is_autocast_enabled("cuda")
        dtype = torch.get_autocast_dtype("cuda") if autocast else x.dtype
        shape = (len(x), self.in_channels + missing, *x.shape[2:])
        filled = torch.empty(
            shape, dtype=dtype, device=x.device, memory_format=torch.channels_last
        ).zero_()
        filled[:, : self.in_channels] = x
        weight = F.pad(self.weight, (0, 0, 0, 0, 0, missing))
        return F.conv2d(filled, weight, self.bias, self.stride, self.padding)


class _Block(nn.Module):
    """Two 3 x 3 convolutions with a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = BatchNorm(outputs, relu=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = BatchNorm(outputs, relu=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), BatchNorm(outputs, relu=False)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn1(self.conv1(x))
        return self.bn2(self.conv2(out), self.shortcut(x))  # type: ignore[no-any-return]


class ResNet18(nn.Module):
    """ResNet-18 for small images: a 3 x 3 stem of stride 1, no max-pool, PyTorch's default init.

    >>> sum(p.numel() for p in ResNet18(10).parameters())
    11173962
    """

    def __init__(self, classes: int, channels: int = 3, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            _Stem(channels, width, 3, 1, 1, bias=False), BatchNorm(width, relu=True)
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

    def forward_each(self, *batches: Tensor) -> tuple[Tensor, ...]:
        """The logits of each batch, as if they came one after the other, in one pass.

        Only BatchNorm looks beyond a sample; it keeps the batches apart.
        """
        sizes = tuple(len(batch) for batch in batches)
        norms = [module for module in self.modules() if isinstance(module, BatchNorm)]
        for norm in norms:
            norm.parts = sizes
        try:
            return self(torch.cat(batches)).split(sizes)  # type: ignore[no-any-return]
        finally:
            for norm in norms:
                norm.parts = None


def mlp(shape: tuple[int, ...], classes: int) -> MLP:
    """The network of the MNIST streams, for images of any shape."""
    return MLP(int(torch.Size(shape).numel()), classes)


def resnet18(shape: tuple[int, ...], classes: int) -> ResNet18:
    """The network of the CIFAR and Tiny-ImageNet streams."""
    return ResNet18(classes, channels=shape[0])
