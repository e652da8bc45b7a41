"""Fill the tables of results.md from the JSON lines in ../results.

    python docs/make_results.py

Each line is what `remanence run … --json` ended with. A table stands between two comments,
`<!-- table NAME -->` and `<!-- end -->`; what is between them is replaced.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from remanence.catalog import METHODS
from remanence.presets import paper_figures, published_code_figures

HERE = Path(__file__).parent
TABLES = {
    "s-mnist": ("s-mnist", [200, 500, 5120]),
    "r-mnist": ("r-mnist", [500]),
    "p-mnist": ("p-mnist", [500]),
    "mnist-360": ("mnist-360", [200, 500, 1000]),
}
Summary = dict[str, Any]


def read() -> list[Summary]:
    """All summaries, in the order of the files."""
    files = sorted((HERE.parent / "results").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def published(summary: Summary) -> list[tuple[str, float, float | None, int]]:
    """What is published of this setting: source, mean, standard deviation, runs."""
    asked = {key: summary[key] for key in ("stream", "method", "buffer")}
    figures = [f for f in paper_figures(**asked) if f.predictor in (None, "stable", "mean")]
    unique = {f.mean: f for f in reversed(figures) if not f.settings}
    found: list[tuple[str, float, float | None, int]] = [
        ("paper", f.mean, f.std, 10) for f in unique.values()
    ]
    for f in published_code_figures():
        if (f.stream, f.method, f.buffer) == tuple(asked.values()):
            found.append(("its code", f.mean, f.std, int(f.settings["runs"])))
    return found


def verdict(summary: Summary, mean: float, std: float | None) -> str:
    """Whether the figure lies where the project's goals want it."""
    figures = published(summary)
    if not figures:
        return ""
    seeds = len(summary["seeds"])
    core = summary["method"] == "clser"

    def near(other: float, spread: float | None, runs: int) -> bool:
        error = math.sqrt((std or 0) ** 2 / seeds + (spread or 0) ** 2 / runs)
        if core:
            return abs(mean - other) <= max(1.0, 2 * error)
        return mean >= other - max(2.0, 2 * (spread or 0))

    return "yes" if any(near(m, s, n) for _, m, s, n in figures) else "**no**"


def row(summary: Summary) -> str:
    """One line of a table."""
    name, numbers = next(iter(summary["predictors"].items()))
    mean, std = numbers["class_il"]["mean"], numbers["class_il"]["std"]
    figures = "; ".join(
        f"{m:.2f}{'' if s is None else f' ± {s:.2f}'}{'' if source == 'paper' else f' ({source})'}"
        for source, m, s, _ in published(summary)
    )
    cells = [
        METHODS[summary["method"]].title,
        "–" if summary["buffer"] is None else str(summary["buffer"]),
        name,
        f"{mean:.2f} ± {std:.2f}",
        str(len(summary["seeds"])),
        figures or "–",
        verdict(summary, mean, std),
    ]
    return f"| {' | '.join(cells)} |"


def components(summaries: list[Summary]) -> str:
    """Table S1: the three networks of CLS-ER."""
    lines = ["| stream | buffer | stable | plastic | working | paper: stable, plastic, working |"]
    lines.append("|---|---|---|---|---|---|")
    for summary in summaries:
        if summary["method"] != "clser" or summary["stream"] not in TABLES:
            continue
        asked = {key: summary[key] for key in ("stream", "method", "buffer")}
        theirs = {f.predictor: f for f in paper_figures("S1", **asked)}
        names = ("stable", "plastic", "working")
        ours = [summary["predictors"][n]["class_il"] for n in names]
        cells = [summary["stream"], str(summary["buffer"])]
        cells += [f"{o['mean']:.2f} ± {o['std']:.2f}" for o in ours]
        cells.append(", ".join(f"{theirs[n].mean:.2f}" for n in names))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def table(summaries: list[Summary], stream: str, buffers: list[int]) -> str:
    """All methods on one stream, by buffer, then by accuracy."""
    chosen = [s for s in summaries if s["stream"] == stream and s["buffer"] in (None, *buffers)]

    def place(summary: Summary) -> tuple[int, float]:
        accuracy = next(iter(summary["predictors"].values()))["class_il"]["mean"]
        return summary["buffer"] or 0, -accuracy

    head = "| method | buffer | predictor | ours | seeds | published | near |"
    return "\n".join([head, "|---" * 7 + "|", *(row(s) for s in sorted(chosen, key=place))])


def main() -> None:
    """Write the tables."""
    summaries = read()
    page = HERE / "results.md"
    text = page.read_text(encoding="utf-8")
    made = {name: table(summaries, *what) for name, what in TABLES.items()}
    made["components"] = components(summaries)
    for name, content in made.items():
        block = re.compile(rf"(<!-- table {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, count = block.subn(lambda m, c=content: f"{m[1]}{c}\n{m[2]}", text)  # type: ignore[misc]
        if count != 1:
            raise ValueError(f"results.md has {count} places for the table {name}; expected 1")
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
