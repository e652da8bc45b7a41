"""The tables of a report: our results next to the published figures where they apply."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perdure import catalog
from perdure.config import RunConfig, method_title
from perdure.presets import paper_figures
from perdure.results.claims import Claim
from perdure.results.table import (
    Collection,
    Comparison,
    Section,
    Setting,
    cut_short,
    on_different_streams,
)
from perdure.results.verdict import TOLERANCE, Spread, published_spread, signed

AGREES = (
    f"Results agree if they differ by at most {TOLERANCE:g} percentage points or two standard "
    "errors, whichever is larger. For a single seed, the published standard deviation replaces its "
    "unknown one."
)
NETWORKS = ("stable", "plastic", "working")


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str
    value: float | None = None
    """The number to sort by; cells without one are sorted by their text."""
    published: str = ""
    status: str = ""
    """How our result compares with the published one: "agrees", "above" or "below"."""
    link: str = ""
    """Key of the setting to link to."""


Value = Cell | Spread | str | float | None
"""What can be turned into a cell."""


@dataclass(frozen=True)
class Table:
    """A table of a report, with the commands that reproduce its numbers."""

    name: str
    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    commands: tuple[str, ...] = ()

    @classmethod
    def make(
        cls,
        name: str,
        title: str,
        caption: str,
        rows: Sequence[Mapping[str, Value]],
        settings: Iterable[Setting] = (),
    ) -> Table:
        """A table from rows by column; columns without any content are left out."""
        cells = [{column: _cell(value) for column, value in row.items()} for row in rows]
        names = dict.fromkeys(column for row in cells for column in row)
        columns = [n for n in names if any(row.get(n, _NOTHING) != _NOTHING for row in cells)]
        return cls(
            name,
            title,
            caption,
            tuple(columns),
            tuple(tuple(row.get(column, _NOTHING) for column in columns) for row in cells),
            tuple(dict.fromkeys(setting.command for setting in settings)),
        )

    def numeric(self, column: int) -> bool:
        """Whether a column holds numbers, which are aligned to the right."""
        return any(row[column].value is not None for row in self.rows)


_NOTHING = Cell("–")


def _cell(value: Value) -> Cell:
    match value:
        case Cell():
            return value
        case Spread():
            return Cell(str(value).replace("-", "−"), value.mean)
        case None:
            return _NOTHING
        case str():
            return Cell(value or "–")
        case _:
            return Cell(f"{value:g}", value)


def overview(collection: Collection) -> Iterator[Table]:
    """A row for each setting: seeds, data, time and machine. Users' own streams come first."""
    parts = {own: [c for c in collection.comparisons if c.own == own] for own in (True, False)}
    for own, comparisons in parts.items():
        if comparisons:
            name = "overview-own" if own and parts[False] else "overview"
            yield _overview(name, comparisons)


def _overview(name: str, comparisons: Sequence[Comparison]) -> Table:
    rows: list[dict[str, Value]] = []
    for comparison in comparisons:
        for setting in comparison.settings:
            timings = [run.timing for run in setting.runs]
            machines = {(t.processor, t.torch and f"torch {t.torch}") for t in timings}
            finished = max(timing.finished or "" for timing in timings)
            seconds = setting.seconds()
            rows.append(
                {
                    "stream": comparison.section,
                    "method": Cell(setting.label, link=setting.key),
                    "seeds": Cell(_seeds(setting.seeds), len(setting.runs)),
                    "data": None if comparison.own else setting.data,
                    "time per run": duration(seconds and seconds / len(setting.runs)),
                    "machine": "; ".join(sorted(", ".join(filter(None, m)) for m in machines)),
                    "finished": finished[:16].replace("T", " "),
                }
            )
    return Table.make(
        name,
        "Settings",
        "The number after a method is its buffer size. For runs that shared a GPU, the time is "
        "their share of it.",
        rows,
        [setting for comparison in comparisons for setting in comparison.settings],
    )


def results(section: Section) -> Table:
    """Every setting of a section, with published figures where they apply."""
    rows: list[dict[str, Value]] = []
    settings = section.settings
    overlap = any(setting.tests_overlap for setting in settings)
    for setting in settings:
        _, bracket, differs = setting.label.partition(" (")  # the buffer size has its own column
        compared: tuple[Value, Value, Value] = (None, None, None)
        task_il = setting.task_il_figure()
        if verdict := setting.verdict():
            compared = (
                published_spread(setting.figures()[0]),
                Cell(signed(verdict.difference), verdict.difference),
                Cell(verdict.status, status=verdict.status),
            )
        rows.append(
            {
                "method": Cell(setting.config.method_title + bracket + differs, link=setting.key),
                "buffer": _buffer(setting.config),
                "network": setting.predictors[0] if setting.predictors else None,
                "accuracy": setting.spread(),
                "seeds": len(setting.runs),
                **dict(zip(("published", "difference", "verdict"), compared, strict=True)),
                "Task-IL": setting.spread(kind="task_il"),
                "published Task-IL": published_spread(task_il) if task_il else None,
                "last test": setting.spread(key="last_test") if overlap else None,
                "incremental": setting.spread(key="incremental"),
                "forgetting": setting.spread(key="forgetting"),
                "prequential": setting.prequential(),
                **{
                    f"last {window:,}": setting.prequential("accuracy")
                    for window in filter(None, [setting.prequential_window])
                },
            }
        )
    caption = "Mean ± sample standard deviation over seeds, in percent."
    if any(setting.spread() for setting in settings):
        when = "after the last task in percent, mean over the tests"
        if short := cut_short(settings):
            when = "in percent"
        caption = (
            f"Accuracy of the default predictor {when}; mean ± sample standard deviation over "
            f"seeds. {short}".rstrip()
        )
    table = Table.make(f"results-{section.name}", section.name, caption, rows, settings)
    if different := on_different_streams(settings):
        caption += f" {different}"
    if "verdict" in table.columns:
        caption += f" {AGREES}"
    elif section.config.dataset == "mnist5k":
        caption += " Published figures are not shown: mnist5k is a twelfth of MNIST."
    if "last test" in table.columns:
        caption += " Each test contains the earlier ones; the last test contains all classes."
    if "incremental" in table.columns:
        caption += " Incremental: mean over the tasks of the accuracy on all tests so far."
    if "forgetting" in table.columns:
        caption += " Forgetting: mean drop of earlier tasks from their best, percentage points."
    if "prequential" in table.columns:
        caption += (
            " Prequential: accuracy on the stream itself, each batch predicted before it was "
            "learned; on all samples and on the last ones."
        )
    return replace(table, caption=caption)


def evidence(claim: Claim) -> Table:
    """The numbers that were compared to check a claim."""

    def cell(spread: Spread | None) -> Cell | None:
        if spread is None:
            return None
        text = spread.text(2 if abs(spread.mean) >= 1 else 3)
        if spread.std is None:
            text += f" ({spread.seeds} seed{'s' if spread.seeds > 1 else ''})"
        return Cell(text, spread.mean)

    names = dict.fromkeys(name for found in claim.evidence for name in found.numbers)
    rows: list[dict[str, Value]] = [
        {
            "setting": found.setting,
            **{method_title(name): cell(found.numbers.get(name)) for name in names},
            "result": found.status,
        }
        for found in claim.evidence
    ]
    return Table.make(f"claim-{claim.name}", claim.text, "", rows)


def seeds(comparison: Comparison, setting: Setting) -> Table:
    """Accuracy, time and folder of each run of a setting."""
    rows: list[dict[str, Value]] = []
    for run in setting.runs:
        scores = {name: run.result.predictors[name].class_il for name in setting.predictors}
        means = {name: found.mean if found else None for name, found in scores.items()}
        found = run.result.prequential
        overall = None if found is None else Cell(f"{found.overall:.2f}", found.overall)
        rows.append(
            {
                "seed": Cell(str(run.seed), run.seed),
                **{n: None if m is None else Cell(f"{m:.2f}", m) for n, m in means.items()},
                "prequential": overall,
                "steps": Cell(str(run.result.steps), run.result.steps),
                "time": duration(run.timing.share),
                "host": run.timing.host,
                "folder": run.place,
            }
        )
    return Table.make(
        f"seeds-{setting.key}",
        f"Seeds of {setting.label} on {comparison.section}",
        "Accuracy of each network after the last task, percent."
        if setting.spread() and setting.complete
        else f"Accuracy in percent. {cut_short([setting])}".rstrip(),
        rows,
    )


# -- tables of the paper --------------------------------------------------------------------


def paper_tables(collection: Collection) -> list[Table]:
    """The paper's tables for which there are runs, filled with our results."""
    settings = collection.settings
    found = [
        _by_stream("1", "Class-IL and Domain-IL", settings),
        _by_stream("2", "MNIST-360", settings),
        _by_stream("3", "GCIL-CIFAR-100, mean over the cumulative tests", settings),
        _networks(collection),
        _semantic_memories(collection),
        *_sensitivity(collection),
    ]
    return [table for table in found if table.rows]


def _by_stream(number: str, title: str, settings: Sequence[Setting]) -> Table:
    """Tables 1 to 3: rows by buffer size and method, columns by stream."""
    methods = list(catalog.METHODS)
    used = [setting for setting in settings if setting.figures(table=number)]
    used.sort(key=lambda s: (s.config.buffer_size or 0, methods.index(s.config.method)))
    streams = dict.fromkeys(figure.stream for figure in paper_figures(number))
    rows: dict[tuple[int | None, str], dict[str, Value]] = {}
    for setting in used:
        config = setting.config
        first: dict[str, Value] = {"buffer": _buffer(config), "method": config.method_title}
        key = config.buffer_size, config.method
        row = rows.setdefault(key, first | dict.fromkeys(streams))
        row[config.stream] = result_cell(setting, table=number)
    caption = f"Our results, with the published ones below. {AGREES}"
    return Table.make(
        f"table-{number}", f"Table {number}: {title}", caption, [*rows.values()], used
    )


def _networks(collection: Collection) -> Table:
    """Table S1: the networks of CLS-ER."""
    rows: list[dict[str, Value]] = []
    used: list[Setting] = []
    for comparison in collection.comparisons:
        for setting in comparison.settings:
            if setting.config.method != "clser" or not set(NETWORKS) <= set(setting.predictors):
                continue
            spreads = {name: setting.spread(name) for name in NETWORKS}
            means = {name: round(spread.mean, 2) for name, spread in spreads.items() if spread}
            best = [name for name, mean in means.items() if mean == max(means.values())]
            used.append(setting)
            rows.append(
                {
                    "stream": comparison.section,
                    "setting": Cell(setting.label, link=setting.key),
                    **{name: result_cell(setting, name, "S1") for name in NETWORKS},
                    "best": ", ".join(best),
                }
            )
    return Table.make(
        "table-S1",
        "Table S1: the networks of CLS-ER",
        "Accuracy of each network in percent; published figures, where they apply, below.",
        rows,
        used,
    )


def _semantic_memories(collection: Collection) -> Table:
    """Table S2: one semantic memory compared with two."""
    rows: list[dict[str, Value]] = []
    used: list[Setting] = []
    for comparison in collection.comparisons:
        for buffer in comparison.buffers():
            chosen = comparison.by_method(buffer)
            if {"clser", "mean-er"} <= set(chosen):
                pair = [chosen["mean-er"], chosen["clser"]]
                cells = {s.config.method_title: result_cell(s, table="S2") for s in pair}
                size = _buffer(chosen["clser"].config)
                rows.append({"stream": comparison.section, "buffer": size, **cells})
                used += pair
    return Table.make(
        "table-S2",
        "Table S2: one semantic memory compared with two",
        "Mean-ER has one semantic memory, CLS-ER two. Accuracy in percent, with the published "
        "figure below.",
        rows,
        used,
    )


def _sensitivity(collection: Collection) -> Iterator[Table]:
    """Table S3, and the same for every method with several settings of hyperparameters."""
    for comparison in collection.comparisons:
        groups: dict[tuple[str, str], list[Setting]] = {}
        for setting in comparison.settings:
            config = setting.config
            groups.setdefault((config.method, config.buffer), []).append(setting)
        for (method, size), settings in groups.items():
            values = [_method_settings(setting.config) for setting in settings]
            names = dict.fromkeys(name for found in values for name in found)
            varied = [name for name in names if len({found.get(name) for found in values}) > 1]
            if not varied:
                continue
            rows: list[dict[str, Value]] = [
                {
                    **{
                        name.replace("_", " "): replace(_cell(found.get(name)), link=setting.key)
                        for name in varied
                    },
                    "seeds": len(setting.runs),
                    **{name: result_cell(setting, name, "S3") for name in settings[0].predictors},
                }
                for setting, found in zip(settings, values, strict=True)
            ]
            buffer = f", buffer {size}" if size else ""
            in_paper = any(s.figures(name, "S3") for s in settings for name in s.predictors)
            what = "Table S3: sensitivity" if in_paper else "Sensitivity"
            yield Table.make(
                f"table-S3-{comparison.name}-{method}-{size or None}",
                f"{what} of {method_title(method)} on {comparison.section}{buffer}",
                "Accuracy in percent with other hyperparameters; those without a column are the "
                "same in every row.",
                rows,
                settings,
            )


def _method_settings(config: RunConfig) -> dict[str, Any]:
    """What settings with the same method may differ in, by name."""
    found = config.select("method")
    return {**found.pop("hyperparameters"), **found}


def result_cell(setting: Setting, predictor: str | None = None, table: str | None = None) -> Cell:
    """Our result, with the published figure of a table of the paper if it applies."""
    if predictor is not None and predictor not in setting.predictors:
        return _NOTHING
    verdict = setting.verdict(predictor, table)
    ours = replace(_cell(setting.spread(predictor)), link=setting.key)
    if verdict is None:
        return ours
    published = str(published_spread(setting.figures(predictor, table)[0]))
    return replace(ours, published=published, status=verdict.status)


def _buffer(config: RunConfig) -> Cell:
    """The capacity of the memory; methods without one are sorted first."""
    return Cell(config.buffer or "–", config.buffer_size or config.buffer_bytes or 0)


def duration(seconds: float | None) -> Cell:
    """A duration; a dash if it is unknown.

    >>> [duration(seconds).text for seconds in (8.59, 75.0, 7300.0)]
    ['8.6 s', '1 min 15 s', '2 h 01 min']
    """
    if seconds is None:
        return _NOTHING
    minutes, rest = divmod(round(seconds), 60)
    if seconds < 60:
        text = f"{seconds:.1f} s"
    elif minutes < 60:
        text = f"{minutes} min {rest:02} s"
    else:
        text = f"{minutes // 60} h {minutes % 60:02} min"
    return Cell(text, seconds)


def _seeds(numbers: Sequence[int]) -> str:
    """Seeds as text.

    >>> _seeds([0, 1, 2]), _seeds([0, 4]), _seeds([7])
    ('0 to 2', '0, 4', '7')
    """
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 2 and list(numbers) == list(range(first, first + len(numbers))):
        return f"{first} to {last}"
    return ", ".join(map(str, numbers))
