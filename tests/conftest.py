"""Settings for all tests: one thread, a separate cache, a browser, no skipped tests in CI."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import settings
from markupsafe import Markup

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

    from perdure.report.charts import Figure

pytest_plugins = ["pytester"]

# Machines that run tests are busy: a time limit per example would fail at random.
settings.register_profile("perdure", deadline=None, derandomize=True)
settings.load_profile("perdure")

ALLOWED_SKIPS = (
    "no CUDA device",
    "other hardware or torch than recorded",
    "optional package not installed",
)
"""Starts of the reasons for a skip that CI accepts."""
WITHOUT_COVERAGE = (
    *("tests/archive/", "tests/evaluation/", "tests/faults/"),
    *("tests/data/test_damage.py", "tests/data/test_streams_from_files.py"),
    *("tests/experiment/test_golden.py", "tests/experiment/test_results_on_digits.py"),
    *("tests/experiment/test_tune.py", "tests/learners/test_clser.py"),
    *("tests/learners/test_conformance.py", "tests/learners/test_forgetting.py"),
    *("tests/learners/test_gss.py", "tests/memory/test_reservoir.py"),
    *("tests/memory/test_semantic.py", "tests/report/test_drawing.py", "tests/report/test_page.py"),
    *("tests/results/test_command.py", "tests/results/test_folder.py"),
    *("tests/results/test_make_results.py", "tests/streams/test_conformance.py"),
    *("tests/test_docs.py", "tests/test_examples.py", "tests/test_methods_on_digits.py"),
    *("tests/test_state.py", "tests/training/test_engine.py"),
)
"""Tests that take long. Measuring coverage would add half of their time or more, and other tests
execute nearly all of the same lines: all but 0.3 % of `src/perdure`."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def pytest_configure() -> None:
    torch.set_num_threads(1)
    # A shell starts background processes with SIGINT ignored, and their children inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(WITHOUT_COVERAGE):
            item.add_marker(pytest.mark.no_cover)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep tests away from the user's cache and data folder."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERDURE_CACHE", str(folder))
        patch.delenv("PERDURE_DATA", raising=False)
        yield folder


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Give every test the same initial weights and draws, whatever ran before it."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


@pytest.fixture
def without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """HTML reports have no charts, which take long to draw."""

    def no_charts(figure: Figure) -> list[Markup]:
        return [Markup()] * len(figure.charts)

    monkeypatch.setattr("perdure.report.rendering._charts", no_charts)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A headless browser; without one the test is skipped, which fails in CI."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no Chromium: none of {', '.join(BROWSERS)} is installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=program)


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[Callable[..., Page]]:
    """Opens addresses in a window of a given width.

    The test fails if a page logs to its console, a script raises, or anything is requested from
    another host.
    """
    contexts: list[BrowserContext] = []
    problems: list[str] = []

    def open_page(address: str, *, width: int = 1280, dark: bool = False) -> Page:
        context = chromium.new_context(
            viewport={"width": width, "height": 900},
            is_mobile=width < 600,
            color_scheme="dark" if dark else "light",
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("request", lambda request: check_local(request.url))
        page.goto(address)
        return page

    def check_local(address: str) -> None:
        if not address.startswith(("file:", "data:", "blob:", "http://127.0.0.1:")):
            problems.append(f"request: {address}")

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_skipped_in_ci(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_skipped_in_ci(report)
    return report


def _fail_if_skipped_in_ci(report: pytest.TestReport | pytest.CollectReport) -> None:
    """With CI=true, turn a skip into a failure unless the machine cannot run the test."""
    if os.environ.get("CI") != "true" or not report.skipped or hasattr(report, "wasxfail"):
        return
    _, _, text = report.longrepr if isinstance(report.longrepr, tuple) else ("", 0, "")
    reason = text.removeprefix("Skipped: ")
    if not reason.startswith(ALLOWED_SKIPS):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where every test must run: {reason}"
