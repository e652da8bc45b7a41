"""Fill the tables of the README and of these pages from the JSON lines in ../results.

    python docs/make_results.py

Each line is one of the file that `perdure reproduce --grid results/NAME.toml` leaves. A table
stands between two comments, `<!-- table NAME -->` and `<!-- end -->`; what is between them is
replaced.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from perdure.catalog import METHODS
from perdure.presets import paper_figures, published_code_figures

HERE = Path(__file__).parent
TABLES = {
    "s-mnist": ("s-mnist", [200, 500, 5120]),
    "r-mnist": ("r-mnist", [200, 500, 5120]),
    "p-mnist": ("p-mnist", [200, 500, 5120]),
    "mnist-360": ("mnist-360", [200, 500, 1000]),
    "s-cifar10": ("s-cifar10", [200, 500, 5120]),
    "gcil-cifar100-uniform": ("gcil-cifar100-uniform", [200, 500, 1000]),
}
NETWORKS = ("stable", "plastic", "working")
Summary = dict[str, Any]


def read() -> list[Summary]:
    """All summaries, stream by stream, and there by method and buffer."""
    files = sorted((HERE.parent / "results").glob("*.jsonl"))
    found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    streams, methods = list(TABLES), list(METHODS)
    return sorted(
        found,
        key=lambda s: (
            streams.index(s["stream"]),
            methods.index(s["method"]),
            s["buffer_size"] or 0,
            sorted(s.get("given", {}).items()),
        ),
    )


def published(summary: Summary) -> list[tuple[str, float, float | None, int]]:
    """What is published of this setting: source, mean, standard deviation, runs."""
    asked = {key: summary[key] for key in ("stream", "method", "buffer_size")}
    figures = [f for f in paper_figures(**asked) if f.predictor in (None, "stable", "mean")]
    unique = {f.mean: f for f in reversed(figures) if not f.settings}
    found: list[tuple[str, float, float | None, int]] = [
        ("paper", f.mean, f.std, 10) for f in reversed(unique.values())
    ]
    for f in published_code_figures():
        if (f.stream, f.method, f.buffer_size) == tuple(asked.values()):
            found.append(("its code", f.mean, f.std, int(f.settings["runs"])))
    return found


def verdict(summary: Summary, mean: float, std: float | None) -> str:
    """Whether the figure lies where the project's goals want it."""
    figures = published(summary)
    if not figures:
        return ""
    seeds = len(summary["seeds"])
    core = summary["method"] == "clser"
    allowed = 1.5 if summary["stream"] == "s-cifar10" else 1.0

    def near(other: float, spread: float | None, runs: int) -> bool:
        error = math.sqrt((std or 0) ** 2 / seeds + (spread or 0) ** 2 / runs)
        if core:
            return abs(mean - other) <= max(allowed, 2 * error)
        return mean >= other - max(2.0, 2 * (spread or 0))

    return "yes" if any(near(m, s, n) for _, m, s, n in figures) else "**no**"


def cells(summary: Summary) -> list[str]:
    """Method, buffer, predictor, ours, seeds, published, near."""
    name, numbers = next(iter(summary["predictors"].items()))
    mean, std = numbers["class_il"]["mean"], numbers["class_il"]["std"]
    figures = "; ".join(
        f"{plus_minus(m, s)}{'' if source == 'paper' else f' ({source})'}"
        for source, m, s, _ in published(summary)
    )
    return [
        METHODS[summary["method"]].title,
        "–" if summary["buffer_size"] is None else str(summary["buffer_size"]),
        name,
        plus_minus(mean, std),
        str(len(summary["seeds"])),
        figures or "–",
        verdict(summary, mean, std),
    ]


def plus_minus(mean: float, std: float | None) -> str:
    """A mean and its standard deviation, which a single run has not."""
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def line(parts: list[str]) -> str:
    """One row of a table."""
    return f"| {' | '.join(parts)} |"


def components(summaries: list[Summary]) -> str:
    """Table S1: the three networks of CLS-ER."""
    lines = ["| stream | buffer | stable | plastic | working | paper: stable, plastic, working |"]
    lines.append("|---|---|---|---|---|---|")
    for summary in summaries:
        if summary["method"] != "clser" or summary["stream"] not in TABLES:
            continue
        asked = {key: summary[key] for key in ("stream", "method", "buffer_size")}
        theirs = {f.predictor: f for f in paper_figures("S1", **asked)}
        ours = [summary["predictors"][n]["class_il"] for n in NETWORKS]
        parts = [summary["stream"], str(summary["buffer_size"])]
        parts += [plus_minus(o["mean"], o["std"]) for o in ours]
        parts.append(", ".join(f"{theirs[n].mean:.2f}" for n in NETWORKS))
        lines.append(line(parts))
    return "\n".join(lines)


def sensitivity(summaries: list[Summary]) -> str:
    """Table S3: CLS-ER with other hyperparameters than the published ones."""
    lines = [
        "| λ | r_S | r_P | stable | plastic | working | seeds | paper: stable, plastic, working |"
    ]
    lines.append("|---" * 8 + "|")
    varied = ("consistency_weight", "stable_rate", "plastic_rate")
    best = dict(zip(varied, (0.15, 0.1, 0.9), strict=True))  # the published setting
    for summary in sorted(summaries, key=lambda s: sorted(s.get("given", best).items())):
        asked = {key: summary[key] for key in ("stream", "method", "buffer_size")}
        given = summary.get("given", best)
        figures = {f.predictor: f for f in paper_figures("S3", **asked) if f.settings == given}
        if not figures:
            continue
        ours = [summary["predictors"][name]["class_il"] for name in NETWORKS]
        theirs = [figures[name].mean for name in NETWORKS]
        parts = [f"{given[name]:g}" for name in varied]
        parts += [plus_minus(o["mean"], o["std"]) for o in ours]
        parts += [str(len(summary["seeds"])), ", ".join(f"{mean:.2f}" for mean in theirs)]
        lines.append(line(parts))
    return "\n".join(lines)


def table(summaries: list[Summary], stream: str, buffers: list[int]) -> str:
    """All methods on one stream, by buffer, then by accuracy."""
    chosen = [
        s for s in summaries if s["stream"] == stream and s["buffer_size"] in (None, *buffers)
    ]

    def place(summary: Summary) -> tuple[int, float]:
        accuracy = next(iter(summary["predictors"].values()))["class_il"]["mean"]
        return summary["buffer_size"] or 0, -accuracy

    head = ["method", "buffer_size", "predictor", "ours", "seeds", "published", "near"]
    chosen.sort(key=place)
    rows = [cells(s) for s in chosen]
    if any(last_test(s) for s in chosen):
        head.insert(4, "last test alone")
        for row, summary in zip(rows, chosen, strict=True):
            row.insert(4, last_test(summary) or "–")
    return "\n".join([line(head), "|---" * len(head) + "|", *map(line, rows)])


def last_test(summary: Summary) -> str:
    """The answering network on the last test alone, where tests overlap; else nothing."""
    found = next(iter(summary["predictors"].values())).get("last_test")
    return plus_minus(found["mean"], found["std"]) if found and found["mean"] is not None else ""


def of_method(summaries: list[Summary], method: str) -> str:
    """One method on all streams; the page of SGD is JOINT's too."""
    on_page = ("sgd", "joint") if method == "sgd" else (method,)
    chosen = [s for s in summaries if s["method"] in on_page]
    head = "| stream | method | buffer | ours | seeds | published |"
    lines = [head, "|---" * 6 + "|"]
    for summary in chosen:
        title, buffer_size, _, ours, seeds, theirs, _ = cells(summary)
        lines.append(line([summary["stream"], title, buffer_size, ours, seeds, theirs]))
    return "\n".join(lines)


def overview(summaries: list[Summary]) -> str:
    """The README's table: a few methods at buffer 500, on the streams where all were run."""
    streams = [stream for stream in TABLES if not stream.startswith("gcil")]
    methods = ["joint", "clser", "mean-er", "derpp", "er", "sgd"]
    lines = [f"| method | {' | '.join(streams)} |", "|---" * (len(streams) + 1) + "|"]
    for method in methods:
        parts = [METHODS[method].title]
        for stream in streams:
            found = [
                s
                for s in summaries
                if (s["method"], s["stream"]) == (method, stream)
                and s["buffer_size"] in (None, 500)
            ]
            if not found:
                parts.append("–")
                continue
            _, _, _, ours, _, theirs, _ = cells(found[0])
            paper = theirs.split(" ±")[0]
            parts.append(ours if paper == "–" else f"{ours} ({paper})")
        lines.append(line(parts))
    return "\n".join(lines)


def fill(page: Path, name: str, content: str) -> None:
    """Put a table in its place."""
    text = page.read_text(encoding="utf-8")
    block = re.compile(rf"(<!-- table {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    text, count = block.subn(lambda m: f"{m[1]}{content}\n{m[2]}", text)
    if count != 1:
        raise ValueError(f"{page} has {count} places for the table {name}; expected 1")
    page.write_text(text, encoding="utf-8")


def main() -> None:
    """Write the tables."""
    everything = read()
    summaries = [summary for summary in everything if not summary.get("given")]
    for name, what in TABLES.items():
        fill(HERE / "results.md", name, table(summaries, *what))
    fill(HERE / "results.md", "components", components(summaries))
    fill(HERE / "results.md", "sensitivity", sensitivity(everything))
    for page in sorted((HERE / "methods").glob("*.md")):
        fill(page, page.stem, of_method(summaries, page.stem))
    fill(HERE.parent / "README.md", "overview", overview(summaries))


if __name__ == "__main__":
    main()
