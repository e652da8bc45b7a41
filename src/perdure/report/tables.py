"""The tables of a report: what was run, and what came out, with the paper's figures beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.presets import Figure, paper_figures
from perdure.report.commands import command
from perdure.report.runs import Collection, Setting, Setup, Spread

WITHIN = "Within: our mean lies no further from the paper's than one standard deviation of theirs."


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
        *made_by(collection.settings),
    )


def results(setup: Setup) -> Table:
    """Every setting on one stream, the paper's figure beside ours where it may stand there."""
    compared = any(setting.published for setting in setup.settings)
    task_il = any(answer(s, kind="task_il") for s in setup.settings)
    overlapping = any(s.tests_overlap for s in setup.settings)
    forgets = any(answer(s, key="forgetting") for s in setup.settings)
    columns = ["method", "buffer_size", "network", "accuracy", "seeds"]
    columns += ["paper", "difference", "within"] if compared else []
    columns += ["Task-IL"] if task_il else []
    columns += ["last test alone"] if overlapping else []
    columns += ["forgetting"] if forgets else []
    rows = []
    for setting in setup.settings:
        ours = answer(setting)
        row = [
            Cell(_short_label(setting), link=setting.key),
            Cell(
                "–" if setting.buffer_size is None else str(setting.buffer_size),
                setting.buffer_size or 0,
            ),
            Cell(setting.predictors[0] if setting.predictors else "–"),
            _cell(ours),
            Cell(str(len(setting.runs)), float(len(setting.runs))),
        ]
        row += _comparison(setting, ours) if compared else []
        row += [_cell(answer(setting, kind="task_il"))] if task_il else []
        row += [_cell(answer(setting, key="last_test"))] if overlapping else []
        row += [_cell(answer(setting, key="forgetting"))] if forgets else []
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
        *made_by(setup.settings),
    )


def figures_of(table: str, setting: Setting) -> list[Figure]:
    """What a table of the paper has of a setting, if it may stand beside ours."""
    if not setting.published:
        return []
    return paper_figures(table, setting.stream, setting.method, setting.buffer_size)


def theirs(setting: Setting) -> Figure | None:
    """The paper's figure for a setting's answering network, if it may stand beside ours."""
    for table in ("1", "2", "3", "S2"):
        for figure in figures_of(table, setting):
            return figure
    return None


def answer(setting: Setting, kind: str = "class_il", key: str = "mean") -> Spread | None:
    """A number of the network that answers, over the seeds."""
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


def beside(ours: Spread | None, figure: Figure | None, link: str = "") -> Cell:
    """Ours, with the paper's figure below."""
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


def made_by(settings: Iterable[Setting]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The commands behind these settings, and the labels of those that have none."""
    found = {setting.key: (setting.label, command(setting)) for setting in settings}
    return (
        tuple(dict.fromkeys(text for _, text in found.values() if text is not None)),
        tuple(label for label, text in found.values() if text is None),
    )


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
