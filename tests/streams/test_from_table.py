"""Streams from tables."""

from __future__ import annotations

import gzip
import json
import re
import time
import warnings
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from perdure import ER, fit
from perdure.streams import ImageEncoder, TableEncoder, from_table
from perdure.streams.columns import read_columns
from perdure.streams.from_files import stream_from_files

N = 40
RIDES: dict[str, list[Any]] = {
    "km": [float(i) for i in range(N)],
    "city": ["Oslo", "Rome", "Oslo", "Bonn"] * (N // 4),
    "month": ["may"] * (N // 2) + ["april"] * (N // 2),
    "rider": [i // 2 for i in range(N)],
    "kind": ["car", "bike"] * (N // 2),
}

EVEN = list(range(2 * N, 0, -2))


def as_csv(columns: dict[str, list[Any]], separator: str = ",") -> str:
    lines = [
        separator.join(columns),
        *(separator.join(map(str, r)) for r in zip(*columns.values(), strict=True)),
    ]
    return "\n".join(lines) + "\n"


def test_numbers_are_standardised_with_what_the_first_task_knows() -> None:
    stream = from_table(RIDES, "kind", features=["km"], tasks="month")
    assert [task.name for task in stream.tasks] == ["may", "april"]
    assert stream.class_names == ("bike", "car")
    first, second = (task.samples().inputs for task in stream.tasks)
    assert first.mean().abs() < 1e-6
    assert (first.std(correction=0) - 1).abs() < 1e-6
    assert second.min() > first.max()  # a later task does not take part
    km = torch.tensor(RIDES["km"])
    raw = from_table(RIDES, "kind", features=["km"], tasks="month", standardise="no")
    trained = raw.tasks[0].samples().inputs.squeeze(1)
    everything = torch.cat([trained, raw.tests[0].samples().inputs.squeeze(1)])
    assert torch.equal(everything.sort().values, km[: N // 2])
    expected = (trained - trained.mean()) / trained.std(correction=0)
    assert torch.allclose(first.squeeze(1), expected, atol=1e-6)


def test_text_becomes_categories() -> None:
    stream = from_table(RIDES, "kind", features=["city", "km"], test_share=0)
    inputs = stream.tasks[0].samples().inputs
    assert inputs.shape == (N, 4)  # numbers first
    assert torch.equal(inputs[:, 1:].argmax(1), torch.tensor([1, 2, 1, 0] * (N // 4)))
    coded = from_table(RIDES, "kind", features=["rider"], categorical=["rider"], test_share=0)
    assert coded.shape == (20,)
    with pytest.raises(ValueError, match=r"'rider' has 20 categories.*features"):
        from_table(RIDES, "kind", categorical=["rider"], max_categories=10, test_share=0)


@pytest.mark.parametrize(
    "values",
    [
        ["0", "1"] * 49 + ["?", "-"],  # two of four values, in few rows
        ["1,5", "2,5", "3,25", "4"] * 25,
        ["1,234", "2,345", "567", "8,901"] * 25,
        ["1%", "2 %", "3%", "4%"] * 25,
        ["€10", "€20", "30 €", "40.50 €"] * 25,
        ["70 kg", "70.5 kg", "71 kg", "unknown"] * 25,
    ],
)
def test_numbers_that_are_not_read_as_numbers_produce_a_warning(values: list[str]) -> None:
    table = {"x": values, "kind": ["a", "b"] * 50}
    with pytest.warns(UserWarning, match="'x' contains numbers"):
        from_table(table, "kind")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_table(table, "kind", categorical=["x"])


def test_classes_that_differ_in_case_only_produce_a_warning() -> None:
    with pytest.warns(UserWarning, match="only in case: 'car' and 'Car'"):
        from_table({"x": EVEN[:30], "kind": ["Car", "car", "bus"] * 10}, "kind")


def test_addresses_and_codes_are_categories_without_a_warning() -> None:
    for values in (
        *(["10.0.0.1", "10.0.0.2"], ["A4", "3B"], ["1-2", "3-4"], ["12:30", "7:15"]),
        *(["1st", "2nd"], ["1.2.3", "1.2.10"], ["1/2", "3/4"]),
    ):
        from_table({"x": values * 50, "kind": ["a", "b"] * 50}, "kind")


def test_tasks_name_classes_as_the_table_spells_them() -> None:
    table = {"x": EVEN[:30], "kind": [1.0, 2.0, 3.0] * 10}
    for tasks in ([[1.0, 2.0], [3.0]], [[1, 2], [3]], [["1", "2"], ["3.0"]]):
        stream = from_table(table, "kind", tasks=tasks)
        assert [task.name for task in stream.tasks] == ["1, 2", "3"]
    with pytest.raises(ValueError, match=r"tasks has the class '1' twice"):
        from_table(table, "kind", tasks=[["1"], ["1.0"]])


def test_a_table_whose_only_feature_is_empty_is_refused() -> None:
    table = {"x": [None] * 20, "kind": ["a", "b"] * 10}
    with pytest.raises(ValueError, match="no training row has a value"):
        from_table(table, "kind", categorical=["x"], missing="impute")


def test_a_table_has_no_two_columns_of_one_name() -> None:
    with pytest.raises(ValueError, match="same name"):
        from_table({"x": [1, 2], 1: [1, 2], "1": [3, 4], "kind": ["a", "b"]}, "kind")


def test_columns_may_be_tensors() -> None:
    numbers = 78 - 2 * torch.arange(40)
    stream = from_table({"x": numbers, "y": numbers // 2 % 12}, "y", test_share=0)
    assert stream.class_names == tuple(map(str, range(12)))
    assert stream.tasks[0].samples().labels.equal(numbers // 2 % 12)


@pytest.mark.parametrize("values", [["low", "inf"], ["inf", "low"]])
def test_infinity_among_texts_is_a_text(values: list[str]) -> None:
    stream = from_table({"x": values * 10, "kind": ["a", "b"] * 10}, "kind", test_share=0)
    assert stream.shape == (2,)
    with pytest.raises(ValueError, match="infinite"):
        from_table({"x": ["1", "inf"] * 10, "kind": ["a", "b"] * 10}, "kind")


def test_columns_without_single_values_are_refused(tmp_path: Path) -> None:
    for cell in (np.zeros(2), torch.zeros(2), [1, 2]):
        with pytest.raises(ValueError, match=f"'x' contains {type(cell).__name__} values"):
            from_table({"x": [cell] * 20, "kind": ["a", "b"] * 10}, "kind")
    with pytest.raises(ValueError, match="no column 'kind'"):
        from_table([], "kind")
    for column in (None, ["kind"]):
        with pytest.raises(ValueError, match="name of a column"):
            from_table(RIDES, column)  # type: ignore[arg-type]
    assert from_table(RIDES, "kind", categorical=None).shape == from_table(RIDES, "kind").shape
    with pytest.raises(ValueError, match="'x' is a single value"):
        from_table({"x": np.array(5), "kind": ["a", "b"]}, "kind")
    arrow = pytest.importorskip("pyarrow", reason="optional package not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="optional package not installed")
    days = arrow.array([2**30] * 20, arrow.date32())  # no date of Python
    table = arrow.table({"day": days, "kind": ["a", "b"] * 10})
    parquet.write_table(table, tmp_path / "days.parquet")
    with pytest.raises(ValueError, match=r"days\.parquet cannot be read as Parquet"):
        from_table(tmp_path / "days.parquet", "kind")


def test_names_that_cannot_be_saved_are_refused() -> None:
    with pytest.raises(ValueError, match="class names, is not valid Unicode"):
        from_table({"x": EVEN[:20], "kind": ["caf\udce9", "bar"] * 10}, "kind")


def test_inputs_are_finite() -> None:
    table = {"x": [1.0, 2.0] * 10, "kind": ["a", "b"] * 10}
    encoder = from_table(table, "kind", standardise="no").encoder
    assert encoder is not None
    with pytest.raises(ValueError, match=r"'x', row 2.*too large"):
        encoder.encode({"x": [1.0, -1e39]})


def test_an_encoder_with_many_names_is_checked_in_linear_time(tmp_path: Path) -> None:
    """A quadratic check would take minutes."""
    encoder = from_table(RIDES, "kind", features=["km"]).encoder
    assert encoder is not None
    encoder.save(tmp_path / "encoder.json")
    content = json.loads((tmp_path / "encoder.json").read_text())
    content["class_names"] = [*map(str, range(100_000)), "99999"]
    (tmp_path / "encoder.json").write_text(json.dumps(content))
    start = time.perf_counter()
    with pytest.raises(ValueError, match="'99999' occurs twice"):
        TableEncoder.load(tmp_path / "encoder.json")
    assert time.perf_counter() - start < 10


def test_tasks_by_classes_and_by_rows() -> None:
    by_class = from_table(RIDES, "kind", tasks=[["car"], ["bike"]])
    assert [set(task.samples().labels.tolist()) for task in by_class.tasks] == [{1}, {0}]
    assert [test.classes for test in by_class.tests] == [(1,), (0,)]
    with pytest.warns(UserWarning, match=rf"{N // 2} .*\bbike$"):
        from_table(RIDES, "kind", tasks=[["car"]])
    chunked = from_table(RIDES, "kind", features=["km"], chunks=4, standardise="no")
    for number, (task, test) in enumerate(zip(chunked.tasks, chunked.tests, strict=True)):
        rows = torch.cat([task.samples().inputs, test.samples().inputs]).squeeze(1)
        assert rows.sort().values.tolist() == RIDES["km"][number * 10 : number * 10 + 10]
    with pytest.raises(ValueError, match="either tasks or chunks"):
        from_table(RIDES, "kind", tasks=2, chunks=2)


def test_rows_that_belong_together_stay_together() -> None:
    stream = from_table(RIDES, "kind", features=["km"], keep_together="rider", standardise="no")
    for split in (stream, stream.validation(0.2)):
        held = {int(km) // 2 for km in split.tests[0].samples().inputs}
        trained = {int(km) // 2 for km in split.tasks[0].samples().inputs}
        assert held
        assert not held & trained


def test_rows_without_a_value_are_not_kept_together() -> None:
    riders = {**RIDES, "rider": ["none", *RIDES["rider"][1:-1], "none"]}
    with pytest.raises(ValueError, match=r"'rider' has no value in row 1.*'none'"):
        from_table(riders, "kind", keep_together="rider")


def test_missing_values_are_refused_or_imputed() -> None:
    gaps = {**RIDES, "km": [None, *RIDES["km"][1:]], "city": ["", *RIDES["city"][1:]]}
    with pytest.raises(ValueError, match=r"'km' has a missing value in row 1.*missing='impute'"):
        from_table(gaps, "kind")
    with pytest.raises(ValueError, match=r"'city' of the test table .* in row 1.*'impute'"):
        from_table(RIDES, "kind", test={**RIDES, "city": gaps["city"]})
    with pytest.raises(ValueError, match=r"'km' has 2 missing values.*in row 1.*'impute'"):
        from_table({**RIDES, "km": [None, None, *RIDES["km"][2:]]}, "kind")
    stream = from_table(gaps, "kind", features=["km", "city"], missing="impute", test_share=0)
    inputs = stream.tasks[0].samples().inputs
    assert inputs.shape == (N, 5)  # km, whether it is missing, three cities
    assert inputs[0].tolist() == [0, 1, 0, 0, 0]
    assert inputs[1:, 1].sum() == 0
    with pytest.raises(ValueError, match="'kind' has no value in row 1"):
        from_table({**RIDES, "kind": [None, *RIDES["kind"][1:]]}, "kind")


@pytest.mark.parametrize("text", ["none", "N/A", " NaN", "null"])
def test_a_text_that_counts_as_missing_is_quoted(text: str, tmp_path: Path) -> None:
    lines = ["city,kind", *["Oslo,bus", "Rome,car"] * 10, f"{text},bus"]
    (tmp_path / "rides.csv").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=f"row 21.*'{text.strip()}' counts as missing"):
        from_table(tmp_path / "rides.csv", "kind")
    encoder = from_table(tmp_path / "rides.csv", "kind", missing="impute").encoder
    assert encoder is not None
    assert encoder.encode({"city": [text, "Oslo"]}).tolist() == [[0, 0], [1, 0]]


def test_none_is_a_class_and_other_texts_for_missing_values_are_not() -> None:
    rows = {"km": [1, 9, 4] * 10, "kind": ["bus", "none", "None "] * 10}
    with pytest.warns(UserWarning, match="differ only in case"):
        encoder = from_table(rows, "kind").encoder
    assert encoder is not None
    assert encoder.class_names == ("None", "bus", "none")
    assert encoder.labels(["none", "bus", " none "]).tolist() == [2, 1, 2]
    for task in (["none", "bus"], [" none ", "bus"]):
        with pytest.warns(UserWarning, match="differ only in case"):
            stream = from_table(rows, "kind", tasks=[task, ["None"]])
        assert set(stream.tasks[0].samples().labels.tolist()) == {1, 2}
    with pytest.raises(ValueError, match=r"row 2.*'NA' counts as missing"):
        from_table({**rows, "kind": ["bus", "NA", "car"] * 10}, "kind")


@pytest.mark.parametrize("gap", range(20))
def test_a_gap_may_be_in_any_row(gap: int) -> None:
    rows: dict[str, list[Any]] = {"km": [1.0, 3.0] * 10, "kind": ["bus", "car"] * 10}
    gaps = {**rows, "km": [None if row == gap else km for row, km in enumerate(rows["km"])]}
    assert from_table(gaps, "kind", missing="impute").shape == (2,)
    assert from_table(rows, "kind", missing="impute", test=gaps).shape == (2,)


def test_the_first_gap_of_a_column_may_be_in_later_rows(tmp_path: Path) -> None:
    rows: dict[str, list[Any]] = {"km": [1.0, 3.0] * 10, "kind": ["bus", "car"] * 10}
    later = {**rows, "km": [None, *rows["km"][1:]]}
    stream = from_table(rows, "kind", missing="impute", test_share=0)
    assert stream.shape == (1,)
    assert stream.encoder is not None
    stream.encoder.save(tmp_path / "encoder.json")
    encoder = TableEncoder.load(tmp_path / "encoder.json")
    assert encoder.encode([{"km": None}, {"km": 3}]).tolist() == [[0.0], [1.0]]  # the mean
    assert from_table(later, "kind", encoder=encoder).shape == (1,)
    strict = from_table(rows, "kind").encoder
    assert strict is not None
    for refused in (
        lambda: strict.encode(later),
        lambda: from_table(later, "kind", encoder=strict, missing="impute"),
    ):
        with pytest.raises(ValueError, match=r"'km' has a missing value in row 1.*encoder"):
            refused()


@pytest.mark.parametrize(
    ("header", "separator", "names"),
    [
        ('"Height, cm";"Weight, kg";kind', ";", ["Height, cm", "Weight, kg", "kind"]),
        ('"a;b;c;d",kind', ",", ["a;b;c;d", "kind"]),
        ('x;"a, b, c, d"', ";", ["x", "a, b, c, d"]),
        ('"the ""first"", or best";"a\tb\tc"', ";", ['the "first", or best', "a\tb\tc"]),
        ('"two\nlines, at least";kind', ";", ["two\nlines, at least", "kind"]),
        ('5" pipe;6" pipe', ";", ['5" pipe', '6" pipe']),
        ("a|b,c|kind", "|", ["a", "b,c", "kind"]),
        ("kind", ",", ["kind"]),
    ],
)
def test_separators_in_quoted_names_do_not_count(
    tmp_path: Path, header: str, separator: str, names: list[str]
) -> None:
    row = separator.join(map(str, range(len(names))))
    (tmp_path / "a.csv").write_text(f"{header}\n{row}\n")
    assert list(read_columns(tmp_path / "a.csv")) == names


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_csv_file_is_the_same_table(tmp_path: Path, separator: str) -> None:
    (tmp_path / "rides.csv").write_text(as_csv(RIDES, separator), encoding="utf-8-sig")
    stream = from_table(tmp_path / "rides.csv", "kind", tasks="month")
    assert stream.name == "rides"
    assert stream.checksum == from_table(RIDES, "kind", tasks="month", name="rides").checksum


def test_data_frames_and_parquet_files_are_the_same_table(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(RIDES)
    expected = from_table(RIDES, "kind", tasks="month", name="rides").checksum
    assert from_table(frame, "kind", tasks="month", name="rides").checksum == expected
    frame.to_parquet(tmp_path / "rides.parquet")
    assert from_table(tmp_path / "rides.parquet", "kind", tasks="month").checksum == expected
    dates = frame.assign(day=pandas.to_datetime("2026-01-01"))
    with pytest.raises(ValueError, match="'day' contains Timestamp values"):
        from_table(dates, "kind")
    with pytest.raises(ValueError, match="'km' has 40 missing values"):
        from_table(frame.assign(km=float("nan")), "kind")


def test_a_test_table() -> None:
    test = {name: values[::5] for name, values in RIDES.items()}
    stream = from_table(RIDES, "kind", tasks="month", test=test)
    assert [len(t.samples().labels) for t in stream.tests] == [4, 4]
    assert sum(len(task.samples().labels) for task in stream.tasks) == N
    (whole,) = from_table(RIDES, "kind", chunks=2, test=test).tests
    assert len(whole.samples().labels) == 8
    unknown = {**test, "city": ["Paris"] * 8}
    (tests,) = from_table(RIDES, "kind", features=["city"], test=unknown).tests
    assert tests.samples().inputs.sum() == 0
    with pytest.raises(ValueError, match="class 'boat'"):
        from_table(RIDES, "kind", test={**test, "kind": ["boat"] * 8})
    with pytest.raises(ValueError, match="no test samples of the task april"):
        from_table(RIDES, "kind", tasks="month", test={**test, "month": ["may"] * 8})
    with pytest.raises(ValueError, match="no column 'km'"):
        from_table(RIDES, "kind", test={k: v for k, v in test.items() if k != "km"})


def test_classes_that_are_numbers_are_in_numeric_order() -> None:
    stream = from_table({"x": [1.0] * 30, "y": [10, 9, 2] * 10}, "y")
    assert stream.class_names == ("2", "9", "10")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "is empty"),
        ("km,kind\n", "no rows"),
        ("km,km\n1,2\n", "same name"),
        ("km,kind\n1\n", "line 2 has 1 cells"),
        ("\nkm;kind\n\n1\n", "line 4 has 1 cells; the header has 2"),
        ("km,sort\n1,a\n", "no column 'kind'; it has km, sort"),
        ("kind\na\n", "no columns besides kind"),
        ("km,kind\ninf,a\n2,b\n", "infinite"),
    ],
)
def test_what_is_wrong_is_said(content: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(content)
    with pytest.raises(ValueError, match=expected):
        from_table(tmp_path / "table.csv", "kind", test_share=0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"shuffle": "no"},
        {"drop_last": "maybe"},
        {"missing": "foo"},
        {"standardise": False},
        {"standardise": "none"},
        {"max_categories": "abc"},
        {"max_categories": 2.5},
        {"chunks": "3"},
        {"chunks": 1.5},
        {"chunks": 0},
        {"tasks": 1.5},
        {"tasks": True},
        {"tasks": [1, 2]},
        {"tasks": ["car", "bike"]},
        {"test_share": "abc"},
        {"test_share": ""},
        {"features": "km"},
        {"features": 3},
        {"categorical": "rider"},
    ],
)
def test_wrong_values_of_arguments_are_refused(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match="share" if name == "test_share" else name) as refused:
        from_table(RIDES, "kind", **wrong)
    assert repr(value) in str(refused.value) or name == "tasks"


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (b"PK\x03\x04" + bytes(30), "Excel"),
        (b"\xd0\xcf\x11\xe0" + bytes(30), "Excel"),
        (gzip.compress(b"km,kind\n1,a\n", mtime=0), "gzip"),
        ("km,kind\n1,café\n".encode("cp1252"), "UTF-8"),
        ("km,kind\n1,a\n".encode("utf-16"), "UTF-8"),
    ],
)
def test_files_other_than_csv_in_utf8_are_refused(content: bytes, key: str, tmp_path: Path) -> None:
    (tmp_path / "rides.csv").write_bytes(content)
    with pytest.raises(ValueError, match=rf"rides\.csv is .*{key}.*DataFrame") as refused:
        from_table(tmp_path / "rides.csv", "kind")
    assert "codec" not in str(refused.value)


@pytest.mark.parametrize("name", ["target", "keep_together"])
def test_a_column_is_given_by_its_name(name: str) -> None:
    pandas = pytest.importorskip("pandas", reason="optional package not installed")
    rides = pandas.DataFrame(RIDES)
    wrong: dict[str, Any] = {"target": "kind", name: rides["rider"]}
    with pytest.raises(ValueError, match=f"{name} is of type Series; .* name of a column"):
        from_table(rides, **wrong)


def test_whole_numbers_and_switches_may_be_of_numpy() -> None:
    expected = from_table(RIDES, "kind", chunks=2, max_categories=50, shuffle=False)
    numbers: dict[str, Any] = {
        "chunks": np.int64(2),
        "max_categories": np.int64(50),
        "shuffle": np.False_,
    }
    found = from_table(RIDES, "kind", **numbers)
    assert found.checksum == expected.checksum
    tasks: Any = np.int64(2)
    assert len(from_table(RIDES, "kind", tasks=tasks).tasks) == 2


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        *[(f"shuffle={word}", "shuffle") for word in ("no", "off", "maybe", "")],
        *[("chunks=abc", "chunks"), ("chunks=1.5", "chunks"), ("tasks=1.5", "tasks")],
        *[("max_categories=abc", "max_categories"), ("test_share=abc", "abc")],
        *[("missing=foo", "missing"), ("standardise=false", "standardise")],
        ("target=city", "target"),
    ],
)
def test_wrong_settings_written_as_text_are_refused(setting: str, key: str, tmp_path: Path) -> None:
    (tmp_path / "rides.csv").write_text(as_csv(RIDES))
    with pytest.raises(ValueError, match=key):
        stream_from_files("table", f"{tmp_path / 'rides.csv'},target=kind,{setting}")


def test_settings_can_be_written_as_text(tmp_path: Path) -> None:
    (tmp_path / "rides.csv").write_text(as_csv(RIDES))
    stream = stream_from_files("table", f"{tmp_path / 'rides.csv'},target=kind,features=km+city")
    assert stream.shape == (4,)
    with pytest.raises(ValueError, match="target is missing"):
        stream_from_files("table", str(tmp_path / "rides.csv"))
    for empty in ("", ",target=kind"):
        with pytest.raises(ValueError, match="path is missing"):
            stream_from_files("table", empty)
    with pytest.raises(ValueError, match="expected NAME=VALUE") as caught:
        stream_from_files("table", f"{tmp_path / 'rides.csv'},target=kind,encoder=e.json")
    assert "encoder" not in str(caught.value).partition("expected")[2]  # not offered


def test_a_column_written_as_text_may_have_a_number_as_its_name(tmp_path: Path) -> None:
    numbered = dict(zip(("0", "1", "2"), RIDES.values(), strict=False))
    (tmp_path / "rides.csv").write_text(as_csv(numbered))
    expected = from_table(numbered, "2")
    stream = stream_from_files("table", f"{tmp_path / 'rides.csv'},target=2")
    assert stream.class_names == expected.class_names


# -- row numbers ----------------------------------------------------------------------------

SORTED: dict[str, list[Any]] = {"km": [1, 3] * 20, "kind": ["bike"] * 20 + ["car"] * 20}
"""A table whose row numbers tell the class."""


def test_row_numbers_that_pandas_writes_are_no_feature(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="optional package not installed")
    frame = pandas.DataFrame(SORTED)
    frame.to_csv(tmp_path / "numbered.csv")
    shuffled = frame.sample(frac=1, random_state=0)  # Parquet files contain only such an index
    shuffled.to_parquet(tmp_path / "numbered.parquet")
    read = pandas.read_csv(tmp_path / "numbered.csv")
    for table in (tmp_path / "numbered.csv", tmp_path / "numbered.parquet", read):
        with pytest.raises(ValueError, match=r"no name.*features"):
            from_table(table, "kind")
        assert from_table(table, "kind", features=["km"]).shape == (1,)
    frame.to_csv(tmp_path / "plain.csv", index=False)
    shuffled.to_parquet(tmp_path / "plain.parquet", index=False)
    for name in ("plain.csv", "plain.parquet"):
        assert from_table(tmp_path / name, "kind").shape == (1,)


@pytest.mark.parametrize("name", ["", " ", "Unnamed: 0", "__index_level_0__"])
def test_a_column_without_a_name_is_a_feature_only_if_it_is_listed(name: str) -> None:
    table = {name: EVEN, **SORTED}
    with pytest.raises(ValueError, match=r"column 1 .*no name.*features"):
        from_table(table, "kind")
    assert from_table(table, "kind", features=[name, "km"]).shape == (2,)
    assert from_table(table, "kind", keep_together=name).shape == (1,)


def test_an_encoder_reads_the_columns_of_the_first_table_only() -> None:
    first = from_table(SORTED, "kind").encoder
    assert from_table({"": EVEN, **SORTED}, "kind", encoder=first).shape == (1,)
    listed = from_table({"": EVEN, **SORTED}, "kind", features=[""]).encoder
    assert from_table({"": EVEN, **SORTED}, "kind", encoder=listed).shape == (1,)
    with pytest.raises(ValueError, match="no column ''"):
        from_table(SORTED, "kind", encoder=listed)


@pytest.mark.parametrize("kind", [int, str, np.int64])
@pytest.mark.parametrize(("first", "step"), [(0, 1), (1, 1), (-100_000, 1), (2, 7)])
def test_integers_that_increase_by_row_produce_a_warning(first: int, step: int, kind: Any) -> None:
    table = {**SORTED, "id": [kind(first + step * row) for row in range(40)]}
    cases: list[dict[str, Any]] = [{}, {"categorical": ["id"]}]
    for options in cases:
        with pytest.warns(UserWarning, match=r"'id' increases.*features") as found:
            encoder = from_table(table, "kind", **options).encoder
        assert found[0].filename == __file__
    from_table(table, "kind", encoder=encoder)  # a warning would be an error
    from_table(table, "kind", features=["id"])
    from_table(table, "kind", keep_together="id")
    from_table(table, "kind", test=table)


@pytest.mark.parametrize(
    "values",
    [
        *([*range(39), 7], [*range(39), 38], list(range(40, 0, -1)), ["", *range(1, 40)]),
        [float(row) for row in range(40)],
    ],
)
def test_other_numbers_do_not_show_the_position_of_a_row(values: list[Any]) -> None:
    from_table({**SORTED, "id": values}, "kind", missing="impute")
    few = {name: column[15:25] for name, column in SORTED.items()}
    from_table({**few, "id": list(range(10))}, "kind")  # too few rows to tell


@pytest.mark.parametrize(
    "setting", ["features=", "features=km+", "features= ", "categorical=", "keep_together="]
)
def test_an_empty_value_written_as_text_selects_no_column(setting: str, tmp_path: Path) -> None:
    (tmp_path / "rides.csv").write_text(as_csv({"": EVEN, **SORTED}))
    with pytest.raises(ValueError, match=re.escape(repr(setting))):
        stream_from_files("table", f"{tmp_path / 'rides.csv'},target=kind,{setting}")
    with pytest.raises(ValueError, match="'target='"):
        stream_from_files("table", f"{tmp_path / 'rides.csv'},target=")


# -- new rows -------------------------------------------------------------------------------


def test_the_encoder_encodes_new_rows_as_the_stream_did(tmp_path: Path) -> None:
    rows: dict[str, list[Any]] = {
        "km": [1, 5, 3, 9] * 5,
        "city": ["Rome", "Oslo", "", "Oslo"] * 5,
        "kind": ["bike", "car", "bike", "car"] * 5,
    }
    stream = from_table(rows, "kind", missing="impute", test_share=0)
    assert stream.encoder is not None
    expected = stream.tasks[0].samples().inputs
    stream.encoder.save(tmp_path / "encoder.json")
    loaded = TableEncoder.load(tmp_path / "encoder.json")
    assert loaded == stream.encoder
    without_target = {name: rows[name] for name in ("city", "km")}
    as_rows = [{"km": km, "city": city} for km, city in zip(rows["km"], rows["city"], strict=True)]
    for source in (rows, without_target, as_rows):
        torch.testing.assert_close(loaded.encode(source), expected, rtol=0, atol=0)
    assert loaded.decode(torch.tensor([1, 0])) == ["car", "bike"]
    assert loaded.labels(["car", " bike", "car"]).tolist() == [1, 0, 1]
    assert loaded.labels([]).dtype == torch.int64
    for names in (["car", "ship"], ["car", None], "car"):
        with pytest.raises(ValueError, match=r"ship|no value|list of names"):
            loaded.labels(names)
    with pytest.raises(ValueError, match="km"):
        loaded.encode({"city": ["Rome"]})
    assert torch.equal(loaded.encode({"km": "1", "city": "Rome"}), expected[:1])  # a single row
    for wrong, key in (({"km": [1], "city": "Rome"}, "city"), ({"km": "inf", "city": ""}, "inf")):
        with pytest.raises(ValueError, match=key):
            loaded.encode(wrong)
    with pytest.raises(ValueError, match="label 2"):
        loaded.decode([2])
    for single in (1, np.int64(1), None):
        with pytest.raises(ValueError, match="expected integers"):
            loaded.decode(single)  # type: ignore[arg-type]
    logits = torch.rand(2, 2, requires_grad=True)
    for scores in (logits, logits.bfloat16(), torch.tensor(1), [0.5]):
        with pytest.raises(ValueError, match=r"learner\.predict"):
            loaded.decode(scores)  # type: ignore[arg-type]


def test_numbers_that_are_categories_may_be_spelled_in_two_ways(tmp_path: Path) -> None:
    (tmp_path / "codes.csv").write_text("code,kind\n" + "1.0,a\n2.0,b\n" * 10)
    encoder = from_table(tmp_path / "codes.csv", "kind", categorical=["code"]).encoder
    assert encoder is not None
    for code in (2, 2.0, "2", "2.0", "2.00"):
        assert encoder.encode({"code": code}).tolist() == [[0.0, 1.0]]


def test_missing_values_of_pandas_and_huge_integers(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="optional package not installed")
    column = pandas.array([1, None, 3, 4] * 5, dtype="Int64")
    rows = pandas.DataFrame({"km": column, "kind": ["a", "b"] * 10})
    stream = from_table(rows, "kind", missing="impute", test_share=0)
    assert stream.tasks[0].samples().inputs[:, 1].tolist() == [0.0, 1.0, 0.0, 0.0] * 5
    with pytest.raises(ValueError, match="missing"):
        from_table(rows, "kind")
    with pytest.raises(ValueError, match="is not a number"):
        from_table({"km": [10**400, 1] * 5, "kind": ["a", "b"] * 5}, "kind")


def test_a_target_that_is_a_quantity_produces_a_warning() -> None:
    with pytest.warns(UserWarning, match="quantities"):
        from_table({"km": [1, 2, 3, 4] * 5, "price": [0.5, 1, 1.5, 2] * 5}, "price")


def test_a_target_with_a_value_for_nearly_every_row_is_refused() -> None:
    price = [number / 7 for number in range(1, 21)]
    with pytest.raises(ValueError, match="quantities"):
        from_table({"km": EVEN, "price": price + price[:9] + [0.5] * 11}, "price")
    first = from_table({"km": [1, 2] * 10, "kind": ["a", "b"] * 10}, "kind").encoder
    assert isinstance(first, TableEncoder)
    encoder = TableEncoder(target="price", class_names=("0.5", "1.5"), columns=first.columns)
    with pytest.warns(UserWarning, match="quantities"):  # a small delivery of known classes
        from_table({"km": [1, 2], "price": [0.5, 1.5]}, "price", encoder=encoder, test_share=0)


def test_a_target_of_many_whole_numbers_in_few_rows_each_produces_a_warning() -> None:
    draws = np.random.default_rng(0)
    price = np.rint(draws.normal(300, 60, 1000)).astype(int)
    with pytest.warns(UserWarning, match="'price'.*quantities"):
        from_table({"km": draws.normal(size=1000), "price": price}, "price", test_share=0)
    with pytest.raises(ValueError, match=r"'price'.*quantities.*two rows"):
        from_table({"km": draws.normal(size=30), "price": draws.permutation(30)}, "price")


@pytest.mark.parametrize("count", [2, 100, 150])
def test_classes_may_be_whole_numbers(count: int) -> None:
    codes = list(range(1000, 1000 + count))
    km = np.random.default_rng(0).normal(size=10 * count)
    first = from_table({"km": km, "code": codes * 10}, "code")
    few = {"km": km[:count], "code": codes}
    assert from_table(few, "code", encoder=first.encoder, test_share=0).classes == count


def test_rows_can_keep_their_order(tmp_path: Path) -> None:
    (tmp_path / "rides.csv").write_text(as_csv(RIDES))
    text = f"{tmp_path / 'rides.csv'},target=kind,features=km,standardise=no,test_share=0"
    (task,) = stream_from_files("table", f"{text},shuffle=false").tasks
    rows = torch.cat([batch.inputs for batch in task.epoch(7, torch.Generator())])
    assert rows.flatten().tolist() == RIDES["km"]


def test_values_far_from_those_of_the_first_task_are_limited() -> None:
    rows = {"km": [1, 3] * 10 + [1000, -1000] * 10, "kind": ["bus", "car"] * 10 + ["bike"] * 20}
    tasks = [["bus", "car"], ["bike"]]
    with pytest.warns(UserWarning, match="'km'"):
        stream = from_table(rows, "kind", tasks=tasks, test_share=0)
    assert set(stream.tasks[1].samples().inputs.flatten().tolist()) == {-10.0, 10.0}
    stream = from_table(rows, "kind", tasks=tasks, test_share=0, standardise="no")
    assert set(stream.tasks[1].samples().inputs.flatten().tolist()) == {-1000.0, 1000.0}


def scaled_poorly(*, first: list[Any], later: list[Any], **options: Any) -> list[str]:
    """The warnings about a column with these values in the first and second half of the rows."""
    n = 200
    table = {
        "km": [1.0, 2.0] * n,
        "spend": first * (n // len(first)) + later * (n // len(later)),
        "kind": ["bus", "bus", "car", "car"] * (n // 2),
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from_table(table, "kind", chunks=2, missing="impute", **options)
    assert not any("'km'" in str(warning.message) for warning in caught)
    return [str(warning.message) for warning in caught]


def test_columns_that_cannot_be_standardised_produce_a_warning() -> None:
    for first in ([0.0], [0.1], [None], [None, 0.1]):
        (message,) = scaled_poorly(first=first, later=[1000.0, 1500.0])
        assert "constant" in message
        assert "'spend'" in message
        assert "all tasks" in message
        assert scaled_poorly(first=first, later=[1000.0, 1500.0], standardise="all tasks") == []
        assert scaled_poorly(first=first, later=[1000.0, 1500.0], standardise="no") == []
    assert len(scaled_poorly(first=[0], later=[0.001, 0.002])) == 1
    assert scaled_poorly(first=[0], later=[0, 1]) == []  # scale 1 suits it
    assert scaled_poorly(first=[5], later=[5]) == []


def test_columns_with_many_clipped_values_produce_a_warning() -> None:
    (message,) = scaled_poorly(first=[1.0, 3.0], later=[1000.0, 1500.0])
    assert "'spend'" in message
    assert "all tasks" in message
    assert scaled_poorly(first=[1.0, 3.0], later=[1000.0, 1500.0], standardise="all tasks") == []
    rare = [1000.0, *[1.0, 3.0] * 12]  # 2 % of all rows
    assert scaled_poorly(first=[1.0, 3.0], later=rare) == []
    encoder = from_table({"km": [1, 3] * 10, "kind": ["bus", "car"] * 10}, "kind").encoder
    with pytest.warns(UserWarning, match=r"'km'.*encoder"):
        from_table({"km": [100, 300] * 10, "kind": ["bus", "car"] * 10}, "kind", encoder=encoder)


@pytest.mark.parametrize("content", [None, b"{", b'{"kind": "images"}', b"[]"])
def test_other_files_are_no_encoders(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "encoder.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"encoder\.json"):
        TableEncoder.load(tmp_path / "encoder.json")


INCONSISTENT: list[tuple[tuple[Any, ...], Any, str]] = [
    (("class_names",), ["car", "car"], "'car' occurs twice"),
    (("columns",), [], "no columns"),
    (("columns", 1, "name"), "km", "'km' occurs twice"),
    (("columns", 0, "name"), "kind", "'kind' occurs twice"),
    (("columns", 0, "limit"), -1, "limit"),
    (("columns", 0, "limit"), 0, "limit"),
    (("columns", 0, "scale"), 0, "scale"),
    (("columns", 0, "scale"), -1, "scale"),
    (("columns", 0, "scale"), 1e-320, "scale"),
    (("columns", 1, "categories"), ["Oslo", "Oslo"], "'Oslo' occurs twice"),
]


@pytest.mark.parametrize(("place", "value", "message"), INCONSISTENT)
def test_an_inconsistent_encoder_is_refused(
    place: tuple[Any, ...], value: Any, message: str, tmp_path: Path
) -> None:
    encoder = from_table(RIDES, "kind", features=["km", "city"]).encoder
    assert encoder is not None
    encoder.save(tmp_path / "encoder.json")
    content = part = json.loads((tmp_path / "encoder.json").read_text())
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    (tmp_path / "encoder.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        TableEncoder.load(tmp_path / "encoder.json")


def test_later_rows_keep_the_labels_and_the_scale_of_earlier_ones() -> None:
    first = from_table({"km": [1, 3] * 10, "kind": ["bus", "car"] * 10}, "kind")
    later = {"km": [5, 1] * 10, "kind": ["bike", "car"] * 10}
    second = from_table(later, "kind", encoder=first.encoder, test_share=0)
    assert second.class_names == ("bus", "car", "bike")
    samples = second.tasks[0].samples()
    assert samples.inputs[:2].flatten().tolist() == [3.0, -1.0]
    assert samples.labels[:2].tolist() == [2, 1]
    pictures = ImageEncoder(class_names=("cat", "dog"), height=8, width=8)
    with pytest.raises(ValueError, match="ImageEncoder"):
        from_table(later, "kind", encoder=pictures)


@pytest.mark.parametrize(
    ("first", "later"),
    [([0, 1], ["0.0", "1.0"]), (["0.0", "1.0"], [0, 1]), ([-1, 1], [-1.0, 1.0])],
)
def test_a_number_is_the_same_class_in_every_spelling(first: list[Any], later: list[Any]) -> None:
    start = from_table({"km": [1, 3] * 10, "kind": first * 10}, "kind", test_share=0)
    again = from_table(
        {"km": [1, 3] * 10, "kind": later * 10}, "kind", encoder=start.encoder, test_share=0
    )
    assert again.class_names == start.class_names
    assert again.tasks[0].samples().labels.tolist() == [0, 1] * 10
    assert start.encoder is not None
    assert start.encoder.labels(later).tolist() == [0, 1]


@pytest.mark.parametrize("values", [["1", "1.0", "x"], ["1.0", "1", "x"], ["1.00", "x", "1"]])
def test_a_new_class_may_be_spelled_in_two_ways(values: list[str], tmp_path: Path) -> None:
    table: dict[str, list[Any]] = {"km": [1, 2, 3] * 10, "kind": values * 10}
    (tmp_path / "rides.csv").write_text(as_csv(table))
    expected = [values.index("x") == number % 3 for number in range(30)]
    known = from_table({"km": [1, 2], "kind": ["a", "b"]}, "kind", test_share=0).encoder
    for encoder, names in ((None, ("1", "x")), (known, ("a", "b", "1", "x"))):
        stream = from_table(tmp_path / "rides.csv", "kind", encoder=encoder, test_share=0)
        assert stream.class_names == names
        labels = stream.tasks[0].samples().labels - (len(names) - 2)
        assert labels.bool().tolist() == expected


def test_codes_and_names_in_other_spellings_are_other_classes() -> None:
    km = [1, 3] * 10
    codes = from_table({"km": km, "kind": ["7", "8"] * 10}, "kind").encoder
    stream = from_table({"km": km, "kind": ["07", "8b"] * 10}, "kind", encoder=codes)
    assert stream.class_names == ("7", "8", "07", "8b")
    assert codes is not None
    both = msgspec.structs.replace(codes, class_names=("1", "1.0"))  # of an earlier version
    assert both.labels(["1.0", "1"]).tolist() == [1, 0]
    names = from_table({"km": km, "kind": ["billing", "login"] * 10}, "kind").encoder
    with pytest.warns(UserWarning, match="'Billing' and 'billing'"):
        stream = from_table({"km": km, "kind": ["Billing", "login"] * 10}, "kind", encoder=names)
    assert stream.class_names == ("billing", "login", "Billing")


def test_the_first_table_may_have_a_single_class() -> None:
    with pytest.warns(UserWarning, match="'bus'"):
        first = from_table({"km": [1, 3] * 10, "kind": ["bus"] * 20}, "kind")
    assert first.class_names == ("bus",)
    learner = ER(nn.Linear(1, 1), buffer_size=10, grow=True)
    fit(learner, first)
    later = {"km": [30] * 20, "kind": ["car"] * 20}
    with pytest.warns(UserWarning, match="limit"):
        fit(learner, from_table(later, "kind", encoder=first.encoder), batch=2, epochs=5)
    assert learner.predict(torch.tensor([[10.0]])).tolist() == [1]
    same = from_table({"km": [1], "kind": ["bus"]}, "kind", encoder=first.encoder, test_share=0)
    assert same.class_names == ("bus",)


def test_dates_that_are_text_produce_a_warning() -> None:
    day = [f"2026-01-{number % 20 + 1:02}" for number in range(N)]
    local = [f"{d[8:]}.{d[5:7]}.{d[:4]}" for d in day]
    for dates in (
        *(day, [f"{d}T08:30:00" for d in day], ["soon", *day[1:]]),
        *(local, [f"{d.replace('.', '/')} 8:30" for d in local]),
    ):
        table = {**RIDES, "day": dates}
        with pytest.warns(UserWarning, match=r"'day'.*dates.*numbers.*features.*categorical"):
            from_table(table, "kind")
        from_table(table, "kind", features=["km", "city"])  # a warning would be an error
        from_table(table, "kind", categorical=["day"])
        with pytest.raises(ValueError, match=r"'day' has .* dates.*numbers.*max_categories"):
            from_table(table, "kind", max_categories=10)


@pytest.mark.parametrize("odd", ["unknown", "1,234", "5%"])
def test_text_in_a_column_of_numbers_produces_a_warning(odd: str) -> None:
    age = [odd if row == 6 else str(row) for row in range(N)]
    table = {"age": age, "kind": RIDES["kind"]}
    with pytest.warns(UserWarning, match=f"'age'.*'{odd}' in row 7.*categorical"):
        stream = from_table(table, "kind", test_share=0)
    assert stream.shape == (N,)
    with pytest.raises(ValueError, match=f"'age' has {N}.*'{odd}' in row 7.*max_categories"):
        from_table(table, "kind", test_share=0, max_categories=10)
    from_table(table, "kind", test_share=0, categorical=["age"])  # a warning would be an error
    sizes = {"size": ["38", "40", "M", "L"] * (N // 4), "kind": RIDES["kind"]}
    from_table(sizes, "kind")  # half of the values are numbers
    gaps = {**table, "age": [None if value == odd else value for value in age]}
    assert from_table(gaps, "kind", missing="impute").shape == (2,)


@pytest.mark.parametrize("rows", [[], {}, {"km": [], "city": []}])
def test_an_encoder_needs_rows(rows: Any) -> None:
    encoder = from_table(RIDES, "kind", features=["km", "city"]).encoder
    assert encoder is not None
    with pytest.raises(ValueError, match="no rows"):
        encoder.encode(rows)


def test_categories_that_are_mostly_unknown_produce_a_warning() -> None:
    rows = {"city": ["Oslo", "Rome"] * 10, "kind": ["bus", "car"] * 10}
    encoder = from_table(rows, "kind", missing="impute").encoder
    assert encoder is not None
    shouted = {**rows, "city": ["OSLO"] * 11 + ["Rome"] * 9}
    with pytest.warns(UserWarning, match=r"'city'.*55%.*'OSLO'"):
        encoder.encode(shouted)
    with pytest.warns(UserWarning, match="'city'"):
        from_table(shouted, "kind", encoder=encoder)
    for city in (
        ["OSLO"] * 10 + ["Rome"] * 10,  # no more than half
        ["OSLO"] * 19,  # too few rows to tell
        [""] * 20,  # missing, not unknown
    ):
        encoder.encode({"city": city})  # a warning would be an error


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.float32("inf"), "inf"])
def test_an_infinite_value_is_reported_with_its_place(value: Any) -> None:
    for row in range(5):  # held out or not
        km: list[Any] = [str(number) if value == "inf" else number for number in (1, 2, 4, 3, 5)]
        km[row] = value
        with pytest.raises(ValueError, match=rf"'km', row {row + 1}: .*; correct"):
            from_table({"km": [*km, 6], "kind": ["a", "b"] * 3}, "kind")


def test_a_value_that_is_no_number_is_reported_with_its_place() -> None:
    encoder = from_table({"km": [1, 2] * 10, "kind": ["a", "b"] * 10}, "kind").encoder
    assert encoder is not None
    for wrong in ("abc", "inf"):
        with pytest.raises(ValueError, match=f"'km', row 2: .*{wrong}"):
            encoder.encode({"km": [1, wrong, 2]})
