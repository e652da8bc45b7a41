"""One look for all figures: a palette for colour-blind eyes, in a light and a dark version."""

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
"""What is drawn and saved; in a page each colour becomes a variable that the reader's mode sets."""
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
"""Size of text in points, in panels that a page shows about one and a half times as large."""


def colour(name: str) -> str:
    """A name of the palette, or a colour as it is."""
    return LIGHT.get(name, name)


def settings() -> Any:
    """Matplotlib's settings for every figure."""
    return {
        "axes.axisbelow": True,
        "axes.edgecolor": LIGHT["soft"],
        "axes.facecolor": "none",
        "axes.grid": False,
        "axes.labelcolor": LIGHT["soft"],
        "axes.labelsize": TEXT,
        "axes.linewidth": 0.6,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlecolor": LIGHT["ink"],
        "axes.titlelocation": "left",
        "axes.titlepad": 7,
        "axes.titlesize": TEXT + 1,
        "axes.titleweight": "bold",
        "figure.facecolor": "none",
        "font.family": ["DejaVu Sans"],  # comes with matplotlib: the same layout everywhere
        "font.size": TEXT,
        "grid.color": LIGHT["grid"],
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "legend.labelcolor": LIGHT["ink"],
        "lines.linewidth": 1.6,
        "lines.solid_capstyle": "round",
        "path.simplify": False,
        "pdf.fonttype": 42,
        "savefig.facecolor": "none",
        "svg.fonttype": "none",  # text stays text: found by a search, set in the reader's font
        "svg.hashsalt": "perdure",
        "text.color": LIGHT["ink"],
        "text.parse_math": False,  # a user's dollar sign is a dollar sign
        "xtick.color": LIGHT["soft"],
        "xtick.labelsize": TEXT,
        "xtick.major.size": 2.5,
        "xtick.major.width": 0.6,
        "ytick.color": LIGHT["soft"],
        "ytick.labelsize": TEXT,
        "ytick.major.size": 2.5,
        "ytick.major.width": 0.6,
    }


def variables(palette: Mapping[str, str]) -> str:
    """The palette as CSS variables."""
    return "".join(f"--{name}:{value};" for name, value in palette.items())


def inline(svg: str, name: str, title: str) -> str:
    """An SVG file's text as an element for a page: named, small, in the page's colours and font.

    Only tags are changed: what stands between them are names and numbers to be read.
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
    """A tag with ids of its own, if anything refers to them, and the palette's variables."""
    if tag.startswith("<!--"):
        return ""
    tag = re.sub(r' id="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", tag)
    tag = re.sub(r"(url\(#|href=\"#)", rf"\g<1>{name}-", tag)
    for known, value in LIGHT.items():
        tag = tag.replace(value, f"var(--{known})")
    tag = re.sub(r"font(-family)?: ([^;\"]*)'DejaVu Sans'[^;\"]*", _font, tag)
    return re.sub(r"(\d\.\d\d)\d+", r"\1", tag)  # a hundredth of a point is finer than any screen


def _font(found: re.Match[str]) -> str:
    """The size of `font: 8.5px 'DejaVu Sans'`; the page says which font it is."""
    size = re.search(r"[\d.]+px", found[2])
    weight = "font-weight: 700; " if re.search(r"\b(bold|700)\b", found[2]) else ""
    return f"{weight}font-size: {size[0]}" if size else "font-family: inherit"
