"""Draw chart specs with matplotlib: one function for each kind of chart."""

from __future__ import annotations

import io
import itertools
import math
from functools import singledispatch
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import EngFormatter, LogLocator

from perdure.files import write_atomic
from perdure.report.charts import (
    Areas,
    Bars,
    Chart,
    Curves,
    Dots,
    Figure,
    HeatMap,
    Reliability,
    Style,
    Symbol,
    Values,
)
from perdure.report.style import TEXT, colour, inline, settings

Format = Literal["svg", "pdf"]
_DASHES: dict[str, Any] = {"solid": "solid", "dashed": (0, (4, 1.6)), "dotted": (0, (1, 1.4))}
LIGHT_TEXT_FROM = 0.66
"""Opacity of a cell of a heat map above which its number is light instead of dark."""
CROWDED = 12
"""Rows or columns above which the numbers of a heat map are smaller."""
FEW_DECADES = 1e3
"""Ratio of the ends of a logarithmic axis below which 2 and 5 of each decade have labels too."""
MAX_LABELS = 25
"""Labels below bars; with more bars only every second, third and so on has one."""
MAX_NAME = 36
"""Characters of a name in a drawing."""


class Size(NamedTuple):
    """Size of a chart in inches."""

    width: float
    height: float


def inline_svg(chart: Chart, name: str, title: str) -> str:
    """A chart as an SVG element for a page."""
    with mpl.rc_context(settings()):
        size = _size(chart)
        canvas = Canvas(figsize=(size.width, size.height), layout="constrained")
        draw(chart, canvas.subplots())
        return inline(_written(canvas, "svg").decode(), name, title)


def save(figure: Figure, path: Path, kind: Format) -> None:
    """Write a figure, with all its charts and its legend, to a file."""
    with mpl.rc_context(settings()):
        sizes = [_size(chart) for chart in figure.charts]
        columns = min(len(sizes), 3 if max(s.width for s in sizes) < 4 else 2)
        rows = math.ceil(len(sizes) / columns)
        keys = figure.legend()
        below = 0.28 * math.ceil(len(keys) / max(2 * columns, 1)) + 0.1 if keys else 0.0
        height = rows * max(s.height for s in sizes) + below
        canvas = Canvas(
            figsize=(columns * max(s.width for s in sizes), height), layout="constrained"
        )
        canvas.patch.set_facecolor("white")
        grid = canvas.subplots(rows, columns, squeeze=False)
        for axes, chart in itertools.zip_longest(grid.flat, figure.charts):
            if chart is None:
                axes.set_axis_off()
            else:
                draw(chart, axes)
        if keys:
            handles = [_handle(style, symbol) for _, style, symbol in keys]
            labels = [_short(label) for label, _, _ in keys]
            canvas.legend(
                handles, labels, loc="outside lower center", ncols=min(len(keys), 2 * columns)
            )
        write_atomic(path, _written(canvas, kind))


def _written(canvas: Canvas, kind: Format) -> bytes:
    """The bytes of the file, without a date, so that equal figures are equal bytes."""
    target = io.BytesIO()
    metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    canvas.savefig(target, format=kind, metadata=metadata, facecolor=canvas.get_facecolor())
    return target.getvalue()


def _handle(style: Style, symbol: Symbol) -> Line2D | Rectangle:
    if symbol == "line":
        return Line2D([], [], color=colour(style.colour), linestyle=_DASHES[style.dash])
    return Rectangle((0, 0), 1, 1, facecolor=colour(style.colour), linewidth=0)


def _size(chart: Chart) -> Size:
    match chart:
        case HeatMap(rows=rows, columns=columns, row_axis=axis):
            longest = max((len(_short(name)) for name in rows), default=0)
            side = 0.21 if max(len(rows), len(columns)) > CROWDED else 0.27
            names = 0.075 * longest + (0.4 if axis else 0.15)
            width = len(columns) * side * _cell_width(chart) + names
            return Size(max(width, 1.9), len(rows) * side + 0.7)
        case Dots(dots=dots):
            longest = max((len(_short(dot.label)) for dot in dots), default=0)
            return Size(2.9 + min(0.07 * longest, 2.2), 0.29 * len(dots) + 0.65)
        case Reliability():
            return Size(2.35, 2.5)
        case Bars(categories=categories, series=series) if not chart.stacked:
            return Size(min(max(0.13 * len(categories) * len(series) + 1.2, 3.6), 7.0), 2.5)
        case _:
            return Size(3.6, 2.5)


@singledispatch
def draw(chart: Chart, axes: Axes) -> None:
    """Draw a chart on axes."""
    raise AssertionError(f"no drawing for {chart}")


@draw.register
def _heat_map(chart: HeatMap, axes: Axes) -> None:
    crowded = max(len(chart.columns), len(chart.rows)) > CROWDED
    size = TEXT * (0.72 if crowded else 0.9)
    for i, row in enumerate(chart.values):
        for j, value in enumerate(row):
            if value is None:
                continue
            share = (value - chart.low) / (chart.high - chart.low)
            depth = min(max(share, 0.0), 1.0) ** chart.contrast
            text = f"{value:.{chart.decimals}f}"
            ink = "on-heat" if depth > LIGHT_TEXT_FROM else "soft" if text == "0" else "ink"
            place = (j - 0.48, i - 0.48)
            heat = colour("heat")
            cell = Rectangle(place, 0.96, 0.96, facecolor=heat, alpha=depth, linewidth=0)
            number = axes.text(j, i, text, ha="center", va="center", color=colour(ink), size=size)
            axes.add_patch(cell)
            for inside in (cell, number):  # measuring each of them takes long
                inside.set_in_layout(False)
    axes.set_xlim(-0.5, len(chart.columns) - 0.5)
    axes.set_ylim(len(chart.rows) - 0.5, -0.5)
    axes.set_aspect(1 / _cell_width(chart))
    axes.set_xticks(range(len(chart.columns)), [_short(name) for name in chart.columns])
    axes.set_yticks(range(len(chart.rows)), [_short(name) for name in chart.rows])
    axes.tick_params(length=0, pad=2)
    axes.spines[:].set_visible(False)
    _label(axes, chart.title, chart.column_axis, chart.row_axis)


def _cell_width(chart: HeatMap) -> float:
    """Width of a cell relative to its height: enough for the name of its column."""
    return max(1.0, 0.27 * max((len(_short(name)) for name in chart.columns), default=1))


@draw.register
def _curves(chart: Curves, axes: Axes) -> None:
    for mark in chart.marks:
        axes.axvline(mark, color=colour("grid"), linewidth=0.8)
    for line in chart.lines:
        y = _floats(line.y)
        tint = colour(line.style.colour)
        if line.std is not None:
            std = _floats(line.std)
            low = [a - b for a, b in zip(y, std, strict=True)]
            high = [a + b for a, b in zip(y, std, strict=True)]
            axes.fill_between(line.x, low, high, color=tint, alpha=0.16, linewidth=0)
        axes.plot(line.x, y, color=tint, linestyle=_DASHES[line.style.dash])
    if chart.scale == "log":
        axes.set_yscale("log")
        least, most = axes.get_ylim()
        narrow = least > 0 and most / least < FEW_DECADES
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if narrow else (1,), numticks=8))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    elif chart.scale == "percent":
        axes.set_ylim(0, 102)
    else:
        axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    _count_in_thousands(axes)
    _finish(axes, chart.title, chart.x_axis, chart.y_axis)


@draw.register
def _bars(chart: Bars, axes: Axes) -> None:
    width = 0.8 if chart.stacked else 0.84 / max(len(chart.series), 1)
    bottom = [0.0] * len(chart.categories)
    for place, series in enumerate(chart.series):
        values = [0.0 if v is None else v for v in series.values]
        shift = 0.0 if chart.stacked else (place - (len(chart.series) - 1) / 2) * width
        x = [i + shift for i in range(len(values))]
        axes.bar(x, values, width * 0.94, bottom, color=colour(series.style.colour), linewidth=0)
        if series.std is not None:
            std = _floats(series.std)
            axes.errorbar(x, values, std, fmt="none", ecolor=colour("ink"), elinewidth=0.7)
        if chart.stacked:
            bottom = [a + b for a, b in zip(bottom, values, strict=True)]
    if chart.equal is not None:
        axes.axhline(chart.equal, color=colour("ink"), linewidth=0.8, linestyle=_DASHES["dashed"])
    step = max(1, math.ceil(len(chart.categories) / MAX_LABELS))
    named = range(0, len(chart.categories), step)
    crowded = sum(len(chart.categories[i]) + 1 for i in named) > 36
    axes.set_xticks(
        named,
        [_short(chart.categories[i]) for i in named],
        rotation=45 if crowded else 0,
        ha="right" if crowded else "center",
        rotation_mode="anchor",
    )
    axes.tick_params(axis="x", length=0)
    axes.margins(x=0.01)
    axes.set_ylim(0, 100 if chart.stacked else None)
    _finish(axes, chart.title, chart.x_axis, chart.y_axis)


@draw.register
def _areas(chart: Areas, axes: Axes) -> None:
    bottom = [0.0] * len(chart.x)
    for layer in chart.layers:
        top = [a + (b or 0.0) for a, b in zip(bottom, layer.values, strict=True)]
        axes.fill_between(chart.x, bottom, top, color=colour(layer.style.colour), linewidth=0)
        bottom = top
    axes.margins(x=0, y=0)
    axes.set_ylim(0, max(bottom, default=1.0) or 1.0)
    _count_in_thousands(axes)
    _finish(axes, chart.title, chart.x_axis, chart.y_axis)
    axes.grid(visible=False)


@draw.register
def _reliability(chart: Reliability, axes: Axes) -> None:
    tint = colour(chart.style.colour)
    most = max(chart.share, default=1.0) or 1.0
    for low, high, accuracy, share in zip(
        chart.edges[:-1], chart.edges[1:], chart.accuracy, chart.share, strict=True
    ):
        if accuracy is not None:
            place = (100 * low, 0.0)
            depth = 0.25 + 0.75 * math.sqrt(share / most)
            axes.add_patch(
                Rectangle(
                    place, 96 * (high - low), accuracy, facecolor=tint, alpha=depth, linewidth=0
                )
            )
    axes.plot([0, 100], [0, 100], color=colour("ink"), linewidth=0.8, linestyle=_DASHES["dashed"])
    spread = "" if chart.ece_std is None else f" ± {chart.ece_std:.1f}"
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    axes.set_aspect("equal")
    axes.set_xticks([0, 50, 100])
    axes.set_yticks([0, 50, 100])
    _finish(axes, chart.title, "confidence, percent", "accuracy, percent")
    axes.set_title(_short(chart.title), pad=18)
    error = f"ECE {chart.ece:.1f}{spread}"
    axes.text(0, 1.035, error, transform=axes.transAxes, color=colour("soft"))


@draw.register
def _dots(chart: Dots, axes: Axes) -> None:
    for place, dot in enumerate(chart.dots):
        axes.axhline(place, color=colour("grid"), linewidth=0.6, zorder=0)
        if chart.lowest is not None and dot.mean < chart.lowest:
            continue
        if dot.published_mean is not None:
            _published(axes, place, dot.published_mean, dot.published_std or 0.0)
        tint = colour(dot.style.colour)
        ends = [dot.mean - (dot.std or 0.0), dot.mean + (dot.std or 0.0)]
        axes.plot(ends, [place, place], color=tint, linewidth=1.6)
        axes.plot(dot.mean, place, marker="o", color=tint, markersize=5, linestyle="none")
    left = axes.get_xlim()[0]
    for place, dot in enumerate(chart.dots):
        if chart.lowest is not None and dot.mean < chart.lowest:
            text = f"◂ {dot.mean:.1f}, off the scale"
            axes.text(left, place, text, va="center", color=colour(dot.style.colour))
    axes.set_xlim(left=left)
    axes.set_yticks(range(len(chart.dots)), [_short(dot.label) for dot in chart.dots])
    axes.set_ylim(len(chart.dots) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0, labelcolor=colour("ink"))
    axes.spines["left"].set_visible(False)
    _label(axes, chart.title, chart.x_axis, "")


def _published(axes: Axes, place: float, mean: float, std: float) -> None:
    """A hollow diamond on a bar of one standard deviation to either side."""
    soft = colour("soft")
    ends = [mean - std, mean + std]
    axes.plot(ends, [place] * 2, color=soft, linewidth=7, alpha=0.25, solid_capstyle="butt")
    axes.plot(mean, place, color=soft, marker="D", markersize=4.5, markerfacecolor="none")


def _short(name: str) -> str:
    """A name cut to a length that leaves room for the chart."""
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"


def _floats(values: Values) -> list[float]:
    return [math.nan if v is None else v for v in values]


def _count_in_thousands(axes: Axes) -> None:
    """Write 20000 as 20k, so that tick labels do not touch."""
    if axes.get_xlim()[1] >= 10_000:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _finish(axes: Axes, title: str, x_axis: str, y_axis: str) -> None:
    axes.grid(axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    _label(axes, title, x_axis, y_axis)


def _label(axes: Axes, title: str, x_axis: str, y_axis: str) -> None:
    axes.set_title(_short(title))
    axes.set_xlabel(x_axis)
    axes.set_ylabel(y_axis)
