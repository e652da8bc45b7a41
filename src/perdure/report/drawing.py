"""Draw chart specs with matplotlib: one function for each kind of chart."""

from __future__ import annotations

import io
import itertools
import math
import warnings
from functools import singledispatch
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import EngFormatter, LogLocator
from numpy.typing import NDArray

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
from perdure.report.style import SETTINGS, TEXT, colour, inline
from perdure.results.verdict import Spread

Format = Literal["svg", "pdf"]
_DASHES: dict[str, Any] = {
    "solid": "solid",
    "dashed": (0, (4, 1.6)),
    "dotted": (0, (1, 1.4)),
    "dashdot": (0, (6, 1.6, 1, 1.6)),
}
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
FEW = 3
"""Columns of a heat map whose names are written next to each other, however long."""
MAX_ACROSS = 60
"""Characters in the columns of a heat map, above which their names are written upwards."""


def inline_svg(chart: Chart, name: str, title: str) -> str:
    """A chart as an SVG element for a page."""
    with mpl.rc_context(SETTINGS):
        canvas = Canvas(figsize=_size(chart), layout="constrained")
        draw(chart, canvas.subplots())
        return inline(_written(canvas, "svg").decode(), name, title)


def save(figure: Figure, path: Path, kind: Format) -> None:
    """Write a figure, with all its charts and its legend, to a file."""
    with mpl.rc_context(SETTINGS):
        widths, heights = zip(*map(_size, figure.charts), strict=True)
        columns = min(len(figure.charts), 3 if max(widths) < 4 else 2)
        rows = math.ceil(len(figure.charts) / columns)
        keys = figure.legend()
        below = 0.28 * math.ceil(len(keys) / (2 * columns)) + 0.1 if keys else 0.0
        size = columns * max(widths), rows * max(heights) + below
        canvas = Canvas(figsize=size, layout="constrained", facecolor="white")
        grid = canvas.subplots(rows, columns, squeeze=False)
        for axes, chart in itertools.zip_longest(grid.flat, figure.charts):
            if chart is None:
                axes.set_axis_off()
            else:
                draw(chart, axes)
        if keys:
            handles = [_handle(*key) for key in keys]
            columns = min(len(keys), 2 * columns)
            canvas.legend(handles=handles, loc="outside lower center", ncols=columns)
        write_atomic(path, _written(canvas, kind))


def _written(canvas: Canvas, kind: Format) -> bytes:
    """The bytes of the file, without a date, so that equal figures are equal bytes."""
    target = io.BytesIO()
    metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    with warnings.catch_warnings():
        if kind == "svg":  # has text, which the reader's fonts show
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
        canvas.savefig(target, format=kind, metadata=metadata)
    return target.getvalue()


def _handle(label: str, style: Style, symbol: Symbol) -> Line2D | Rectangle:
    tint, name = colour(style.colour), _short(label)
    if symbol == "line":
        return Line2D([], [], color=tint, linestyle=_DASHES[style.dash], label=name)
    return Rectangle((0, 0), 1, 1, label=name, **_filled(style))


def _filled(style: Style) -> dict[str, Any]:
    """How an area of this style is filled."""
    tint = colour(style.colour)
    if style.dash == "dashdot":
        return {"facecolor": (tint, 0.25), "edgecolor": tint, "linewidth": 0.9}
    return {"facecolor": tint, "linewidth": 0}


def _size(chart: Chart) -> tuple[float, float]:
    """Width and height in inches."""
    match chart:
        case HeatMap(rows=rows, columns=columns, row_axis=axis):
            longest = max((len(_short(name)) for name in rows), default=0)
            side = 0.21 if max(len(rows), len(columns)) > CROWDED else 0.27
            names = 0.075 * longest + (0.4 if axis else 0.15)
            width = len(columns) * side * _cell_width(chart) + names
            tallest = max(len(_short(name)) for name in columns) if _is_wide(chart) else 0
            return max(width, 1.9), len(rows) * side + 0.7 + 0.075 * tallest
        case Dots(dots=dots):
            longest = max((len(_short(dot.label)) for dot in dots), default=0)
            return 2.9 + min(0.07 * longest, 2.2), 0.29 * len(dots) + 0.65
        case Reliability():
            return 2.35, 2.5
        case Bars(categories=categories, series=series) if not chart.stacked:
            return min(max(0.13 * len(categories) * len(series) + 1.2, 3.6), 7.0), 2.5
        case _:
            return 3.6, 2.5


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
            tint: Any = {"facecolor": colour("heat"), "alpha": depth, "linewidth": 0}
            cell = axes.add_patch(Rectangle((j - 0.48, i - 0.48), 0.96, 0.96, **tint))
            number = axes.text(j, i, text, ha="center", va="center", color=colour(ink), size=size)
            for inside in (cell, number):  # measuring each of them takes long
                inside.set_in_layout(False)
    axes.set_xlim(-0.5, len(chart.columns) - 0.5)
    axes.set_ylim(len(chart.rows) - 0.5, -0.5)
    axes.set_aspect(1 / _cell_width(chart))
    axes.set_xticks(
        range(len(chart.columns)),
        [_short(name) for name in chart.columns],
        rotation=90 if _is_wide(chart) else 0,
    )
    axes.set_yticks(range(len(chart.rows)), [_short(name) for name in chart.rows])
    axes.tick_params(length=0, pad=2)
    axes.spines[:].set_visible(False)
    _label(axes, chart.title, chart.column_axis, chart.row_axis)


def _cell_width(chart: HeatMap) -> float:
    """Width of a cell relative to its height: enough for the name of its column."""
    if _is_wide(chart):
        return 1.2
    return max(1.0, 0.27 * max((len(_short(name)) for name in chart.columns), default=1))


def _is_wide(chart: HeatMap) -> bool:
    """Whether the names of the columns are too long to be written next to each other."""
    longest = max((len(_short(name)) for name in chart.columns), default=0)
    return len(chart.columns) > FEW and longest * len(chart.columns) > MAX_ACROSS


@draw.register
def _curves(chart: Curves, axes: Axes) -> None:
    for mark in chart.marks:
        axes.axvline(mark, color=colour("grid"), linewidth=0.8)
    for line in chart.lines:
        y, tint = _floats(line.y), colour(line.style.colour)
        if line.std is not None:
            std = _floats(line.std)
            axes.fill_between(line.x, y - std, y + std, color=tint, alpha=0.16, linewidth=0)
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
    bottom = np.zeros(len(chart.categories))
    for place, series in enumerate(chart.series):
        values = np.nan_to_num(_floats(series.values))
        shift = 0.0 if chart.stacked else (place - (len(chart.series) - 1) / 2) * width
        x = np.arange(len(values)) + shift
        axes.bar(x, values, width * 0.94, bottom, **_filled(series.style))
        if series.std is not None:
            std = _floats(series.std)
            axes.errorbar(x, values, std, fmt="none", ecolor=colour("ink"), elinewidth=0.7)
        if chart.stacked:
            bottom = bottom + values
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
    layers = [np.nan_to_num(_floats(layer.values)) for layer in chart.layers]
    axes.stackplot(
        chart.x, *layers, colors=[colour(layer.style.colour) for layer in chart.layers], linewidth=0
    )
    axes.margins(x=0, y=0)
    _count_in_thousands(axes)
    _finish(axes, chart.title, chart.x_axis, chart.y_axis)
    axes.grid(visible=False)


@draw.register
def _reliability(chart: Reliability, axes: Axes) -> None:
    edges, share = np.array(chart.edges), np.array(chart.share)
    heights = np.nan_to_num(_floats(chart.accuracy))
    tint: Any = {"color": colour(chart.style.colour), "linewidth": 0}
    bars = axes.bar(100 * edges[:-1], heights, 96 * np.diff(edges), align="edge", **tint)
    for bar, depth in zip(bars, 0.25 + 0.75 * np.sqrt(share / (share.max() or 1.0)), strict=True):
        bar.set_alpha(depth)
    axes.plot([0, 100], [0, 100], color=colour("ink"), linewidth=0.8, linestyle=_DASHES["dashed"])
    axes.set(xlim=(0, 100), ylim=(0, 100), xticks=(0, 50, 100), yticks=(0, 50, 100))
    axes.set_aspect("equal")
    _finish(axes, chart.title, "confidence, percent", "accuracy, percent")
    axes.set_title(_short(chart.title), pad=18)
    error = f"ECE {Spread(chart.ece, chart.ece_std, 1).text(digits=1)}"
    axes.text(0, 1.035, error, transform=axes.transAxes, color=colour("soft"))


@draw.register
def _dots(chart: Dots, axes: Axes) -> None:
    axes.use_sticky_edges = False  # bars must not end the axis
    for place, dot in enumerate(chart.dots):
        axes.axhline(place, color=colour("grid"), linewidth=0.6, zorder=0)
        if chart.lowest is not None and dot.mean < chart.lowest:
            continue
        if dot.published_mean is not None:
            soft, std = colour("soft"), dot.published_std or 0.0
            axes.barh(place, 2 * std, 0.36, dot.published_mean - std, color=soft, alpha=0.25)
            axes.plot(dot.published_mean, place, "D", c=soft, ms=4.5, markerfacecolor="none")
        axes.errorbar(dot.mean, place, xerr=dot.std, fmt="o", c=colour(dot.style.colour), ms=5)
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


def _short(name: str) -> str:
    """A name cut to a length that leaves room for the chart."""
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"


def _floats(values: Values) -> NDArray[np.float64]:
    """The values with NaN for None."""
    return np.array(values, dtype=np.float64)


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
    axes.set(title=_short(title), xlabel=x_axis, ylabel=y_axis)
