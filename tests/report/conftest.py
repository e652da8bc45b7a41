"""One report for all tests that read it: drawing is what takes the time."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.report.content import Report, compose
from perdure.report.page import page
from perdure.report.reading import collect

from . import made


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Five methods, two seeds each, one folder that is no run."""
    root = made.make_runs(tmp_path_factory.mktemp("made"), seeds=2)
    (root / "holiday").mkdir()
    (root / "holiday" / "beach.jpg").touch()
    return compose(collect([root]), "Runs")


@pytest.fixture(scope="session")
def html(report: Report) -> str:
    """Its page."""
    return page(report)


@pytest.fixture(scope="session")
def page_file(html: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page on disk, as a reader has it."""
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(html, encoding="utf-8")
    return file
