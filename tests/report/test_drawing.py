"""Drawings are reproducible, show names literally, and use one palette in two versions."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from perdure.report.charts import Areas, Bars, Curves, Figure, HeatMap, Line, Series, Style
from perdure.report.drawing import LIGHT_TEXT_FROM, MAX_NAME, inline_svg, save
from perdure.report.figures import figures, overview
from perdure.report.style import DARK, LIGHT

from . import made

ODD = """a<b>&"c" $x_1$ \\frac 0.12345 #1c2127 url(#"""


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> list[Figure]:
    root = tmp_path_factory.mktemp("runs")
    made.make_run(root, seed=0)
    made.make_run(root, seed=1)
    made.make_run(root, method="er")
    comparison = made.comparison(root)
    first = overview(made.section(root))
    assert first is not None
    return [first, *figures(comparison, "500")]


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter() if "text" in element.tag]


def test_figures_are_reproducible(drawn: list[Figure], tmp_path: Path) -> None:
    kinds = {type(figure.charts[0]): figure for figure in drawn}
    assert len(kinds) == 6
    for figure in kinds.values():
        for number in (1, 2):
            save(figure, tmp_path / f"{number}.svg", "svg")
        first, second = ((tmp_path / f"{n}.svg").read_bytes() for n in (1, 2))
        assert first == second, figure.name
        assert b"<dc:date>" not in first
        root = ET.fromstring(first)
        assert root.tag.endswith("svg")


def test_pdf_files_are_reproducible(drawn: list[Figure], tmp_path: Path) -> None:
    for number in (1, 2):
        save(drawn[0], tmp_path / f"{number}.pdf", "pdf")
    first, second = ((tmp_path / f"{n}.pdf").read_bytes() for n in (1, 2))
    assert first == second
    assert first.startswith(b"%PDF")
    assert b"CreationDate" not in first


def test_heat_maps_show_their_numbers(drawn: list[Figure]) -> None:
    (tasks,) = (figure for figure in drawn if figure.name.endswith("tasks"))
    first = tasks.charts[0]
    assert isinstance(first, HeatMap)
    shown = texts(inline_svg(first, "x", "x"))
    numbers = [f"{v:.0f}" for row in first.values for v in row if v is not None]
    for number in set(numbers):
        assert shown.count(number) >= numbers.count(number)


def test_inline_figures_use_only_the_colours_of_the_page(drawn: list[Figure]) -> None:
    for figure in drawn:
        for number, chart in enumerate(figure.charts):
            svg = inline_svg(chart, f"{figure.name}-{number}", figure.title)
            ET.fromstring(svg)
            # Classes in memory have their own scale, the same in light and dark.
            left = set(re.findall(r"#[0-9a-f]{6}", svg))
            assert not left or figure.name.endswith("memory"), (figure.name, left)
            used = set(re.findall(r"var\(--([a-z-]+)\)", svg)) - {"font"}
            assert used
            assert used <= set(LIGHT) == set(DARK)
            assert "DejaVu" not in svg
            for name in re.findall(r' id="([^"]*)"', svg):
                assert name.startswith(f"{figure.name}-{number}-")


def test_names_are_shown_literally() -> None:
    chart = Bars(ODD, ODD, ODD, (ODD, "b"), (Series(ODD, Style("blue"), (1.0, 2.0)),))
    svg = inline_svg(chart, "x", f"about {ODD}")
    assert texts(svg).count(ODD) == 2
    assert texts(svg).count(f"{ODD[: MAX_NAME - 1]}…") == 2
    assert ET.fromstring(svg).attrib["aria-label"] == f"about {ODD}"


def test_long_names_are_cut() -> None:
    long = "m" * 500
    chart = HeatMap(long, (long,), (long, "b"), ((1.0, 2.0),), "", "")
    shown = texts(inline_svg(chart, "x", "x"))
    assert [len(text) for text in shown if "m" in text] == [MAX_NAME] * 3


def test_of_a_hundred_bars_every_fourth_has_a_label() -> None:
    names = tuple(f"class {i}" for i in range(100))
    chart = Bars("", "", "", names, (Series("", Style("blue"), (1.0,) * 100),))
    shown = [text for text in texts(inline_svg(chart, "x", "x")) if text.startswith("class")]
    assert shown == list(names[::4])


def test_large_counts_are_in_thousands() -> None:
    for steps, expected in ((4000.0, "4000"), (60_000.0, "60k")):
        chart = Areas("", "", "", (0.0, steps), (Series("", Style("blue"), (1.0, 1.0)),))
        assert expected in texts(inline_svg(chart, "x", "x"))


@pytest.mark.parametrize(("low", "high"), [(0.5, 40.0), (0.1, 3e9)])
def test_a_logarithmic_axis_of_any_length_has_numbers(low: float, high: float) -> None:
    line = Line("", Style("blue"), (0.0, 1.0), (low, high), None)
    chart = Curves("", "", "", (line,), scale="log")
    shown = [text.replace("−", "-") for text in texts(inline_svg(chart, "x", "x"))]
    marks = [text for text in shown if text not in ("0.0", "0.2", "0.4", "0.6", "0.8", "1.0")]
    assert len([mark for mark in marks if low <= float(mark) <= high]) >= 2


def test_bars_of_one_colour_are_told_apart() -> None:
    solid, light = (
        inline_svg(Bars("", "", "", ("a",), (Series("", style, (1.0,)),)), "x", "x")
        for style in (Style("blue"), Style("blue", "dashdot"))
    )
    assert "fill-opacity" not in solid
    assert "fill: var(--blue); fill-opacity" in light
    assert "stroke: var(--blue)" in light


def test_a_legend_with_too_many_entries_is_left_out() -> None:
    layers = [Series(f"class {i}", Style("blue"), (1.0, 1.0)) for i in range(30)]
    few, many = (
        Figure("x", "x", "x", (Areas("", "", "", (0.0, 1.0), tuple(layers[:n])),)) for n in (10, 30)
    )
    assert (len(few.legend()), len(many.legend())) == (10, 0)


def test_missing_values_are_gaps() -> None:
    nothing = HeatMap("", ("a",), ("b", "c"), ((None, 5.0),), "", "")
    assert texts(inline_svg(nothing, "x", "x")).count("5") == 1
    json.dumps(Figure("x", "x", "x", (nothing,)).to_json(), allow_nan=False)


def contrast(first: str, second: str) -> float:
    """Contrast ratio as defined by WCAG."""

    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def mixed(colour: str, page: str, depth: float) -> str:
    channels = (
        round(int(a, 16) * depth + int(b, 16) * (1 - depth))
        for a, b in ((colour[i : i + 2], page[i : i + 2]) for i in (1, 3, 5))
    )
    return "#" + "".join(f"{channel:02x}" for channel in channels)


@pytest.mark.parametrize(("palette", "page"), [(LIGHT, "#ffffff"), (DARK, "#12161b")])
def test_text_and_lines_have_enough_contrast(palette: dict[str, str], page: str) -> None:
    assert contrast(palette["ink"], page) > 7
    assert contrast(palette["soft"], page) > 4.5
    for name in ("blue", "vermillion", "green", "purple", "ochre", "teal", "grey"):
        assert contrast(palette[name], page) > 3, name
    # Numbers on dark cells of a heat map are light.
    for depth in (0.0, 0.3, 0.6, LIGHT_TEXT_FROM, LIGHT_TEXT_FROM + 0.001, 0.8, 1.0):
        ink = palette["on-heat" if depth > LIGHT_TEXT_FROM else "ink"]
        assert contrast(ink, mixed(palette["heat"], page, depth)) > 3.8, depth
