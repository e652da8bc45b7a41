"""Runs are found, checked and grouped; what cannot be used is named and breaks nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.report.content import compose
from perdure.report.markdown import markdown
from perdure.report.reading import collect

from . import made


def change(file: Path, path: list[str], value: object) -> None:
    """Put a value somewhere into a JSON file."""
    content = json.loads(file.read_text())
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    file.write_text(json.dumps(content))


def test_seeds_of_a_setting_come_together_in_order(tmp_path: Path) -> None:
    for seed in (10, 2, 0):
        made.make_run(tmp_path, seed=seed, mean=90.0 + seed)
    (found,) = collect([tmp_path]).settings
    assert found.seeds == [0, 2, 10]
    assert found.label == "CLS-ER 500"
    assert found.predictors == ["stable", "plastic", "working"]
    spread = found.spread("stable")
    assert spread is not None
    assert spread.mean == pytest.approx(94.0)
    assert spread.std == pytest.approx(5.2915, abs=1e-4)
    assert str(spread) == "94.00 ± 5.29"


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    assert str(made.setting(tmp_path).spread("stable")) == "92.00"


def test_other_data_another_setup(tmp_path: Path) -> None:
    made.make_run(tmp_path)
    made.make_run(tmp_path, dataset="mnist5k")
    made.make_run(tmp_path, dataset="mnist5k", max_steps=30)
    made.make_run(tmp_path, "mnist-360", tests=["all"])
    names = [setup.name for setup in collect([tmp_path]).setups]
    assert names == [
        "s-mnist",
        "s-mnist (mnist5k)",
        "s-mnist (mnist5k, first 30 steps)",
        "mnist-360",
    ]


def test_setups_that_would_share_a_name_are_told_apart(tmp_path: Path) -> None:
    for seed, checksum in enumerate(["aaaa", "bbbb", "cccc"]):
        folder = made.make_run(tmp_path, seed=seed)
        change(folder / "config.json", ["data_checksum"], checksum)
        change(folder / "config.json", ["hash"], checksum)
    names = [setup.name for setup in collect([tmp_path]).setups]
    assert names == ["s-mnist", "s-mnist, no. 2", "s-mnist, no. 3"]


def test_labels_say_where_a_setting_departs_from_the_usual(tmp_path: Path) -> None:
    made.make_run(tmp_path)
    made.make_run(tmp_path, values={"stable_rate": 0.5})
    made.make_run(tmp_path, buffer_size=200)
    made.make_run(tmp_path, update="regular")
    (setup,) = collect([tmp_path]).setups
    assert [s.label for s in setup.settings] == [
        "CLS-ER 200",
        "CLS-ER 500",
        "CLS-ER 500 (stable rate 0.5)",
        "CLS-ER 500 (update regular)",
    ]


def test_figures_compare_one_setting_of_each_method_the_usual_one_first(tmp_path: Path) -> None:
    for seed in range(3):
        made.make_run(tmp_path, seed=seed, values={"stable_rate": 0.5}, dataset="mnist5k")
    made.make_run(tmp_path, dataset="mnist5k")
    made.make_run(tmp_path, method="er", buffer_size=200, dataset="mnist5k")
    made.make_run(tmp_path, method="sgd", buffer_size=None, dataset="mnist5k")
    (setup,) = collect([tmp_path]).setups
    assert setup.buffers() == [200, 500]
    assert [s.label for s in setup.comparison(500)] == ["CLS-ER 500", "SGD"]
    assert [s.label for s in setup.comparison(200)] == ["ER 200", "SGD"]


@pytest.mark.parametrize(
    ("file", "path", "value", "reason"),
    [
        ("config.json", ["seed"], "zero", 'config.json.seed is "zero"; expected a whole number'),
        ("config.json", ["values", "lr"], None, "config.json.values.lr is null"),
        ("config.json", ["published"], 1, "expected true or false"),
        ("result.json", ["predictors"], {}, "names no predictor"),
        ("result.json", ["predictors", "stable", "class_il", "mean"], "high", "a finite number"),
        ("result.json", ["predictors", "stable", "class_il", "matrix"], [[1.0]], "not 6 by 5"),
        ("result.json", ["steps"], True, "expected a whole number"),
    ],
)
def test_a_damaged_run_is_named_with_what_is_wrong(
    tmp_path: Path, file: str, path: list[str], value: object, reason: str
) -> None:
    made.make_run(tmp_path, seed=1)
    folder = made.make_run(tmp_path)
    change(folder / file, path, value)
    found = collect([tmp_path])
    assert [run.seed for run in found.runs] == [1]
    (left,) = found.leftovers
    assert left.state == "damaged"
    assert reason in left.reason
    assert str(tmp_path) not in left.reason


def test_broken_json_unfinished_and_foreign_folders_are_named(tmp_path: Path) -> None:
    made.make_run(tmp_path)
    broken = made.make_run(tmp_path, seed=1)
    (broken / "result.json").write_text("{")
    unfinished = made.make_run(tmp_path, seed=2)
    (unfinished / "result.json").unlink()
    no_config = made.make_run(tmp_path, seed=3)
    (no_config / "config.json").unlink()
    (tmp_path / "holiday").mkdir()
    (tmp_path / "holiday" / "beach.jpg").write_bytes(b"")
    (tmp_path / "report.html").write_text("beside the runs, as one would")
    found = collect([tmp_path])
    assert len(found.runs) == 1
    states = {Path(left.place).name: left.state for left in found.leftovers}
    assert states == {
        "holiday": "foreign",
        "seed-1": "damaged",
        "seed-2": "unfinished",
        "seed-3": "damaged",
    }


def test_the_same_run_in_two_places_counts_once(tmp_path: Path) -> None:
    made.make_run(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    found = collect([tmp_path / "a", tmp_path / "b"])
    assert len(found.runs) == 1
    (left,) = found.leftovers
    assert left.state == "twice"
    assert left.reason.startswith("the same run as a/s-mnist")


def test_a_single_run_folder_can_be_named(tmp_path: Path) -> None:
    folder = made.make_run(tmp_path)
    assert [run.place for run in collect([folder]).runs] == ["seed-0"]


@pytest.mark.parametrize(
    ("file", "content", "remark"),
    [
        ("analysis.json", "{", "analysis.json cannot be read"),
        ("analysis.json", '{"predictors": {}}', 'analysis.json has no "agreement"'),
        ("events.jsonl", '{"event": "totals"}', 'event 1 has no "step"'),
        ("events.jsonl", "[1]\n", "event 1 is [1]; expected an object"),
        ("timing.json", "[]", "does not hold a JSON object"),
    ],
)
def test_a_run_keeps_its_result_when_another_file_is_damaged(
    tmp_path: Path, file: str, content: str, remark: str
) -> None:
    folder = made.make_run(tmp_path)
    (folder / file).write_text(content)
    run = made.only_run(tmp_path)
    (said,) = run.remarks
    assert remark in said
    assert "left out" in said


def test_analyses_of_the_wrong_shape_are_left_out(tmp_path: Path) -> None:
    folder = made.make_run(tmp_path)
    change(folder / "analysis.json", ["predictors", "stable", "confusion", "classes"], [0, 1])
    run = made.only_run(tmp_path)
    assert run.analysis is None
    assert "confusion of stable is not 2 by 2" in run.remarks[0]


def test_no_runs_at_all_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a folder"):
        collect([tmp_path / "nothing"])
    (tmp_path / "holiday").mkdir()
    (tmp_path / "holiday" / "beach.jpg").write_bytes(b"")
    with pytest.raises(ValueError, match="there are no runs in"):
        collect([tmp_path])


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
    """A way into a JSON value, to some depth."""
    path: list[Any] = []
    while isinstance(content, dict | list) and content and (not path or draw(st.booleans())):
        keys = list(content) if isinstance(content, dict) else list(range(len(content)))
        path.append(draw(st.sampled_from(keys)))
        content = content[path[-1]]
    return path


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    made.make_run(root, seed=1)
    return made.make_run(root)


@settings(max_examples=80)
@given(data=st.data())
def test_whatever_a_file_holds_the_report_is_made(two_runs: Path, data: st.DataObject) -> None:
    root = two_runs.parents[2]
    name = data.draw(st.sampled_from(["config.json", "result.json", "analysis.json"]))
    whole = (two_runs / name).read_text()
    try:
        change(two_runs / name, data.draw(places(json.loads(whole))), data.draw(JUNK))
        report = compose(collect([root]), "Junk")
    finally:
        (two_runs / name).write_text(whole)
    assert report.figures()
    assert markdown(report)
