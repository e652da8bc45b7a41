"""Streams from a table: a CSV or Parquet file, or a DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor

from perdure.arguments import as_count, as_list, check_choices
from perdure.records import Samples
from perdure.streams.columns import (
    as_text,
    increases_by_row,
    is_missing,
    is_unnamed,
    read_columns,
    texts_of,
)
from perdure.streams.encoder import Encoder, first_names, labels_of, places_of, plain
from perdure.streams.holdout import as_ids
from perdure.streams.layout import (
    TEST_SHARE,
    Layout,
    build_stream,
    is_trained,
    warn_of_cases,
    warn_of_single_class,
)
from perdure.streams.stream import Stream
from perdure.streams.table_encoder import TableEncoder, missing_values, warn_of_scales
from perdure.user_code import warn_caller

MANY_CLASSES = 100
FEW_ROWS = 10
"""More whole numbers than that, most of them in fewer rows, produce a warning: such are prices and
counts. Classes with numbers as names are fewer, or have enough rows to be learned and tested."""


def from_table(
    table: str | Path | Any,
    target: str,
    *,
    features: Sequence[str] | None = None,
    categorical: Sequence[str] | None = None,
    tasks: str | int | Sequence[Sequence[Any]] | None = None,
    chunks: int | None = None,
    test: str | Path | Any | None = None,
    test_share: float | None = None,
    keep_together: str | None = None,
    missing: Literal["refuse", "impute"] = "refuse",
    standardise: Literal["first task", "all tasks", "no"] = "first task",
    max_categories: int = 100,
    encoder: Encoder | None = None,
    name: str | None = None,
    drop_last: bool = False,
    shuffle: bool = True,
) -> Stream:
    """Create a stream from the rows of a table.

    Labels number the values of the target column in ascending order (`Stream.class_names`). An
    input is a float vector: the numeric columns, then a 0/1 value for each category of each
    categorical column. Columns with text are categorical. The stream's `encoder` does the same
    with new rows, and turns predictions into names.

    What is computed from the data: the classes, the columns' kinds and the categories come from
    all training rows, because they fix the size of the network. A category that only the tests
    have is encoded as zeros. Means, standard deviations and imputed values come from the training
    rows of the first task, which is all that is known when the stream starts, and never from
    tests. Rows that are later held out for validation are included.

    Args:
        table: A CSV file with a header, a Parquet file (needs pyarrow), a pandas or
            polars DataFrame, a mapping from column names to values, or a list of rows as dicts.
        target: Column with the class.
        features: Columns to use as inputs; by default all that have no other purpose. A column
            without a name, such as the row numbers that pandas writes, must be listed. A column
            of integers that increases from row to row produces a warning, unless it is listed.
        categorical: Columns with numbers, dates, or numbers and text that are categories. Dates as
            text, and text among numbers, produce a warning in other columns.
        tasks: A column, whose values are the tasks in the order in which they first appear; or the
            number of tasks, which divide the classes in ascending order; or the classes of each
            task (rows of other classes are omitted, with a warning). By default the stream is a
            single task.
        chunks: Number of tasks of successive rows, instead of `tasks`.
        test: A table with the test rows. If tasks are a column, it must have that column.
        test_share: Share of every class of every task to hold out as tests, always the same rows;
            0.2 by default, 0 for no tests. Omit it if `test` is given.
        keep_together: Column whose values say which rows belong together, such as a patient; they
            are never separated by a split.
        missing: Whether to refuse missing values or to impute them: a missing number is replaced
            by the column's mean and marked in a further 0/1 value; a missing category is zeros.
            If a column has no gap in this table or the test table, it has no such value, and later
            gaps are replaced without a mark.
        standardise: Whether numeric columns get mean 0 and standard deviation 1 on the training
            rows of the first task, or of all tasks, which uses statistics of the future. Values
            beyond 10 standard deviations are clipped to ±10, with a warning if they are more than
            a tenth of a column, or if the column is constant in the first task.
        max_categories: Categories that a column may have. More of them suggest an identifier, or
            dates as text.
        encoder: The encoder of an earlier stream, if more of its data has arrived. It replaces
            `features`, `categorical`, `missing`, `standardise` and `max_categories`. Classes that
            it does not know get the next labels, for a learner with `grow=True`. A whole number may
            be spelled with decimals, 1.0 for 1; other spellings are other classes, with a warning
            if they differ only in case.
        name: Name in tables and reports; by default that of the file.
        drop_last: Whether an epoch omits the last batch if it is smaller than the others.
        shuffle: Whether the rows of a task are presented in a new random order in each epoch;
            False keeps their order, for data that are sorted by time.

    Raises:
        ValueError: If the table cannot be read, or has values that do not fit.

    >>> rides = {"km": [1, 9] * 10, "city": ["Rome", "Oslo"] * 10, "kind": ["bike", "car"] * 10}
    >>> stream = from_table(rides, "kind", tasks=2, name="rides")
    >>> stream, stream.class_names
    (Stream('rides': 2 tasks, 2 classes, inputs [3], 2 tests), ('bike', 'car'))
    """
    check_choices(("refuse", "impute"), missing=missing)
    check_choices(("first task", "all tasks", "no"), standardise=standardise)
    check_choices((True, False), drop_last=drop_last, shuffle=shuffle)
    max_categories = as_count("max_categories", max_categories)
    if features is not None:
        features = as_list("features", features, "a list of columns")
    categorical = [] if categorical is None else categorical
    categorical = as_list("categorical", categorical, "a list of columns")
    if tasks is not None and chunks is not None:
        raise ValueError("give either tasks or chunks, not both")
    if test is not None and test_share is not None:
        raise ValueError("give either test or test_share, not both")
    if encoder is not None and not isinstance(encoder, TableEncoder):
        raise ValueError(f"the encoder is of type {type(encoder).__name__}, not TableEncoder")
    named = {
        "target": target,
        **({} if keep_together is None else {"keep_together": keep_together}),
    }
    for argument, value in named.items():
        if not isinstance(value, str):
            kind = type(value).__name__
            raise ValueError(f"{argument} is of type {kind}; expected the name of a column")
    columns = read_columns(table)
    task_column = tasks if isinstance(tasks, str) else None
    special = [target, *(c for c in (task_column, keep_together) if c is not None)]
    if encoder is not None:
        used = [column.name for column in encoder.columns]
    else:
        used = [c for c in columns if c not in special] if features is None else features
    for column in (*special, *used, *categorical):
        if not isinstance(column, str) or column not in columns:
            found = ", ".join(columns) or "none"
            raise ValueError(f"the table has no column {column!r}; it has {found}")
    if encoder is None and features is None:
        _check_unnamed(list(columns), used)
    if target in used:
        raise ValueError(f"the target {target!r} cannot be a feature")
    if not used:
        raise ValueError(f"the table has no columns besides {', '.join(special)}")
    other = {} if test is None else read_columns(test)
    if test is not None:
        for needed in (target, *([] if task_column is None else [task_column]), *used):
            if needed not in other:
                raise ValueError(f"the test table has no column {needed!r}")
    n = len(columns[target])
    if not n:
        raise ValueError("the table has no rows")
    if features is None and encoder is None and test is None:
        for column in used:
            if increases_by_row(columns[column]):
                _warn_of_order(column)
    texts = texts_of(columns[target], target)
    known_classes = () if encoder is None else encoder.class_names
    classes = _classes(texts, known_classes)
    warn_of_single_class(known_classes, classes)
    warn_of_cases(known_classes, classes, f"the target {target!r} has")
    labels = labels_of(texts, classes)
    if task_column is not None:
        layout = Layout.by_value(texts_of(columns[task_column], task_column))
    elif chunks is not None:
        layout = Layout.in_chunks(chunks, n)
    else:
        layout = Layout.by_classes(tasks, classes)
    keys: Sequence[Any] = range(n)
    if keep_together is not None:  # here, none is no name: it would keep unrelated rows together
        keys = texts_of(columns[keep_together], keep_together, as_text)
    ids = as_ids(keys, n)
    share = 0.0 if test is not None else TEST_SHARE if test_share is None else test_share
    _check_numbers(labels, classes, target, len(known_classes), tested=share != 0)
    held_out = layout.hold_out(labels, ids, share)
    trained = is_trained(n, held_out)
    first = layout.parts(labels)[0] if standardise != "all tasks" else torch.arange(n)
    known = first[trained[first]]
    given = encoder is not None
    if encoder is not None:
        encoder = msgspec.structs.replace(encoder, class_names=tuple(classes))
    else:
        encoder = TableEncoder.fit(
            {column: columns[column] for column in used},
            target=target,
            class_names=classes,
            categorical=set(categorical),
            train=trained.nonzero().squeeze(1).numpy(),
            known=known.numpy(),
            impute=missing == "impute",
            gaps=_find_gaps(used, columns, other, refuse=missing == "refuse"),
            standardise=standardise != "no",
            max_categories=max_categories,
        )
    test_samples = test_tasks = None
    if test is not None:
        test_samples = Samples(
            encoder.encode(other), labels_of(texts_of(other[target], target), classes)
        )
        if task_column is not None:
            test_tasks = texts_of(other[task_column], task_column)
    inputs = encoder.encode(columns)
    if not inputs.shape[1]:
        raise ValueError(f"no training row has a value in the columns {first_names(used)}")
    place = trained.cumsum(0) - 1  # of a row among those that are trained on
    warn_of_scales(encoder, inputs[trained], None if given else place[known].numpy())
    if name is None:
        name = Path(table).stem if isinstance(table, str | Path) else "table"
    return build_stream(
        Samples(inputs, labels),
        layout,
        held_out,
        ids,
        encoder,
        test=test_samples,
        test_tasks=test_tasks,
        name=name,
        drop_last=drop_last,
        shuffle=shuffle,
    )


def _check_unnamed(columns: Sequence[str], used: Sequence[str]) -> None:
    """Raise ValueError if one of the columns that are used by default has no name."""
    for column in used:
        if is_unnamed(column):
            alias = f" (it is read as {column!r})" if column.strip() else ""
            raise ValueError(
                f"column {columns.index(column) + 1} of the table has no name{alias}; if it "
                "contains row numbers, write the table without them (index=False in pandas), "
                "otherwise name it or list the columns to use as features (features=age+income "
                "for the command)"
            )


def _find_gaps(
    used: Sequence[str],
    columns: Mapping[str, Sequence[Any]],
    test: Mapping[str, Sequence[Any]],
    *,
    refuse: bool,
) -> set[str]:
    """The columns with missing values, which may be refused, in the table or the test table."""
    found = set()
    for where, table in (("", columns), (" of the test table", test)):
        for column in used:
            values = table.get(column, ())
            gaps = np.array([is_missing(value) for value in values], dtype=bool)
            if gaps.any():
                found.add(column)
                if refuse:
                    remedy = "pass missing='impute' (missing=impute for the command)"
                    what = f"column {column!r}{where}"
                    raise ValueError(missing_values(what, values, gaps, remedy))
    return found


def _warn_of_order(column: str) -> None:
    """Warn of a column that shows the position of a row in the table."""
    warn_caller(
        f"column {column!r} increases from row to row, like row numbers, identifiers or times; if "
        "the rows are sorted by class, a network can learn the class from it, and tests are then "
        "too optimistic: pass features without it, or with it if it is meant as an input"
    )


def _classes(texts: Sequence[str], known: Sequence[str]) -> list[str]:
    """The known classes, then others in ascending order, numbers by value.

    Of several spellings of a whole number, the shortest is the name.
    """
    places = places_of(known)
    spellings: dict[str, str] = {}
    for c in dict.fromkeys(texts):
        if c not in places and plain(c) not in places:
            spellings[plain(c)] = min(spellings.get(plain(c), c), c, key=len)
    found = list(spellings.values())
    try:
        return [*known, *sorted(found, key=float)]
    except ValueError:
        return [*known, *sorted(found)]


def _check_numbers(
    labels: Tensor, classes: Sequence[str], target: str, known: int, *, tested: bool
) -> None:
    """Warn if the classes look like the values of a quantity.

    Raises ValueError if they surely are: there are more values with fractions, besides the first
    `known` classes, than half of the rows; or every row has a different number, so that none can
    be tested.
    """
    try:
        fractions = sum(not float(name).is_integer() for name in classes)
    except ValueError:
        return
    rows = torch.bincount(labels, minlength=len(classes))[known:]  # of each new class
    no_quantities = "each becomes a class of its own; perdure does not predict quantities"
    if fractions:
        problem = f"the target {target!r} has {len(classes)} numbers, some with fractions, and "
        if len(rows) > len(labels) / 2:
            raise ValueError(problem + no_quantities)
        warn_caller(problem + no_quantities)
    elif tested and len(rows) == len(labels):
        raise ValueError(
            f"the target {target!r} has a different number in each of the {len(labels)} rows, and "
            f"{no_quantities}, and a class needs two rows to be tested"
        )
    elif len(rows) > MANY_CLASSES and (rows < FEW_ROWS).float().mean() > 0.5:
        warn_caller(
            f"the target {target!r} has {len(rows)} different numbers, most of them in fewer than "
            f"{FEW_ROWS} rows, and {no_quantities}"
        )
