"""The tables of a report: the settings, and their results next to the published figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perdure.results.records import Timing
from perdure.results.table import (
    TOLERANCE,
    Collection,
    Comparison,
    Setting,
    Spread,
    Verdict,
    published_spread,
    spread_text,
)

AGREES = (
    f"Results agree if they differ by at most {TOLERANCE:g} percentage points or two standard "
    "errors, whichever is larger."
)


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: What it shows.
        value: The number to sort by; cells without one are sorted by their text.
        published: The published figure, shown below the text.
        status: "agrees", "above" or "below": how our result compares with the published one.
        link: Key of the setting to link to.
    """

    text: str
    value: float | None = None
    published: str = ""
    status: str = ""
    link: str = ""


@dataclass(frozen=True)
class Table:
    """A table for HTML, Markdown or LaTeX.

    Attributes:
        name: Identifies the table within a report.
        title: Its heading.
        caption: How to read it.
        columns: Headings.
        rows: One cell per column each.
        commands: The commands that reproduce its numbers.
    """

    name: str
    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    commands: tuple[str, ...] = ()

    def numeric(self, column: int) -> bool:
        """Whether a column holds numbers, which are aligned to the right."""
        return any(row[column].value is not None for row in self.rows)


def overview(collection: Collection) -> Table:
    """One row for each setting: seeds, data, time and machine."""
    rows = []
    for comparison in collection.comparisons:
        for setting in comparison.settings:
            seconds = setting.seconds()
            mean = None if seconds is None else seconds / len(setting.runs)
            machines = sorted({_machine(run.timing) for run in setting.runs})
            rows.append(
                (
                    Cell(comparison.name),
                    Cell(setting.label, link=setting.key),
                    Cell(_seeds(setting.seeds), float(len(setting.runs))),
                    Cell(setting.data),
                    Cell(duration(mean), mean),
                    Cell("; ".join(machines)),
                    Cell(_finished(setting)),
                )
            )
    columns = ("stream", "method", "seeds", "data", "time per run", "machine", "finished")
    kept = [i for i in range(len(columns)) if i < 4 or any(row[i].text != "–" for row in rows)]
    return Table(
        "overview",
        "Settings",
        "The number after a method is its buffer size. For runs that shared a GPU, the time is "
        "their share of it.",
        tuple(columns[i] for i in kept),
        tuple(tuple(row[i] for i in kept) for row in rows),
        commands(collection.settings),
    )


def results(comparison: Comparison) -> Table:
    """Every setting of a comparison, with published figures where they apply."""
    settings = comparison.settings
    compared = any(setting.verdict() for setting in settings)
    optional = {
        "Task-IL": [setting.spread(kind="task_il") for setting in settings],
        "last test": [s.spread(key="last_test") if s.tests_overlap else None for s in settings],
        "forgetting": [setting.spread(key="forgetting") for setting in settings],
    }
    shown = {name: spreads for name, spreads in optional.items() if any(spreads)}
    columns = ["method", "buffer", "network", "accuracy", "seeds"]
    columns += ["published", "difference", "verdict"] if compared else []
    rows = []
    for i, setting in enumerate(settings):
        size = setting.config.buffer_size
        row = [
            Cell(_short_label(setting), link=setting.key),
            Cell("–" if size is None else str(size), size or 0),
            Cell(setting.predictors[0] if setting.predictors else "–"),
            spread_cell(setting.spread()),
            Cell(str(len(setting.runs)), float(len(setting.runs))),
        ]
        row += _published_cells(setting) if compared else []
        row += [spread_cell(spreads[i]) for spreads in shown.values()]
        rows.append(tuple(row))
    caption = (
        "Accuracy of the answering network after the last task in percent, mean over the tests; "
        "mean ± sample standard deviation over seeds."
    )
    if compared:
        caption += f" {AGREES}"
    elif comparison.config.dataset == "mnist5k":
        caption += " Published figures are not shown: mnist5k is a twelfth of MNIST."
    if "last test" in shown:
        caption += " Each test contains the earlier ones; the last test contains all classes."
    if "forgetting" in shown:
        caption += " Forgetting: mean drop of earlier tasks from their best, percentage points."
    return Table(
        f"results-{comparison.name}",
        comparison.name,
        caption,
        (*columns, *shown),
        tuple(rows),
        commands(settings),
    )


def _published_cells(setting: Setting) -> list[Cell]:
    found = setting.verdict()
    if found is None:
        return [Cell("–"), Cell("–"), Cell("–")]
    difference = f"{found.difference:+.2f}".replace("-", "−")
    return [
        spread_cell(published_spread(setting.figures()[0])),
        Cell(difference, found.difference),
        Cell(found.status, status=found.status),
    ]


def result_cell(setting: Setting, predictor: str | None = None, table: str | None = None) -> Cell:
    """Our result, with the published figure of a table if it applies.

    Args:
        setting: The setting.
        predictor: The network's name; the answering one if None.
        table: Number of the paper's table; all tables if None.
    """
    if predictor is not None and predictor not in setting.predictors:
        return Cell("–")
    ours, figures = setting.spread(predictor), setting.figures(predictor, table)
    found: Verdict | None = setting.verdict(predictor, table)
    if ours is None or found is None:
        return spread_cell(ours, link=setting.key)
    theirs = str(published_spread(figures[0]))
    return Cell(str(ours), ours.mean, theirs, found.status, setting.key)


def spread_cell(spread: Spread | None, digits: int = 2, link: str = "") -> Cell:
    """A mean with its standard deviation; a dash if there is none."""
    return Cell(spread_text(spread, digits), None if spread is None else spread.mean, link=link)


def commands(settings: Iterable[Setting]) -> tuple[str, ...]:
    """The commands that reproduce these settings, each once."""
    return tuple(dict.fromkeys(setting.command for setting in settings))


def duration(seconds: float | None) -> str:
    """A duration; a dash if it is unknown.

    >>> duration(8.59), duration(75.0), duration(7300.0)
    ('8.6 s', '1 min 15 s', '2 h 01 min')
    """
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def _short_label(setting: Setting) -> str:
    """The label without the buffer size, which has its own column."""
    _, bracket, differs = setting.label.partition(" (")
    return setting.config.method_title + bracket + differs


def _seeds(seeds: Sequence[int]) -> str:
    """Seeds as text.

    >>> _seeds([0, 1, 2]), _seeds([0, 4]), _seeds([7])
    ('0 to 2', '0, 4', '7')
    """
    first, last = seeds[0], seeds[-1]
    if len(seeds) > 2 and list(seeds) == list(range(first, last + 1)):
        return f"{first} to {last}"
    return ", ".join(map(str, seeds))


def _machine(timing: Timing) -> str:
    parts = [timing.processor, timing.torch and f"torch {timing.torch}"]
    return ", ".join(part for part in parts if part) or "–"


def _finished(setting: Setting) -> str:
    times = sorted(run.timing.finished for run in setting.runs if run.timing.finished)
    return times[-1][:16].replace("T", " ") if times else "–"
