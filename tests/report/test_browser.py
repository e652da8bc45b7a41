"""The page in a real browser: what a reader sees and does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perdure.report.content import Report

from .browser import Tab

TAB, ENTER, SPACE = ("Tab", 9, ""), ("Enter", 13, "\r"), (" ", 32, " ")
WIDTHS = (1280, 390)
RESULTS = "#results-s-mnist"


def column(tab: Tab, number: int) -> list[str]:
    """What stands in a column of the results, from top to bottom."""
    rows = f"[...document.querySelectorAll('{RESULTS} tbody tr')]"
    found: list[str] = tab.run(f"{rows}.map(row => row.cells[{number}].textContent.trim())")
    return found


def head(tab: Tab, name: str) -> int:
    """The number of a column of the results, by its name."""
    names = tab.run(f"[...document.querySelectorAll('{RESULTS} th')].map(h => h.textContent)")
    place: int = names.index(name)
    return place


def visible(tab: Tab, what: str) -> list[dict[str, Any]]:
    """Where elements are, and how large."""
    script = f"""[...document.querySelectorAll({json.dumps(what)})].map(e => {{
        const box = e.getBoundingClientRect();
        const shown = e.checkVisibility({{ visibilityProperty: true, opacityProperty: true }});
        return {{ left: box.left, right: box.right, width: box.width, height: box.height, shown }};
    }})"""
    found: list[dict[str, Any]] = tab.run(script)
    return found


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_opens_from_disk_in_silence_with_every_figure_to_be_seen(
    chromium: Tab, page_file: Path, report: Report, width: int, dark: bool
) -> None:
    chromium.open(page_file, width=width, dark=dark)
    figures = visible(chromium, "figure")
    drawings = visible(chromium, "figure svg")
    assert len(figures) == len(report.figures())
    assert len(drawings) == sum(len(figure.charts) for figure in report.figures())
    assert all(one["shown"] and one["width"] > 100 and one["height"] > 60 for one in drawings)
    # Nothing wide pushes the page to the side: what does not fit scrolls in a box of its own.
    assert chromium.run("document.documentElement.scrollWidth") <= width
    assert all(one["left"] >= 0 and one["right"] <= width for one in figures)
    assert chromium.complaints() == []
    assert chromium.requests() == [page_file.absolute().as_uri()]


def test_the_example_in_the_documents_opens_too(chromium: Tab) -> None:
    example = Path(__file__).parents[2] / "docs/example-report/report.html"
    chromium.open(example)
    assert chromium.complaints() == []
    drawings = visible(chromium, "figure svg")
    assert len(drawings) > 50
    assert all(one["shown"] for one in drawings)


def test_wide_tables_scroll_on_a_phone(chromium: Tab, page_file: Path) -> None:
    chromium.open(page_file, width=390)
    script = f"(() => {{ const box = document.querySelector('{RESULTS} .scroll');"
    script += " box.scrollLeft = 1000; return [box.scrollWidth > box.clientWidth, box.scrollLeft]"
    wide, moved = chromium.run(script + "; })()")
    assert wide
    assert moved > 0


def test_a_click_sorts_by_numbers_and_another_turns_it_round(
    chromium: Tab, page_file: Path
) -> None:
    chromium.open(page_file)
    place = head(chromium, "accuracy")
    before = column(chromium, place)
    box = f"document.querySelectorAll('{RESULTS} th button')[{place}]"
    where = f"""(() => {{ {box}.scrollIntoView({{ block: "center", behavior: "instant" }});
        const r = {box}.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2];
    }})()"""
    x, y = chromium.run(where)
    chromium.click(x, y)
    ascending = column(chromium, place)
    assert ascending == sorted(before, key=lambda text: float(text.split()[0]))
    assert ascending != before
    chromium.click(x, y)
    assert column(chromium, place) == ascending[::-1]
    assert chromium.run(f"{box}.parentElement.getAttribute('aria-sort')") == "descending"
    assert chromium.complaints() == []


@pytest.mark.parametrize("key", [ENTER, SPACE], ids=["enter", "space"])
def test_the_keyboard_sorts_too(chromium: Tab, page_file: Path, key: tuple[str, int, str]) -> None:
    chromium.open(page_file)
    chromium.run(f"document.querySelector('{RESULTS} .scroll').focus()")
    chromium.press(*TAB)  # to the first head
    assert chromium.run("document.activeElement.textContent") == "method"
    chromium.press(*key)
    assert column(chromium, 0) == sorted(column(chromium, 0))
    assert column(chromium, 0)[0] == "CLS-ER"
    chromium.press(*key)
    assert column(chromium, 0)[0] == "SGD"


def test_rows_without_a_number_stay_at_the_end_of_numbers(chromium: Tab, page_file: Path) -> None:
    chromium.open(page_file)
    place = head(chromium, "buffer")
    chromium.run(f"document.querySelectorAll('{RESULTS} th button')[{place}].click()")
    assert column(chromium, place) == ["–", "500", "500", "500", "500"]


def test_a_link_opens_the_setting_with_its_command(chromium: Tab, page_file: Path) -> None:
    chromium.open(page_file)
    assert chromium.run("document.querySelectorAll('details.setting[open]').length") == 0
    chromium.run(f"document.querySelector('{RESULTS} tbody a').click()")
    opened = "document.querySelector('details.setting[open] pre').textContent"
    chromium.run("new Promise(done => setTimeout(done, 100))")
    assert chromium.run(opened).startswith("perdure run s-mnist --method clser")


def test_dark_is_dark_and_drawings_follow(chromium: Tab, page_file: Path) -> None:
    colours = {}
    for dark in (False, True):
        chromium.open(page_file, dark=dark)
        colours[dark] = [
            chromium.run(f"getComputedStyle(document.querySelector('{what}')).{key}")
            for what, key in (("body", "backgroundColor"), ("figure svg text", "fill"))
        ]
    assert colours[False] == ["rgb(255, 255, 255)", "rgb(91, 101, 112)"]
    assert colours[True] == ["rgb(18, 22, 27)", "rgb(163, 173, 184)"]


def test_on_paper_it_is_light_and_whole(chromium: Tab, page_file: Path) -> None:
    chromium.open(page_file, dark=True)
    paper = chromium.pdf()
    assert paper.startswith(b"%PDF")
    chromium.call("Emulation.setEmulatedMedia", media="print")
    background = chromium.run("getComputedStyle(document.body).getPropertyValue('--page')")
    assert background.strip() == "#ffffff"
    assert chromium.run("getComputedStyle(document.body).getPropertyValue('--ink')") == "#1c2127"
