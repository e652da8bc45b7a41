"""The encoder of tables: how each column becomes inputs."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from msgspec import Struct
from torch import Tensor

from perdure.streams.columns import (
    as_text,
    is_date,
    is_formatted_number,
    is_numeric,
    numbers_of,
    quoted,
    read_columns,
    reads_as_number,
    shorten,
)
from perdure.streams.encoder import (
    Encoder,
    check_names,
    find_place,
    first_names,
    places_of,
)
from perdure.user_code import warn_caller

LIMIT = 10.0
"""Largest standardised value. A column that hardly varies in the first task may vary later, by
hundreds of its standard deviations; training would diverge."""
CLIPPED_SHARE = 0.1
"""Share of the training values of a column that may exceed the limit without a warning. In sparse
columns, such as pixels at the border of images, a few per cent exceed it without harm."""
_NO_GAPS = "create a new encoder: this one was created without missing='impute'"
"""What to do about missing values in rows that an encoder without gaps receives."""
Floats = npt.NDArray[np.float64]
Encoded = npt.NDArray[np.float32]


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
        if not sys.float_info.min <= self.scale < math.inf:
            raise ValueError(
                f"column {self.name!r} cannot be standardised, because its scale is {self.scale}; "
                "multiply its values by a suitable factor, or omit it"
            )
        if self.limit is not None and not 0 < self.limit < math.inf:
            raise ValueError(f"the limit of column {self.name!r} is {self.limit}")

    @property
    def width(self) -> int:
        """Number of inputs: the value, and whether it is replaced."""
        return 2 if self.impute and self.marked else 1

    def encode(self, values: Sequence[Any]) -> Encoded:
        numbers = numbers_of(self.name, values, range(len(values)))
        gaps = np.isnan(numbers)
        if gaps.any() and not self.impute:
            raise ValueError(missing_values(f"column {self.name!r}", values, gaps, _NO_GAPS))
        with np.errstate(over="ignore"):
            scaled = (np.where(gaps, self.fill, numbers) - self.shift) / self.scale
        if self.limit is not None:
            scaled = scaled.clip(-self.limit, self.limit)
        large = np.abs(scaled) > np.finfo(np.float32).max
        if large.any():
            raise ValueError(
                f"column {self.name!r}, row {large.argmax() + 1}: the value is too large for an "
                "input of type float32"
            )
        return np.stack([scaled, gaps][: self.width], axis=1, dtype=np.float32)


class _Categorical(Struct, frozen=True, tag_field="kind", tag="categorical"):
    """A column of categories."""

    name: str
    categories: tuple[str, ...]
    impute: bool

    def __post_init__(self) -> None:
        check_names(f"categories of column {self.name!r}", self.categories)

    def encode(self, values: Sequence[Any]) -> Encoded:
        texts = [as_text(value) for value in values]
        gaps = np.array([text is None for text in texts])
        if gaps.any() and not self.impute:
            raise ValueError(missing_values(f"column {self.name!r}", values, gaps, _NO_GAPS))
        places = places_of(self.categories)
        encoded = np.zeros((len(texts), len(self.categories)), dtype=np.float32)
        for row, text in enumerate(texts):
            if text is None:
                continue
            place = find_place(text, places)
            if place is not None:
                encoded[row, place] = 1.0
        unknown = ~gaps & ~encoded.any(axis=1)
        if len(texts) >= 20 and unknown.mean() > 0.5:
            warn_caller(
                f"column {self.name!r} has unknown categories in {unknown.mean():.0%} of the rows, "
                f"such as {texts[unknown.argmax()]!r}; they are encoded as zeros"
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.columns:
            raise ValueError("there are no columns")
        check_names("target and columns", [self.target, *(column.name for column in self.columns)])

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
        for name, values in columns.items():
            if name not in categorical and is_numeric(name, values, train):
                numbers = numbers_of(name, values, known)
                mean, std = _mean_and_std(numbers[~np.isnan(numbers)])
                shift, scale, limit = (mean, std, LIMIT) if standardise else (0.0, 1.0, None)
                found.append(_Numeric(name, mean, shift, scale, impute, limit, name in gaps))
            else:
                rows: dict[str, list[int]] = {}  # the rows of each category
                for row in train:
                    if (text := as_text(values[row])) is not None:
                        rows.setdefault(text, []).append(int(row))
                doubt = None if name in categorical else _doubt(rows)
                if len(rows) > max_categories:
                    cause, remedy = doubt or ("", "convert it to numbers")
                    raise ValueError(
                        f"column {name!r} has {len(rows)} categories, more than {max_categories}"
                        f"{cause and f', because it {cause}'}; {remedy}, list the columns to use "
                        "as features without it (features=age+income for the command), or raise "
                        "max_categories"
                    )
                if doubt:
                    cause, remedy = doubt
                    warn_caller(
                        f"column {name!r} {cause}; every value becomes an input of its own, and "
                        f"later values are unknown: {remedy}, leave the column out of features, "
                        "or list it as categorical"
                    )
                found.append(_Categorical(name, tuple(sorted(rows)), impute))
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
        return torch.from_numpy(np.concatenate(parts, axis=1))


def _doubt(rows: Mapping[str, Sequence[int]]) -> tuple[str, str] | None:
    """Why a column of text is probably not meant as categories, and what to do about it.

    `rows` are the rows of each of its values.
    """

    def prevails(texts: Sequence[str]) -> bool:
        """Whether these are more than half of the values, or those of 90 % of the rows."""
        count = sum(len(rows[text]) for text in texts)
        return len(texts) > len(rows) / 2 or count > 0.9 * sum(map(len, rows.values()))

    formatted = [text for text in rows if is_formatted_number(text)]
    numbers = [text for text in rows if reads_as_number(text)]
    if prevails([*numbers, *formatted]):
        odd = [text for text in rows if not reads_as_number(text)]
        cause = "contains numbers, but also text: "
        cause += first_names([f"{shorten(text)!r} in row {rows[text][0] + 1}" for text in odd])
        if formatted:
            return cause, "write numbers with digits and a decimal point only, such as 1234.5"
        return cause, "correct these values or leave them empty (missing='impute')"
    if prevails([text for text in rows if is_date(text)]):
        return "contains dates as text", "convert them to numbers, such as days"
    return None


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
        warn_caller(
            "columns that are constant in the first task and vary later cannot be standardised: "
            f"{first_names(constant)}; rescale them, or {remedy}"
        )
    if clipped:
        warn_caller(
            f"more than {CLIPPED_SHARE:.0%} of the values are set to the limit of {LIMIT:.0f} "
            f"standard deviations of the first task in the columns {first_names(clipped)}; rescale "
            f"them, or {remedy}"
        )


def missing_values(
    column: str, values: Sequence[Any], gaps: npt.NDArray[np.bool_], remedy: str
) -> str:
    """The message about a column's missing values, in the rows with gaps, and how to fill them."""
    count, first = int(gaps.sum()), int(gaps.argmax())
    place = f"in row {first + 1}{quoted(values[first])}"
    if count == 1:
        return f"{column} has a missing value {place}; fill it in, or {remedy}"
    return f"{column} has {count} missing values (the first {place}); fill them in, or {remedy}"
