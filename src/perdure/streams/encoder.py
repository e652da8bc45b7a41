"""How a user's files become inputs, and labels become the names of classes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec import Struct
from torch import Tensor

from perdure.files import read_bytes, write_atomic


class Encoder(Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Turns a user's data into inputs of a learner, and predictions into names.

    The file that `save` writes is JSON and contains no training data besides the names of
    classes and categories.
    """

    class_names: tuple[str, ...]
    """What each label stands for."""

    def encode(self, source: Any) -> Tensor:
        """Inputs [n, ...] for new data."""
        raise NotImplementedError

    def decode(self, labels: Iterable[int] | Tensor) -> list[str]:
        """The names of predicted labels.

        Args:
            labels: Labels [n], such as `learner.predict` returns.

        Raises:
            ValueError: If a label has no name.
        """
        numbers = [int(label) for label in labels]
        for number in numbers:
            if not 0 <= number < len(self.class_names):
                raise ValueError(
                    f"label {number} has no name; the encoder knows {len(self.class_names)} classes"
                )
        return [self.class_names[number] for number in numbers]

    def save(self, path: str | Path) -> None:
        """Write the encoder to a JSON file."""
        write_atomic(Path(path), msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an encoder from a file that `save` or `perdure run` has written.

        Raises:
            ValueError: If the file is missing, damaged, or describes another kind of encoder.
        """
        try:
            return msgspec.json.decode(read_bytes(Path(path)), type=cls)
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise ValueError(f"{path} cannot be read as a {cls.__name__}: {error}") from None
