"""The style of all figures: a palette that is safe for colour-blind readers, light and dark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

LIGHT: Mapping[str, str] = {
    "ink": "#1c2127",
    "soft": "#5b6570",
    "grid": "#dfe3e8",
    "heat": "#08427d",
    "on-heat": "#fefefe",
    "blue": "#0072b2",
    "sky": "#8fc8ea",
    "vermillion": "#d1550a",
    "green": "#00896b",
    "purple": "#a64d8a",
    "ochre": "#a57600",
    "teal": "#2a8ba3",
    "grey": "#77808a",
}
"""Used in files; in a page each colour becomes a CSS variable with a light and a dark value."""
DARK: Mapping[str, str] = {
    "ink": "#e7eaee",
    "soft": "#a3adb8",
    "grid": "#343b44",
    "heat": "#5ba6e6",
    "on-heat": "#0d1116",
    "blue": "#4ea8e6",
    "sky": "#2d5f86",
    "vermillion": "#ff8c4f",
    "green": "#35c79d",
    "purple": "#df8cc6",
    "ochre": "#dfae3d",
    "teal": "#69c4da",
    "grey": "#98a2ad",
}
TEXT = 8.5
"""Size of text in points; a page shows charts about one and a half times as large."""
SETTINGS: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": LIGHT["soft"],
    "axes.facecolor": "none",
    "axes.labelcolor": LIGHT["soft"],
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlepad": 7,
    "axes.titlesize": TEXT + 1,
    "axes.titleweight": "bold",
    "figure.facecolor": "none",
    "font.family": ["DejaVu Sans"],  # part of matplotlib: the same layout everywhere
    "font.size": TEXT,
    "grid.color": LIGHT["grid"],
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "path.simplify": False,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "perdure",
    "text.color": LIGHT["ink"],
    "text.parse_math": False,  # names may contain dollar signs
    "xtick.color": LIGHT["soft"],
    "xtick.major.size": 2.5,
    "xtick.major.width": 0.6,
    "ytick.color": LIGHT["soft"],
    "ytick.major.size": 2.5,
    "ytick.major.width": 0.6,
}
"""Matplotlib's settings for every figure."""


def colour(name: str) -> str:
    """The value of a colour of the palette; other colours are returned unchanged."""
    return LIGHT.get(name, name)


def inline(svg: str, name: str, title: str) -> str:
    """Turn an SVG file of matplotlib into an element with the page's colours and font.

    Text between tags is not changed. `name` is the prefix of the ids, `title` the alternative text.
    """
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    used = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", svg))
    svg = re.sub(r"<[^>]*>", lambda tag: _tag(tag[0], name, used), svg)
    svg = re.sub(r">\s+<", "><", svg)
    head = re.match(r"<svg[^>]*viewBox=\"([^\"]*)\"[^>]*>", svg)
    assert head is not None, "matplotlib's SVG has a viewBox"
    width = float(head[1].split()[2])
    return (
        f'<svg viewBox="{head[1]}" role="img" aria-label="{escape(title, {chr(34): "&quot;"})}" '
        f'xmlns:xlink="http://www.w3.org/1999/xlink" style="--natural:{width:.0f}">'
        + svg[head.end() :]
    ).strip()


def _tag(tag: str, name: str, used: set[str]) -> str:
    """A tag with the page's variables for colours, and without ids that nothing refers to."""
    if tag.startswith("<!--"):
        return ""
    tag = re.sub(r' id="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", tag)
    tag = re.sub(r"(url\(#|href=\"#)", rf"\g<1>{name}-", tag)
    for known, value in LIGHT.items():
        tag = tag.replace(value, f"var(--{known})")
    tag = re.sub(r"'DejaVu Sans'[^;\"]*", "var(--font)", tag)
    return re.sub(r"(\d\.\d\d)\d+", r"\1", tag)  # in points
