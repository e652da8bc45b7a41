"""Encoders: how a user's data become inputs, and labels names of classes."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from perdure.arguments import as_list, is_list, is_unicode
from perdure.files import read_bytes, write_atomic
from perdure.streams.columns import as_name


class Encoder(Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Turns a user's data into inputs of a learner, and predictions into names.

    The file that `save` writes is JSON and contains no training data besides the names of
    classes and categories.
    """

    class_names: tuple[str, ...]
    """What each label stands for."""

    def __post_init__(self) -> None:
        check_names("class names", self.class_names)

    def encode(self, source: Any) -> Tensor:
        """Inputs [n, ...] for new data.

        Args:
            source: The data, in the forms that the constructor of the stream accepts.
        """
        raise NotImplementedError

    def decode(self, labels: Iterable[int] | Tensor) -> list[str]:
        """The names of predicted labels.

        Args:
            labels: Labels [n], such as `learner.predict` returns.

        Raises:
            ValueError: If these are not labels, or one has no name.
        """
        values = labels.tolist() if isinstance(labels, Tensor) else labels
        found = np.asarray(list(values) if is_list(values) else values)
        if found.ndim != 1 or (len(found) and found.dtype.kind not in "iu"):
            raise ValueError(
                f"labels are {found.dtype} {list(found.shape)}; expected integers [n], such as "
                "learner.predict returns"
            )
        numbers = found.tolist()
        for number in numbers:
            if not 0 <= number < len(self.class_names):
                raise ValueError(
                    f"label {number} has no name; the encoder knows {len(self.class_names)} classes"
                )
        return [self.class_names[number] for number in numbers]

    def labels(self, names: Iterable[Any]) -> Tensor:
        """The labels [n] of classes given by name, the inverse of `decode`.

        Args:
            names: Names of classes, such as the target column of a table.

        Raises:
            ValueError: If the encoder does not know a name, or if one is missing.
        """
        values = as_list("names", names, "a list of names")
        texts = [class_text(value, self.class_names) for value in values]
        if None in texts:
            raise ValueError(f"names has no value in row {texts.index(None) + 1}")
        present = [text for text in texts if text is not None]
        return labels_of(present, self.class_names, "the encoder")

    def save(self, path: str | Path) -> None:
        """Write the encoder to a JSON file.

        Args:
            path: File to write.
        """
        write_atomic(Path(path), msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an encoder from a file that `save` or `perdure run` has written.

        Args:
            path: File to read.

        Raises:
            ValueError: If the file is missing, damaged or inconsistent, or describes another kind
                of encoder.
        """
        try:
            return msgspec.json.decode(read_bytes(Path(path)), type=cls)
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            article = "an" if cls.__name__[0] in "AEIOU" else "a"
            raise ValueError(
                f"{path} cannot be read as {article} {cls.__name__}: {error}"
            ) from None


def labels_of(
    names: Sequence[str], classes: Sequence[str], where: str = "the training data"
) -> Tensor:
    """The labels of samples whose classes have these names; ValueError if one is unknown."""
    places = places_of(classes)
    found = [find_place(name, places) for name in names]
    if None in found:
        unknown, known = names[found.index(None)], first_names(classes)
        raise ValueError(f"the class {unknown!r} is not in {where}, which has {known}")
    return torch.tensor(found, dtype=torch.int64)


def class_text(value: Any, classes: Container[str]) -> str | None:
    """A class that a user names, as text; None for a missing value that is not a class."""
    return value if isinstance(value, str) and value in classes else as_name(value)


_WHOLE = re.compile(r"^(-?\d+)\.0+$")
"""A whole number with decimals."""


def plain(text: str) -> str:
    """The text, a whole number without its decimals: a file may have 1.0, another 1."""
    return _WHOLE.sub(r"\1", text)


def places_of(names: Sequence[str]) -> dict[str, int]:
    """The place of each name, also by its plain spelling unless that is another name."""
    places = {name: place for place, name in enumerate(names)}
    return {plain(name): place for name, place in places.items()} | places


def find_place(name: str, places: Mapping[str, int]) -> int | None:
    """The place of a name among `places_of` others, also if it is spelled with decimals."""
    return places.get(name, places.get(plain(name)))


def check_names(what: str, names: Sequence[str]) -> None:
    """Raise ValueError if a name occurs twice or cannot be saved."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{name!r} occurs twice among the {what}")
        if not is_unicode(name):
            raise ValueError(f"{name!r}, one of the {what}, is not valid Unicode; rename it")
        seen.add(name)


def first_names(names: Sequence[str | int]) -> str:
    """The first ten names, for messages."""
    return ", ".join(map(str, names[:10])) + ", …" * (len(names) > 10)
