"""Fill the result tables of the README and the documentation from ../results.

    python docs/make_results.py [--check]

A table is written between `<!-- table NAME -->` and `<!-- end -->`, where NAME is a stream, a
method, `components`, `best-component` (a sentence), `sensitivity`, `task-il`, `analyses` or
`overview`. Its numbers come from the run folders in results/runs, from results/mnist.jsonl for the
MNIST streams, and from results/cifar-float32.jsonl. Tables whose names begin with `windows` compare
them with results/windows.jsonl, and those whose names begin with `own-data` are tables of
benchmarks/own_data.py, from results/own-data.jsonl. With --check, pages are not changed; the exit
status is 1 if any table is out of date. `results_site.py` builds the page with all rows from the
same records.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import re
import runpy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perdure import catalog
from perdure.config import RunConfig, default_hyperparameters, parse_seeds
from perdure.experiment.grid import read_grid
from perdure.presets import Figure, has_own_stream, published_code_figures, readme_figures
from perdure.results import Spread, collect, verdict
from perdure.results.claims import over_seeds
from perdure.results.table import Setting
from perdure.results.terminal import ANALYSES
from perdure.results.verdict import (
    figures_for,
    published_spread,
    published_texts,
    signed,
    spread_text,
)

ROOT = Path(__file__).parents[1]
NETWORKS = ("stable", "plastic", "working")
SWEPT = ("consistency_weight", "stable_rate", "plastic_rate")
OVERVIEW_STREAMS = ("s-mnist", "r-mnist", "p-mnist", "mnist-360", "s-cifar10")
OVERVIEW_METHODS = ("joint", "clser", "mean-er", "derpp", "er", "sgd")
OVERVIEW_BUFFER = 500
SUMMARIES = ("mnist.jsonl", "cifar-float32.jsonl")
"""Files in results with a line of means and standard deviations for each setting."""


@dataclass(frozen=True)
class Row:
    """The results of one configuration."""

    config: RunConfig
    hash: str
    seeds: list[int]
    accuracy: dict[str, Spread]
    """By predictor, the default one first."""
    task_il: Spread | None
    """Of the default predictor."""
    last_test: Spread | None
    seconds: float | None
    """Time of all runs together."""
    files: Mapping[str, Path | str]
    """By label: a JSON file of the repository, or JSON text."""
    setting: Setting | None = None
    """The runs, if their folders are stored."""

    @property
    def ours(self) -> Spread:
        """The accuracy of the default predictor."""
        return next(iter(self.accuracy.values()))

    @property
    def method(self) -> str:
        """The method's name; of an experiment, the name of its class."""
        return self.config.method_title.rpartition(":")[2]

    @property
    def label(self) -> str:
        """The method, with whatever departs from the published settings."""
        parts = [self.stream_note] if self.stream_note else []
        if self.config.method in catalog.METHODS:
            departures = self.config.departures().items()
            parts += [f"{name.replace('_', ' ')} {value:g}" for name, value in departures]
        parts += ["float32"] if self.other_precision else []
        return f"{self.method} ({', '.join(parts)})" if parts else self.method

    @property
    def stream_note(self) -> str:
        """Which stream this is, if the paper's runs of the method did not see the fixed one."""
        config = self.config
        own = has_own_stream(config.method, config.stream, config.buffer_size)
        return f"{config.stream_seed or 'fixed'} stream" if own else ""

    @property
    def other_precision(self) -> bool:
        """Whether this was trained in float32 although a GPU uses bf16 by default."""
        return bool(self.config.precision != self.config.usual()["precision"])

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
    def compared(self) -> list[Figure]:
        """The published figures to compare with: of the main tables, or else of Table S3."""
        return self.figures() or self.figures(table="S3")

    @property
    def is_sweep(self) -> bool:
        """Whether this is a row of the sensitivity table and of no other."""
        return bool(self.compared) and not self.figures()


def read(folder: Path) -> list[Row]:
    """All results, by stream, method and buffer size."""
    rows = [row for name in SUMMARIES for row in read_summaries(folder / name)]
    for setting in collect([folder / "runs"]).settings:
        files = {f"seed {run.seed}": run.folder.path / "result.json" for run in setting.runs}
        rows.append(replace(_row(setting.config, setting.summary(), files), setting=setting))
    streams, methods = list(catalog.STREAMS), list(catalog.METHODS)

    def order(row: Row) -> tuple[Any, ...]:
        config = row.config
        place = streams.index(config.stream), _place(methods, config.method), config.method
        settings = sorted(config.departures().items()), str(config.stream_seed or "")
        return *place, config.buffer_size or 0, *settings, row.hash

    return sorted(rows, key=order)


def _place(names: Sequence[str], name: str) -> int:
    return names.index(name) if name in names else len(names)


def read_summaries(path: Path) -> list[Row]:
    """The lines of a file that `perdure reproduce` wrote; none if it does not exist."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [_row(_config(s), s, {_label(s): json.dumps(s, indent=1)}) for s in found]


def _label(summary: Mapping[str, Any]) -> str:
    """What a summary contains; earlier versions did not store the accuracy of each seed."""
    default, *_ = summary["predictors"].values()
    return "all seeds" if "by_seed" in default["class_il"] else "mean of all seeds"


def _config(summary: Mapping[str, Any]) -> RunConfig:
    """The settings of a summary."""
    stream, method, size, data = (summary[k] for k in ("stream", "method", "buffer_size", "data"))
    if method not in catalog.METHODS:  # a user's own would be imported
        raise ValueError(f"unknown method {method!r} in a summary")
    usual = default_hyperparameters(stream, method, size, data).values
    return RunConfig(
        stream=stream,
        dataset=data,
        data_checksum="",
        network=catalog.STREAMS[stream].network,
        method=method,
        buffer_size=size,
        hyperparameters={**usual, **summary.get("departures", {})},
        **{name: summary[name] for name in ("device", "precision", "engine") if name in summary},
    )


def _row(config: RunConfig, summary: Mapping[str, Any], files: Mapping[str, Path | str]) -> Row:
    """A row from what `Setting.summary` returned."""
    seeds: list[int] = summary["seeds"]

    def spread(found: Mapping[str, Any] | None) -> Spread | None:
        if found is None or found["mean"] is None:
            return None
        return Spread(found["mean"], found["std"], len(seeds))

    predictors: dict[str, Any] = summary["predictors"]
    default, *_ = predictors.values()
    return Row(
        config,
        summary["hash"],
        seeds,
        {name: ours for name, found in predictors.items() if (ours := spread(found["class_il"]))},
        spread(default["task_il"]),
        spread(default.get("last_test")),
        summary["seconds"],
        files,
    )


def published(row: Row) -> str:
    """The figures of the paper and, if measured, of the published code."""
    config = row.config
    parts = published_texts(row.compared)
    parts += [
        f"{published_spread(figure)} (published code)"
        for figure in published_code_figures()
        if (figure.stream, figure.method, figure.buffer_size)
        == (config.stream, config.method, config.buffer_size)
        and config.is_published
    ]
    parts += [
        f"{published_spread(figure)} (README; settings not released)"
        for figure in readme_figures("class_il", config.stream, config.method, config.buffer_size)
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
    if not rows:
        return "Not run yet.\n"
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def last_test(row: Row) -> Spread | None:
    """Also of JOINT, whose single evaluation does not show that its tests overlap."""
    return row.setting.spread(key="last_test") if row.setting else row.last_test


def stream_table(rows: Sequence[Row], stream: str) -> str:
    """All methods on one stream, by buffer size, then by accuracy."""
    chosen = [row for row in rows if row.config.stream == stream and not row.is_sweep]
    chosen.sort(key=lambda row: (row.config.buffer_size or 0, -row.ours.mean))
    overlap = any(row.last_test for row in chosen)
    head = ["method", "buffer", "network", "ours", "last test", "seeds", "published", "verdict"]
    cells = [
        [
            *(row.label, row.buffer, next(iter(row.accuracy)), str(row.ours)),
            *(spread_text(last_test(row)), str(len(row.seeds)), published(row), verdict_text(row)),
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
                *(row.config.stream, row.label, row.buffer, str(row.ours), str(len(row.seeds))),
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
        if row.config.method != "clser" or row.is_sweep or row.other_precision:
            continue
        theirs = [row.figures(name, "S1") for name in NETWORKS]
        means = ", ".join(f"{found[0].mean:.2f}" for found in theirs if found)
        ours = [spread_text(row.accuracy.get(name)) for name in NETWORKS]
        note = f" ({row.stream_note})" if row.stream_note else ""
        cells.append((row.config.stream + note, row.buffer, *ours, means or "–"))
    return table(("stream", "buffer", *NETWORKS, "published: stable, plastic, working"), cells)


def best_component(rows: Sequence[Row]) -> str:
    """In how many settings of the components table the stable network is the best."""
    settings, others = 0, []
    for row in rows:
        if row.config.method != "clser" or row.is_sweep or row.other_precision:
            continue
        settings += 1
        stable = row.accuracy["stable"].mean
        name, best = max(row.accuracy.items(), key=lambda item: item[1].mean)
        if best.mean > stable:
            place = f"{row.config.stream} with a buffer of {row.buffer}"
            others.append(f"{place} ({name}, by {best.mean - stable:.2f})")
    found = (
        f"The stable network has the highest mean of the three in {settings - len(others)} of "
        f"{settings} settings."
    )
    return f"{found} Another one is better on {'; '.join(others)}." if others else found


def sensitivity(rows: Sequence[Row]) -> str:
    """Table S3: CLS-ER with other hyperparameters."""
    cells = []
    for row in rows:
        theirs = [row.figures(name, "S3") for name in NETWORKS if name in row.accuracy]
        if len(theirs) == len(NETWORKS) and all(theirs):
            values = [f"{row.config.hyperparameters[name]:g}" for name in SWEPT]
            ours = [str(row.accuracy[name]) for name in NETWORKS]
            means = ", ".join(f"{found[0].mean:.2f}" for found in theirs)
            cells.append((*values, *ours, str(len(row.seeds)), means))
    head = ("λ", "r_S", "r_P", *NETWORKS, "seeds", "published: stable, plastic, working")
    return table(head, sorted(cells))


def task_il(rows: Sequence[Row]) -> str:
    """Task-IL accuracy next to that in the README of the published code."""
    cells = []
    for row in rows:
        figure = row.config.published_task_il()
        if figure is not None and row.task_il is not None and not row.other_precision:
            ours, theirs = str(row.task_il), str(published_spread(figure))
            found = verdict(row.task_il, figure).status
            cells.append((row.config.stream, row.buffer, ours, str(len(row.seeds)), theirs, found))
    return table(("stream", "buffer", "ours", "seeds", "published", "verdict"), cells)


def analyses(rows: Sequence[Row]) -> str:
    """The columns that `perdure analyze` prints, for the settings with analysed runs."""
    cells = []
    for row in rows:
        if row.setting is not None and (analysed := row.setting.analysed):
            found = [over_seeds(row.setting, measure) for measure in ANALYSES.values()]
            name = (row.config.stream, row.label, row.buffer, str(len(analysed)))
            cells.append((*name, *(spread_text(spread, 3) for spread in found)))
    return table(("stream", "method", "buffer", "seeds", *ANALYSES), cells)


def overview(rows: Sequence[Row]) -> str:
    """The README's table: a few methods with one buffer size, published means in brackets."""
    found = {
        (row.config.method, row.config.stream): row
        for row in rows
        if row.config.buffer_size in (None, OVERVIEW_BUFFER)
        and not (row.config.departures() or row.other_precision)
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


@dataclass(frozen=True)
class Comparison:
    """CLS-ER with windows against the preset of the same stream and buffer size."""

    preset: Row
    windows: Row
    planned: int
    """Number of seeds of the grid."""

    @property
    def difference(self) -> float:
        """How far the windows are above the preset."""
        return self.windows.ours.mean - self.preset.ours.mean

    @property
    def two_errors(self) -> float:
        """Twice the standard error of the difference."""
        errors = [row.ours.error for row in (self.windows, self.preset)]
        return 2 * math.hypot(*(error or 0.0 for error in errors))


def planned_windows(folder: Path) -> dict[tuple[str, int | None], list[int]]:
    """The seeds of each setting of windows.toml, by stream and buffer size."""
    grid = read_grid(folder / "windows.toml")
    return {(c.stream, c.buffer_size): parse_seeds(c.seeds or grid.seeds) for c in grid.cells}


def compare_windows(rows: Sequence[Row], folder: Path) -> list[Comparison]:
    """The settings of windows.jsonl for which the runs of the preset are available."""
    presets = {
        (row.config.stream, row.config.buffer_size): row
        for row in rows
        if row.config.method == "clser" and not (row.config.departures() or row.other_precision)
    }
    planned = planned_windows(folder)
    summaries = read_summaries(folder / "windows.jsonl")
    found = {(row.config.stream, row.config.buffer_size): row for row in summaries}
    return [
        Comparison(presets[key], found[key], len(seeds))
        for key, seeds in planned.items()
        if key in found and key in presets
    ]


def windows(found: Sequence[Comparison]) -> str:
    """Accuracy of both on each stream, and what has not been run."""
    cells = [
        [
            *(c.preset.config.stream, c.preset.buffer),
            *(str(c.preset.ours), str(len(c.preset.seeds))),
            *(str(c.windows.ours), f"{len(c.windows.seeds)} of {c.planned}"),
            f"{signed(c.difference)} ± {c.two_errors:.2f}",
            *(str(c.windows.accuracy[name]) for name in ("plastic", "working")),
        ]
        for c in found
    ]
    head = [
        *("stream", "buffer", "tuned preset", "seeds", "windows", "seeds", "difference"),
        *("plastic, windows", "working, windows"),
    ]
    done = {(c.preset.config.stream, c.preset.config.buffer_size) for c in found}
    missing = [
        f"{s}/{size}" for s, size in planned_windows(ROOT / "results") if (s, size) not in done
    ]
    note = f"\n\nNot run yet: {', '.join(missing)}." if missing else ""
    return table(head, cells) + note


def windows_goals(found: Sequence[Comparison]) -> str:
    """What was to be shown, and what was measured."""
    if not found:
        return table((), [])
    differences = [c.difference for c in found]
    mean, worst = sum(differences) / len(found), min(found, key=lambda c: c.difference)
    below = sum(c.difference < -1 for c in found)
    done, planned = sum(len(c.windows.seeds) for c in found), sum(c.planned for c in found)
    place = f"{worst.preset.config.stream}/{worst.preset.buffer}"
    cells = [
        ("at least as good on average", f"{signed(mean)} over {len(found)} settings", mean >= 0),
        (
            "nowhere more than 1 point lower",
            f"lower by more than 1 point in {below}; worst {signed(worst.difference)} ({place})",
            not below,
        ),
        ("no divergence", f"{done} of {planned} runs completed", done == planned),
    ]
    head = ("goal for windows against presets", "measured", "met")
    return table(head, [(goal, text, "yes" if met else "no") for goal, text, met in cells])


@functools.cache
def own_data() -> dict[str, str]:
    """The tables of the benchmark on own data, by name."""
    benchmark = runpy.run_path(str(ROOT / "benchmarks" / "own_data.py"))
    found: dict[str, str] = benchmark["tables"](ROOT / "results" / "own-data.jsonl")
    return found


def make_table(rows: Sequence[Row], name: str) -> str:
    """The table of this name."""
    if name in catalog.STREAMS:
        return stream_table(rows, name)
    if name in catalog.METHODS:
        return method_table(rows, name)
    if name.startswith("own-data"):
        return own_data().get(name, "Not run yet.\n")
    if name.startswith("windows"):
        make = {"windows": windows, "windows-goals": windows_goals}[name]
        return make(compare_windows(rows, ROOT / "results"))
    others = {
        "components": components,
        "best-component": best_component,
        "sensitivity": sensitivity,
        "task-il": task_il,
        "analyses": analyses,
        "overview": overview,
    }
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
