"""Columns of a table: reading them from files or records, and the values of their cells."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from perdure.arguments import is_list

MISSING = frozenset(("", "na", "n/a", "nan", "-nan", "null", "none"))
"""Texts that count as missing, in any case."""
NOT_A_GAP = "none"
"""The one of them that is a name in columns without gaps, such as the class of no damage."""
PARQUET = (".parquet", ".pq")


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
    if isinstance(table, Mapping) and table and not any(map(is_list, table.values())):
        table = [table]
    if isinstance(table, list | tuple) and all(isinstance(row, Mapping) for row in table):
        names = list(dict.fromkeys(name for row in table for name in row))
        table = {name: [row.get(name) for row in table] for name in names}
    names = list(map(str, table if isinstance(table, Mapping) else getattr(table, "columns", ())))
    if len(set(names)) < len(names):
        raise ValueError("the table has two columns with the same name")
    if isinstance(table, Mapping):
        if single := [name for name, values in table.items() if not is_list(values)]:
            raise ValueError(f"column {single[0]!r} is a single value; expected a list of values")
        columns: dict[str, Sequence[Any]] = {
            str(name): values.tolist() if isinstance(values, Tensor) else list(values)
            for name, values in table.items()
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


_QUOTED = re.compile(r'(?:^|(?<=[,;\t|]))"(?:[^"]|"")*+"', re.MULTILINE)
"""A quoted cell of a CSV file, whatever the separator."""


_BINARY = {
    b"PK\x03\x04": "a zip archive or an Excel workbook",
    b"\xd0\xcf\x11\xe0": "an Excel workbook",
    b"\x1f\x8b": "a gzip archive",
}
"""What a file is that starts with these bytes."""


def _read_csv(path: Path) -> dict[str, Sequence[Any]]:
    try:
        with path.open("rb") as content:
            start = content.read(4)
        for magic, kind in _BINARY.items():
            if start.startswith(magic):
                raise ValueError(
                    f"{path} is {kind}, not CSV; unpack it or save it as CSV in UTF-8, or pass a "
                    "DataFrame"
                )
        with path.open(encoding="utf-8-sig", newline="") as file:
            unquoted = _QUOTED.sub('""', file.read(65536))
            first = next(filter(str.strip, unquoted.splitlines()), "")
            file.seek(0)
            # The separator that the header contains most often, outside of quoted names.
            separator = max(",;\t|", key=first.count)
            reader = csv.reader(file, delimiter=separator)
            rows = [(reader.line_num, row) for row in reader if row]
    except UnicodeError:
        raise ValueError(
            f"{path} is not text in UTF-8; save it as CSV in UTF-8, or pass a DataFrame, such as "
            "pandas.read_csv(path, encoding='cp1252') for a file in a Windows encoding"
        ) from None
    except (OSError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as CSV: {error}") from None
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
        return {name: table[name].to_pylist() for name in table.column_names}
    except (OSError, ValueError, OverflowError, pyarrow.ArrowException) as error:
        raise ValueError(
            f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}"
        ) from None


_UNNAMED = re.compile(r"|Unnamed: \d+(_level_\d+)?|__index_level_\d+__")
"""What stands for the name of a column without one: nothing in CSV files, and pandas' names."""


def is_unnamed(name: str) -> bool:
    """Whether a column has no name, such as the row numbers that pandas writes.

    >>> [is_unnamed(name) for name in ("", " ", "Unnamed: 0", "__index_level_0__", "index", "0")]
    [True, True, True, True, False, False]
    """
    return _UNNAMED.fullmatch(name.strip()) is not None


_INTEGER = re.compile(r"\s*-?\d{1,40}\s*")


def increases_by_row(values: Sequence[Any]) -> bool:
    """Whether these are integers, each larger than the one before; False for fewer than 20.

    Integers may be text, as in CSV files; whole numbers with decimals are measurements.

    >>> [increases_by_row(values) for values in (range(20), [*range(19), 0], range(5))]
    [True, False, False]
    """
    if len(values) < 20:
        return False
    before = -math.inf
    for value in values:
        written = isinstance(value, str) and _INTEGER.fullmatch(value)
        if not (written or isinstance(value, int | np.integer)):
            return False
        if (number := int(value)) <= before:
            return False
        before = number
    return True


def is_missing(value: Any) -> bool:
    """Whether a cell counts as missing."""
    if isinstance(value, str):
        return value.strip().lower() in MISSING
    try:
        return value is None or bool(value != value)  # NaN, NaT
    except TypeError:  # pandas.NA
        return True
    except (ValueError, RuntimeError):  # an array or a tensor of several values
        return False


def is_numeric(name: str, values: Sequence[Any], rows: Iterable[int]) -> bool:
    """Whether all values in these rows are numbers or missing."""
    for row in rows:
        value = values[row]
        if is_missing(value) or isinstance(value, bool | int | float | np.number | np.bool_):
            continue
        if not isinstance(value, str):
            raise ValueError(
                f"column {name!r} contains {type(value).__name__} values; convert it to numbers "
                "or text, or leave it out of features"
            )
        if not reads_as_number(value):
            return False
    return True


def numbers_of(name: str, values: Sequence[Any], rows: Iterable[int]) -> npt.NDArray[np.float64]:
    """The values of a column in these rows, NaN if they are missing.

    Raises:
        ValueError: If one is infinite or not a number.
    """
    numbers = []
    for row in rows:
        try:
            numbers.append(as_number(values[row]))
        except ValueError as error:
            raise ValueError(f"column {name!r}, row {row + 1}: {error}") from None
    return np.array(numbers, dtype=np.float64)


def reads_as_number(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


_FORMATTED = re.compile(
    r"([$€£¥] *)?[-+]?(\d+|\d{1,3}([ ,.']\d{3})+)([.,]\d+)?( *[%°$€£¥]| +[^\s\d]{1,6})?"
)
"""A number with separators of thousands, a decimal comma, a sign such as % or €, or a unit."""


def is_formatted_number(text: str) -> bool:
    """Whether a text is a number in a format that is not read.

    >>> [is_formatted_number(text) for text in ("1,5", "1'234.50", "5 %", "€70", "70.5 kg")]
    [True, True, True, True, True]
    >>> [is_formatted_number(text) for text in ("1.5", "10.0.0.1", "A4", "3B", "1st")]
    [False, False, False, False, False]
    """
    return not reads_as_number(text) and _FORMATTED.fullmatch(text) is not None


def as_number(value: Any) -> float:
    """A value as a number; NaN if it is missing."""
    if is_missing(value):
        return math.nan
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        text = shorten(str(value))
        raise ValueError(
            f"{text!r} is not a number, unlike the other values; correct it or leave it empty"
        ) from None
    if math.isinf(number):
        raise ValueError(f"{number} is infinite; correct it or leave it empty")
    return number


def shorten(text: str) -> str:
    """The first forty characters of a text, for messages."""
    return text[:40] + "…" * (len(text) > 40)


def as_text(value: Any) -> str | None:
    """A value as text, with equal text for equal numbers; None if it is missing."""
    if is_missing(value):
        return None
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def as_name(value: Any) -> str | None:
    """A value of a column without gaps as text; None if it is missing.

    >>> as_name(" none "), as_name("NA"), as_text("none")
    ('none', None, None)
    """
    if isinstance(value, str) and value.strip().lower() == NOT_A_GAP:
        return value.strip()
    return as_text(value)


def texts_of(
    values: Sequence[Any], name: str, read: Callable[[Any], str | None] = as_name
) -> list[str]:
    """The values of a column that may have no gaps, as texts that `read` returns."""
    found = [read(value) for value in values]
    if None in found:
        row = found.index(None)
        raise ValueError(
            f"column {name!r} has no value in row {row + 1}{quoted(values[row])}; fill it in, or "
            "leave the row out"
        )
    return [text for text in found if text is not None]


def quoted(value: Any) -> str:
    """An addition to a message about a missing value that is a text; otherwise nothing.

    >>> quoted("NA"), quoted(" "), quoted(None)
    (": 'NA' counts as missing, so rename it if it is a value", '', '')
    """
    if not (isinstance(value, str) and value.strip()):
        return ""
    return f": {value.strip()!r} counts as missing, so rename it if it is a value"


_DATE = re.compile(
    r"(\d{1,2}/\d{1,2}/(\d{2}|\d{4})|\d{1,2}\.\d{1,2}\.\d{4}|\d{4}/\d{1,2}/\d{1,2})([ T]\d.*)?"
)
"""A date in a common format other than ISO 8601, with or without a time."""


def is_date(text: str) -> bool:
    """Whether a text is a date, with or without a time.

    >>> [is_date(text) for text in ("2026-01-31", "1/31/2026 8:30", "31.1.2026", "1.2.3", "1/2")]
    [True, True, True, False, False]
    """
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return _DATE.fullmatch(text) is not None
    return True
