"""The live view on a terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from remanence.grid.view import GridView
from remanence.training.workers import Event

from .test_standing import Clock, finish, progress, standing


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_a_terminal_shows_one_live_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", "120")
    state = standing(tmp_path, Clock())
    with GridView(state, quiet=False) as view:
        view(Event(0, "begun"))
        view(Event(1, "begun"))
        view(Event(0, "progress", progress=progress(250, 10.0)))
        view.bars.refresh()
        drawn = plain(capfd.readouterr().err)
        view(Event(1, "again", reason="out of luck"))
        finish(state, 0, 20.0, view)
        view(Event(2, "begun"))
        view.bars.refresh()
        later = plain(capfd.readouterr().err)
    assert re.search(r"mine +[━╺╸]* *1 of 4 done, 2 running, 0 failed, 0:3\d left", drawn)
    assert re.search(r"er on s-mnist, buffer 50, seed 1 [━╺╸]* *task 1/5", drawn)
    assert re.search(r"er on s-mnist, buffer 50, seed 2 [━╺╸]* *begins", drawn)
    assert "seed 2 failed and is tried again: out of luck" in later
    assert "2 of 4 done, 1 running, 0 failed" in later


def test_quiet_says_only_what_went_wrong(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with GridView(standing(tmp_path, Clock()), quiet=True) as view:
        view(Event(0, "begun"))
        view(Event(1, "begun"))
        view(Event(0, "failed", reason="out of luck"))
        finish(view.standing, 1, 20.0, view)
    assert capfd.readouterr().err == (
        "remanence: er on s-mnist, buffer 50, seed 1 failed: out of luck\n"
    )
