"""What a dataset is made of: its files with their checksums, its shapes, and its decoder."""

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
"""Where each file is, as a user would name it (archive/member for one in an archive), and how to
read it. What is read has passed its checksum, if there is one."""


class DataError(ValueError):
    """A dataset is missing, damaged, or cannot be fetched; one sentence says what to do."""


class Arrays(NamedTuple):
    """A decoded dataset: images uint8 [n, channels, height, width], labels int64 [n]."""

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int64]


class File(NamedTuple):
    """A file of a dataset and its published checksum."""

    path: str
    """Below the root, or in the archive. A folder stands for all the files in it."""
    digest: str | None = None
    """`md5:` or `sha256:` and hexadecimal digits; None if none is published."""


class Layout(NamedTuple):
    """One way in which a dataset's files lie below a root."""

    files: tuple[File, ...]
    """In the order in which the decoder wants them."""
    members: tuple[File, ...] = ()
    """What the decoder wants of a tar archive; of a zip archive it gets every member."""


@dataclass(frozen=True)
class Spec:
    """A dataset: which files hold it and what comes out of them."""

    name: str
    train: Shape
    test: Shape
    classes: int
    decode: Callable[[Spec, Contents], Arrays]
    """What it gives is kept in the cache under `name`, so another decoder needs another name."""
    layouts: tuple[Layout, ...]
    """In the order of preference. The first is the one that is downloaded, so that a download
    takes the place of what another layout has damaged."""
    url: str = ""
    """The web folder that holds the files of the first layout."""
    home: Path | None = None
    """The root of a dataset that ships inside the package."""

    def arrays(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and type of each of the `Arrays`, by name."""
        byte, integer = np.dtype(np.uint8), np.dtype(np.int64)
        return {
            "train_images": (self.train, byte),
            "train_labels": (self.train[:1], integer),
            "test_images": (self.test, byte),
            "test_labels": (self.test[:1], integer),
        }
