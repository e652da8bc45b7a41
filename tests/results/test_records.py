"""Run folders become records; folders that cannot be used are skipped with a reason."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.files import append_line, digest, write_manifest
from perdure.results import RunFolder, collect, read_run
from perdure.results.records import Facts

from . import made
from .made import change, record, write


def test_a_folder_is_read_as_it_was_written(tmp_path: Path) -> None:
    expected = record(analysis=made.analysis("stable"), update="regular", max_steps=30)
    found = read_run(write(tmp_path, expected), expected.place)
    for name in ("config", "facts", "result", "timing", "events", "analysis", "remarks"):
        assert getattr(found, name) == getattr(expected, name)
    assert found.seed == 0


@pytest.mark.parametrize(
    ("file", "path", "value"),
    [
        ("config.json", ["seed"], "zero"),
        ("config.json", ["hyperparameters", "lr"], None),
        ("config.json", ["update"], "coin"),
        ("config.json", ["precision"], "fp16"),
        ("config.json", ["validation"], 1.0),
        ("config.json", ["validation"], -0.1),
        ("config.json", ["prequential_window"], 0),
        ("config.json", ["prequential_window"], 10**12),
        ("config.json", ["buffer_bytes"], 0),
        ("config.json", ["max_steps"], 0),
        ("config.json", ["stream_seed"], "each"),
        ("result.json", ["predictors"], {}),
        ("result.json", ["predictors", "stable", "class_il", "mean"], "high"),
        ("result.json", ["predictors", "stable", "class_il", "mean"], 1e308),
        ("result.json", ["predictors", "stable", "class_il", "matrix"], [[1.0]]),
        ("result.json", ["steps"], True),
    ],
)
def test_a_damaged_run_is_skipped_and_others_are_read(
    tmp_path: Path, file: str, path: list[str], value: object
) -> None:
    write(tmp_path, record(seed=1))
    change(write(tmp_path, record(seed=0)) / file, path, value)
    found = collect([tmp_path])
    assert [run.seed for run in found.runs] == [1]
    (skipped,) = found.skipped
    assert skipped.state == "damaged"
    assert file in skipped.reason
    assert str(tmp_path) not in skipped.reason


def test_unfinished_damaged_and_other_folders_are_told_apart(tmp_path: Path) -> None:
    write(tmp_path, record())
    (write(tmp_path, record(seed=1)) / "result.json").write_text("{")
    (write(tmp_path, record(seed=2)) / "result.json").unlink()
    (write(tmp_path, record(seed=3)) / "config.json").unlink()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "beach.jpg").touch()
    (tmp_path / "report.html").write_text("a file next to the runs is fine")
    found = collect([tmp_path])
    assert len(found.runs) == 1
    assert {Path(skipped.place).name: skipped.state for skipped in found.skipped} == {
        "photos": "unknown",
        "seed-1": "damaged",
        "seed-2": "unfinished",
        "seed-3": "damaged",
    }


def test_a_copy_of_a_run_counts_once(tmp_path: Path) -> None:
    write(tmp_path / "a", record())
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    found = collect([tmp_path / "a", tmp_path / "b"])
    assert len(found.runs) == 1
    (skipped,) = found.skipped
    assert skipped.state == "duplicate"
    assert found.runs[0].place in skipped.reason


def test_a_single_run_can_be_read(tmp_path: Path) -> None:
    assert [run.place for run in collect([write(tmp_path, record())]).runs] == ["seed-0"]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("analysis.json", "{"),
        ("analysis.json", '{"predictors": {}}'),
        ("events.jsonl", '{"event": "metrics"}'),
        ("events.jsonl", "[1]\n"),
        ("events.jsonl", '{"event": "metrics", "step": 1, "values": {"loss": "nan"}}\n'),
        ("timing.json", "[]"),
        ("timing.json", '{"seconds": 1, "side_by_side": 0}'),
    ],
)
def test_a_damaged_optional_file_costs_only_itself(tmp_path: Path, file: str, content: str) -> None:
    path = write(tmp_path, record(analysis=made.analysis("stable")))
    (path / file).write_text(content)
    found = read_run(path)
    assert found.result == record().result
    (remark,) = found.remarks
    assert remark.startswith(file)
    assert str(tmp_path) not in remark


def test_analyses_of_the_wrong_shape_are_ignored(tmp_path: Path) -> None:
    path = write(tmp_path, record(analysis=made.analysis("stable")))
    change(path / "analysis.json", ["predictors", "stable", "confusion", "classes"], [0, 1])
    assert read_run(path).analysis is None
    change(path / "analysis.json", ["predictors", "stable", "confusion", "classes"], [])
    assert read_run(path).analysis == made.analysis("stable")


def test_unknown_events_and_fields_are_ignored(tmp_path: Path) -> None:
    path = write(tmp_path, record())
    RunFolder(path).event("histogram_of_mine", counts=[1, 2])
    append_line(path / "events.jsonl", '{"event": ["not a name"]}')
    change(path / "config.json", ["a_later_setting"], 1)
    found = read_run(path)
    assert (found.events, found.remarks) == (made.EVENTS, ())


@pytest.mark.parametrize("name", ["config.json", "result.json", "events.jsonl"])
def test_a_file_that_differs_from_the_manifest_is_not_used(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, record())
    files = {file.name: digest(file.read_bytes()) for file in path.glob("*.json*")}
    write_manifest(path / "manifest.json", {"files": files})
    assert read_run(path).remarks == ()
    (path / name).write_bytes((path / name).read_bytes() + b"\n")
    if name == "events.jsonl":
        found = read_run(path)
        assert found.events == ()
        assert "changed" in found.remarks[0]
    else:
        with pytest.raises(ValueError, match="changed"):
            read_run(path)


def test_without_runs_there_is_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        collect([tmp_path / "nothing"])
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "beach.jpg").touch()
    with pytest.raises(ValueError, match="no runs"):
        collect([tmp_path])


def test_users_modules_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_with_effects.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    path = write(tmp_path / "runs", record())
    for name in ("stream", "method", "network"):
        change(path / "config.json", [name], f"mine_with_effects:{name}")
    (setting,) = collect([tmp_path / "runs"]).settings
    assert setting.label == "mine_with_effects:method 500"
    assert setting.figures() == []
    assert "--set lr=" in setting.command
    assert "mine_with_effects" not in sys.modules


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.text(max_size=3),
    st.integers(-(10**400), 10**400),
    st.floats(),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)


@st.composite
def places(draw: st.DrawFn, content: Any) -> list[Any]:
    """A path into a JSON value."""
    path: list[Any] = []
    while isinstance(content, dict | list) and content and (not path or draw(st.booleans())):
        keys = list(content) if isinstance(content, dict) else list(range(len(content)))
        path.append(draw(st.sampled_from(keys)))
        content = content[path[-1]]
    return path


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write(root, record(seed=1))
    return write(root, record(analysis=made.analysis("stable")))


@settings(max_examples=150)
@given(data=st.data())
def test_whatever_a_file_contains_the_other_run_is_read(
    two_runs: Path, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(["config.json", "result.json", "analysis.json"]))
    original = (two_runs / name).read_text()
    try:
        change(two_runs / name, data.draw(places(json.loads(original))), data.draw(JUNK))
        found = collect([two_runs.parents[2]])
    finally:
        (two_runs / name).write_text(original)
    assert 1 in [run.seed for run in found.runs]
    assert len(found.runs) + len(found.skipped) == 2
    for setting in found.settings:
        assert setting.label
        assert setting.command
        json.dumps(setting.summary())


def read_shape(shape: object) -> object:
    return msgspec.convert({"hash": "", "seed": 0, "data": "", "shape": shape}, Facts).shape


@pytest.mark.parametrize(
    "shape", [{"a": 3}, [[2, {"a": 3}]], [True], [-1], [10**30], [[2], "x"], [1, [2]]]
)
def test_a_shape_is_made_of_lists_of_sizes(shape: object) -> None:
    with pytest.raises(msgspec.ValidationError, match="shape"):
        read_shape(shape)


@pytest.mark.parametrize("shape", [[], [3, 8], {"a": [3], "b": [[2], [4]]}])
def test_a_shape_is_read(shape: object) -> None:
    assert read_shape(shape) == shape


@pytest.mark.parametrize("name", ["learner.safetensors", "models/stable.safetensors"])
def test_a_network_of_another_size_than_in_the_manifest_is_remarked(
    tmp_path: Path, name: str
) -> None:
    path = write(tmp_path, record())
    (path / name).write_bytes(b"weights")
    write_manifest(path / "manifest.json", {"files": {name: digest(b"more weights")}})
    found = read_run(path)
    assert found.result == record().result
    (remark,) = found.remarks
    assert remark.startswith(f"{name} was changed")
    (path / name).unlink()
    assert read_run(path).remarks == ()
