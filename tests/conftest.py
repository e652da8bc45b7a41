"""One thread, a cache of the tests' own, and in CI no test that is silently left out."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

pytest_plugins = ["pytester"]

# Machines that run tests are busy: time limits per example would fail at random.
settings.register_profile("perdure", deadline=None, derandomize=True)
settings.load_profile("perdure")

MAY_BE_MISSING = "no CUDA device"
"""How the reason of a skip begins that CI accepts."""


def pytest_configure() -> None:
    torch.set_num_threads(1)
    # Started in the background by a shell, we would ignore Ctrl-C, and so would all that we start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Tests neither read nor fill the user's cache, and see no data folder of the user's."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERDURE_CACHE", str(folder))
        patch.delenv("PERDURE_DATA", raising=False)
        yield folder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Under CI=true a skip fails, unless a GPU is what is missing: nobody reads skips there."""
    if os.environ.get("CI") != "true" or not report.skipped or hasattr(report, "wasxfail"):
        return
    _, _, text = report.longrepr if isinstance(report.longrepr, tuple) else ("", 0, "")
    reason = text.removeprefix("Skipped: ")
    if not reason.startswith(MAY_BE_MISSING):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where everything must run: {reason}"
