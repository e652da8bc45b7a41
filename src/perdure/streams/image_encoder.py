"""How image files become inputs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from perdure.streams.encoder import Encoder


class ImageEncoder(Encoder, frozen=True, kw_only=True, tag="images"):
    """Reads image files as inputs, as `from_image_folder` has done for its stream.

    `from_image_folder` creates it (`Stream.encoder`), and `perdure run` writes it to the run
    folder as `encoder.json`.
    """

    height: int
    width: int
    grayscale: bool = False

    def __post_init__(self) -> None:
        if min(self.height, self.width) < 1:
            raise ValueError(
                f"size is {self.height} x {self.width}; expected 1 or more pixels each"
            )

    def encode(self, source: str | Path | Sequence[str | Path]) -> Tensor:
        """The images as uint8 [n, channels, height, width].

        Args:
            source: Paths of image files, or a single one.

        Raises:
            ValueError: If a file cannot be read as an image.
        """
        paths = [source] if isinstance(source, str | Path) else list(source)
        mode, channels = ("L", 1) if self.grayscale else ("RGB", 3)
        inputs = torch.empty(len(paths), channels, self.height, self.width, dtype=torch.uint8)

        def read(number: int) -> None:
            inputs[number] = _decode(Path(paths[number]), (self.width, self.height), mode)

        with ThreadPoolExecutor() as pool:
            for _ in pool.map(read, range(len(paths))):
                pass
        return inputs


def _decode(path: Path, size: tuple[int, int], mode: str) -> Tensor:
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as file:
            image = ImageOps.exif_transpose(file)
            if image.mode.startswith("I"):  # 16 bits per pixel, which Pillow would clip
                image = Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8))
            if image.mode in ("P", "LA", "PA") or "transparency" in image.info:
                image = image.convert("RGBA")
            if image.mode == "RGBA":  # on white, as viewers show it
                image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
            pixels = np.asarray(ImageOps.fit(image.convert(mode), size, Image.Resampling.BICUBIC))
    except Exception as error:  # of any of Pillow's decoders
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path} cannot be read as an image: {reason}; remove it") from error
    return torch.from_numpy(pixels.copy()).view(*pixels.shape[:2], -1).permute(2, 0, 1)
