"""Draw docs/images/forgetting.svg, the picture in the README, from finished runs.

    perdure run s-mnist --method sgd --dataset mnist5k --seeds 0:5
    perdure run s-mnist --method er --dataset mnist5k --seeds 0:5
    perdure run s-mnist --method clser --dataset mnist5k --seeds 0:5
    python docs/make_picture.py runs

The picture shows means over the seeds.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from perdure.results import collect

IMAGE = Path(__file__).parent / "images" / "forgetting.svg"
METHODS = {"sgd": "SGD", "er": "ER", "clser": "CLS-ER"}
TICKS = ["0 1", "2 3", "4 5", "6 7", "8 9"]
WIDTH, HEIGHT, TOP, LEFT, GAP = 210, 190, 66, 52, 172

STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de }
  text { font: 16px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #3b434b }
  .title { font-weight: 600; fill: #1f2328 }
  .grid { stroke: #d8dee4 }
  .line { fill: none; stroke-width: 2.5; stroke-linejoin: round }
  .sgd { stroke: #c2410c } text.sgd { fill: #c2410c; stroke: none }
  .er { stroke: #8250df; stroke-dasharray: 6 4 } text.er { fill: #8250df; stroke: none }
  .clser { stroke: #0550ae } text.clser { fill: #0550ae; stroke: none }
  .name { font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #30363d }
    text { fill: #b1bac4 }
    .title { fill: #f0f6fc }
    .grid { stroke: #30363d }
    .sgd { stroke: #ff9b62 } text.sgd { fill: #ff9b62 }
    .er { stroke: #d2a8ff } text.er { fill: #d2a8ff }
    .clser { stroke: #79c0ff } text.clser { fill: #79c0ff }
  }
"""


def accuracies(folder: Path, method: str) -> tuple[list[float], list[float]]:
    """Mean accuracy over seeds after each task: on the first task, and on all tasks so far."""
    settings = [s for s in collect([folder / "s-mnist"]).settings if s.config.method == method]
    if len(settings) != 1:
        raise SystemExit(f"{folder} has no runs of {method}, or several settings of it")
    (setting,) = settings
    matrices: list[Any] = [found.matrix[1:] for found in setting.scores(setting.predictors[0])]
    tasks = range(len(matrices[0]))
    first = [fmean(matrix[task][0] for matrix in matrices) for task in tasks]
    seen = [fmean(fmean(matrix[task][: task + 1]) for matrix in matrices) for task in tasks]
    return first, seen


def panel(title: str, left: float, curves: dict[str, list[float]]) -> list[str]:
    """One chart: grid, axes, a line per method and its name and last value at the right."""

    def x(task: int) -> float:
        return left + task * WIDTH / (len(TICKS) - 1)

    def y(percent: float) -> float:
        return TOP + HEIGHT * (1 - percent / 100)

    parts = [f'<text class="title" x="{left}" y="{TOP - 30}">{title}</text>']
    for percent in (0, 25, 50, 75, 100):
        parts += [
            f'<path class="grid" d="M{left} {y(percent):.1f}h{WIDTH}"/>',
            f'<text x="{left - 8}" y="{y(percent) + 5:.1f}" text-anchor="end">{percent}</text>',
        ]
    for task, digits in enumerate(TICKS):
        parts.append(
            f'<text x="{x(task):.1f}" y="{TOP + HEIGHT + 24}" text-anchor="middle">{digits}</text>'
        )
    bottom = float("-inf")
    for method, values in sorted(curves.items(), key=lambda item: -item[1][-1]):
        points = " ".join(f"{x(task):.1f},{y(value):.1f}" for task, value in enumerate(values))
        label = bottom = max(y(values[-1]) + 5, bottom + 20)  # names must not overlap
        parts += [
            f'<polyline class="line {method}" points="{points}"/>',
            f'<text class="name {method}" x="{left + WIDTH + 8}" y="{label:.1f}">'
            f"{METHODS[method]} {values[-1]:.0f} %</text>",
        ]
    return parts


def main() -> None:
    """Read the runs and write the picture."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs")
    found = {method: accuracies(folder, method) for method in METHODS}
    width, height = LEFT + 2 * (WIDTH + GAP) - 24, TOP + HEIGHT + 68
    below = "after training on each pair of digits in turn (percent, mean of five seeds)"
    first = {method: curves[0] for method, curves in found.items()}
    seen = {method: curves[1] for method, curves in found.items()}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="SGD forgets the first task; ER and CLS-ER keep it">',
        f"<style>{STYLE}</style>",
        f'<rect class="card" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        *panel("Accuracy on the first two digits", LEFT, first),
        *panel("Accuracy on all digits seen so far", LEFT + WIDTH + GAP, seen),
        f'<text x="{width / 2}" y="{height - 16}" text-anchor="middle">{below}</text>',
        "</svg>",
    ]
    IMAGE.parent.mkdir(exist_ok=True)
    IMAGE.write_text("\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
