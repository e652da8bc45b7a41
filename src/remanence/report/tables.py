"""The tables of a report: what was run, what came out, and the paper's own, ours beside theirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remanence import catalog, presets
from remanence.presets import Figure, paper_figures
from remanence.report.commands import command
from remanence.report.runs import Collection, Setting, Setup, Spread, method_title
from remanence.results import tests_overlap

WITHIN = "Within: our mean lies no further from the paper's than one standard deviation of theirs."
_PAPER_TABLES = {
    "1": "Class-IL and Domain-IL",
    "2": "MNIST-360",
    "3": "GCIL-CIFAR-100, mean over the cumulative tests",
}
_NETWORKS = ("stable", "plastic", "working")
_SWEPT = ("consistency_weight", "stable_rate", "plastic_rate")


@dataclass(frozen=True)
class Cell:
    """What stands in one place of a table."""

    text: str
    order: float | None = None
    """Its place when the column is sorted; by the text where there is none."""
    beside: str = ""
    """The paper's figure, set smaller below ours."""
    mood: str = ""
    """within or outside: whether ours lies within the paper's spread."""
    link: str = ""
    """The setting that the row speaks of."""


@dataclass(frozen=True)
class Table:
    """A table that can be written as HTML, Markdown or LaTeX."""

    name: str
    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    commands: tuple[str, ...] = ()
    """What made its numbers, each once."""
    unmade: tuple[str, ...] = ()
    """Labels of settings that no flags of the command say."""

    def numeric(self, column: int) -> bool:
        """Whether a column holds numbers, which stand to the right."""
        return any(row[column].order is not None for row in self.rows)


def overview(collection: Collection) -> Table:
    """One row for each setting: what was run."""
    rows = []
    for setup in collection.setups:
        for setting in setup.settings:
            known = [run.seconds for run in setting.runs if run.seconds is not None]
            mean = sum(known) / len(known) if known else None
            where = {_machine(run.timing) for run in setting.runs}
            rows.append(
                (
                    Cell(setup.name),
                    Cell(setting.label, link=setting.key),
                    Cell(_spoken(setting.seeds), float(len(setting.runs))),
                    Cell(str(setting.config["data"])),
                    Cell(duration(mean), mean),
                    Cell("; ".join(sorted(where))),
                    Cell(_when(setting)),
                )
            )
    columns = ("stream", "method", "seeds", "data", "time per run", "on", "finished")
    kept = [i for i in range(len(columns)) if i < 4 or any(row[i].text != "–" for row in rows)]
    return Table(
        "overview",
        "Settings",
        "One row for each setting; the number after a method is the size of its memory. Of runs "
        "that shared a GPU the time is their share.",
        tuple(columns[i] for i in kept),
        tuple(tuple(row[i] for i in kept) for row in rows),
        *_made(collection.settings),
    )


def results(setup: Setup) -> Table:
    """Every setting on one stream, the paper's figure beside ours where it may stand there."""
    compared = any(setting.published for setting in setup.settings)
    task_il = any(_spread(s, kind="task_il") for s in setup.settings)
    overlapping = any(tests_overlap(run.result) for s in setup.settings for run in s.runs)
    forgets = any(_spread(s, key="forgetting") for s in setup.settings)
    columns = ["method", "buffer", "network", "accuracy", "seeds"]
    columns += ["paper", "difference", "within"] if compared else []
    columns += ["Task-IL"] if task_il else []
    columns += ["last test alone"] if overlapping else []
    columns += ["forgetting"] if forgets else []
    rows = []
    for setting in setup.settings:
        ours = _spread(setting)
        row = [
            Cell(_short_label(setting), link=setting.key),
            Cell("–" if setting.buffer is None else str(setting.buffer), setting.buffer or 0),
            Cell(setting.predictors[0] if setting.predictors else "–"),
            _cell(ours),
            Cell(str(len(setting.runs)), float(len(setting.runs))),
        ]
        row += _comparison(setting, ours) if compared else []
        row += [_cell(_spread(setting, kind="task_il"))] if task_il else []
        row += [_cell(_spread(setting, key="last_test"))] if overlapping else []
        row += [_cell(_spread(setting, key="forgetting"))] if forgets else []
        rows.append(tuple(row))
    caption = (
        "Accuracy in percent after the last task, mean over its tests, by the network that "
        "answers; mean ± sample standard deviation over seeds."
    )
    if compared:
        caption += f" {WITHIN}"
    elif setup.config["dataset"] == "mnist5k":
        caption += " mnist5k is a twelfth of MNIST: the paper's figures do not belong beside these."
    if overlapping:
        caption += " Each test holds those before it; the last one alone holds all classes."
    if forgets:
        caption += " Forgetting: how far each earlier task fell from its best, percentage points."
    return Table(
        f"results-{setup.name}",
        setup.name,
        caption,
        tuple(columns),
        tuple(rows),
        *_made(setup.settings),
    )


def paper_tables(collection: Collection) -> Iterator[Table]:
    """The paper's tables as far as the runs allow, ours first and theirs below."""
    published = [s for s in collection.settings if s.published]
    for number, about in _PAPER_TABLES.items():
        yield from _by_stream(number, about, published)
    yield from _components(collection)
    yield from _one_memory(collection)
    yield from _sensitivity(collection)


def _by_stream(number: str, about: str, settings: Sequence[Setting]) -> Iterator[Table]:
    """Rows by buffer and method, columns by stream."""
    figures = {
        (f.stream, f.method, f.buffer): f for f in paper_figures(number) if f.predictor is None
    }
    cells: dict[tuple[int | None, str], dict[str, Setting]] = {}
    for setting in settings:
        if (setting.stream, setting.method, setting.buffer) in figures and _spread(setting):
            cells.setdefault((setting.buffer, setting.method), {})[setting.stream] = setting
    used = [setting for row in cells.values() for setting in row.values()]
    if not used:
        return
    order = list(dict.fromkeys(figure.stream for figure in figures.values()))
    streams = [stream for stream in order if any(stream in row for row in cells.values())]
    rows = []
    for (buffer, method), row in sorted(cells.items(), key=_by_buffer):
        found = [Cell("–" if buffer is None else str(buffer), buffer or 0)]
        found.append(Cell(method_title(method)))
        for stream in streams:
            one = row.get(stream)
            figure = figures.get((stream, method, buffer))
            ours = None if one is None else _spread(one)
            found.append(_beside(ours, figure, link="" if one is None else one.key))
        rows.append(tuple(found))
    yield Table(
        f"table-{number}",
        f"Table {number}: {about}",
        f"Ours, and below it the paper's figure. {WITHIN}",
        ("buffer", "method", *streams),
        tuple(rows),
        *_made(used),
    )


def _components(collection: Collection) -> Iterator[Table]:
    """Table S1: the networks of CLS-ER."""
    chosen = [
        (setup, setting)
        for setup in collection.setups
        for setting in setup.settings
        if setting.method == "clser" and set(_NETWORKS) <= set(setting.predictors)
    ]
    if not chosen:
        return
    rows = []
    for setup, setting in chosen:
        figures = {f.predictor: f for f in _figures("S1", setting)}
        spreads = {name: setting.spread(name) for name in _NETWORKS}
        known = {name: spread.mean for name, spread in spreads.items() if spread}
        top = max((round(mean, 2) for mean in known.values()), default=None)
        best = ", ".join(name for name, mean in known.items() if round(mean, 2) == top) or "–"
        rows.append(
            (
                Cell(setup.name),
                Cell(setting.label, link=setting.key),
                *(_beside(spreads[name], figures.get(name)) for name in _NETWORKS),
                Cell(best),
            )
        )
    yield Table(
        "table-S1",
        "Table S1: the networks of CLS-ER",
        "Accuracy in percent of each network; below it the paper's figure where it may stand.",
        ("stream", "setting", *_NETWORKS, "best"),
        tuple(rows),
        *_made([setting for _, setting in chosen]),
    )


def _one_memory(collection: Collection) -> Iterator[Table]:
    """Table S2: one semantic memory against two, where both were run."""
    rows = []
    used: list[Setting] = []
    for setup in collection.setups:
        for buffer in setup.buffers():
            beside = {s.method: s for s in setup.comparison(buffer)}
            if not {"clser", "mean-er"} <= set(beside):
                continue
            row = [Cell(setup.name), Cell(str(buffer), buffer or 0)]
            for method in ("mean-er", "clser"):
                setting = beside[method]
                figures = _figures("S2", setting)
                ours = _spread(setting)
                row.append(_beside(ours, figures[0] if figures else None, link=setting.key))
                used.append(setting)
            rows.append(tuple(row))
    if rows:
        yield Table(
            "table-S2",
            "Table S2: one semantic memory against two",
            "Mean-ER keeps one average of the weights, CLS-ER two. Accuracy in percent; below it "
            "the paper's figure where it may stand.",
            ("stream", "buffer", "Mean-ER", "CLS-ER"),
            tuple(rows),
            *_made(used),
        )


def _sensitivity(collection: Collection) -> Iterator[Table]:
    """Table S3, and the same for any method that was run with several hyperparameters."""
    for setup in collection.setups:
        groups: dict[tuple[str, int | None], list[Setting]] = {}
        for setting in setup.settings:
            groups.setdefault((setting.method, setting.buffer), []).append(setting)
        for (method, buffer), settings in groups.items():
            swept = _swept(settings)
            if not swept:
                continue
            networks = settings[0].predictors
            rows = []
            for setting in settings:
                values = _varied(setting)
                figures = {f.predictor: f for f in _swept_figures(setting)}
                rows.append(
                    (
                        *(_value(values.get(key), setting) for key in swept),
                        Cell(str(len(setting.runs)), float(len(setting.runs))),
                        *(
                            _beside(
                                setting.spread(n) if n in setting.predictors else None,
                                figures.get(n),
                            )
                            for n in networks
                        ),
                    )
                )
            title = f"{method_title(method)} on {setup.name}"
            if buffer is not None:
                title += f", buffer {buffer}"
            yield Table(
                f"table-S3-{setup.name}-{method}-{buffer}",
                f"Table S3: sensitivity of {title}",
                "Accuracy in percent under other hyperparameters; those not named are the same "
                "in every row.",
                (*(key.replace("_", " ") for key in swept), "seeds", *networks),
                tuple(rows),
                *_made(settings),
            )


def _swept(settings: Sequence[Setting]) -> list[str]:
    """The hyperparameters in which these settings differ."""
    everything = [_varied(setting) for setting in settings]
    names = dict.fromkeys(key for values in everything for key in values)
    return [key for key in names if len({values.get(key) for values in everything}) > 1]


def _varied(setting: Setting) -> dict[str, float | str]:
    """What may be varied: its hyperparameters, and when its memories are updated."""
    return {**setting.config["values"], "update": setting.config.get("update") or "coin"}


def _value(value: float | str | None, setting: Setting) -> Cell:
    if isinstance(value, str) or value is None:
        return Cell(value or "–", link=setting.key)
    return Cell(f"{value:g}", value, link=setting.key)


def _figures(table: str, setting: Setting) -> list[Figure]:
    if not setting.published:
        return []
    return paper_figures(table, setting.stream, setting.method, setting.buffer)


def _swept_figures(setting: Setting) -> list[Figure]:
    """Rows of Table S3 that were made with this setting: the paper's in all that it does not vary.

    Such a setting is not `published`: some of its values were given.
    """
    config, entry = setting.config, catalog.STREAMS.get(setting.stream)
    preset = presets.find(setting.method, setting.stream, setting.buffer)
    if entry is None or preset is None or config["dataset"] != entry.datasets[0]:
        return []
    usual = ("stream_seed", "validation", "max_steps", "update")
    others = {k: v for k, v in config["values"].items() if k not in _SWEPT}
    if (
        config["network"] != entry.network
        or any(config.get(key) is not None for key in usual)
        or others != {k: v for k, v in preset.values.items() if k not in _SWEPT}
        or not all(run.result["complete"] for run in setting.runs)
    ):
        return []
    figures = paper_figures("S3", setting.stream, setting.method, setting.buffer)
    return [f for f in figures if all(config["values"].get(k) == v for k, v in f.settings.items())]


def theirs(setting: Setting) -> Figure | None:
    """The paper's figure for a setting's answering network, if it may stand beside ours."""
    for table in ("1", "2", "3", "S2"):
        for figure in _figures(table, setting):
            return figure
    return None


def _spread(setting: Setting, kind: str = "class_il", key: str = "mean") -> Spread | None:
    return setting.spread(setting.predictors[0], kind, key) if setting.predictors else None


def _comparison(setting: Setting, ours: Spread | None) -> list[Cell]:
    figure = theirs(setting)
    if figure is None or ours is None:
        return [Cell("–"), Cell("–"), Cell("–")]
    difference = ours.mean - figure.mean
    mood = _mood(ours, figure)
    return [
        Cell(_printed(figure), figure.mean),
        Cell(f"{difference:+.2f}".replace("-", "−"), difference),
        Cell({"within": "yes", "outside": "no"}.get(mood, "–"), mood=mood),
    ]


def _beside(ours: Spread | None, figure: Figure | None, link: str = "") -> Cell:
    if ours is None:
        return Cell("–")
    if figure is None:
        return Cell(str(ours), ours.mean, link=link)
    return Cell(str(ours), ours.mean, _printed(figure), _mood(ours, figure), link)


def _mood(ours: Spread, figure: Figure) -> str:
    if figure.std is None:
        return ""
    # To the two decimals that the paper prints, or a difference of its own rounding would count.
    return "within" if round(abs(ours.mean - figure.mean), 2) <= figure.std else "outside"


def _printed(figure: Figure) -> str:
    return str(Spread(figure.mean, figure.std))


def _cell(spread: Spread | None) -> Cell:
    return Cell("–") if spread is None else Cell(str(spread), spread.mean)


def _short_label(setting: Setting) -> str:
    """The label without the buffer, which has a column of its own."""
    _, bracket, differs = setting.label.partition(" (")
    return setting.title + bracket + differs


def _made(settings: Iterable[Setting]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The commands behind these settings, and the labels of those that have none."""
    found = {setting.key: (setting.label, command(setting)) for setting in settings}
    return (
        tuple(dict.fromkeys(text for _, text in found.values() if text is not None)),
        tuple(label for label, text in found.values() if text is None),
    )


def _by_buffer(item: tuple[tuple[int | None, str], object]) -> tuple[int, int]:
    (buffer, method), _ = item
    return buffer or 0, list(catalog.METHODS).index(method)


def duration(seconds: float | None) -> str:
    """A time as a reader says it.

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


def _spoken(numbers: Sequence[int]) -> str:
    """Seeds as a reader says them.

    >>> _spoken([0, 1, 2]), _spoken([0, 4]), _spoken([7])
    ('0 to 2', '0, 4', '7')
    """
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 2 and list(numbers) == list(range(first, last + 1)):
        return f"{first} to {last}"
    return ", ".join(map(str, numbers))


def _machine(timing: Mapping[str, Any]) -> str:
    torch, processor = timing.get("torch"), timing.get("processor")
    parts = [str(processor)] if processor else []
    parts += [f"torch {torch}"] if torch else []
    return ", ".join(parts) or "–"


def _when(setting: Setting) -> str:
    moments = sorted(
        str(run.timing["finished"]) for run in setting.runs if "finished" in run.timing
    )
    return moments[-1][:16].replace("T", " ") if moments else "–"
