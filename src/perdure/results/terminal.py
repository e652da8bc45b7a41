"""Results as tables on a terminal: the view that `run`, `reproduce`, `demo` and `analyze` share."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from perdure import catalog
from perdure.config import RunConfig
from perdure.results.claims import (
    accuracy_retained,
    accuracy_under_noise,
    calibration_error,
    distance_from_uniform,
    last_task_excess,
    loss_under_noise,
    over_seeds,
)
from perdure.results.records import printable
from perdure.results.table import Collection, Setting, in_words
from perdure.results.verdict import published_spread, published_texts, spread_text

_MUCH_BETTER = 5
"""Difference in percentage points above which another network of a method is mentioned."""
LOG_WIDTH = 250
"""Columns in a file or a pipe, where nothing has to be folded."""
ANALYSES = {
    "calibration error": calibration_error,
    "last task's excess": last_task_excess,
    "distance from uniform": distance_from_uniform,
    "loss under noise": loss_under_noise,
    "accuracy under noise": accuracy_under_noise,
    "retained under noise": accuracy_retained,
}
"""What tables show of an analysis, by title."""


def show(*tables: Table, stderr: bool = False) -> None:
    """Print tables to stdout, as wide as the terminal, or as wide as they need to be in a log.

    `stderr` prints to stderr instead, for example because stdout has JSON.
    """
    console = Console(stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(stderr=stderr, width=LOG_WIDTH)
    for table in tables:
        console.print(table)


def results_table(
    settings: Sequence[Setting],
    title: str,
    *,
    by_predictor: bool = False,
    table: str | None = None,
    planned: Mapping[str, int] | None = None,
) -> Table:
    """Accuracy over seeds, one row per setting, with published figures where they apply.

    `by_predictor` shows all networks instead of the default predictor, `table` is the paper's table
    whose figures to prefer, `planned` the number of seeds that each `config.hash` should have.
    """
    streams = {setting.config.stream for setting in settings}
    windows = [setting.prequential_window for setting in settings]
    unusual = _unusual(settings)
    masked = any(s.spread(kind="task_il") for s in settings)
    accuracy = "Class-IL" if masked else "accuracy"
    columns = {
        "stream": len(streams) > 1,
        "method": True,
        "buffer": any(s.config.buffer for s in settings),
        "settings": any(unusual),
        "seeds": True,
        "network": by_predictor,
        accuracy: any(s.spread() for s in settings) or not any(windows),
        "published": any(s.figures(p) for s in settings for p in _rows(s, by_predictor)),
        "Task-IL": masked,
        "published Task-IL": any(s.task_il_figure() for s in settings),
        "last test": any(s.tests_overlap for s in settings),
        "forgetting": any(s.spread(key="forgetting") for s in settings),
        "prequential": any(windows),
        **{f"last {window:,}": True for window in windows if window},
    }
    better = [] if by_predictor else [text for setting in settings for text in _better(setting)]
    caption = escape("\n".join(better)) or None
    found = Table(title=escape(title), caption=caption, min_width=len(title))
    left = ("stream", "method", "settings", "network")
    for name in (name for name, used in columns.items() if used):
        found.add_column(name, justify="left" if name in left else "right", overflow="fold")
    previous = None
    for setting, differences in zip(settings, unusual, strict=True):
        config = setting.config
        if previous not in (None, config.stream):
            found.add_section()
        for i, predictor in enumerate(_rows(setting, by_predictor)):
            figures = setting.figures(predictor, table) or setting.figures(predictor)
            task_il = setting.task_il_figure(predictor)
            made, wanted = len(setting.runs), (planned or {}).get(config.hash)
            cells = {
                "stream": escape(config.stream) if previous != config.stream else "",
                "method": escape(config.method_title),
                "buffer": config.buffer or "–",
                "settings": escape("\n".join(in_words(*item) for item in differences.items())),
                "seeds": str(made) if wanted in (None, made) else f"{made} of {wanted}",
                "network": escape(predictor),
                accuracy: spread_text(setting.spread(predictor)),
                "published": "; ".join(published_texts(figures)) or "–",
                "Task-IL": spread_text(setting.spread(predictor, "task_il")),
                "published Task-IL": "–" if task_il is None else str(published_spread(task_il)),
                "last test": spread_text(setting.spread(predictor, key="last_test")),
                "forgetting": spread_text(setting.spread(predictor, key="forgetting")),
                "prequential": spread_text(setting.prequential("overall")),
            }
            for window in filter(None, windows):
                same = window == setting.prequential_window
                recent = setting.prequential("accuracy") if same else None
                cells[f"last {window:,}"] = spread_text(recent)
            if i:
                cells = {name: cell if name in _BY_NETWORK else "" for name, cell in cells.items()}
            found.add_row(*(cells[name] for name, used in columns.items() if used))
            previous = config.stream
    return found


def _better(setting: Setting) -> Iterator[str]:
    """Which network is much better than the one that the table shows, such as a lagging average."""
    shown, *others = setting.predictors
    ours, spreads = setting.spread(), {name: setting.spread(name) for name in others}
    for name, spread in spreads.items():
        if ours and spread and spread.mean - ours.mean > _MUCH_BETTER:
            yield (
                f"{setting.label or setting.config.method_title}: the {shown} network, which "
                f"predicts, has {ours}; the {name} network has {spread}"
            )


def _unusual(settings: Sequence[Setting]) -> list[dict[str, Any]]:
    """Of each setting, what is unusual, and the conditions that vary on its stream."""
    configs = [setting.config for setting in settings]
    values = defaultdict(set)
    for config in configs:
        for name, value in _conditions(config).items():
            values[config.stream, name].add(value)
    return [
        {
            **{n: v for n, v in _conditions(c).items() if len(values[c.stream, n]) > 1},
            **c.unusual("method"),
        }
        for c in configs
    ]


def _conditions(config: RunConfig) -> dict[str, Any]:
    """The network and the seed of the stream."""
    seed, entry = config.stream_seed, catalog.STREAMS.get(config.stream)
    if seed is None and entry is not None:
        seed = entry.seed
    return {"network": config.network, "stream_seed": seed}


_BY_NETWORK = (
    *("network", "Class-IL", "accuracy", "published", "Task-IL", "published Task-IL", "last test"),
    "forgetting",
)
"""Columns that differ between the networks of a setting."""


def _rows(setting: Setting, by_predictor: bool) -> Sequence[str]:
    """The networks to show; without tests, only the one whose predictions were counted."""
    return setting.predictors if by_predictor and setting.spread() else setting.predictors[:1]


def analyses_table(collection: Collection) -> Table:
    """The analyses of each setting's default predictor, over the seeds that have them."""
    title = "Analyses of the default predictor, over seeds; shares from 0 to 1, accuracy in percent"
    table = Table("stream", "method", "seeds", title=title, min_width=len(title))
    for name in ANALYSES:
        table.add_column(name, justify="right")
    for comparison in collection.comparisons:
        for setting in comparison.settings:
            cells = [spread_text(over_seeds(setting, measure), 3) for measure in ANALYSES.values()]
            folder = setting.runs[0].folder.path.parent.name  # METHOD-BUFFER-HASH
            label = f"{setting.label} ({folder.rpartition('-')[2]})"
            names = [escape(printable(name)) for name in (comparison.name, label)]
            table.add_row(*names, str(len(setting.analysed)), *cells)
    return table
