"""Fixtures: calling the command, and importable modules such as users write."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest

from perdure.cli import main


class Ended(NamedTuple):
    """Exit status and output of a command."""

    status: int | str | None
    out: str
    err: str


Call = Callable[..., Ended]
Write = Callable[[str, str], None]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, a temporary one; its modules are unloaded and signals restored."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "120")
    path, before, handler = list(sys.path), set(sys.modules), signal.getsignal(signal.SIGTERM)
    yield folder
    signal.signal(signal.SIGTERM, handler)
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def call(here: Path, capfd: pytest.CaptureFixture[str]) -> Call:
    """Runs the command in this process."""

    def called(*argv: str) -> Ended:
        status: int | str | None
        try:
            status = main(list(argv))
        except SystemExit as end:
            status = end.code
        except KeyboardInterrupt:  # would end all tests
            pytest.fail("the command did not handle SIGINT")
        return Ended(status, *capfd.readouterr())

    return called


@pytest.fixture
def module(here: Path) -> Write:
    """Writes a module into the current folder."""

    def write(name: str, source: str) -> None:
        (here / f"{name}.py").write_text(dedent(source))

    return write
