"""Accuracy at the end, task by task, and class by class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.report.figures.averages import mean_matrix
from perdure.report.figures.networks import MOST_CELLS, colour, figure, networks
from perdure.report.panels import Dot, Dots, Figure, HeatMap, Look, Values, slug
from perdure.report.runs import Run, Setting, Setup
from perdure.report.tables import theirs

FAR = 2.0
"""A lowest figure is far off if it lies this many times further than all others lie apart."""


def overview(setup: Setup) -> Figure | None:
    """Every setting's accuracy on a line, the paper's beside it."""
    dots = []
    for setting in setup.settings:
        ours = setting.spread(setting.predictors[0]) if setting.predictors else None
        if ours is not None:
            paper = theirs(setting)
            dots.append(
                Dot(
                    setting.label,
                    Look(colour(setting.method)),
                    *ours,
                    None if paper is None else paper.mean,
                    None if paper is None else paper.std,
                )
            )
    if len(dots) < 2:
        return None
    caption = "Points are our means, bars one standard deviation over seeds."
    if any(dot.paper_mean is not None for dot in dots):
        caption += " Hollow diamonds are the paper's figures, the grey behind them their spread."
    panel = Dots("", "accuracy after the last task, percent", tuple(dots), lowest(dots))
    return figure(f"{slug(setup.name)}-accuracy", "Accuracy at the end", caption, [panel])


def lowest(dots: Sequence[Dot]) -> float | None:
    """Where an axis that shows differences begins: above one figure that is far below all others.

    >>> look = Look("blue")
    >>> lowest([Dot(str(m), look, m, None, None, None) for m in (19.6, 86.0, 92.0)])
    86.0
    >>> lowest([Dot(str(m), look, m, None, None, None) for m in (80.0, 86.0, 92.0)]) is None
    True
    """
    means = sorted(dot.mean for dot in dots)
    if len(means) < 3 or means[1] - means[0] <= FAR * (means[-1] - means[1]):
        return None
    return means[1]


def task_accuracy(settings: Sequence[Setting]) -> Figure | None:
    """A heat map for each network: after which task, on which task's test."""
    panels = []
    for network in networks(settings):
        runs = network.setting.runs
        tests = len(runs[0].result["tests"])
        matrices = [_matrix(run, network.predictor) for run in runs]
        mean = mean_matrix([matrix[1:] for matrix in matrices if matrix])  # from the first task on
        if mean is None or len(mean) < 2 or not 2 <= tests <= MOST_CELLS:
            continue
        rows, columns = _numbers(len(mean)), _numbers(tests)
        panels.append(
            HeatMap(network.label, rows, columns, tuple(mean), "after task", "test of task")
        )
    row = "A row is a moment (after which task), a column"
    if any(setting.tests_overlap for setting in settings):
        caption = (
            f"{row} the test of all classes that had come by one task; accuracy in percent, mean "
            "over seeds. Classes recur, so a later row may be the better one. Cells above the "
            "diagonal are tests of classes still to come."
        )
    else:
        caption = (
            f"{row} the test of one task; accuracy in percent, mean over seeds. Down a column one "
            "sees forgetting: the last row is what remained. Cells above the diagonal are tests "
            "of tasks still to come."
        )
    return figure("tasks", "What is left of each task", caption, panels)


def class_accuracy(settings: Sequence[Setting]) -> Figure | None:
    """For streams whose tests are not by task: accuracy by class at the end."""
    if any(len(setting.runs[0].result["tests"]) > 1 for setting in settings):
        return None
    rows: list[tuple[str, Values]] = []
    for network in networks(settings):
        found = [run.result["predictors"][network.predictor] for run in network.setting.runs]
        mean = mean_matrix([[f["per_class"]] for f in found if f["per_class"]])
        if mean is not None:
            rows.append((network.label, mean[0]))
    widths = {len(values) for _, values in rows}
    if len(widths) != 1 or max(widths) > MOST_CELLS:
        return None
    kept = [i for i in range(max(widths)) if any(values[i] is not None for _, values in rows)]
    panel = HeatMap(
        "",
        tuple(label for label, _ in rows),
        tuple(str(i) for i in kept),
        tuple(tuple(values[i] for i in kept) for _, values in rows),
        "",
        "class",
    )
    return figure(
        "classes",
        "What is left of each class",
        "Accuracy by class at the end of the stream, percent, mean over seeds. Pale cells are "
        "classes that were forgotten.",
        [panel],
    )


def _matrix(run: Run, predictor: str) -> Any:
    numbers = run.result["predictors"][predictor]["class_il"]
    return None if numbers is None else numbers["matrix"]


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(str(i + 1) for i in range(count))
