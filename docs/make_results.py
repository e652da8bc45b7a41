"""Fill the result tables of the README and the documentation from ../results.

    python docs/make_results.py [--check]

A table is written between `<!-- table NAME -->` and `<!-- end -->`, where NAME is a stream, a
method, `components`, `sensitivity` or `overview`. Its numbers come from the run folders in
results/runs, and from results/mnist.jsonl for the MNIST streams. With --check, pages are not
changed; the exit status is 1 if any table is out of date.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure import catalog
from perdure.config import RunConfig, default_hyperparameters
from perdure.presets import Figure, gcil_run, published_code_figures
from perdure.results import Spread, collect, verdict
from perdure.results.table import figures_for, published_spread, spread_text

ROOT = Path(__file__).parents[1]
NETWORKS = ("stable", "plastic", "working")
SWEPT = ("consistency_weight", "stable_rate", "plastic_rate")
OVERVIEW_STREAMS = ("s-mnist", "r-mnist", "p-mnist", "mnist-360", "s-cifar10")
OVERVIEW_METHODS = ("joint", "clser", "mean-er", "derpp", "er", "sgd")
OVERVIEW_BUFFER = 500


@dataclass(frozen=True)
class Row:
    """The results of one configuration."""

    config: RunConfig
    seeds: int
    accuracy: dict[str, Spread]
    """By predictor, the answering one first."""
    last_test: Spread | None = None

    @property
    def ours(self) -> Spread:
        """The accuracy of the answering network."""
        return next(iter(self.accuracy.values()))

    @property
    def label(self) -> str:
        """The method, with the hyperparameters that depart from the published ones."""
        config = self.config
        parts = [
            f"{name.replace('_', ' ')} {value:g}" for name, value in config.departures().items()
        ]
        run = gcil_run(config.method, config.stream, config.buffer_size)
        if run is not None and run.reads:  # the paper's runs did not see the fixed stream
            parts.insert(0, f"{config.stream_seed or 'fixed'} stream")
        return f"{config.method_title} ({', '.join(parts)})" if parts else config.method_title

    @property
    def buffer(self) -> str:
        """The buffer size."""
        return "–" if self.config.buffer_size is None else str(self.config.buffer_size)

    def figures(self, predictor: str | None = None, table: str | None = None) -> list[Figure]:
        """The published figures; those of the sensitivity table only on request."""
        name = predictor or next(iter(self.accuracy))
        found = figures_for(self.config, name, name == next(iter(self.accuracy)), table)
        return [figure for figure in found if table == "S3" or not figure.settings]

    @property
    def is_sweep(self) -> bool:
        """Whether this is a row of the sensitivity table and of no other."""
        return bool(self.figures(table="S3")) and not self.figures()


def read(folder: Path) -> list[Row]:
    """All results, by stream, method and buffer size."""
    rows = [
        Row(
            setting.config,
            len(setting.runs),
            {name: spread for name in setting.predictors if (spread := setting.spread(name))},
            setting.spread(key="last_test") if setting.tests_overlap else None,
        )
        for setting in collect([folder / "runs"]).settings
    ]
    for line in (folder / "mnist.jsonl").read_text(encoding="utf-8").splitlines():
        rows.append(_from_summary(json.loads(line)))
    streams, methods = list(catalog.STREAMS), list(catalog.METHODS)

    def order(row: Row) -> tuple[Any, ...]:
        config = row.config
        place = streams.index(config.stream), methods.index(config.method)
        return *place, config.buffer_size or 0, sorted(config.departures().items())

    return sorted(rows, key=order)


def _from_summary(summary: dict[str, Any]) -> Row:
    """A line that `Setting.summary` wrote."""
    stream, method, size, data = (summary[k] for k in ("stream", "method", "buffer_size", "data"))
    usual = default_hyperparameters(stream, method, size, data).values
    config = RunConfig(
        stream=stream,
        dataset=data,
        data_checksum="",
        network=catalog.STREAMS[stream].network,
        method=method,
        buffer_size=size,
        hyperparameters={**usual, **summary.get("departures", {})},
    )
    seeds = len(summary["seeds"])
    accuracy = {
        name: Spread(found["class_il"]["mean"], found["class_il"]["std"], seeds)
        for name, found in summary["predictors"].items()
    }
    return Row(config, seeds, accuracy)


def published(row: Row) -> str:
    """The figures of the paper and, if measured, of the published code."""
    config = row.config
    parts = [str(published_spread(figure)) for figure in row.figures()]
    parts += [
        f"{published_spread(figure)} (published code)"
        for figure in published_code_figures()
        if (figure.stream, figure.method, figure.buffer_size)
        == (config.stream, config.method, config.buffer_size)
        and config.is_published
    ]
    return "; ".join(parts) or "–"


def verdict_text(row: Row) -> str:
    """How our result compares with the paper's main figure."""
    figures = row.figures()
    if not figures:
        return "–"
    found = verdict(row.ours, figures[0]).status
    return found if found == "agrees" else f"**{found}**"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def stream_table(rows: Sequence[Row], stream: str) -> str:
    """All methods on one stream, by buffer size, then by accuracy."""
    chosen = [row for row in rows if row.config.stream == stream and not row.is_sweep]
    chosen.sort(key=lambda row: (row.config.buffer_size or 0, -row.ours.mean))
    overlap = any(row.last_test for row in chosen)
    head = ["method", "buffer", "network", "ours", "last test", "seeds", "published", "verdict"]
    cells = [
        [
            *(row.label, row.buffer, next(iter(row.accuracy)), str(row.ours)),
            *(spread_text(row.last_test), str(row.seeds), published(row), verdict_text(row)),
        ]
        for row in chosen
    ]
    if not overlap:
        head, cells = head[:4] + head[5:], [line[:4] + line[5:] for line in cells]
    return table(head, cells)


def method_table(rows: Sequence[Row], method: str) -> str:
    """One method on all streams; JOINT is shown on the page of SGD."""
    methods = ("sgd", "joint") if method == "sgd" else (method,)
    return table(
        ("stream", "method", "buffer", "ours", "seeds", "published", "verdict"),
        [
            (
                *(row.config.stream, row.label, row.buffer, str(row.ours), str(row.seeds)),
                *(published(row), verdict_text(row)),
            )
            for row in rows
            if row.config.method in methods and not row.is_sweep
        ],
    )


def components(rows: Sequence[Row]) -> str:
    """Table S1: the three networks of CLS-ER."""
    cells = []
    for row in rows:
        if row.config.method != "clser" or row.is_sweep:
            continue
        theirs = [row.figures(name, "S1") for name in NETWORKS]
        means = ", ".join(f"{found[0].mean:.2f}" for found in theirs if found)
        ours = [spread_text(row.accuracy.get(name)) for name in NETWORKS]
        cells.append((row.config.stream, row.buffer, *ours, means or "–"))
    return table(("stream", "buffer", *NETWORKS, "published: stable, plastic, working"), cells)


def sensitivity(rows: Sequence[Row]) -> str:
    """Table S3: CLS-ER with other hyperparameters."""
    cells = []
    for row in rows:
        theirs = [row.figures(name, "S3") for name in NETWORKS if name in row.accuracy]
        if len(theirs) == len(NETWORKS) and all(theirs):
            values = [f"{row.config.hyperparameters[name]:g}" for name in SWEPT]
            ours = [str(row.accuracy[name]) for name in NETWORKS]
            means = ", ".join(f"{found[0].mean:.2f}" for found in theirs)
            cells.append((*values, *ours, str(row.seeds), means))
    head = ("λ", "r_S", "r_P", *NETWORKS, "seeds", "published: stable, plastic, working")
    return table(head, sorted(cells))


def overview(rows: Sequence[Row]) -> str:
    """The README's table: a few methods with one buffer size, published means in brackets."""
    found = {
        (row.config.method, row.config.stream): row
        for row in rows
        if row.config.buffer_size in (None, OVERVIEW_BUFFER) and not row.config.departures()
    }
    cells = []
    for method in OVERVIEW_METHODS:
        line = [catalog.METHODS[method].title]
        for stream in OVERVIEW_STREAMS:
            row = found.get((method, stream))
            figures = row.figures() if row else []
            paper = f" ({figures[0].mean:.2f})" if figures else ""
            line.append("–" if row is None else f"{row.ours}{paper}")
        cells.append(line)
    return table(("method", *OVERVIEW_STREAMS), cells)


def make_table(rows: Sequence[Row], name: str) -> str:
    """The table of this name."""
    if name in catalog.STREAMS:
        return stream_table(rows, name)
    if name in catalog.METHODS:
        return method_table(rows, name)
    others = {"components": components, "sensitivity": sensitivity, "overview": overview}
    if name not in others:
        raise ValueError(f"there is no table {name!r}")
    return others[name](rows)


def fill(text: str, rows: Sequence[Row]) -> str:
    """A page with its tables filled."""
    block = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return block.sub(lambda m: f"{m[1]}{make_table(rows, m[2])}\n{m[3]}", text)


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Fill or check all pages."""
    parser = argparse.ArgumentParser(description="Fill the result tables of the documentation.")
    parser.add_argument("--check", action="store_true", help="only report outdated pages")
    check = parser.parse_args(argv).check
    rows, outdated = read(ROOT / "results"), 0
    for page in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        before = page.read_text(encoding="utf-8")
        after = fill(before, rows)
        if after != before:
            outdated += 1
            name = page.relative_to(root)
            print(f"{name} is out of date" if check else f"updated {name}", file=sys.stderr)
            if not check:
                page.write_text(after, encoding="utf-8")
    return int(check and outdated > 0)


if __name__ == "__main__":
    sys.exit(main())
