"""The HTML report in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

from perdure.report.content import Report

EXAMPLE = Path(__file__).parents[2] / "docs/example-report/report.html"
RESULTS = "#results-s-mnist"
SIZES_JS = """elements => elements.map(element => {
    const { left, right, width, height } = element.getBoundingClientRect();
    const options = { visibilityProperty: true, opacityProperty: true };
    return { left, right, width, height, shown: element.checkVisibility(options) };
})"""


@pytest.fixture
def page(page_file: Path, open_page: Callable[..., Page]) -> Page:
    return open_page(page_file.as_uri())


def column(page: Page, number: int) -> list[str]:
    """Texts of a column of the results table, top to bottom."""
    cells = page.locator(f"{RESULTS} tbody tr > :nth-child({number + 1})")
    return [text.strip() for text in cells.all_text_contents()]


def column_number(page: Page, name: str) -> int:
    return page.locator(f"{RESULTS} th").all_text_contents().index(name)


@pytest.mark.parametrize(
    ("width", "dark"),
    [
        (1280, False),
        (390, True),
        pytest.param(1280, True, marks=pytest.mark.slow),
        pytest.param(390, False, marks=pytest.mark.slow),
    ],
)
def test_every_figure_is_visible_and_nothing_is_loaded(
    page_file: Path, open_page: Callable[..., Page], report: Report, width: int, dark: bool
) -> None:
    # open_page fails the test on console messages, script errors and requests to other hosts.
    page = open_page(page_file.as_uri(), width=width, dark=dark)
    figures = page.locator("figure").evaluate_all(SIZES_JS)
    drawings = page.locator("figure svg").evaluate_all(SIZES_JS)
    assert len(figures) == len(report.figures())
    assert len(drawings) == sum(len(figure.charts) for figure in report.figures())
    assert all(one["shown"] and one["width"] > 100 and one["height"] > 60 for one in drawings)
    # Wide content scrolls in its own box instead of widening the page.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert all(one["left"] >= 0 and one["right"] <= width for one in figures)


def test_the_example_report_in_the_docs_opens(open_page: Callable[..., Page]) -> None:
    drawings = open_page(EXAMPLE.as_uri()).locator("figure svg").evaluate_all(SIZES_JS)
    assert len(drawings) > 50
    assert all(one["shown"] for one in drawings)


def test_wide_tables_scroll_on_a_phone(page_file: Path, open_page: Callable[..., Page]) -> None:
    page = open_page(page_file.as_uri(), width=390)
    box = page.locator(f"{RESULTS} .scroll").first
    assert box.evaluate("box => box.scrollWidth > box.clientWidth")
    assert box.evaluate("box => { box.scrollLeft = 1000; return box.scrollLeft; }") > 0


def test_clicking_a_heading_sorts_by_number_then_reverses(page: Page) -> None:
    number = column_number(page, "accuracy")
    before = column(page, number)
    button = page.locator(f"{RESULTS} th button").nth(number)
    button.click()
    ascending = column(page, number)
    assert ascending == sorted(before, key=lambda text: float(text.split()[0]))
    assert ascending != before
    button.click()
    assert column(page, number) == ascending[::-1]
    assert page.locator(f"{RESULTS} th").nth(number).get_attribute("aria-sort") == "descending"


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_the_keyboard_sorts_too(page: Page, key: str) -> None:
    page.locator(f"{RESULTS} .scroll").first.focus()
    page.keyboard.press("Tab")  # to the first heading
    assert page.evaluate("document.activeElement.textContent") == "method"
    page.keyboard.press(key)
    assert column(page, 0) == sorted(column(page, 0))
    assert column(page, 0)[0] == "CLS-ER"
    page.keyboard.press(key)
    assert column(page, 0)[0] == "SGD"


def test_rows_without_a_number_are_sorted_to_one_end(page: Page) -> None:
    number = column_number(page, "buffer")
    page.locator(f"{RESULTS} th button").nth(number).click()
    assert column(page, number) == ["–", "500", "500", "500", "500"]


def test_a_link_opens_the_setting_with_its_command(page: Page) -> None:
    assert page.locator("details.setting[open]").count() == 0
    page.locator(f"{RESULTS} tbody a").first.click()
    command = page.locator("details.setting[open] pre").first.text_content(timeout=10_000)
    assert (command or "").startswith("perdure run s-mnist --method clser")


def test_dark_mode_changes_page_and_drawings(
    page_file: Path, open_page: Callable[..., Page]
) -> None:
    colours = {}
    for dark in (False, True):
        page = open_page(page_file.as_uri(), dark=dark)
        colours[dark] = [
            page.locator(what).first.evaluate(f"element => getComputedStyle(element).{key}")
            for what, key in (("body", "backgroundColor"), ("figure svg text", "fill"))
        ]
    assert colours[False] == ["rgb(255, 255, 255)", "rgb(91, 101, 112)"]
    assert colours[True] == ["rgb(18, 22, 27)", "rgb(163, 173, 184)"]


def test_print_is_light_even_in_dark_mode(page_file: Path, open_page: Callable[..., Page]) -> None:
    page = open_page(page_file.as_uri(), dark=True)
    assert page.pdf().startswith(b"%PDF")
    page.emulate_media(media="print")
    style = "getComputedStyle(document.body).getPropertyValue"
    assert page.evaluate(f"{style}('--page')").strip() == "#ffffff"
    assert page.evaluate(f"{style}('--ink')").strip() == "#1c2127"
