"""MNIST's idx files: a header of big-endian numbers, then bytes."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perdure.data.spec import Arrays, Contents, DataError, Spec


def decode(spec: Spec, contents: Contents) -> Arrays:
    """Read training images and labels, test images and labels, in this order; `.gz` or plain."""
    arrays = []
    for (path, read), (shape, dtype) in zip(contents.items(), spec.arrays().values(), strict=True):
        n, *picture = shape
        values = _values(path, read(), (n, *picture[1:]))  # the files have no axis of channels
        arrays.append(values.reshape(shape).astype(dtype))
    return Arrays(*arrays)


def _values(path: Path, data: bytes, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path} is no gzip file ({error})") from None
    header = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
    if data[: len(header)] != header:
        raise DataError(
            f"{path} begins with {data[: len(header)].hex(' ', 4)}, expected {header.hex(' ', 4)}, "
            f"the idx header of {list(shape)} unsigned bytes"
        )
    size = len(header) + math.prod(shape)
    if len(data) != size:
        raise DataError(f"{path} holds {len(data)} bytes of idx data, expected {size}")
    return np.frombuffer(data, np.uint8, offset=len(header)).reshape(shape)
