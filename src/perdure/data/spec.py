"""What a dataset consists of: files with checksums, shapes and a decoder; then its samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from perdure.randomness import generator
from perdure.records import Samples

Shape: TypeAlias = tuple[int, int, int, int]
"""[n, channels, height, width]."""


class Reader(Protocol):
    """Reads a file, or a member of an archive, and verifies its checksum, if it has one."""

    def __call__(self, limit: int | None = None) -> bytes:
        """The content. Raises a DataError if it has more bytes than `limit`."""


Contents: TypeAlias = dict[Path, Reader]
"""Path of each file (archive/member inside an archive) and a function that reads it."""


OnProgress: TypeAlias = Callable[[int, int], None]
"""Called with the number of files read and the number of files, from any thread.

An exception that it raises ends the reading."""


class DataError(ValueError):
    """A dataset is missing, damaged or cannot be downloaded.

    Args:
        message: One sentence.
        flaws: Everything that was found, if that is more than the message says.
    """

    def __init__(self, message: str, flaws: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.flaws = tuple(flaws) or (message,)

    @classmethod
    def of(cls, flaws: Sequence[str]) -> DataError:
        """An error that states the first of several flaws and the number of the others."""
        first, *others = flaws
        return cls(f"{first} (and {len(others)} more)" if others else first, flaws)

    @classmethod
    def reading(cls, path: Path | str, error: OSError) -> DataError:
        """An error that states why a file or folder cannot be read."""
        if isinstance(error, FileNotFoundError):
            return cls(f"{path} is missing")
        return cls(f"{path} cannot be read ({error.strerror or error})")


class Arrays(NamedTuple):
    """A decoded dataset: images uint8 [n, channels, height, width], labels int64 [n]."""

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int64]


class File(NamedTuple):
    """A file of a dataset and its published checksum."""

    path: str
    """Relative to the root folder or to the archive. A folder includes all files in it, except
    those whose names begin with a dot."""
    digest: str | None = None
    """`md5:` or `sha256:` and the hexadecimal digits; None if no checksum is published.

    That of a folder covers the files that the decoder reads: their names (relative to the folder,
    with slashes, sorted), each followed by a zero byte and the checksum of its content."""


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
    checksums: Callable[[], Mapping[str, Mapping[str, bytes]]] = dict
    """For each folder with a checksum, by its name: the first bytes of the checksum of each file.
    With these, errors name the files that are missing or altered."""
    bundled: Path | None = None
    """Root folder of a dataset that ships with the package; None for all others."""

    @property
    def size_limit(self) -> int:
        """Bytes that one of its files may have, packed or not: a larger one is not read."""
        decoded = sum(math.prod(shape) * kind.itemsize for shape, kind in self.arrays().values())
        return 2 * decoded + 2**26

    def arrays(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of each field of `Arrays`."""
        byte, integer = np.dtype(np.uint8), np.dtype(np.int64)
        return {
            "train_images": (self.train, byte),
            "train_labels": (self.train[:1], integer),
            "test_images": (self.test, byte),
            "test_labels": (self.test[:1], integer),
        }


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples: images uint8 [n, channels, height, width], labels int64 [n]."""

    name: str
    """Name under which results refer to it."""
    train: Samples
    """Training samples."""
    test: Samples
    """Test samples."""
    classes: int
    """Number of classes; labels are 0 to classes - 1."""
    checksum: str
    """Identifies the content: equal datasets have equal checksums."""

    def to(self, device: torch.device | str) -> Dataset:
        """The same dataset on another device."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def validation(self, fraction: float, seed: int = 0) -> Dataset:
        """A dataset for choosing hyperparameters: it does not contain the test samples.

        Args:
            fraction: Share of the training samples, drawn at random, that become test samples;
                between 0 and 1. The others remain training samples.
            seed: Seed of the draw.

        Raises:
            ValueError: If `fraction` is not between 0 and 1, or leaves no training samples.
        """
        if not 0 < fraction < 1:
            raise ValueError(
                f"validation fraction is {fraction}; expected a number between 0 and 1"
            )
        labels = self.train.labels
        rows = torch.randperm(len(labels), generator=generator(seed, "validation"))
        rows = rows.to(labels.device)
        held_out = max(1, round(len(labels) * fraction))
        if held_out >= len(labels):
            raise ValueError(
                f"a validation fraction of {fraction} leaves none of the {len(labels)} samples for "
                "training; use a smaller one"
            )
        return replace(
            self,
            name=f"{self.name}-validation",
            train=self.train.rows(rows[held_out:].sort().values),
            test=self.train.rows(rows[:held_out].sort().values),
            checksum=f"{self.checksum}/validation-{fraction}-{seed}",
        )
