"""The page as text: complete, escaped and reproducible."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from perdure.report import render
from perdure.report.content import Report, compose
from perdure.results import collect

from . import made

EVIL = """<script>alert("1")</script>|$x$ `y` \\input{z} %& __a__ [b](c)"""
VOID = {"meta", "link", "br"}


class Elements(HTMLParser):
    """Checks that tags are closed in order; records ids and links."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: Counter[str] = Counter()
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1
        found = dict(attrs)
        if found.get("id"):
            self.ids.append(str(found["id"]))
        if tag == "a":
            self.links.append(str(found["href"]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def elements(html: str) -> Elements:
    found = Elements()
    found.feed(html)
    assert found.open == []
    return found


def test_the_page_is_well_formed_and_its_links_have_targets(report: Report, html: str) -> None:
    found = elements(html)
    assert len(found.ids) == len(set(found.ids))
    assert {link for link in found.links if link[1:] not in found.ids} == set()
    assert all(link.startswith("#") for link in found.links)
    assert found.seen["h1"] == 1
    assert found.seen["svg"] == sum(len(figure.charts) for figure in report.figures())


def test_the_page_needs_no_other_files(html: str) -> None:
    assert not re.findall(r'(?:src|href)="(?!#|data:)', html.replace("xlink:", ""))
    assert "@import" not in html
    assert "default-src 'none'" in html


def test_the_same_runs_give_the_same_page(tmp_path: Path) -> None:
    made.make_run(tmp_path, method="er")
    first, second = (render(compose(collect([tmp_path]), "Runs"), "html") for _ in range(2))
    assert first == second


def test_the_main_results_are_in_every_format(report: Report, html: str) -> None:
    for words in (
        "10 runs: CLS-ER, Mean-ER, DER++, ER and SGD on s-mnist.",
        "92.05 ± 0.32",
        "perdure run s-mnist --method clser --buffer-size 500 --seeds 0:2 --dataset mnist",
        "Table S1",
        "CLS-ER converges to flatter minima than ER and DER++.",
        "agrees",
        "inconclusive",
    ):
        assert words in html
    for words in (
        "| CLS-ER | 500 | stable | 92.50 ± 0.71 |",
        "```sh",
        "| agrees |",
        "inconclusive",
    ):
        assert words in render(report, "md")
    for words in (r"\toprule", r"92.50 $\pm$ 0.71", "% perdure run s-mnist", "& agrees"):
        assert words in render(report, "tex")


def test_names_contain_no_control_characters_and_no_optional_arguments(tmp_path: Path) -> None:
    folder = made.make_run(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config |= {"stream": "my:\x1b]0;title\x07", "method": "[1cm]:\x00", "dataset": None}
    (folder / "config.json").write_text(json.dumps(config))
    report = compose(collect([tmp_path]), "\x1b[2J")
    for form in ("html", "md", "tex"):
        text = render(report, form)
        assert not set(text) & {chr(code) for code in (0, 7, 27)}
    lines = render(report, "tex").splitlines()
    assert any(line.startswith("{[}1cm]:") for line in lines)  # else a length after the last row
    assert not any(line.startswith("[") for line in lines)


def test_names_and_values_from_users_are_escaped(tmp_path: Path) -> None:
    folder = made.make_run(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config |= {"stream": EVIL, "method": EVIL, "data": EVIL, "network": EVIL, "notes": [EVIL]}
    config["dataset"] = None
    (folder / "config.json").write_text(json.dumps(config))
    result = json.loads((folder / "result.json").read_text())
    stable = result["predictors"].pop("stable")
    result["predictors"] = {EVIL: stable, **result["predictors"]}
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "timing.json").write_text(json.dumps({"host": EVIL, "processor": EVIL}))
    names = [EVIL, "plastic", "working"]
    (folder / "analysis.json").write_text(json.dumps(made.analysis(names)))
    stranger = tmp_path / "<img src=x onerror=alert(1)>"
    stranger.mkdir()
    (stranger / "x").touch()
    report = compose(collect([tmp_path]), EVIL)
    assert report.figures()
    html = render(report, "html")
    found = elements(html)
    assert found.seen["script"] == 1
    assert found.seen["img"] == 0
    assert "alert(&#34;1&#34;)" in html
    plain = render(report, "md")
    fences = re.sub(r"^(`{3,})sh\n.*?^\1$", "", plain, flags=re.MULTILINE | re.DOTALL)
    assert "<script" not in fences
    assert not re.search(r"(?<!\\)`y`", re.sub(r"``.*?``", "", fences))
    source = render(report, "tex")
    lines = [line for line in source.splitlines() if not line.startswith("%")]
    assert not any(r"\input" in line for line in lines)
    assert not any(
        re.search(r"(?<!\\)[%&_]", line) for line in lines if "alert" in line and " & " not in line
    )


def test_skipped_folders_are_listed(tmp_path: Path) -> None:
    (made.make_run(tmp_path) / "result.json").unlink()
    (made.make_run(tmp_path, seed=1) / "result.json").write_text("no JSON")
    report = compose(collect([tmp_path]), "Nothing yet")
    html = render(report, "html")
    elements(html)
    assert "No run has finished." in html
    assert "unfinished" in html
    assert "damaged" in html
    assert "unfinished" in render(report, "md")
    assert render(report, "tex").startswith("% Nothing yet: No run has finished.")


@pytest.mark.usefixtures("without_charts")
def test_missing_analyses_are_explained(tmp_path: Path) -> None:
    made.make_run(tmp_path, analysed=False)
    found = collect([tmp_path])
    report = compose(found, "Runs", {found.runs[0].place: "no data"})
    assert "Not analysed (no data): CLS-ER 500." in render(report, "html")
    made.make_run(tmp_path, seed=1)
    report = compose(collect([tmp_path]), "Runs")
    assert "CLS-ER 500 (1 of 2 seeds)" in render(report, "html")


def test_the_command_of_an_analysis(tmp_path: Path) -> None:
    folder = made.make_run(tmp_path / "my runs")
    content = made.analysis(["stable", "plastic", "working"])
    settings = {"sigmas": [0.0, 0.5], "draws": 2}
    (folder / "analysis.json").write_text(json.dumps({**content, "settings": settings}))
    (detail,) = compose(collect([tmp_path / "my runs"]), "Runs").details
    place = f"my runs/s-mnist/{folder.parent.name}"
    assert shlex.split(detail.commands[1]) == [
        *("perdure", "analyze", place, "--sigmas", "0,0.5", "--draws", "2"),
    ]
    (folder / "analysis.json").unlink()
    (detail,) = compose(collect([tmp_path / "my runs"]), "Runs").details
    assert len(detail.commands) == 1
