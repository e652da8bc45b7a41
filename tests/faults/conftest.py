"""What the long suite did, counted and shown at its end: the figures of docs/log/faults.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from .server import Server, serving

Count = Callable[[str, float], None]
_DONE: Counter[str] = Counter()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Starts the runs that are killed."""
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
