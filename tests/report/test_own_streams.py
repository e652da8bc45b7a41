"""Reports on streams of a user's own: from the runs to the page."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from perdure.cli import main
from perdure.files import write_json
from perdure.report import Report, compose, render
from perdure.report.charts import Areas
from perdure.report.content import default_title
from perdure.report.figures.accuracy import task_accuracy
from perdure.report.figures.training import memory
from perdure.results import collect

from . import made

MODULE = """
import torch
from torch import nn

import perdure


def stream():
    draws = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 4
    inputs = torch.rand(400, 6, generator=draws) + nn.functional.one_hot(labels, 6)
    return perdure.from_tensors(inputs, labels, groups=[(0, 1), (2, 3)], name="sensors")


def network(shape, classes):
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, classes))
"""


def own_run(
    root: Path,
    method: str = "er",
    *,
    stream: str = "my_data:stream",
    network: str = "my_data:network",
    name: str = "sensors",
    seed: int = 0,
    **settings: Any,
) -> Path:
    """A run on a user's stream, with what `config.json` says about it."""
    buffer_size = None if method == "sgd" else 500
    values = {"dataset": None, "network": network, **settings}
    path = made.make_run(root, stream, method, buffer_size, seed=seed, analysed=False, **values)
    its = made.config(stream, method, buffer_size, **values)
    facts = {"data": "own", "stream_name": name, "shape": [6], "classes": 4, "tasks": 2}
    about = {"architecture": "Sequential of 2 Linear", "parameters": 59}
    write_json(path / "config.json", {**its.to_json(), "seed": seed, **facts, **about})
    return path


def report(*roots: Path) -> Report:
    collection = collect(roots)
    return compose(collection, default_title(collection, [root.name for root in roots]))


def headings(text: str) -> list[str]:
    return [line.lstrip("# ") for line in text.splitlines() if line.startswith("#")]


def test_own_streams_are_named_and_the_papers_sections_left_out(tmp_path: Path) -> None:
    for method in ("sgd", "er", "clser"):
        own_run(tmp_path, method)
    found = report(tmp_path)
    assert found.title == "Report on sensors"
    assert (found.claims, found.paper) == ((), ())
    (chapter,) = found.chapters
    assert len(chapter.results.rows) == 3
    for part in (
        "my_data:network",
        "2 Linear",
        "59 parameters",
        "optimizer sgd",
        "4 classes",
        "inputs 6",
    ):
        assert part in chapter.section.description
    for form in ("html", "md", "tex"):
        text = render(found, form)
        assert "sensors" in text
        assert "paper" not in text.lower()
    assert headings(render(found, "md")) == ["Report on sensors", "Runs", "sensors"]


@pytest.mark.parametrize(
    "spellings",
    [
        ["my_data:stream", "project.my_data:stream"],
        ["my_data.py:stream", "./my_data.py:stream", "my_data:stream"],
        ["my_data:stream", "/home/me/project/my_data.py:stream"],
    ],
)
def test_spellings_of_the_same_stream_are_one_stream(
    tmp_path: Path, spellings: Sequence[str]
) -> None:
    for seed, stream in enumerate(spellings):
        own_run(tmp_path, "er", stream=stream, seed=seed)
        own_run(tmp_path, "sgd", stream=stream, seed=seed)
    (comparison,) = collect([tmp_path]).comparisons
    assert [len(setting.runs) for setting in comparison.settings] == [len(spellings)] * 2


@pytest.mark.parametrize(
    ("stream", "checksum"),
    [("other:stream", None), ("my_data:other", None), ("my_data:stream", "")],
)
def test_other_streams_are_compared_separately(
    tmp_path: Path, stream: str, checksum: str | None
) -> None:
    paths = [own_run(tmp_path, "er"), own_run(tmp_path, "er", stream=f"a.{stream}", seed=1)]
    if checksum is not None:  # a stream whose data is unknown
        for path in paths:
            made_config = (path / "config.json").read_text()
            known = '"data_checksum": "0123456789abcdef"'
            (path / "config.json").write_text(made_config.replace(known, '"data_checksum": ""'))
    assert len(collect([tmp_path]).comparisons) == 2


def test_networks_are_named_where_a_stream_was_learned_by_several(tmp_path: Path) -> None:
    own_run(tmp_path, "er")
    own_run(tmp_path, "er", network="my_data:deep")
    names = [comparison.name for comparison in collect([tmp_path]).comparisons]
    assert names == ["sensors (my_data:deep)", "sensors (my_data:network)"]


def test_other_data_of_a_stream_is_named_and_in_order_of_time(tmp_path: Path) -> None:
    for place, (day, checksum) in enumerate([(3, "three"), (1, "one"), (2, "two")]):
        path = own_run(tmp_path / str(place), "er", data_checksum=checksum)
        content = json.loads((path / "timing.json").read_text())
        write_json(path / "timing.json", {**content, "finished": f"2026-11-0{day}T10:00:00+00:00"})
    found = report(tmp_path)
    first, *others = found.chapters
    checksums = [part.section.config.data_checksum for part in found.chapters]
    assert checksums == ["one", "two", "three"]
    assert len({chapter.section.name for chapter in found.chapters}) == 3
    assert "differ" not in first.section.description
    for chapter, checksum in zip(others, checksums[1:], strict=True):
        assert "data" in chapter.section.name
        assert f"{checksum}…) differ from those of sensors" in chapter.section.description
    assert found.summary.count(",") == 1  # between names, none of which is two


def test_a_demonstration_is_kept_apart(tmp_path: Path) -> None:
    own_run(tmp_path, "er")
    made.make_run(tmp_path, "s-mnist", "er", dataset="mnist5k", analysed=False)
    found = report(tmp_path)
    assert found.title == "Report on sensors"
    assert [chapter.section.comparisons[0].own for chapter in found.chapters] == [True, False]
    assert [len(table.rows) for table in found.overview] == [1, 1]
    assert (found.claims, found.paper) == ((), ())
    made.make_run(tmp_path, "s-mnist", "er", analysed=False)
    assert report(tmp_path).claims


def test_a_stream_without_tests_from_run_to_page(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    open_page: Callable[..., Page],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_stream.py").write_text(MODULE)
    words = ["run", "my_stream:stream", "--network", "my_stream:network", "--batch", "8"]
    for method in ("sgd", "er"):
        assert main([*words, "--method", method, "--prequential-window", "64"]) == 0
    out, err = capfd.readouterr()
    assert "last 64" in out
    assert "Class-IL" not in out
    assert "prequential" in err
    assert main([*words, "--method", "er", "--max-steps", "30", "--prequential"]) == 0
    assert "step 30" in capfd.readouterr().err
    assert main(["report", "--figures", "figures"]) == 0
    names = {path.stem for path in Path("figures").glob("*.json")}
    assert {"sensors-prequential", "sensors-500-prequential"} & names
    page = open_page((tmp_path / "report.html").as_uri(), width=390)
    assert page.locator("h1").text_content() == "Report on sensors"
    assert page.locator("text=Claims of the paper").count() == 0
    columns = page.locator("#results-sensors th").all_text_contents()
    assert {"prequential", "last 64"} <= set(columns)
    assert "accuracy" not in columns
    assert page.locator("figure[id$=prequential]").count() >= 1
    assert main(["analyze"]) == 2
    assert "no tests" in capfd.readouterr().err


@pytest.mark.parametrize("window", ["0", "-5"])
def test_an_impossible_window_is_refused(window: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--prequential-window", window]) == 2
    assert "--prequential-window" in capfd.readouterr().err


def test_figures_name_the_classes(tmp_path: Path) -> None:
    path = own_run(tmp_path, "clser")
    names = ["cat", "猫 $x$ <b>", "a name that is much too long"]
    facts = json.loads((path / "config.json").read_text())
    write_json(path / "config.json", {**facts, "class_names": names})
    (comparison,) = collect([tmp_path]).comparisons
    found = memory(comparison.settings)
    assert found is not None
    (chart,) = found.charts
    assert isinstance(chart, Areas)
    labels = [layer.label for layer in chart.layers]
    assert labels[:2] == names[:2]
    assert labels[2].startswith("a name")
    assert labels[2].endswith("…")
    assert labels[3] == "class 3"  # has no name
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "猫 $x$ &lt;b&gt;" in render(report(tmp_path), "html")


def test_the_figure_of_tasks_names_them(tmp_path: Path) -> None:
    path = own_run(tmp_path)
    result = json.loads((path / "result.json").read_text())

    def caption(names: list[str]) -> str:
        write_json(path / "result.json", {**result, "tests": names})
        (comparison,) = collect([tmp_path]).comparisons
        figure = task_accuracy(comparison.settings)
        assert figure is not None
        return figure.caption

    count = range(1, len(result["tests"]) + 1)
    assert "1: month 1, 2: month 2" in caption([f"month {i}" for i in count])
    assert "1:" not in caption([f"task {i}" for i in count])
