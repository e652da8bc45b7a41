"""The encoder of images: how files become inputs."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from perdure.data.spec import OnProgress
from perdure.streams.encoder import Encoder

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""Formats of images, by Pillow's names. The content of a file decides, not its name, and for some
other formats Pillow starts a program: for EPS, Ghostscript."""
MAX_SIDE = 4096
"""Largest height and width of inputs in pixels."""


class ImageEncoder(Encoder, frozen=True, kw_only=True, tag="images"):
    """Reads image files as inputs, as `from_image_folder` has done for its stream.

    Files are JPEG, PNG, WebP, BMP, GIF, TIFF or PPM. `from_image_folder` creates the encoder
    (`Stream.encoder`), and `perdure run` writes it to the run folder as `encoder.json`.
    """

    height: int
    """Height of the inputs in pixels."""
    width: int
    """Width of the inputs in pixels."""
    grayscale: bool = False
    """Whether inputs have one channel instead of red, green and blue."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (1 <= self.height <= MAX_SIDE and 1 <= self.width <= MAX_SIDE):
            raise ValueError(
                f"size is {self.height} x {self.width}; expected 1 to {MAX_SIDE} pixels each"
            )

    def encode(self, source: Any, *, on_progress: OnProgress | None = None) -> Tensor:
        """The images as uint8 [n, channels, height, width].

        Args:
            source: Images: paths of files, open binary files such as `io.BytesIO`, or PIL images.
                A single one may be given without a list.
            on_progress: Called with the number of images read so far and the number of images.

        Raises:
            ValueError: If one of them cannot be read as an image.
        """
        images = list(source) if isinstance(source, list | tuple) else [source]
        mode, channels = ("L", 1) if self.grayscale else ("RGB", 3)
        inputs = torch.empty(len(images), channels, self.height, self.width, dtype=torch.uint8)

        def read(number: int) -> None:
            inputs[number] = _decode(images[number], (self.width, self.height), mode)

        with ThreadPoolExecutor() as pool:
            for done, _ in enumerate(pool.map(read, range(len(images))), start=1):
                if on_progress is not None:
                    on_progress(done, len(images))
        return inputs


def _decode(source: Any, size: tuple[int, int], mode: str) -> Tensor:
    """One image [channels, height, width], from a path, a binary file or a PIL image."""
    from PIL import Image, ImageOps

    try:
        given = isinstance(source, Image.Image)
        if isinstance(source, str | os.PathLike):
            if not Path(source).is_file():  # opening a pipe would wait for a writer
                raise ValueError("there is no such file")
        elif not (given or hasattr(source, "read")):
            raise ValueError("expected a path, an open binary file or a PIL image")
        with nullcontext(source) if given else Image.open(source, formats=FORMATS) as opened:
            image = as_opaque(ImageOps.exif_transpose(opened)).convert(mode)
            pixels = np.asarray(ImageOps.fit(image, size, Image.Resampling.BICUBIC))
    except Exception as error:  # of any of Pillow's decoders
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        name = source if isinstance(source, str | Path) else type(source).__name__
        raise ValueError(f"{name} cannot be read as an image: {reason}") from error
    return as_channels(pixels)


def as_opaque(image: Image.Image) -> Image.Image:
    """A PIL image with 8 bits per channel and without transparency, in any such mode.

    Raises:
        ValueError: If its pixels are floating-point numbers.
    """
    from PIL import Image

    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers; convert them to 8 bits")
    if image.mode.startswith("I"):  # 16 bits per pixel, which Pillow would clip
        image = Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8))
    if image.mode in ("P", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
    if image.mode == "RGBA":  # on white, as viewers show it
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image


def as_channels(pixels: NDArray[np.uint8]) -> Tensor:
    """Pixels [height, width] or [height, width, channels] as [channels, height, width]."""
    return torch.from_numpy(pixels.copy()).view(*pixels.shape[:2], -1).permute(2, 0, 1)
