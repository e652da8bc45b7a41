"""Encoders: how a user's images and tables become inputs, and labels the names of classes."""

from __future__ import annotations

import csv
import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from msgspec import Struct
from torch import Tensor

from perdure.arguments import is_list
from perdure.files import read_bytes, write_atomic

MISSING = frozenset(("", "na", "n/a", "nan", "null", "none"))
"""Cells of a CSV file that count as missing, in any case."""
PARQUET = (".parquet", ".pq")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""Formats of images, by Pillow's names. The content of a file decides, not its name, and for some
other formats Pillow starts a program: for EPS, Ghostscript."""
MAX_SIDE = 4096
"""Largest height and width of inputs in pixels."""
CLIPPED_SHARE = 0.1
"""Share of the training values of a column that may exceed the limit without a warning. In sparse
columns, such as pixels at the border of images, a few per cent exceed it without harm."""
LIMIT = 10.0
"""Largest standardised value. A column that hardly varies in the first task may vary later, by
hundreds of its standard deviations; training would diverge."""
Floats = npt.NDArray[np.float64]


class Encoder(Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Turns a user's data into inputs of a learner, and predictions into names.

    The file that `save` writes is JSON and contains no training data besides the names of
    classes and categories.
    """

    class_names: tuple[str, ...]
    """What each label stands for."""

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
            ValueError: If these are no labels, or one has no name.
        """
        found = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
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
        if not is_list(names):
            raise ValueError(f"names is {names!r}; expected a list of names")
        return labels_of(texts_of(list(names), "names"), self.class_names, "the encoder")

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
            ValueError: If the file is missing, damaged, or describes another kind of encoder.
        """
        try:
            return msgspec.json.decode(read_bytes(Path(path)), type=cls)
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise ValueError(f"{path} cannot be read as a {cls.__name__}: {error}") from None


# -- images ---------------------------------------------------------------------------------


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
        if not (1 <= self.height <= MAX_SIDE and 1 <= self.width <= MAX_SIDE):
            raise ValueError(
                f"size is {self.height} x {self.width}; expected 1 to {MAX_SIDE} pixels each"
            )

    def encode(self, source: Any) -> Tensor:
        """The images as uint8 [n, channels, height, width].

        Args:
            source: Images: paths of files, open binary files such as `io.BytesIO`, or PIL images.
                A single one may be given without a list.

        Raises:
            ValueError: If one of them cannot be read as an image.
        """
        images = list(source) if isinstance(source, list | tuple) else [source]
        mode, channels = ("L", 1) if self.grayscale else ("RGB", 3)
        inputs = torch.empty(len(images), channels, self.height, self.width, dtype=torch.uint8)

        def read(number: int) -> None:
            inputs[number] = _decode(images[number], (self.width, self.height), mode)

        with ThreadPoolExecutor() as pool:
            for _ in pool.map(read, range(len(images))):
                pass
        return inputs


def _decode(source: Any, size: tuple[int, int], mode: str) -> Tensor:
    """One image [channels, height, width], from a path, a binary file or a PIL image."""
    from PIL import Image, ImageOps

    try:
        given = isinstance(source, Image.Image)
        with nullcontext(source) if given else Image.open(source, formats=FORMATS) as opened:
            image = ImageOps.exif_transpose(opened)
            if image.mode == "F":
                raise ValueError("its pixels are floating-point numbers; convert them to 8 bits")
            if image.mode.startswith("I"):  # 16 bits per pixel, which Pillow would clip
                image = Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8))
            if image.mode in ("P", "LA", "PA") or "transparency" in image.info:
                image = image.convert("RGBA")
            if image.mode == "RGBA":  # on white, as viewers show it
                image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
            pixels = np.asarray(ImageOps.fit(image.convert(mode), size, Image.Resampling.BICUBIC))
    except Exception as error:  # of any of Pillow's decoders
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        name = source if isinstance(source, str | Path) else type(source).__name__
        raise ValueError(f"{name} cannot be read as an image: {reason}") from error
    return torch.from_numpy(pixels.copy()).view(*pixels.shape[:2], -1).permute(2, 0, 1)


# -- tables ---------------------------------------------------------------------------------


class _Numeric(Struct, frozen=True, tag_field="kind", tag="numeric"):
    """A numeric column."""

    name: str
    fill: float
    """What replaces missing values."""
    shift: float
    scale: float
    impute: bool
    """Whether missing values are replaced."""
    limit: float | None = None
    """Largest absolute value."""
    marked: bool = True
    """Whether a second value marks those that are replaced."""

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ValueError(f"the scale of column {self.name!r} is {self.scale}")

    @property
    def width(self) -> int:
        """Number of inputs: the value, and whether it is replaced."""
        return 2 if self.impute and self.marked else 1

    def encode(self, values: Sequence[Any]) -> Floats:
        numbers = np.empty(len(values))
        for row, value in enumerate(values):
            try:
                numbers[row] = _number(value)
            except ValueError as error:
                raise ValueError(f"column {self.name!r}, row {row + 1}: {error}") from None
        gaps = np.isnan(numbers)
        if gaps.any() and not self.impute:
            raise ValueError(_missing_values(self.name, gaps))
        scaled = (np.where(gaps, self.fill, numbers) - self.shift) / self.scale
        if self.limit is not None:
            scaled = scaled.clip(-self.limit, self.limit)
        return np.stack([scaled, gaps.astype(np.float64)][: self.width], axis=1)


class _Categorical(Struct, frozen=True, tag_field="kind", tag="categorical"):
    """A column of categories."""

    name: str
    categories: tuple[str, ...]
    impute: bool

    def encode(self, values: Sequence[Any]) -> Floats:
        texts = [_text(value) for value in values]
        gaps = np.array([text is None for text in texts])
        if gaps.any() and not self.impute:
            raise ValueError(_missing_values(self.name, gaps))
        places = places_of(self.categories)
        encoded = np.zeros((len(texts), len(self.categories)))
        for row, text in enumerate(texts):
            if text is None:
                continue
            place = places.get(text, places.get(plain(text)))
            if place is not None:
                encoded[row, place] = 1.0
        unknown = ~gaps & ~encoded.any(axis=1)
        if len(texts) >= 20 and unknown.mean() > 0.5:
            warnings.warn(
                f"column {self.name!r} has unknown categories in {unknown.mean():.0%} of the rows, "
                f"such as {texts[unknown.argmax()]!r}; they are encoded as zeros",
                stacklevel=3,
            )
        return encoded


class TableEncoder(Encoder, frozen=True, kw_only=True, tag="table"):
    """Turns the rows of a table into input vectors, as `from_table` has done for its stream.

    `from_table` creates it (`Stream.encoder`), and `perdure run` writes it to the run folder as
    `encoder.json`.

    >>> from perdure.streams import from_table
    >>> rides = {"km": [1, 9] * 10, "city": ["Rome", "Oslo"] * 10, "kind": ["bike", "car"] * 10}
    >>> encoder = from_table(rides, "kind").encoder
    >>> encoder.encode([{"km": 9, "city": "Oslo"}, {"km": 5, "city": "Lima"}])
    tensor([[1., 1., 0.],
            [0., 0., 0.]])
    >>> encoder.decode([1, 0])
    ['car', 'bike']
    """

    target: str
    """Column with the class."""
    columns: tuple[_Numeric | _Categorical, ...]
    """Columns that are inputs: how each is standardised, or its categories."""

    @classmethod
    def fit(
        cls,
        columns: Mapping[str, Sequence[Any]],
        *,
        target: str,
        class_names: Sequence[str],
        categorical: set[str],
        train: npt.NDArray[np.int64],
        known: npt.NDArray[np.int64],
        impute: bool,
        gaps: set[str],
        standardise: bool,
        max_categories: int,
    ) -> TableEncoder:
        """An encoder for these columns.

        Args:
            columns: Values by column.
            target: Column with the class.
            class_names: Names of the classes.
            categorical: Columns that are categorical although they contain numbers.
            train: Rows from which kinds and categories are taken.
            known: Rows from which means and standard deviations are computed.
            impute: Whether missing values are allowed.
            gaps: Columns in which missing values are marked.
            standardise: Whether numeric columns are standardised.
            max_categories: Categories that a column may have.
        """
        found: list[_Numeric | _Categorical] = []
        dates: list[str] = []
        for name, values in columns.items():
            if name not in categorical and _is_numeric(name, [values[row] for row in train]):
                numbers = np.array([_number(values[row]) for row in known], dtype=np.float64)
                mean, std = _mean_and_std(numbers[~np.isnan(numbers)])
                shift, scale, limit = (mean, std, LIMIT) if standardise else (0.0, 1.0, None)
                found.append(_Numeric(name, mean, shift, scale, impute, limit, name in gaps))
            else:
                texts = {_text(values[row]) for row in train} - {None}
                if len(texts) > max_categories:
                    raise ValueError(
                        f"column {name!r} has {len(texts)} categories, more than "
                        f"{max_categories}; list the columns to use as features without it "
                        "(features=age+income for the command), convert it to numbers, or raise "
                        "max_categories"
                    )
                if name not in categorical and sum(map(_is_date, texts)) > len(texts) / 2:
                    dates.append(repr(name))
                found.append(_Categorical(name, tuple(sorted(map(str, texts))), impute))
        if dates:
            warnings.warn(
                f"columns with dates as text: {first_names(dates)}; every date becomes an input of "
                "its own, and later dates are unknown. Convert them to numbers, such as days, "
                "leave them out of features, or list them as categorical",
                stacklevel=3,
            )
        found.sort(key=lambda column: isinstance(column, _Categorical))  # numeric columns first
        return cls(target=target, class_names=tuple(class_names), columns=tuple(found))

    def encode(self, source: str | Path | Any) -> Tensor:
        """Input vectors, float32 [n, values].

        Args:
            source: A CSV or Parquet file, a pandas or polars DataFrame, a mapping from column
                names to values, or one or several rows as dicts. Other columns are ignored, and
                the target is not needed.

        Raises:
            ValueError: If there are no rows, a column is missing or a value does not fit.
        """
        columns = read_columns(source)
        if not any(map(len, columns.values())):
            raise ValueError("the table has no rows")
        for column in self.columns:
            if column.name not in columns:
                raise ValueError(f"the table has no column {column.name!r}")
        parts = [column.encode(columns[column.name]) for column in self.columns]
        return torch.from_numpy(np.concatenate(parts, axis=1)).float()


def _mean_and_std(numbers: Floats) -> tuple[float, float]:
    """Mean and standard deviation; 1 instead of a standard deviation of 0."""
    if not len(numbers):
        return 0.0, 1.0
    if (numbers == numbers[0]).all():  # rounding makes the computed standard deviation positive
        return float(numbers[0]), 1.0
    return float(numbers.mean()), float(numbers.std())


def warn_of_scales(
    encoder: TableEncoder, inputs: Tensor, first: npt.NDArray[np.int64] | None
) -> None:
    """Warn of numeric columns whose scale does not suit training inputs [n, values].

    `first` are the rows from which means and standard deviations were computed; None if they are
    not among the inputs.
    """
    constant, clipped = [], []
    place = 0
    for column in encoder.columns:
        if not isinstance(column, _Numeric) or column.limit is None:
            break  # numeric columns come first, and either all of them have a limit or none
        values = inputs[:, place].numpy()
        place += column.width
        if first is not None and len(np.unique(values[first])) < 2:
            # The scale is 1, which suits a column that is 0 at first and then 0 or 1.
            if np.ptp(values) > 0 and not 0.1 <= np.abs(values).max() < column.limit:
                constant.append(repr(column.name))
        elif (np.abs(values) >= column.limit).mean() > CLIPPED_SHARE:
            clipped.append(repr(column.name))
    remedy = "create the stream with standardise='all tasks'"
    if first is None:
        remedy = "create a new encoder from rows with such values"
    if constant:
        warnings.warn(
            "columns that are constant in the first task and vary later cannot be standardised: "
            f"{first_names(constant)}; rescale them, or {remedy}",
            stacklevel=3,
        )
    if clipped:
        warnings.warn(
            f"more than {CLIPPED_SHARE:.0%} of the values are set to the limit of {LIMIT:.0f} "
            f"standard deviations of the first task in the columns {first_names(clipped)}; rescale "
            f"them, or {remedy}",
            stacklevel=3,
        )


def _missing_values(name: str, gaps: npt.NDArray[np.bool_]) -> str:
    count, first = int(gaps.sum()), int(gaps.argmax()) + 1
    what = "a missing value" if count == 1 else f"{count} missing values"
    return (
        f"column {name!r} has {what} (the first in row {first}); fill them in, or create the "
        "stream, the first one if an encoder is given, with missing='impute'"
    )


def _is_date(text: str | None) -> bool:
    try:
        datetime.fromisoformat(text or "")
    except ValueError:
        return False
    return True


def is_missing(value: Any) -> bool:
    """Whether a cell counts as missing."""
    if isinstance(value, str):
        return value.strip().lower() in MISSING
    try:
        return value is None or bool(value != value)  # NaN, NaT
    except TypeError:  # pandas.NA
        return True


def _is_numeric(name: str, values: Sequence[Any]) -> bool:
    """Whether all values are numbers or missing."""
    for value in values:
        if is_missing(value):
            continue
        if isinstance(value, str):
            try:
                number = float(value)
            except ValueError:
                return False
        elif isinstance(value, bool | int | float | np.number | np.bool_):
            number = _number(value)
        else:
            raise ValueError(
                f"column {name!r} contains {type(value).__name__} values; convert it to numbers "
                "or text, or leave it out of features"
            )
        if not math.isfinite(number):
            raise ValueError(f"column {name!r} contains the infinite value {value}")
    return True


def _number(value: Any) -> float:
    """A value as a number; NaN if it is missing."""
    if is_missing(value):
        return math.nan
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        text = str(value)[:40]
        raise ValueError(f"{text!r} is not a number, unlike the other values") from None
    if math.isinf(number):
        raise ValueError(f"{value!r} is infinite")
    return number


def _text(value: Any) -> str | None:
    """A value as text, with equal text for equal numbers; None if it is missing."""
    if is_missing(value):
        return None
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def texts_of(values: Sequence[Any], name: str) -> list[str]:
    """The values of a column that may have no gaps."""
    found = [_text(value) for value in values]
    if None in found:
        raise ValueError(f"column {name!r} has no value in row {found.index(None) + 1}")
    return [text for text in found if text is not None]


def labels_of(
    names: Sequence[str], classes: Sequence[str], where: str = "the training data"
) -> Tensor:
    """The labels of samples whose classes have these names; ValueError if one is unknown."""
    numbers = places_of(classes)
    found = [numbers.get(name, numbers.get(plain(name))) for name in names]
    if None in found:
        unknown, known = names[found.index(None)], first_names(classes)
        raise ValueError(f"the class {unknown!r} is not in {where}, which has {known}")
    return torch.tensor(found, dtype=torch.int64)


_WHOLE = re.compile(r"^(-?\d+)\.0+$")
"""A whole number with decimals."""


def plain(text: str) -> str:
    """The text, a whole number without its decimals: a file may have 1.0, another 1."""
    return _WHOLE.sub(r"\1", text)


def places_of(names: Sequence[str]) -> dict[str, int]:
    """The place of each name, also by its plain spelling unless that is another name."""
    places = {name: place for place, name in enumerate(names)}
    return {plain(name): place for name, place in places.items()} | places


def first_names(names: Sequence[str | int]) -> str:
    """The first ten names, for messages."""
    return ", ".join(map(str, names[:10])) + ", …" * (len(names) > 10)


def read_columns(table: str | Path | Any) -> dict[str, Sequence[Any]]:
    """The columns of a table by name.

    Raises:
        ValueError: If the table cannot be read.
    """
    if isinstance(table, str | Path):
        path = Path(table)
        if not path.is_file():
            raise ValueError(f"{path} is not a file")
        return _read_parquet(path) if path.suffix.lower() in PARQUET else _read_csv(path)
    if isinstance(table, Mapping) and table and all(map(_is_cell, table.values())):
        table = [table]
    if isinstance(table, list | tuple) and all(isinstance(row, Mapping) for row in table):
        names = list(dict.fromkeys(name for row in table for name in row))
        table = {name: [row.get(name) for row in table] for name in names}
    if isinstance(table, Mapping):
        if single := [name for name, values in table.items() if _is_cell(values)]:
            raise ValueError(f"column {single[0]!r} is a single value; expected a list of values")
        columns: dict[str, Sequence[Any]] = {
            str(name): list(values) for name, values in table.items()
        }
    elif hasattr(table, "columns") and hasattr(table, "__getitem__"):  # pandas, polars
        columns = {str(name): list(table[name]) for name in table.columns}
    else:
        kind = type(table).__name__
        raise ValueError(
            f"the table is of type {kind}; expected a file, a DataFrame, a mapping or rows"
        )
    if len({len(values) for values in columns.values()}) > 1:
        raise ValueError("the columns of the table have different lengths")
    return columns


def _is_cell(value: Any) -> bool:
    """Whether a value is a single one, not a column."""
    return isinstance(value, str | bytes) or not isinstance(value, Iterable)


_QUOTED = re.compile(r'(?:^|(?<=[,;\t|]))"(?:[^"]|"")*+"', re.MULTILINE)
"""A quoted cell of a CSV file, whatever the separator."""


def _read_csv(path: Path) -> dict[str, Sequence[Any]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            unquoted = _QUOTED.sub('""', file.read(65536))
            first = next(filter(str.strip, unquoted.splitlines()), "")
            file.seek(0)
            # The separator that the header contains most often, outside of quoted names.
            separator = max(",;\t|", key=first.count)
            reader = csv.reader(file, delimiter=separator)
            rows = [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as CSV in UTF-8: {error}") from None
    if not rows:
        raise ValueError(f"{path} is empty; expected a header and rows")
    (_, header), *values = rows
    names = [name.strip() for name in header]
    if len(set(names)) < len(names):
        raise ValueError(f"{path} has two columns with the same name")
    for line, row in values:
        if len(row) != len(names):
            raise ValueError(
                f"{path}: line {line} has {len(row)} cells; the header has {len(names)}"
            )
    return {name: [row[place] for _, row in values] for place, name in enumerate(names)}


def _read_parquet(path: Path) -> dict[str, Sequence[Any]]:
    try:
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise ValueError(
            "Parquet files require pyarrow; install it, or perdure with the extra table"
        ) from None
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise ValueError(
            f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}"
        ) from None
    return {name: table[name].to_pylist() for name in table.column_names}
