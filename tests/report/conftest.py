"""One report for all tests that read it, since drawing takes time."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.report import render
from perdure.report.content import Report, compose
from perdure.results import collect

from . import made


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Five methods with two seeds each, and a folder that is not a run."""
    root = made.make_runs(tmp_path_factory.mktemp("made"), seeds=2)
    (root / "photos").mkdir()
    (root / "photos" / "beach.jpg").touch()
    return compose(collect([root]), "Runs")


@pytest.fixture(scope="session")
def html(report: Report) -> str:
    """The report as HTML."""
    return render(report, "html")


@pytest.fixture(scope="session")
def page_file(html: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page as a file."""
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(html, encoding="utf-8")
    return file
