"""Crop, flip and normalisation as batched tensor code that runs where the images are.

Nothing here waits for the device or copies to it in a call, so all of it may be captured in a
CUDA graph (once each has been called on that device before the capture).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class CropFlip:
    """A random crop of the zero-padded image, mirrored left to right every other time.

    Each image of the batch gets its own crop and flip.

    >>> inputs = torch.ones(2, 3, 32, 32, dtype=torch.uint8)
    >>> CropFlip()(inputs, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 32, 32])
    """

    padding: int = 4
    """Pixels added on every side; the crop has the size of the image."""

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """New images from images [n, C, H, W]; `generator` lives on their device."""
        n, channels, height, width = images.shape
        device = images.device
        shifts = 2 * self.padding + 1
        top, left = torch.randint(shifts, (2, n, 1), generator=generator, device=device)
        flip = torch.randint(2, (n, 1), generator=generator, device=device, dtype=torch.bool)
        row = top + torch.arange(height, device=device)
        column = torch.arange(width, device=device)
        column = left + torch.where(flip, column.flip(0), column)
        image = torch.arange(n, device=device)[:, None, None, None]
        channel = torch.arange(channels, device=device)[:, None, None]
        padded = F.pad(images, [self.padding] * 4)
        return padded[image, channel, row[:, None, :, None], column[:, None, None, :]]


@dataclass(frozen=True)
class Scale:
    """Bytes to floats from 0 to 1; floats are taken to be there already.

    >>> Scale()(torch.tensor([0, 51, 255], dtype=torch.uint8))
    tensor([0.0000, 0.2000, 1.0000])
    """

    def __call__(self, images: Tensor) -> Tensor:
        """Raw images to float32."""
        floats = images.to(torch.float32)
        return floats if images.is_floating_point() else floats.div_(255)


@dataclass(frozen=True)
class Normalise:
    """To floats from 0 to 1, then less the mean and over the standard deviation of each channel.

    >>> Normalise(mean=(0.5,), std=(0.25,))(torch.tensor([[[[0.5, 1.0]]]]))
    tensor([[[[0., 2.]]]])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: Tensor) -> Tensor:
        """Raw images [n, C, H, W] to float32."""
        top = 1 if images.is_floating_point() else 255
        shift, scale = _shift_and_scale(self.mean, self.std, top, images.device)
        return torch.addcmul(shift, images.to(torch.float32), scale)


@cache
def _shift_and_scale(
    mean: tuple[float, ...], std: tuple[float, ...], top: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """What turns a value in [0, top] into (value / top - mean) / std, as [C, 1, 1] each."""
    with torch.inference_mode(False):  # kept, and used in training too
        average, deviation = torch.tensor([mean, std], dtype=torch.float64)[..., None, None]
        shift, scale = -average / deviation, 1 / (top * deviation)
        return shift.to(device, torch.float32), scale.to(device, torch.float32)


CIFAR10 = Normalise(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2615))
"""The statistics of CIFAR-10, which GCIL-CIFAR-100 uses as well."""
TINY_IMAGENET = Normalise(mean=(0.4802, 0.4480, 0.3975), std=(0.2770, 0.2691, 0.2821))
"""The statistics of Tiny-ImageNet."""
