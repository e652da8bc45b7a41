"""The networks of the paper's experiments, and a small one for images of any size."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perdure.kernels import has_triton


class MLP(nn.Sequential):
    """Multilayer perceptron with two hidden ReLU layers, Xavier-uniform weights and zero biases.

    Args:
        inputs: Number of values of one flattened input.
        classes: Number of outputs.
        hidden: Units of each hidden layer.

    Examples:
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
    """BatchNorm followed by an optional residual addition and ReLU.

    On a GPU in training mode, fused kernels compute all three.
    """

    def __init__(self, channels: int, *, relu: bool) -> None:
        super().__init__(channels)
        self.relu = relu
        self.parts: tuple[int, ...] | None = None
        """Sizes of the concatenated batches, each normalised by its own statistics."""

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """Compute relu(norm(x) + shortcut); ReLU and shortcut are optional."""
        parts = self.parts or (x.shape[0],)  # len(x) would fix the batch size of an export
        if self.training and self.momentum is not None and _can_fuse(x, parts):
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
        """Return a layer with the same weights that synchronises statistics across processes."""
        return _SyncBatchNorm(self)


class _SyncBatchNorm(nn.SyncBatchNorm):
    """`BatchNorm` with statistics over the batches of all processes."""

    def __init__(self, norm: BatchNorm) -> None:
        super().__init__(norm.num_features, norm.eps, norm.momentum or 0.0)
        self.relu = norm.relu
        self.weight, self.bias = norm.weight, norm.bias
        self.running_mean, self.running_var = norm.running_mean, norm.running_var
        self.num_batches_tracked = norm.num_batches_tracked
        self.train(norm.training)

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """Compute relu(norm(x) + shortcut); ReLU and shortcut are optional."""
        return _add_relu(super().forward(x), shortcut, relu=self.relu)


def _add_relu(y: Tensor, shortcut: Tensor | None, *, relu: bool) -> Tensor:
    if shortcut is not None:
        y = y + shortcut
    return F.relu(y) if relu else y


def _can_fuse(x: Tensor, parts: tuple[int, ...]) -> bool:
    """Return whether the fused kernels support this input."""
    return (
        x.is_cuda
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and len(parts) <= 3
        and min(parts) * x.shape[2] * x.shape[3] > 1
        and x.numel() < 2**31
        and x.is_contiguous(memory_format=torch.channels_last)
        and not torch.compiler.is_compiling()
        and has_triton()
    )


class _Stem(nn.Conv2d):
    """First convolution of a network.

    On a GPU in training mode, the input is padded with zeros to eight channels, the least that
    tensor cores support.
    """

    def forward(self, x: Tensor) -> Tensor:
        missing = -self.in_channels % 8
        if not (missing and self.training and x.is_cuda):
            return super().forward(x)
        autocast = torch.is_autocast_enabled("cuda")
        dtype = torch.get_autocast_dtype("cuda") if autocast else x.dtype
        shape = (len(x), self.in_channels + missing, *x.shape[2:])
        padded = torch.empty(
            shape, dtype=dtype, device=x.device, memory_format=torch.channels_last
        ).zero_()
        padded[:, : self.in_channels] = x
        weight = F.pad(self.weight, (0, 0, 0, 0, 0, missing))
        return F.conv2d(padded, weight, self.bias, self.stride, self.padding)


class _BatchNormNetwork(nn.Module):
    """A network in which samples interact only in `BatchNorm` layers."""

    def forward_batches(self, *batches: Tensor) -> tuple[Tensor, ...]:
        """Return the logits of each batch, computed in one pass.

        The result is that of one pass per batch, in order: BatchNorm normalises each batch by its
        own statistics.
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


class _Block(nn.Module):
    """Residual block of two 3 x 3 convolutions."""

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


class ResNet18(_BatchNormNetwork):
    """ResNet-18 for small images: 3 x 3 stem of stride 1, no max-pooling, PyTorch's initialisation.

    Args:
        classes: Number of outputs.
        channels: Channels of an input image.
        width: Channels of the first stage.

    Examples:
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
        """Return logits [n, classes] for float images [n, channels, height, width]."""
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))  # type: ignore[no-any-return]


class CNN(_BatchNormNetwork):
    """Three 3 x 3 convolutions of stride 2 with BatchNorm and ReLU, then the mean over the image.

    Args:
        classes: Number of outputs.
        channels: Channels of an input image.
        width: Channels of the first convolution; the others have two and four times as many.

    Examples:
        >>> sum(p.numel() for p in CNN(10).parameters())
        94762
    """

    def __init__(self, classes: int, channels: int = 3, width: int = 32) -> None:
        super().__init__()
        sizes = [channels, width, 2 * width, 4 * width]
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), BatchNorm(outputs, relu=True)
                )
                for inputs, outputs in itertools.pairwise(sizes)
            )
        )
        self.head = nn.Linear(sizes[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [n, classes] for float images [n, channels, height, width]."""
        return self.head(self.blocks(x).mean(dim=(2, 3)))  # type: ignore[no-any-return]


def mlp(shape: tuple[int, ...], classes: int) -> MLP:
    """Build the network of the MNIST streams, for inputs of any shape.

    Args:
        shape: Shape of one input.
        classes: Number of outputs.
    """
    return MLP(int(torch.Size(shape).numel()), classes)


def cnn(shape: tuple[int, ...], classes: int) -> CNN:
    """Build a small convolutional network for images of any size.

    Args:
        shape: Shape of one image, [channels, height, width].
        classes: Number of outputs.
    """
    _check_image("cnn", shape)
    return CNN(classes, channels=shape[0])


def resnet18(shape: tuple[int, ...], classes: int) -> ResNet18:
    """Build the network of the CIFAR and Tiny-ImageNet streams.

    Args:
        shape: Shape of one image, [channels, height, width].
        classes: Number of outputs.
    """
    _check_image("resnet18", shape)
    return ResNet18(classes, channels=shape[0])


def _check_image(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 3:
        raise ValueError(
            f"{name} is for images [channels, height, width], but an input has shape "
            f"{list(shape)}; use mlp or a network of your own"
        )
