"""Accuracy after the last task, by task and by class."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.catalog import STREAMS
from perdure.report.charts import Dot, Dots, Figure, HeatMap, Values
from perdure.report.figures.common import (
    MAX_CELLS,
    class_label,
    figure,
    mean_matrix,
    method_style,
    networks,
)
from perdure.results.table import Section, Setting, on_different_streams, slug

_IN_FULL = ("clser", "mean-er")
FAR = 2.0
"""The lowest dot is off the scale if its distance is this many times the range of the others."""


def overview(section: Section) -> Figure | None:
    """The accuracy of every setting next to the published one; without tests, prequential."""
    dots = []
    tested = any(setting.spread() for setting in section.settings)
    for setting in section.settings:
        ours = setting.spread() if tested else setting.prequential()
        if ours is not None:
            published = setting.figures()[:1]
            mean, std = (published[0].mean, published[0].std) if published else (None, None)
            style = method_style(setting.config.method)
            dots.append(Dot(setting.label, style, ours.mean, ours.std, mean, std))
    if len(dots) < 2:
        return None
    caption = "Points are means over seeds, bars one standard deviation."
    if any(dot.published_mean is not None for dot in dots):
        caption += " Hollow diamonds are the published means, grey bars their standard deviations."
    if on_different_streams(section.settings):
        caption += " The settings are on different streams, as the table says."
    title = "Final accuracy" if tested else "Prequential accuracy"
    axis = f"{'accuracy after the last task' if tested else 'accuracy on the stream'}, percent"
    chart = Dots("", axis, tuple(dots), lowest(dots))
    return figure(f"{slug(section.name)}-accuracy", title, caption, [chart])


def lowest(dots: Sequence[Dot]) -> float | None:
    """The lowest value to draw to scale, of means and bars; None to draw all of them.

    >>> from perdure.report.charts import Style
    >>> style = Style("blue")
    >>> lowest([Dot(str(m), style, m, None, None, None) for m in (19.6, 86.0, 92.0)])
    86.0
    >>> lowest([Dot(str(m), style, m, None, None, None) for m in (80.0, 86.0, 92.0)]) is None
    True
    >>> lowest([Dot(str(m), style, m, 2.6, None, None) for m in (93.0, 95.0, 95.1)]) is None
    True
    """
    first, *others = sorted(map(_extent, dots))
    if len(others) < 2:
        return None
    low, high = min(low for low, _ in others), max(high for _, high in others)
    return low if low - first[1] > FAR * (high - low) else None


def _extent(dot: Dot) -> tuple[float, float]:
    """The lowest and the highest value of a dot, its bar, and the published ones."""
    pairs = [(dot.mean, dot.std), (dot.published_mean, dot.published_std)]
    ends = [mean + sign * (std or 0) for mean, std in pairs if mean is not None for sign in (-1, 1)]
    return min(ends), max(ends)


def task_accuracy(settings: Sequence[Setting]) -> Figure | None:
    """A heat map for each network: accuracy after each task on each task's test."""
    charts = []
    for network in networks(settings, _IN_FULL):
        tests = len(network.setting.runs[0].result.tests)
        scores = network.setting.scores(network.predictor)
        mean = mean_matrix([found.matrix[1:] for found in scores])  # without the untrained network
        if mean is None or len(mean) < 2 or not 2 <= tests <= MAX_CELLS:
            continue
        rows, columns = (tuple(str(i + 1) for i in range(n)) for n in (len(mean), tests))
        charts.append(
            HeatMap(network.label, rows, columns, tuple(mean), "after task", "test of task")
        )
    caption = (
        "Accuracy in percent, mean over seeds: a row for each task after which the network was "
        "tested, a column for each test. "
    )
    if any(setting.tests_overlap for setting in settings):
        caption += (
            "Test k contains all classes of the first k tasks. Classes recur, so accuracy can "
            "rise over time."
        )
    else:
        caption += "Forgetting appears down a column; the last row is the final accuracy."
    caption += " Cells above the diagonal are tests of later tasks."
    caption += _task_names(settings[0])
    return figure("tasks", "Accuracy by task", caption, charts)


def _task_names(setting: Setting) -> str:
    """A sentence with the names of the tasks of a user's stream, if it has given them any."""
    names = setting.runs[0].result.tests
    if setting.config.stream in STREAMS or names == [f"task {i + 1}" for i in range(len(names))]:
        return ""
    return f" The tasks are {', '.join(f'{i}: {name}' for i, name in enumerate(names, 1))}."


def class_accuracy(settings: Sequence[Setting]) -> Figure | None:
    """For streams with a single test: final accuracy by class."""
    if any(len(setting.runs[0].result.tests) > 1 for setting in settings):
        return None
    rows: list[tuple[str, Values]] = []
    for network in networks(settings, _IN_FULL):
        found = [run.result.predictors[network.predictor] for run in network.setting.runs]
        mean = mean_matrix([[f.per_class] for f in found if f.per_class])
        if mean is not None:
            rows.append((network.label, mean[0]))
    widths = {len(values) for _, values in rows}
    if len(widths) != 1 or max(widths) > MAX_CELLS:
        return None
    kept = [i for i in range(max(widths)) if any(values[i] is not None for _, values in rows)]
    names = tuple(label for label, _ in rows)
    cells = tuple(tuple(values[i] for i in kept) for _, values in rows)
    classes = tuple(class_label(settings[0], i) for i in kept)
    chart = HeatMap("", names, classes, cells, "", "class")
    caption = "Final accuracy by class in percent, mean over seeds. Pale classes are forgotten."
    return figure("classes", "Accuracy by class", caption, [chart])
