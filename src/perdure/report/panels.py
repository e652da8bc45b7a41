"""What a figure shows, as plain records: computed and tested apart from how it is drawn."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Literal

Values = tuple[float | None, ...]
Dash = Literal["solid", "dashed", "dotted"]


@dataclass(frozen=True)
class Look:
    """How a series is told from the others: a name of the palette, or #rrggbb, and a dash."""

    colour: str
    dash: Dash = "solid"


@dataclass(frozen=True)
class HeatMap:
    """A matrix with its numbers in it; colours go from none at `low` to the fullest at `high`."""

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
    """Above 1 high values differ more than low ones, below 1 the other way round."""


@dataclass(frozen=True)
class Line:
    """A curve, with a band of one standard deviation where there is one."""

    label: str
    look: Look
    x: tuple[float, ...]
    y: Values
    std: Values | None = None


@dataclass(frozen=True)
class Curves:
    """Lines over a shared axis; `marks` are places on it that mean something."""

    title: str
    x_axis: str
    y_axis: str
    lines: tuple[Line, ...]
    marks: tuple[float, ...] = ()
    scale: Literal["percent", "from zero", "log"] = "from zero"


@dataclass(frozen=True)
class Series:
    """Bars of one colour, or a layer of an area."""

    label: str
    look: Look
    values: Values
    std: Values | None = None


@dataclass(frozen=True)
class Bars:
    """Bars by category, side by side or stacked; `equal` is the height of an even share."""

    title: str
    x_axis: str
    y_axis: str
    categories: tuple[str, ...]
    series: tuple[Series, ...]
    stacked: bool = False
    equal: float | None = None


@dataclass(frozen=True)
class Areas:
    """Layers stacked over a shared axis."""

    title: str
    x_axis: str
    y_axis: str
    x: tuple[float, ...]
    layers: tuple[Series, ...]


@dataclass(frozen=True)
class Reliability:
    """Accuracy in bins of confidence; a calibrated network lies on the diagonal."""

    title: str
    look: Look
    edges: tuple[float, ...]
    accuracy: Values
    """Percent; None where a bin is empty."""
    confidence: Values
    share: tuple[float, ...]
    """Of the samples, in each bin."""
    ece: float
    ece_std: float | None


@dataclass(frozen=True)
class Dot:
    """Our figure with its spread, and the paper's."""

    label: str
    look: Look
    mean: float
    std: float | None
    paper_mean: float | None
    paper_std: float | None


@dataclass(frozen=True)
class Dots:
    """One line for each setting, ours a point and the paper's a diamond."""

    title: str
    x_axis: str
    dots: tuple[Dot, ...]
    lowest: float | None = None
    """The lowest mean on the axis, where one lies so far below that it is only named."""


MOST_KEYS = 20
"""Of a legend: more cannot be told apart."""
Panel = HeatMap | Curves | Bars | Areas | Reliability | Dots


@dataclass(frozen=True)
class Figure:
    """Panels that are read together."""

    name: str
    """Its file's name."""
    title: str
    caption: str
    """What to see."""
    panels: tuple[Panel, ...]

    def legend(self) -> list[tuple[str, Look, Literal["line", "block"]]]:
        """What a legend has to explain: nothing, where there is one kind of thing or too many."""
        found: dict[tuple[str, Look, Literal["line", "block"]], None] = {}
        for panel in self.panels:
            if isinstance(panel, Curves):
                found |= {(line.label, line.look, "line"): None for line in panel.lines}
            elif isinstance(panel, Bars):
                found |= {(one.label, one.look, "block"): None for one in panel.series}
            elif isinstance(panel, Areas):
                found |= {(one.label, one.look, "block"): None for one in panel.layers}
        return list(found) if 1 < len(found) <= MOST_KEYS else []

    def data(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        panels = [{"kind": type(panel).__name__, **asdict(panel)} for panel in self.panels]
        return {**asdict(self), "panels": panels}


def slug(text: str) -> str:
    """A name for files and anchors.

    >>> slug("s-mnist, mnist5k: <b>")
    's-mnist-mnist5k-b'
    """
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower() or "x"
