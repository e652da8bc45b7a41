"""Draw docs/images/scaling.svg, the picture of docs/performance.md, from a recorded benchmark.

python benchmarks/scaling.py > results/scaling.json
python docs/make_scaling.py
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from make_picture import METHODS, STYLE

RECORD = Path(__file__).parents[1] / "results" / "scaling.json"
IMAGE = Path(__file__).parent / "images" / "scaling.svg"
PARTS = {
    "buffer": "Samples in the memory",
    "batch": "Samples per batch",
    "classes": "Classes",
}
WIDTH, HEIGHT, TOP, LEFT, GAP = 180, 190, 66, 52, 124
LOWEST, HIGHEST = 0.1, 100
"""Milliseconds at the bottom and at the top."""


def panel(title: str, left: float, curves: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One chart with logarithmic axes: a line per method, and its name at the right."""
    settings = [int(key) for key in next(iter(curves.values()))]
    first, last = math.log10(settings[0]), math.log10(settings[-1])

    def x(setting: int) -> float:
        return left + WIDTH * (math.log10(setting) - first) / (last - first)

    def y(ms: float) -> float:
        return TOP + HEIGHT * math.log10(HIGHEST / ms) / math.log10(HIGHEST / LOWEST)

    parts = [f'<text class="title" x="{left}" y="{TOP - 30}">{title}</text>']
    for ms in (0.1, 1, 10, 100):
        parts += [
            f'<path class="grid" d="M{left} {y(ms):.1f}h{WIDTH}"/>',
            f'<text x="{left - 8}" y="{y(ms) + 5:.1f}" text-anchor="end">{ms:g}</text>',
        ]
    for setting in (settings[0], settings[-1]):
        parts.append(
            f'<text x="{x(setting):.1f}" y="{TOP + HEIGHT + 24}" text-anchor="middle">'
            f"{setting:,}</text>"
        )
    for method, found in curves.items():
        points = " ".join(f"{x(int(key)):.1f},{y(each['ms']):.1f}" for key, each in found.items())
        label = y(found[str(settings[-1])]["ms"]) + (14 if method == "er" else -4)
        parts += [
            f'<polyline class="line {method}" points="{points}"/>',
            f'<text class="name {method}" x="{left + WIDTH + 8}" y="{label:.1f}">'
            f"{METHODS[method]}</text>",
        ]
    return parts


def main() -> None:
    """Read the record and write the picture."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    width, height = LEFT + len(PARTS) * (WIDTH + GAP) - 30, TOP + HEIGHT + 68
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="The time of a step does not depend on the size of the memory">',
        f"<style>{STYLE}</style>",
        f'<rect class="card" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>',
    ]
    for number, (part, title) in enumerate(PARTS.items()):
        parts += panel(title, LEFT + number * (WIDTH + GAP), record[part])
    parts += [
        f'<text x="{width / 2}" y="{height - 16}" text-anchor="middle">'
        "milliseconds of one core per step, logarithmic</text>",
        "</svg>",
    ]
    IMAGE.write_text("\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
