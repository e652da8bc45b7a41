"""The page of all results: a row for each stored result, with badge, reason, command and files."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from markdown.extensions.toc import slugify

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        yield importlib.import_module("results_site")
        for name in ("results_site", "make_results"):
            sys.modules.pop(name, None)


def test_every_stored_result_has_a_row(site: ModuleType) -> None:
    rows, reasons = site.stored()
    page = site.rows_html(rows, reasons)
    for row in rows:
        assert page.count(f'<tr id="{row.hash}">') == 1
    assert page.count("<tr id=") == len(rows)
    assert "perdure run s-cifar10 --method clser --buffer-size 500" in page


def test_rows_link_to_their_results(site: ModuleType) -> None:
    rows, reasons = site.stored()
    page, files = site.rows_html(rows, reasons), site.json_files(rows)
    for address, content in files.items():
        assert f'href="../{address}"' in page
        assert json.loads(content)["predictors"]
    assert len(files) == sum(len(row.files) for row in rows)


def test_a_result_that_differs_from_the_published_one_has_a_reason(site: ModuleType) -> None:
    rows, reasons = site.stored()
    badges = {row.hash: site.badge(row, reasons) for row in rows}
    for row in rows:
        kind, text = badges[row.hash]
        if "not reproducible" in kind:
            assert len(text) > 40, row
        elif "verified" in kind:
            assert row.compared
        else:
            assert not row.config.published_figures()
    assert any("verified" in kind for kind, _ in badges.values())
    assert any("above" in kind for kind, _ in badges.values())


def test_rows_of_the_sensitivity_table_show_its_figures(site: ModuleType) -> None:
    rows, reasons = site.stored()
    sweep = [row for row in rows if row.is_sweep]
    assert {site.published(row) for row in sweep} == {"70.19 ± 1.97", "74.18 ± 0.37"}
    assert all("verified" in site.badge(row, reasons)[0] for row in sweep)


def test_tables_of_the_paper_that_contradict_each_other_are_named(site: ModuleType) -> None:
    rows, reasons = site.stored()
    texts = [site.badge(row, reasons)[1] for row in rows if row.config.stream.startswith("gcil")]
    assert sum("from Table S1" in text for text in texts) == 2


def test_a_row_names_the_commit_that_stored_its_results(
    site: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its file was rewritten or renamed later; a dash in a shallow clone.

    Runs that were repeated with the same mean differ in their time.
    """
    origin = tmp_path / "origin"

    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(["git", *who, *words], cwd=origin, check=True, capture_output=True)
        return done.stdout.decode().strip()

    def store(name: str, text: str) -> str:
        (origin / "results").mkdir(exist_ok=True)
        (origin / "results" / name).write_text(text)
        git("add", "-A")
        git("commit", "-qm", "results")
        return git("rev-parse", "--short", "HEAD")

    origin.mkdir()
    git("init", "-q")
    means = sorted({row.ours.mean for row in site.stored()[0]}, key=lambda mean: len(str(mean)))
    first, second = means[-1], means[0]  # the second has few decimals
    rows = {row.ours.mean: replace(row, setting=None) for row in site.stored()[0]}

    def line(mean: float, code: str, more: float = 0) -> str:
        return json.dumps({"hash": code, "mean": mean, "seconds": rows[mean].seconds + more}) + "\n"

    store("old.jsonl", line(first, "a", more=1))  # an earlier run, with the same mean
    added = store("old.jsonl", line(first, "a"))
    git("mv", "results/old.jsonl", "results/new.jsonl")
    store("new.jsonl", line(first, "b"))
    later = store("more.jsonl", line(second, "a"))
    git("clone", "-q", "--depth", "1", f"file://{origin}", str(tmp_path / "shallow"))

    for root, expected in ((origin, [added, later]), (tmp_path / "shallow", ["–", "–"])):
        monkeypatch.setattr(site, "ROOT", root)
        site._commits.cache_clear()
        assert [site.commit(rows[mean]) for mean in (first, second)] == expected
    site._commits.cache_clear()


def test_reasons_name_pages_and_headings_that_exist(site: ModuleType) -> None:
    for found in site.stored()[1]:
        path, _, anchor = found["page"].partition("#")
        text = (ROOT / "docs" / path).read_text()
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        anchors = {slugify(heading, "-") for heading in headings}
        assert not anchor or anchor in anchors, found["page"]


def test_the_results_folder_stays_small() -> None:
    files = [path for path in (ROOT / "results").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 10_000_000
