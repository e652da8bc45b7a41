"""What a study came to: best trial, table, file, figure."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console

from perdure.tuning.outcome import (
    best_of,
    draw,
    page_of,
    study_figure,
    trials_table,
    write_trials,
)
from perdure.tuning.space import Choice, Range, Space
from perdure.tuning.study import Trial

SPACE: Space = {"lr": Range(0.001, 1, log=True), "memory_batch": Choice((16, 32))}
TRIALS = [
    Trial(0, {"lr": 0.1, "memory_batch": 16}, 80.0, [79.0, 81.0], seconds=2.0),
    Trial(1, {"lr": 1.0, "memory_batch": 32}, None, reason="diverged, and more"),
    Trial(3, {"lr": 0.01, "memory_batch": 32}, 90.0, [90.0]),
    Trial(4, {"lr": 0.02, "memory_batch": 16}, 85.0, [85.0]),
    Trial(5, {"lr": 0.03, "memory_batch": 16}, 90.0, [90.0]),
    Trial(6, {"lr": 0.04, "memory_batch": 16}, None),
]


def test_the_best_is_the_first_of_the_highest() -> None:
    best = best_of(TRIALS)
    assert best is not None
    assert best.number == 3
    assert best_of(TRIALS[1:2]) is None
    assert best_of([]) is None


def test_the_figure_shows_trials_that_came_to_an_end() -> None:
    figure = study_figure(TRIALS, SPACE)
    assert figure.accuracy == [(0, 80.0), (3, 90.0), (4, 85.0), (5, 90.0)]
    assert figure.best == [(0, 80.0), (3, 90.0), (4, 90.0), (5, 90.0)]
    assert figure.panels["lr"] == [(0.1, 80.0), (0.01, 90.0), (0.02, 85.0), (0.03, 90.0)]
    assert figure.panels["memory_batch"][0] == (16, 80.0)


def test_the_figure_is_drawn_the_same_each_time(tmp_path: Path) -> None:
    for name in ("one.svg", "other.svg"):
        draw(study_figure(TRIALS, SPACE), SPACE, "A study", tmp_path / name)
    one, other = ((tmp_path / name).read_bytes() for name in ("one.svg", "other.svg"))
    assert one == other
    assert ElementTree.fromstring(one).tag.endswith("svg")
    for words in (b"A study", b"best so far", b"memory_batch", b"validation accuracy, percent"):
        assert words in one


WIDE: Space = {
    "weight_decay": Choice((0, 1e-6, 1e-5, 1e-4, 1e-3)),
    "lr": Range(0.001, 1, log=True),
    "near": Range(0.02, 0.5, log=True),
    "rate": Range(0.0, 1.0),
    "batch": Range(1, 4, whole=True),
}
SPREAD = [
    Trial(n, {"weight_decay": d, "lr": 0.01 * (n + 1), "near": 0.1, "rate": 0.5, "batch": 2}, 80.0)
    for n, d in enumerate((0, 1e-6, 1e-5, 1e-4, 1e-3))
]


def test_choices_stand_side_by_side_under_their_values() -> None:
    panel = page_of(study_figure(SPREAD, WIDE), WIDE, "A study").axes[1]
    assert list(panel.lines[0].get_xdata()) == [0, 1, 2, 3, 4]  # type: ignore[arg-type]
    assert list(panel.get_xticks()) == [0, 1, 2, 3, 4]
    labels = [label.get_text() for label in panel.get_xticklabels()]
    assert labels == ["0", "1e-06", "1e-05", "0.0001", "0.001"]


def test_axes_are_what_is_searched_and_their_labels_do_not_overlap() -> None:
    page = page_of(study_figure(SPREAD, WIDE), WIDE, "A study")
    page.draw_without_rendering()
    for panel, (name, part) in zip(page.axes[1:], WIDE.items(), strict=True):
        if isinstance(part, Range):
            assert panel.get_xlim() == (part.low, part.high)
        boxes = [
            label.get_window_extent()
            for label in (*panel.get_xticklabels(), *panel.get_xticklabels(minor=True))
            if label.get_text() and panel.get_xlim()[0] <= label.get_position()[0]
            if label.get_position()[0] <= panel.get_xlim()[1]
        ]
        boxes.sort(key=lambda box: box.x0)
        assert len(boxes) >= 2, name
        assert all(one.x1 < other.x0 for one, other in pairwise(boxes)), name


def test_the_table_ranks_trials() -> None:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(trials_table(TRIALS, SPACE, "A study"))
    rows = [line.split("│")[1:-1] for line in captured.get().splitlines() if "│" in line]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["3", "90.00", "0.01", "32"],
        ["5", "90.00", "0.03", "16"],
        ["4", "85.00", "0.02", "16"],
        ["0", "80.00 ± 1.41", "0.1", "16"],
        ["1", "failed", "1", "32"],
        ["6", "running", "0.04", "16"],
    ]
    assert "1 failed" in captured.get()
    many = [Trial(n, {"lr": 0.1, "memory_batch": 16}, float(n)) for n in range(30)]
    with console.capture() as captured:
        console.print(trials_table(many, SPACE, "A study"))
    assert "20 more" in captured.get()


def test_the_file_holds_all_trials(tmp_path: Path) -> None:
    write_trials(tmp_path / "trials.csv", TRIALS, SPACE)
    with (tmp_path / "trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["trial"] for row in rows] == ["0", "1", "3", "4", "5", "6"]
    assert rows[0] == {
        "trial": "0",
        "accuracy": "80.0",
        "lr": "0.1",
        "memory_batch": "16",
        "seconds": "2.0",
        "failed": "",
    }
    assert (rows[1]["accuracy"], rows[1]["failed"]) == ("", "diverged, and more")
