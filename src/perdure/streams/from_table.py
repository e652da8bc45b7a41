"""Streams from a table: a CSV or Parquet file, or a DataFrame."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from perdure.records import Samples
from perdure.streams.holdout import as_ids
from perdure.streams.layout import TEST_SHARE, Layout, Split, build_stream
from perdure.streams.stream import Stream

MISSING = frozenset(("", "na", "n/a", "nan", "null", "none"))
"""Cells of a CSV file that count as missing, in any case."""
PARQUET = (".parquet", ".pq")
Floats = npt.NDArray[np.float64]


def from_table(
    table: str | Path | Any,
    target: str,
    *,
    features: Sequence[str] | None = None,
    categorical: Sequence[str] = (),
    tasks: str | int | Sequence[Sequence[Any]] | None = None,
    chunks: int | None = None,
    test: str | Path | Any | None = None,
    test_share: float | None = None,
    keep_together: str | None = None,
    missing: Literal["refuse", "impute"] = "refuse",
    standardise: Literal["first task", "all tasks", "no"] = "first task",
    max_categories: int = 100,
    name: str | None = None,
    drop_last: bool = False,
) -> Stream:
    """Create a stream from the rows of a table.

    Labels number the values of the target column in ascending order (`Stream.class_names`). An
    input is a float vector: the numeric columns, then a 0/1 value for each category of each
    categorical column. Columns with text are categorical.

    What is computed from the data: the classes, the columns' kinds and the categories come from
    all training rows, because they fix the size of the network. A category that only the tests
    have is encoded as zeros. Means, standard deviations and imputed values come from the training
    rows of the first task, which is all that is known when the stream starts, and never from
    tests. Rows that are later held out for validation are included.

    Args:
        table: A CSV file with a header, a Parquet file (needs `perdure[table]`), a pandas or
            polars DataFrame, or a mapping from column names to values.
        target: Column with the class.
        features: Columns to use as inputs; by default all that have no other purpose.
        categorical: Columns with numbers that are categories.
        tasks: A column, whose values are the tasks in the order in which they first appear; or the
            number of tasks, which divide the classes in ascending order; or the classes of each
            task. By default the stream is a single task.
        chunks: Number of tasks of successive rows, instead of `tasks`.
        test: A table with the test rows. If tasks are a column, it must have that column.
        test_share: Share of every class of every task to hold out as tests, always the same rows;
            0.2 by default, 0 for no tests. Omit it if `test` is given.
        keep_together: Column whose values say which rows belong together, such as a patient; they
            are never separated by a split.
        missing: Whether to refuse missing values or to impute them: a missing number is replaced
            by the column's mean and marked in a further 0/1 value; a missing category is zeros.
        standardise: Whether numeric columns get mean 0 and standard deviation 1 on the training
            rows of the first task, or of all tasks, which uses statistics of the future.
        max_categories: Categories that a column may have; more than that suggests an identifier.
        name: Name in tables and reports; by default that of the file.
        drop_last: Whether an epoch omits the last batch if it is smaller than the others.

    Raises:
        ValueError: If the table cannot be read, or has values that do not fit.

    >>> rides = {"km": [1, 9] * 10, "city": ["Rome", "Oslo"] * 10, "kind": ["bike", "car"] * 10}
    >>> stream = from_table(rides, "kind", tasks=2, name="rides")
    >>> stream, stream.class_names
    (Stream('rides': 2 tasks, 2 classes, inputs [3], 2 tests), ('bike', 'car'))
    """
    if tasks is not None and chunks is not None:
        raise ValueError("give either tasks or chunks, not both")
    if test is not None and test_share is not None:
        raise ValueError("give either test or test_share, not both")
    columns = read_columns(table)
    task_column = tasks if isinstance(tasks, str) else None
    special = [c for c in (target, task_column, keep_together) if c is not None]
    used = [c for c in columns if c not in special] if features is None else list(features)
    for column in (*special, *used, *categorical):
        if column not in columns:
            raise ValueError(f"the table has no column {column!r}; it has {', '.join(columns)}")
    if target in used:
        raise ValueError(f"the target {target!r} cannot be a feature")
    if not used:
        raise ValueError(f"the table has no columns besides {', '.join(special)}")
    n = len(columns[target])
    if not n:
        raise ValueError("the table has no rows")
    classes = _classes(columns[target], target)
    labels = _labels(columns[target], target, classes)
    layout = Layout()
    if task_column is not None:
        layout = Layout.by_value(_texts(columns[task_column], task_column))
    elif chunks is not None:
        layout = Layout.in_chunks(chunks, n)
    else:
        layout = Layout.by_classes(tasks, classes)
    keys = range(n) if keep_together is None else _texts(columns[keep_together], keep_together)
    ids = as_ids(keys, n)
    share = 0.0 if test is not None else TEST_SHARE if test_share is None else test_share
    split = Split.of(layout, labels, ids, share)
    trained = torch.zeros(n, dtype=torch.bool)
    trained[split.train] = True
    first = layout.parts(labels)[0] if standardise != "all tasks" else torch.arange(n)
    encoder = Encoder.fit(
        {column: columns[column] for column in used},
        categorical=set(categorical),
        train=split.train.numpy(),
        known=first[trained[first]].numpy(),
        impute=missing == "impute",
        standardise=standardise != "no",
        max_categories=max_categories,
    )
    further: dict[str, Any] = {}
    if test is not None:
        other = read_columns(test)
        for needed in (target, *([] if task_column is None else [task_column]), *used):
            if needed not in other:
                raise ValueError(f"the test table has no column {needed!r}")
        held = Samples(encoder.encode(other), _labels(other[target], target, classes))
        if task_column is None:
            further["test"] = held
        else:
            found = Layout.by_value(_texts(other[task_column], task_column))
            by_task = dict(zip(found.names, found.rows or (), strict=True))
            for task in layout.names:
                if task not in by_task:
                    raise ValueError(f"the test table has no rows with {task_column} {task}")
            further["tests"] = [held.rows(by_task[task]) for task in layout.names]
    if name is None:
        name = Path(table).stem if isinstance(table, str | Path) else "table"
    return build_stream(
        Samples(encoder.encode(columns), labels),
        layout,
        split,
        ids,
        classes,
        name=name,
        drop_last=drop_last,
        **further,
    )


# -- encoding -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Numeric:
    """A numeric column."""

    name: str
    fill: float
    """What replaces missing values."""
    shift: float
    scale: float
    impute: bool
    """Whether missing values are replaced, and marked in a second value."""

    def encode(self, values: Sequence[Any]) -> Floats:
        numbers = np.array([_number(value) for value in values], dtype=np.float64)
        gaps = np.isnan(numbers)
        if gaps.any() and not self.impute:
            raise ValueError(_missing_values(self.name, gaps))
        scaled = (np.where(gaps, self.fill, numbers) - self.shift) / self.scale
        return np.stack([scaled, gaps.astype(np.float64)] if self.impute else [scaled], axis=1)


@dataclass(frozen=True)
class _Categorical:
    """A column of categories."""

    name: str
    categories: tuple[str, ...]
    impute: bool

    def encode(self, values: Sequence[Any]) -> Floats:
        texts = [_text(value) for value in values]
        gaps = np.array([text is None for text in texts])
        if gaps.any() and not self.impute:
            raise ValueError(_missing_values(self.name, gaps))
        places = {category: place for place, category in enumerate(self.categories)}
        encoded = np.zeros((len(texts), len(places)))
        for row, text in enumerate(texts):
            if text in places:
                encoded[row, places[text]] = 1.0
        return encoded


@dataclass(frozen=True)
class Encoder:
    """Turns columns into input vectors."""

    columns: tuple[_Numeric | _Categorical, ...]

    @classmethod
    def fit(
        cls,
        columns: Mapping[str, Sequence[Any]],
        *,
        categorical: set[str],
        train: npt.NDArray[np.int64],
        known: npt.NDArray[np.int64],
        impute: bool,
        standardise: bool,
        max_categories: int,
    ) -> Encoder:
        """An encoder for these columns.

        Args:
            columns: Values by column.
            categorical: Columns that are categorical although they contain numbers.
            train: Rows from which kinds and categories are taken.
            known: Rows from which means and standard deviations are computed.
            impute: Whether missing values are allowed.
            standardise: Whether numeric columns are standardised.
            max_categories: Categories that a column may have.
        """
        found: list[_Numeric | _Categorical] = []
        for name, values in columns.items():
            if name not in categorical and _is_numeric(name, [values[row] for row in train]):
                numbers = np.array([_number(values[row]) for row in known], dtype=np.float64)
                present = numbers[~np.isnan(numbers)]
                mean = float(present.mean()) if len(present) else 0.0
                std = (float(present.std()) if len(present) else 0.0) or 1.0
                gaps = impute and any(_is_missing(values[row]) for row in train)
                scaling = (mean, std) if standardise else (0.0, 1.0)
                found.append(_Numeric(name, mean, *scaling, gaps))
            else:
                texts = {_text(values[row]) for row in train} - {None}
                if len(texts) > max_categories:
                    raise ValueError(
                        f"column {name!r} has {len(texts)} categories, more than "
                        f"{max_categories}; leave it out of features, or raise max_categories"
                    )
                found.append(_Categorical(name, tuple(sorted(map(str, texts))), impute))
        numeric = [column for column in found if isinstance(column, _Numeric)]
        return cls((*numeric, *(c for c in found if isinstance(c, _Categorical))))

    def encode(self, columns: Mapping[str, Sequence[Any]]) -> Tensor:
        """Input vectors, float32 [n, values]."""
        parts = [column.encode(columns[column.name]) for column in self.columns]
        return torch.from_numpy(np.concatenate(parts, axis=1)).float()


def _missing_values(name: str, gaps: npt.NDArray[np.bool_]) -> str:
    count, first = int(gaps.sum()), int(gaps.argmax()) + 1
    what = "a missing value" if count == 1 else f"{count} missing values"
    return f"column {name!r} has {what} (the first in row {first}); use missing='impute'"


def _is_missing(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in MISSING
    return value is None or value != value  # NaN, NaT


def _is_numeric(name: str, values: Sequence[Any]) -> bool:
    """Whether all values are numbers or missing."""
    for value in values:
        if _is_missing(value):
            continue
        if isinstance(value, str):
            try:
                number = float(value)
            except ValueError:
                return False
        elif isinstance(value, bool | int | float | np.number | np.bool_):
            number = float(value)
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
    if _is_missing(value):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} is not a number, unlike the other values") from None


def _text(value: Any) -> str | None:
    """A value as text, with equal text for equal numbers; None if it is missing."""
    if _is_missing(value):
        return None
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def _texts(values: Sequence[Any], name: str) -> list[str]:
    """The values of a column that may have no gaps."""
    found = [_text(value) for value in values]
    if None in found:
        raise ValueError(f"column {name!r} has no value in row {found.index(None) + 1}")
    return [text for text in found if text is not None]


def _classes(values: Sequence[Any], target: str) -> list[str]:
    """The classes in ascending order, numbers by their value."""
    found = list(dict.fromkeys(_texts(values, target)))
    if len(found) < 2:
        raise ValueError(f"the target {target!r} has a single value; expected two classes or more")
    try:
        return sorted(found, key=float)
    except ValueError:
        return sorted(found)


def _labels(values: Sequence[Any], target: str, classes: Sequence[str]) -> Tensor:
    numbers = {name: number for number, name in enumerate(classes)}
    texts = _texts(values, target)
    for text in texts:
        if text not in numbers:
            raise ValueError(f"the test table has the class {text!r}, which the training rows lack")
    return torch.tensor([numbers[text] for text in texts])


# -- reading --------------------------------------------------------------------------------


def read_columns(table: str | Path | Any) -> dict[str, Sequence[Any]]:
    """The columns of a table by name.

    Raises:
        ValueError: If the table cannot be read.
    """
    if isinstance(table, str | Path):
        path = Path(table)
        if not path.is_file():
            raise ValueError(f"{path} is not a file")
        return (
            _read_parquet(path) if path.suffix.lower() in (".parquet", ".pq") else _read_csv(path)
        )
    if isinstance(table, Mapping):
        columns: dict[str, Sequence[Any]] = {
            str(name): list(values) for name, values in table.items()
        }
    elif hasattr(table, "columns") and hasattr(table, "__getitem__"):  # pandas, polars
        columns = {str(name): list(table[name]) for name in table.columns}
    else:
        kind = type(table).__name__
        raise ValueError(f"the table is of type {kind}; expected a file, a DataFrame or a mapping")
    if len({len(values) for values in columns.values()}) > 1:
        raise ValueError("the columns of the table have different lengths")
    return columns


def _read_csv(path: Path) -> dict[str, Sequence[Any]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            sample = file.read(65536)
            file.seek(0)
            header = sample.splitlines()[:1] or [""]
            # The separator that the header contains most often.
            separator = max(",;\t|", key=header[0].count)
            rows = [row for row in csv.reader(file, delimiter=separator) if row]
    except (OSError, UnicodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as CSV in UTF-8: {error}") from None
    if not rows:
        raise ValueError(f"{path} is empty; expected a header and rows")
    names, *values = rows
    names = [name.strip() for name in names]
    if len(set(names)) < len(names):
        raise ValueError(f"{path} has two columns with the same name")
    for number, row in enumerate(values, 2):
        if len(row) != len(names):
            raise ValueError(
                f"{path}: row {number} has {len(row)} cells; the header has {len(names)}"
            )
    return {name: [row[place] for row in values] for place, name in enumerate(names)}


def _read_parquet(path: Path) -> dict[str, Sequence[Any]]:
    try:
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise ValueError("Parquet files require pyarrow: pip install 'perdure[table]'") from None
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise ValueError(
            f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}"
        ) from None
    return {name: table[name].to_pylist() for name in table.column_names}
