"""The page of all results: a row for each stored result, with badge, reason, command and files."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

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
            assert row.figures()
        else:
            assert not row.figures()
    assert any("verified" in kind for kind, _ in badges.values())
    assert any("above" in kind for kind, _ in badges.values())


def test_reasons_name_pages_that_exist(site: ModuleType) -> None:
    for found in site.stored()[1]:
        path, _, anchor = found["page"].partition("#")
        text = (ROOT / "docs" / path).read_text()
        assert not anchor or anchor.split("-")[0] in text.lower()


def test_the_results_folder_stays_small() -> None:
    files = [path for path in (ROOT / "results").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 10_000_000
