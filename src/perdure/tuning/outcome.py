"""What a study came to: its best trial, a table, a file of all trials, and a figure."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from perdure.evaluation import mean_std
from perdure.files import write_atomic
from perdure.tuning.space import Choice, Range, Space
from perdure.tuning.study import Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROWS = 10
"""Trials in the table that is shown; the file holds all."""


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The trial with the highest accuracy, the first of equals; None if all failed."""
    done = [trial for trial in trials if trial.value is not None]
    return max(done, key=lambda trial: trial.value or 0.0, default=None)


def trials_table(trials: Sequence[Trial], space: Space, title: str) -> Table:
    """The best trials, best first; then how many there are beside them."""
    table = Table(title=title, min_width=len(title))
    table.add_column("trial", justify="right")
    table.add_column("accuracy", justify="right")
    for name in space:
        table.add_column(name.replace("_", " "), justify="right")  # a heading can break at spaces
    ranked = sorted(trials, key=lambda t: -1.0 if t.value is None else t.value, reverse=True)
    for trial in ranked[:ROWS]:
        # One that another process has only just begun has no values yet.
        values = [f"{trial.params[name]:.4g}" if name in trial.params else "" for name in space]
        table.add_row(str(trial.number), _accuracy(trial), *values)
    failed = sum(trial.reason is not None for trial in trials)
    beside = len(trials) - len(ranked[:ROWS])
    notes = [f"{beside} more"] * (beside > 0) + [f"{failed} failed"] * (failed > 0)
    table.caption = ", ".join(notes) or None
    return table


def _accuracy(trial: Trial) -> str:
    if trial.value is None:
        return "running" if trial.reason is None else "failed"
    _, std = mean_std(trial.by_seed) if trial.by_seed else (0.0, None)
    return f"{trial.value:.2f}" if std is None else f"{trial.value:.2f} ± {std:.2f}"


def write_trials(path: Path, trials: Sequence[Trial], space: Space) -> None:
    """All trials as comma-separated values, whole or not at all."""
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(["trial", "accuracy", *space, "seconds", "failed"])
    for trial in trials:
        params = [trial.params.get(name) for name in space]
        rows.writerow([trial.number, trial.value, *params, trial.seconds, trial.reason])
    write_atomic(path, text.getvalue().encode())


@dataclass(frozen=True)
class StudyFigure:
    """What the figure of a study shows."""

    accuracy: list[tuple[int, float]]
    """By trial number; trials that failed are left out."""
    best: list[tuple[int, float]]
    """The best accuracy so far, by trial number."""
    panels: Mapping[str, list[tuple[float, float]]]
    """For each hyperparameter, its value and the accuracy in every trial."""


def study_figure(trials: Sequence[Trial], space: Space) -> StudyFigure:
    """The figure's content.

    >>> figure = study_figure([Trial(0, {"lr": 0.1}, 80.0), Trial(1, {"lr": 0.2}, 70.0)], {})
    >>> figure.best
    [(0, 80.0), (1, 80.0)]
    """
    done = [(trial, trial.value) for trial in trials if trial.value is not None]
    values = [value for _, value in done]
    return StudyFigure(
        accuracy=[(trial.number, value) for trial, value in done],
        best=[(trial.number, max(values[: i + 1])) for i, (trial, _) in enumerate(done)],
        panels={name: [(trial.params[name], value) for trial, value in done] for name in space},
    )


def draw(figure: StudyFigure, space: Space, title: str, path: Path) -> None:
    """Write the figure as SVG, the same bytes for the same study."""
    import matplotlib

    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "perdure"}):
        page_of(figure, space, title).savefig(file, format="svg", metadata={"Date": None})
    write_atomic(path, file.getvalue())


def page_of(figure: StudyFigure, space: Space, title: str) -> Figure:
    """The figure drawn: accuracy by trial, then a panel for each hyperparameter."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    columns = min(3, 1 + len(space))
    rows = -(-(1 + len(space)) // columns)
    page = Figure(figsize=(4 * columns, 3 * rows), layout="constrained")
    page.suptitle(title)
    axes = page.subplots(rows, columns, squeeze=False, sharey=True).flatten()
    first, *others = axes
    first.plot(*zip(*figure.accuracy, strict=True), "o", markersize=4, label="trial")
    first.step(*zip(*figure.best, strict=True), where="post", label="best so far")
    first.set_xlabel("trial")
    first.xaxis.set_major_locator(MaxNLocator(integer=True))
    first.legend()
    for panel, (name, points) in zip(others, figure.panels.items(), strict=False):
        part = space[name]
        values, accuracies = zip(*points, strict=True)
        if isinstance(part, Choice):  # side by side, however far apart their values are
            values = tuple(map(part.values.index, values))
        panel.plot(values, accuracies, "o", markersize=4, clip_on=False)
        panel.set_xlabel(name)
        _scale(panel, part)
    for unused in others[len(space) :]:
        unused.set_visible(False)
    for left in axes[::columns]:
        left.set_ylabel("validation accuracy, percent")
    return page


def _scale(panel: Axes, part: Range | Choice) -> None:
    """Make a panel's axis what is searched, all of it."""
    from matplotlib.ticker import MaxNLocator, NullFormatter

    if isinstance(part, Choice):
        panel.set_xticks(range(len(part.values)), [f"{value:g}" for value in part.values])
        panel.set_xlim(-0.5, len(part.values) - 0.5)
        return
    if part.log:
        panel.set_xscale("log")
        panel.xaxis.set_minor_formatter(NullFormatter())  # they would lie on top of each other
        if math.floor(math.log10(part.high)) <= math.ceil(math.log10(part.low)):
            # One power of ten at most, and nothing else has a label.
            panel.set_xticks([part.low, part.high], [f"{part.low:g}", f"{part.high:g}"])
    elif part.whole:
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set_xlim(part.low, part.high)
