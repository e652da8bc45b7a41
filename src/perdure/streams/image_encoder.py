"""The encoder of images: how files become inputs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
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
from perdure.user_code import warn_caller

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""Formats of images, by Pillow's names. The content of a file decides, not its name, and for some
other formats Pillow starts a program: for EPS, Ghostscript."""
UNREAD = re.compile(
    r"\.(heic|heif|avif|jxl|jp2|j2k|svg|psd|eps|tga|exr|dcm|cr2|cr3|nef|arw|dng|orf|raf|rw2)"
)
"""Suffixes of images in common formats that are not read."""
MAX_SIDE = 4096
"""Largest height and width of inputs in pixels."""
_MOST_THREADS = 8
"""Largest number of images that are decoded at a time: each needs its own memory."""
MAX_12_BIT = 4095
"""Largest value of images with 12 bits per pixel, as medical cameras and scanners produce."""


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
        inputs, _ = read_images(self, images, on_progress)
        return inputs


def read_images(
    encoder: ImageEncoder, images: Sequence[Any], on_progress: OnProgress | None = None
) -> tuple[Tensor, list[int]]:
    """The images as `encoder` encodes them, and the peaks of those with 16 bits per pixel."""
    mode, channels = ("L", 1) if encoder.grayscale else ("RGB", 3)
    height, width = encoder.height, encoder.width
    inputs = torch.empty(len(images), channels, height, width, dtype=torch.uint8)

    def read(number: int) -> int | None:
        inputs[number], peak = _decode(images[number], (width, height), mode)
        return peak

    peaks = []
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as pool:
        for done, peak in enumerate(pool.map(read, range(len(images))), start=1):
            if peak is not None:
                peaks.append(peak)
            if on_progress is not None:
                on_progress(done, len(images))
    return inputs, peaks


def _decode(source: Any, size: tuple[int, int], mode: str) -> tuple[Tensor, int | None]:
    """One image [channels, height, width], from a path, a binary file or a PIL image; its peak."""
    from PIL import Image, ImageOps

    try:
        given = isinstance(source, Image.Image)
        if isinstance(source, str | os.PathLike):
            if Path(source).is_dir():
                raise ValueError("it is a folder; expected a file")
            if not Path(source).is_file():  # opening a pipe would wait for a writer
                raise ValueError("there is no such file")
        elif not (given or hasattr(source, "read")):
            raise ValueError("expected a path, an open binary file or a PIL image")
        with nullcontext(source) if given else Image.open(source, formats=FORMATS) as opened:
            plain, peak = as_plain(opened)
            image = plain if plain.mode == mode else plain.convert(mode)
            pixels = np.asarray(ImageOps.fit(image, size, Image.Resampling.BICUBIC))
    except Exception as error:  # of any of Pillow's decoders
        name = source if isinstance(source, str | Path) else type(source).__name__
        raise ValueError(f"{name} cannot be read as an image: {reason_of(error)}") from error
    return as_channels(pixels), peak


def as_plain(original: Image.Image) -> tuple[Image.Image, int | None]:
    """A PIL image, upright, opaque and with 8 bits per channel, in any such mode; and its peak.

    The peak is the largest value of an image with 16 bits per pixel, otherwise None. Such images
    keep their upper 8 bits, so that all images have one scale. Their mode is "I;16", or "I" if the
    file is a PPM, or a PNG in older versions of Pillow. Other images in mode "I" have 32 bits per
    pixel and no scale that is known: it could only follow from the values of each image.

    Raises:
        ValueError: If its pixels are floating-point numbers or have 32 bits.
    """
    from PIL import ExifTags, Image, ImageOps

    original.load()  # a PNG may have its EXIF data at the end
    upright = original.getexif().get(ExifTags.Base.Orientation, 1) == 1
    image = original if upright else ImageOps.exif_transpose(original)  # which always copies
    peak = None
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers; convert them to 8 bits")
    if image.mode == "I" and original.format not in ("PNG", "PPM"):
        raise ValueError(
            "its pixels are integers of 32 bits, whose scale is unknown; convert them to uint8 if "
            "the largest value is 255, or to uint16 if it is 65535"
        )
    if image.mode.startswith("I"):
        values = np.asarray(image)
        peak = int(values.max())
        image = Image.fromarray((values >> 8).astype(np.uint8))
    if image.mode in ("P", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
    if image.mode == "RGBA":  # on white, as viewers show it
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image, peak


def reason_of(error: Exception) -> str:
    """The first line of an error of Pillow, or its type if it has no text."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def warn_of_low_values(peaks: Iterable[int], where: str) -> None:
    """Warn if all images with 16 bits use at most 12 of them; `peaks` are their largest values."""
    peak = max(peaks, default=MAX_12_BIT + 1)
    if peak <= MAX_12_BIT:
        warn_caller(
            f"the largest value of the images with 16 bits in {where} is {peak}, so they have "
            f"{(peak >> 8) + 1} of 256 levels of gray; if they have 12 bits, multiply their values "
            "by 16"
        )


def as_channels(pixels: NDArray[np.uint8]) -> Tensor:
    """Pixels [height, width] or [height, width, channels] as [channels, height, width]."""
    return torch.from_numpy(pixels.copy()).view(*pixels.shape[:2], -1).permute(2, 0, 1)
