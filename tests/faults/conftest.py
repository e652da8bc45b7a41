"""What the long suite did, counted and shown at its end: the figures of docs/log/faults.md."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from .server import Server, serving

Count = Callable[[str, float], None]
LONG = float(os.environ.get("PERDURE_FAULTS", "1"))
"""Share of the long suite to run."""
_DONE: Counter[str] = Counter()


def share(number: int) -> int:
    """The number of repetitions of a long test."""
    return max(1, round(number * LONG))


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Starts the commands that are killed."""
    with serving() as server:
        yield server


@pytest.fixture(scope="session")
def count() -> Count:
    """Adds to the counts that are printed at the end."""

    def add(what: str, number: float) -> None:
        _DONE[what] += number  # type: ignore[assignment]  # seconds are counted too

    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for what, number in sorted(_DONE.items()):
        terminalreporter.write_line(f"{what}: {number:g}")
