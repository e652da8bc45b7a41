"""Augmentation and normalisation as batched tensor code on the inputs' device.

After a first call on a device, nothing here synchronises with the device or copies to it, so it
can be captured in a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.structures import Inputs, map_leaves


@dataclass(frozen=True)
class CropFlip:
    """Random crop of the zero-padded image, flipped horizontally with probability 1/2.

    Each image of a batch gets its own crop and flip.

    >>> inputs = torch.ones(2, 3, 32, 32, dtype=torch.uint8)
    >>> CropFlip()(inputs, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 32, 32])
    """

    padding: int = 4
    """Pixels added on every side; the crop has the size of the image."""

    def __call__(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Augment images.

        Args:
            inputs: Images [n, channels, height, width].
            generator: Random generator on the images' device.
        """
        n, channels, height, width = inputs.shape
        device = inputs.device
        shifts = 2 * self.padding + 1
        top, left = torch.randint(shifts, (2, n, 1), generator=generator, device=device)
        flip = torch.randint(2, (n, 1), generator=generator, device=device, dtype=torch.bool)
        row = top + torch.arange(height, device=device)
        column = torch.arange(width, device=device)
        column = left + torch.where(flip, column.flip(0), column)
        image = torch.arange(n, device=device)[:, None, None, None]
        channel = torch.arange(channels, device=device)[:, None, None]
        padded = F.pad(inputs, [self.padding] * 4)
        return padded[image, channel, row[:, None, :, None], column[:, None, None, :]]


@dataclass(frozen=True)
class Scale:
    """Scale bytes to floats in [0, 1]. Other inputs, such as token ids, keep their values.

    >>> Scale()(torch.tensor([0, 51, 255], dtype=torch.uint8))
    tensor([0.0000, 0.2000, 1.0000])
    """

    def __call__(self, inputs: Inputs) -> Inputs:
        """Convert bytes and floats to float32."""
        return map_leaves(self._scale, inputs)

    def _scale(self, leaf: Tensor) -> Tensor:
        if leaf.dtype == torch.uint8:
            return leaf.to(torch.float32).div_(255)
        return leaf.to(torch.float32) if leaf.is_floating_point() else leaf


@dataclass(frozen=True)
class Normalise:
    """Scale to [0, 1], subtract the mean and divide by the standard deviation of each channel.

    >>> Normalise(mean=(0.5,), std=(0.25,))(torch.tensor([[[[0.5, 1.0]]]]))
    tensor([[[[0., 2.]]]])
    """

    mean: tuple[float, ...]
    """Mean of each channel, of values in [0, 1]."""
    std: tuple[float, ...]
    """Standard deviation of each channel, of values in [0, 1]."""

    def __call__(self, inputs: Tensor) -> Tensor:
        """Normalise raw images [n, channels, height, width] to float32."""
        top = 1 if inputs.is_floating_point() else 255
        shift, scale = _shift_and_scale(self.mean, self.std, top, inputs.device)
        return torch.addcmul(shift, inputs.to(torch.float32), scale)


@cache
def _shift_and_scale(
    mean: tuple[float, ...], std: tuple[float, ...], top: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Shift and scale [channels, 1, 1] that map [0, top] to (value / top - mean) / std."""
    with torch.inference_mode(False):  # the cached tensors are also used in training
        average, deviation = torch.tensor([mean, std], dtype=torch.float64)[..., None, None]
        shift, scale = -average / deviation, 1 / (top * deviation)
        return shift.to(device, torch.float32), scale.to(device, torch.float32)


CIFAR10 = Normalise(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2615))
"""Statistics of CIFAR-10, also used for CIFAR-100."""
TINY_IMAGENET = Normalise(mean=(0.4802, 0.4480, 0.3975), std=(0.2770, 0.2691, 0.2821))
"""Statistics of Tiny-ImageNet."""
