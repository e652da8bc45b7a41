"""How the records of `panels` are drawn: one function for each kind, on axes that are given."""

from __future__ import annotations

import io
import itertools
import math
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import EngFormatter, LogLocator

from perdure.files import write_atomic
from perdure.report.panels import (
    Areas,
    Bars,
    Curves,
    Dots,
    Figure,
    HeatMap,
    Look,
    Panel,
    Reliability,
    Values,
)
from perdure.report.style import TEXT, colour, inline, settings

Format = Literal["svg", "pdf"]
_DASHES: dict[str, Any] = {"solid": "solid", "dashed": (0, (4, 1.6)), "dotted": (0, (1, 1.4))}
TURNS = 0.66
"""Share of the fullest colour from which numbers on it are light instead of dark."""
CROWDED = 12
"""Rows or columns from which numbers are set smaller."""
FEW_DECADES = 1e3
"""On a logarithmic axis as short as this, 2 and 5 of each decade are named too."""
MOST_NAMED = 25
"""Groups of bars that are named; of more, every second, third and so on."""
LONGEST = 36
"""Letters of a name in a drawing."""


@dataclass(frozen=True)
class Size:
    """Of a panel, in inches."""

    width: float
    height: float


def inline_svg(panel: Panel, name: str, title: str) -> str:
    """One panel as an SVG element for a page."""
    with mpl.rc_context(settings()):
        size = _size(panel)
        canvas = Canvas(figsize=(size.width, size.height), layout="constrained")
        draw(panel, canvas.subplots())
        return inline(_written(canvas, "svg").decode(), name, title)


def save(figure: Figure, path: Path, kind: Format) -> None:
    """A figure with all its panels and its legend as a file of its own."""
    with mpl.rc_context(settings()):
        sizes = [_size(panel) for panel in figure.panels]
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
        for axes, panel in itertools.zip_longest(grid.flat, figure.panels):
            if panel is None:
                axes.set_axis_off()
            else:
                draw(panel, axes)
        if keys:
            handles = [_handle(look, sort) for _, look, sort in keys]
            labels = [_short(label) for label, _, _ in keys]
            canvas.legend(
                handles, labels, loc="outside lower center", ncols=min(len(keys), 2 * columns)
            )
        write_atomic(path, _written(canvas, kind))


def _written(canvas: Canvas, kind: Format) -> bytes:
    """The file's bytes, without the date that would make equal figures differ."""
    target = io.BytesIO()
    undated: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    canvas.savefig(target, format=kind, metadata=undated, facecolor=canvas.get_facecolor())
    return target.getvalue()


def _handle(look: Look, sort: str) -> Line2D | Rectangle:
    if sort == "line":
        return Line2D([], [], color=colour(look.colour), linestyle=_DASHES[look.dash])
    return Rectangle((0, 0), 1, 1, facecolor=colour(look.colour), linewidth=0)


def _size(panel: Panel) -> Size:
    match panel:
        case HeatMap(rows=rows, columns=columns, row_axis=axis):
            longest = max((len(_short(name)) for name in rows), default=0)
            side = 0.21 if max(len(rows), len(columns)) > CROWDED else 0.27
            names = 0.075 * longest + (0.4 if axis else 0.15)
            width = len(columns) * side * _cell_width(panel) + names
            return Size(max(width, 1.9), len(rows) * side + 0.7)
        case Dots(dots=dots):
            longest = max((len(_short(dot.label)) for dot in dots), default=0)
            return Size(2.9 + min(0.07 * longest, 2.2), 0.29 * len(dots) + 0.65)
        case Reliability():
            return Size(2.35, 2.5)
        case Bars(categories=categories, series=series) if not panel.stacked:
            return Size(min(max(0.13 * len(categories) * len(series) + 1.2, 3.6), 7.0), 2.5)
        case _:
            return Size(3.6, 2.5)


@singledispatch
def draw(panel: Panel, axes: Axes) -> None:
    """Draw a panel on axes."""
    raise AssertionError(f"no drawing for {panel}")


@draw.register
def _heat_map(panel: HeatMap, axes: Axes) -> None:
    crowded = max(len(panel.columns), len(panel.rows)) > CROWDED
    size = TEXT * (0.72 if crowded else 0.9)
    for i, row in enumerate(panel.values):
        for j, value in enumerate(row):
            if value is None:
                continue
            share = (value - panel.low) / (panel.high - panel.low)
            depth = min(max(share, 0.0), 1.0) ** panel.contrast
            text = f"{value:.{panel.decimals}f}"
            ink = "on-heat" if depth > TURNS else "soft" if text == "0" else "ink"
            place = (j - 0.48, i - 0.48)
            heat = colour("heat")
            cell = Rectangle(place, 0.96, 0.96, facecolor=heat, alpha=depth, linewidth=0)
            number = axes.text(j, i, text, ha="center", va="center", color=colour(ink), size=size)
            axes.add_patch(cell)
            for inside in (cell, number):  # of the axes: layout need not ask them, one by one
                inside.set_in_layout(False)
    axes.set_xlim(-0.5, len(panel.columns) - 0.5)
    axes.set_ylim(len(panel.rows) - 0.5, -0.5)
    axes.set_aspect(1 / _cell_width(panel))
    axes.set_xticks(range(len(panel.columns)), [_short(name) for name in panel.columns])
    axes.set_yticks(range(len(panel.rows)), [_short(name) for name in panel.rows])
    axes.tick_params(length=0, pad=2)
    axes.spines[:].set_visible(False)
    _name(axes, panel.title, panel.column_axis, panel.row_axis)


def _cell_width(panel: HeatMap) -> float:
    """In heights of a cell: wide enough for the name of its column."""
    return max(1.0, 0.27 * max((len(_short(name)) for name in panel.columns), default=1))


@draw.register
def _curves(panel: Curves, axes: Axes) -> None:
    for mark in panel.marks:
        axes.axvline(mark, color=colour("grid"), linewidth=0.8)
    for line in panel.lines:
        y = _floats(line.y)
        tint = colour(line.look.colour)
        if line.std is not None:
            std = _floats(line.std)
            low = [a - b for a, b in zip(y, std, strict=True)]
            high = [a + b for a, b in zip(y, std, strict=True)]
            axes.fill_between(line.x, low, high, color=tint, alpha=0.16, linewidth=0)
        axes.plot(line.x, y, color=tint, linestyle=_DASHES[line.look.dash])
    if panel.scale == "log":
        axes.set_yscale("log")
        least, most = axes.get_ylim()
        narrow = least > 0 and most / least < FEW_DECADES
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if narrow else (1,), numticks=8))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    elif panel.scale == "percent":
        axes.set_ylim(0, 102)
    else:
        axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    _count_in_thousands(axes)
    _finish(axes, panel.title, panel.x_axis, panel.y_axis)


@draw.register
def _bars(panel: Bars, axes: Axes) -> None:
    width = 0.8 if panel.stacked else 0.84 / max(len(panel.series), 1)
    bottom = [0.0] * len(panel.categories)
    for place, series in enumerate(panel.series):
        values = [0.0 if v is None else v for v in series.values]
        shift = 0.0 if panel.stacked else (place - (len(panel.series) - 1) / 2) * width
        x = [i + shift for i in range(len(values))]
        axes.bar(x, values, width * 0.94, bottom, color=colour(series.look.colour), linewidth=0)
        if series.std is not None:
            std = _floats(series.std)
            axes.errorbar(x, values, std, fmt="none", ecolor=colour("ink"), elinewidth=0.7)
        if panel.stacked:
            bottom = [a + b for a, b in zip(bottom, values, strict=True)]
    if panel.equal is not None:
        axes.axhline(panel.equal, color=colour("ink"), linewidth=0.8, linestyle=_DASHES["dashed"])
    every = max(1, math.ceil(len(panel.categories) / MOST_NAMED))
    named = range(0, len(panel.categories), every)
    crowded = sum(len(panel.categories[i]) + 1 for i in named) > 36
    axes.set_xticks(
        named,
        [_short(panel.categories[i]) for i in named],
        rotation=45 if crowded else 0,
        ha="right" if crowded else "center",
        rotation_mode="anchor",
    )
    axes.tick_params(axis="x", length=0)
    axes.margins(x=0.01)
    axes.set_ylim(0, 100 if panel.stacked else None)
    _finish(axes, panel.title, panel.x_axis, panel.y_axis)


@draw.register
def _areas(panel: Areas, axes: Axes) -> None:
    bottom = [0.0] * len(panel.x)
    for layer in panel.layers:
        top = [a + (b or 0.0) for a, b in zip(bottom, layer.values, strict=True)]
        axes.fill_between(panel.x, bottom, top, color=colour(layer.look.colour), linewidth=0)
        bottom = top
    axes.margins(x=0, y=0)
    axes.set_ylim(0, max(bottom, default=1.0) or 1.0)
    _count_in_thousands(axes)
    _finish(axes, panel.title, panel.x_axis, panel.y_axis)
    axes.grid(visible=False)


@draw.register
def _reliability(panel: Reliability, axes: Axes) -> None:
    tint = colour(panel.look.colour)
    most = max(panel.share, default=1.0) or 1.0
    for low, high, accuracy, share in zip(
        panel.edges[:-1], panel.edges[1:], panel.accuracy, panel.share, strict=True
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
    spread = "" if panel.ece_std is None else f" ± {panel.ece_std:.1f}"
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    axes.set_aspect("equal")
    axes.set_xticks([0, 50, 100])
    axes.set_yticks([0, 50, 100])
    _finish(axes, panel.title, "confidence, percent", "accuracy, percent")
    axes.set_title(_short(panel.title), pad=18)
    error = f"ECE {panel.ece:.1f}{spread}"
    axes.text(0, 1.035, error, transform=axes.transAxes, color=colour("soft"))


@draw.register
def _dots(panel: Dots, axes: Axes) -> None:
    for place, dot in enumerate(panel.dots):
        axes.axhline(place, color=colour("grid"), linewidth=0.6, zorder=0)
        if panel.lowest is not None and dot.mean < panel.lowest:
            continue
        if dot.paper_mean is not None:
            _paper(axes, place, dot.paper_mean, dot.paper_std or 0.0)
        tint = colour(dot.look.colour)
        ends = [dot.mean - (dot.std or 0.0), dot.mean + (dot.std or 0.0)]
        axes.plot(ends, [place, place], color=tint, linewidth=1.6)
        axes.plot(dot.mean, place, marker="o", color=tint, markersize=5, linestyle="none")
    left = axes.get_xlim()[0]
    for place, dot in enumerate(panel.dots):
        if panel.lowest is not None and dot.mean < panel.lowest:
            text = f"◂ {dot.mean:.1f}, off the scale"
            axes.text(left, place, text, va="center", color=colour(dot.look.colour))
    axes.set_xlim(left=left)
    axes.set_yticks(range(len(panel.dots)), [_short(dot.label) for dot in panel.dots])
    axes.set_ylim(len(panel.dots) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0, labelcolor=colour("ink"))
    axes.spines["left"].set_visible(False)
    _name(axes, panel.title, panel.x_axis, "")


def _paper(axes: Axes, place: float, mean: float, std: float) -> None:
    """A hollow diamond on the breadth of its spread."""
    soft = colour("soft")
    ends = [mean - std, mean + std]
    axes.plot(ends, [place] * 2, color=soft, linewidth=7, alpha=0.25, solid_capstyle="butt")
    axes.plot(mean, place, color=soft, marker="D", markersize=4.5, markerfacecolor="none")


def _short(name: str) -> str:
    """A name that leaves room for what it names; the record and the page have it in full."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def _floats(values: Values) -> list[float]:
    return [math.nan if v is None else v for v in values]


def _count_in_thousands(axes: Axes) -> None:
    """20000 becomes 20k, where numbers below the axis would touch."""
    if axes.get_xlim()[1] >= 10_000:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _finish(axes: Axes, title: str, x_axis: str, y_axis: str) -> None:
    axes.grid(axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    _name(axes, title, x_axis, y_axis)


def _name(axes: Axes, title: str, x_axis: str, y_axis: str) -> None:
    axes.set_title(_short(title))
    axes.set_xlabel(x_axis)
    axes.set_ylabel(y_axis)
