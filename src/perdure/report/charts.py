"""What a figure shows, as plain records; `drawing` renders them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Values = tuple[float | None, ...]
Dash = Literal["solid", "dashed", "dotted", "dashdot"]
Symbol = Literal["line", "block"]

MAX_LEGEND = 20
"""Entries of a legend; more cannot be told apart."""


@dataclass(frozen=True)
class Style:
    """Colour (a name of the palette, or #rrggbb) and pattern of a series.

    Attributes:
        dash: Of lines. Bars of "dashdot" are light with an outline, all others are filled.
    """

    colour: str
    dash: Dash = "solid"


@dataclass(frozen=True)
class HeatMap:
    """A matrix with its numbers; colours range from transparent at `low` to full at `high`."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[Values, ...]
    row_axis: str
    column_axis: str
    low: float = 0.0
    high: float = 100.0
    decimals: int = 0
    contrast: float = 1.7
    """Above 1, high values are easier to tell apart than low ones; below 1, the reverse."""


@dataclass(frozen=True)
class Line:
    """A curve, with a band of one standard deviation if `std` is given."""

    label: str
    style: Style
    x: tuple[float, ...]
    y: Values
    std: Values | None = None


@dataclass(frozen=True)
class Curves:
    """Lines over a shared x axis, with vertical lines at `marks`."""

    title: str
    x_axis: str
    y_axis: str
    lines: tuple[Line, ...]
    marks: tuple[float, ...] = ()
    scale: Literal["percent", "from zero", "log"] = "from zero"


@dataclass(frozen=True)
class Series:
    """Bars of one colour, or a layer of a stacked area."""

    label: str
    style: Style
    values: Values
    std: Values | None = None


@dataclass(frozen=True)
class Bars:
    """Bars by category, side by side or stacked, with a reference line at `equal`."""

    title: str
    x_axis: str
    y_axis: str
    categories: tuple[str, ...]
    series: tuple[Series, ...]
    stacked: bool = False
    equal: float | None = None


@dataclass(frozen=True)
class Areas:
    """Layers stacked over a shared x axis."""

    title: str
    x_axis: str
    y_axis: str
    x: tuple[float, ...]
    layers: tuple[Series, ...]


@dataclass(frozen=True)
class Reliability:
    """Accuracy (percent, None for empty bins) and share of the samples by confidence."""

    title: str
    style: Style
    edges: tuple[float, ...]
    accuracy: Values
    share: tuple[float, ...]
    ece: float
    ece_std: float | None


@dataclass(frozen=True)
class Dot:
    """Our result and the published one."""

    label: str
    style: Style
    mean: float
    std: float | None
    published_mean: float | None
    published_std: float | None


@dataclass(frozen=True)
class Dots:
    """One row per setting: our result as a point, the published one as a diamond.

    Means below `lowest` are written out at the axis instead of being drawn to scale.
    """

    title: str
    x_axis: str
    dots: tuple[Dot, ...]
    lowest: float | None = None


Chart = HeatMap | Curves | Bars | Areas | Reliability | Dots


@dataclass(frozen=True)
class Figure:
    """Charts that belong together, with a caption; `name` is that of its file, without suffix."""

    name: str
    title: str
    caption: str
    charts: tuple[Chart, ...]

    def legend(self) -> list[tuple[str, Style, Symbol]]:
        """The entries of the legend; empty for a single series, or for too many to tell apart."""
        found: dict[tuple[str, Style, Symbol], None] = {}
        for chart in self.charts:
            match chart:
                case Curves(lines=lines):
                    found |= {(line.label, line.style, "line"): None for line in lines}
                case Bars(series=series) | Areas(layers=series):
                    found |= {(one.label, one.style, "block"): None for one in series}
        return list(found) if 1 < len(found) <= MAX_LEGEND else []

    def to_json(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        charts = [{"kind": type(chart).__name__, **asdict(chart)} for chart in self.charts]
        return {**asdict(self), "charts": charts}
