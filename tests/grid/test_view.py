"""The live view on a terminal."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from perdure.grid.view import GridView, elided
from perdure.training.workers import Event

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
    assert re.search(r"\r1 of 4 done, 2 running, 0 failed, 0:3\d left *\nmine +[━╺╸]+", drawn)
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
        "perdure: er on s-mnist, buffer 50, seed 1 failed: out of luck\n"
    )


def test_a_narrow_terminal_cuts_neither_the_sum_nor_the_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", "80")
    given = {"consistency_weight": 0.15, "stable_rate": 0.1, "plastic_rate": 0.9}
    state = standing(tmp_path, Clock(), given=given, steps=None)
    with GridView(state, quiet=False) as view:
        view(Event(0, "begun"))
        view(Event(1, "begun"))
        accurate = replace(progress(250, 100.0), epochs=50, accuracy=91.234)
        view(Event(0, "progress", progress=accurate))
        view.summed = 0.0
        view(Event(0, "progress", progress=accurate))
        capfd.readouterr()
        view.bars.refresh()
        drawn = plain(capfd.readouterr().err).strip().splitlines()
    assert max(map(len, drawn)) <= 80
    assert drawn[0].strip() == "1 of 4 done, 2 running, 0 failed, at least 5:00 left"
    assert re.search(r"^er on s-.*….*seed 1 [━╺╸]+ task 1/5, epoch 1/50, 91.23 %$", drawn[2])
    assert re.search(r"^er on s-.*….*seed 2 [━╺╸]+ begins", drawn[3])


@pytest.mark.parametrize("width", [60, 30, 20, 8])
def test_the_middle_of_a_name_gives_way(width: int) -> None:
    name = "er on s-mnist, buffer 50, consistency_weight 0.15, plastic_rate 0.9, seed 1"
    short = elided(name, width)
    assert len(short) == width
    assert short.endswith("seed 1")
    assert len(elided("a_grid_without_a_seed" * 5, width)) == width
    assert elided("er", width) == "er"


TRACE = """Traceback (most recent call last):
  File "mine.py", line {line}, in step
    slots["a [bold]key[/bold]"]
KeyError: 'attempt {attempt}'
"""


@pytest.mark.parametrize("terminal", [True, False])
def test_a_traceback_is_shown_once_for_each_job_and_place(
    terminal: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    with GridView(standing(tmp_path, Clock()), quiet=not terminal) as view:
        kinds: tuple[Literal["again", "failed"], ...] = ("again", "again", "failed")
        for attempt, kind in enumerate(kinds):
            for number in (0, 1):
                # The first fails at the same place each time, the second at another at last.
                line = 8 if (attempt, number) == (2, 1) else 7
                trace = TRACE.format(line=line, attempt=attempt)
                view(Event(number, "begun"))
                view(Event(number, kind, reason="KeyError", trace=trace))
    said = plain(capfd.readouterr().err).replace("\r", "")
    assert said.count("Traceback") == 3
    assert said.count(TRACE.format(line=7, attempt=0)) == 2
    assert said.count(TRACE.format(line=8, attempt=2)) == 1
