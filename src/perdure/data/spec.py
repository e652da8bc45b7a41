"""What a dataset consists of: files with their checksums, shapes, and a decoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Shape: TypeAlias = tuple[int, int, int, int]
"""[n, channels, height, width]."""

Contents: TypeAlias = dict[Path, Callable[[], bytes]]
"""Path of each file (archive/member inside an archive) and a function that reads it.

The function verifies the file's checksum, if it has one."""


class DataError(ValueError):
    """A dataset is missing, damaged or cannot be downloaded."""


class Arrays(NamedTuple):
    """A decoded dataset: images uint8 [n, channels, height, width], labels int64 [n]."""

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int64]


class File(NamedTuple):
    """A file of a dataset and its published checksum."""

    path: str
    """Relative to the root folder or to the archive. A folder includes all files in it."""
    digest: str | None = None
    """`md5:` or `sha256:` and the hexadecimal digits; None if no checksum is published."""


class Layout(NamedTuple):
    """One way in which a dataset's files are stored in a root folder."""

    files: tuple[File, ...]
    """In the order in which the decoder expects them."""
    members: tuple[File, ...] = ()
    """Members of a tar archive that the decoder needs. A zip archive is read completely."""


@dataclass(frozen=True)
class Spec:
    """Describes a dataset: its files and the arrays they contain."""

    name: str
    """Identifies the dataset, also in the cache: another decoder needs another name."""
    train: Shape
    """Shape of the training images."""
    test: Shape
    """Shape of the test images."""
    classes: int
    """Number of classes."""
    decode: Callable[[Spec, Contents], Arrays]
    """Turns the files' contents into arrays."""
    layouts: tuple[Layout, ...]
    """Accepted layouts, the preferred one first. Downloads use the first."""
    url: str = ""
    """Web folder with the files of the first layout."""
    bundled: Path | None = None
    """Root folder of a dataset that ships with the package; None for all others."""

    def arrays(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of each field of `Arrays`."""
        byte, integer = np.dtype(np.uint8), np.dtype(np.int64)
        return {
            "train_images": (self.train, byte),
            "train_labels": (self.train[:1], integer),
            "test_images": (self.test, byte),
            "test_labels": (self.test[:1], integer),
        }
