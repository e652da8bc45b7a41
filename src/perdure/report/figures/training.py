"""What was recorded during training: losses, sources of the replay logits, memory content."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from perdure.report.charts import (
    MAX_LEGEND,
    Areas,
    Bars,
    Chart,
    Curves,
    Figure,
    Line,
    Series,
    Style,
)
from perdure.report.figures.common import class_label, figure, mean_curve, method_style, sums
from perdure.results.records import (
    AgesEvent,
    EvaluationEvent,
    MemoryEvent,
    MetricsEvent,
    PrequentialEvent,
    RunRecord,
)
from perdure.results.table import Setting

MAX_POINTS = 60
"""Points of a curve over a run; more would add noise and size to the page."""
MAX_CLASSES = 100
T = TypeVar("T")


class Curve(NamedTuple):
    """Values over the steps of a run."""

    steps: tuple[float, ...]
    values: list[float]


def losses(settings: Sequence[Setting]) -> Figure | None:
    """The loss and its consistency term over the stream."""
    marks = _task_ends(settings)
    charts = []
    for name, title in (("loss", "loss"), ("consistency", "consistency loss")):
        lines = _lines(settings, lambda run, name=name: metric(run, name))  # type: ignore[misc]
        if lines:
            charts.append(Curves(title, "step", "mean loss", lines, marks))
    ends = " Vertical lines mark the ends of tasks." if marks else ""
    return figure(
        "losses",
        "Training loss",
        f"Averages over intervals of the stream, mean over seeds.{ends} Methods sum different "
        "terms: compare the shape of the curves, not their height.",
        charts,
    )


def prequential(settings: Sequence[Setting]) -> Figure | None:
    """Accuracy in the sliding window of prequential evaluation over the stream."""
    marks = _task_ends(settings)
    windows = {setting.prequential_window for setting in settings} - {None}
    lines = _lines(settings, _prequential, name_windows=len(windows) > 1)
    charts = [Curves("", "step", "accuracy, percent", lines, marks, "percent")]
    ends = " Vertical lines mark the ends of tasks." if marks else ""
    window = f"the last {windows.pop():,} samples" if len(windows) == 1 else "the sliding window"
    return figure(
        "prequential",
        "Prequential accuracy",
        f"Accuracy on {window} of the stream, each predicted by the default predictor before it "
        f"was learned; mean and standard deviation over seeds.{ends}",
        charts if lines else [],
    )


def _lines(
    settings: Sequence[Setting],
    curve: Callable[[RunRecord], Curve | None],
    *,
    name_windows: bool = False,
) -> tuple[Line, ...]:
    """The mean curve of each setting whose runs have one."""
    lines = []
    for setting in settings:
        if curves := _aligned([curve(run) for run in setting.runs]):
            mean, std = mean_curve([one.values for one in curves])
            window = f", last {setting.prequential_window:,}" if name_windows else ""
            label, style = setting.config.method_title, method_style(setting.config.method)
            lines.append(Line(label + window, style, curves[0].steps, mean, std))
    return tuple(lines)


def _prequential(run: RunRecord) -> Curve | None:
    events = _thinned([e for e in run.events if isinstance(e, PrequentialEvent)])
    values = [event.accuracy for event in events]
    return Curve(tuple(float(e.step) for e in events), values) if len(events) > 1 else None


def replay_sources(settings: Sequence[Setting]) -> Figure | None:
    """How often either semantic memory provided the replay logits, over time and by age."""
    charts: list[Chart] = []
    for setting in settings:
        title = setting.config.method_title
        memories = ("stable_used", "plastic_used")
        curves = _aligned([metric(run, "stable_used", memories) for run in setting.runs])
        if curves:
            mean, _ = mean_curve([curve.values for curve in curves])
            layers = _two_memories([100 * share for share in mean if share is not None])
            about = f"{title}, over the stream"
            charts.append(Areas(about, "step", "percent of replay", curves[0].steps, layers))
        charts += _by_age(setting)
    return figure(
        "replay-sources",
        "Sources of the replay logits",
        "For each replayed sample, the semantic memory with the higher probability for its class "
        "provides the logits. The charts show the share of the stable and the plastic memory over "
        "the stream, and by the number of steps since the sample was stored. If the stable memory "
        "specialised in old samples, its share would grow with age.",
        charts,
    )


def _by_age(setting: Setting) -> list[Chart]:
    last = [[e for e in run.events if isinstance(e, AgesEvent)][-1:] for run in setting.runs]
    found = [e for events in last for e in events if len(e.edges) == len(e.total) + 1]
    if not found or any(len(e.stable) != len(e.total) for e in found):
        return []
    # Bins double in width, so the bins of one seed are the first bins of another.
    edges = max((e.edges for e in found), key=len)
    if any(e.edges != edges[: len(e.edges)] for e in found):
        return []
    bins = len(edges) - 1
    stable = sums([[*e.stable, *[0] * (bins - len(e.stable))] for e in found])
    total = sums([[*e.total, *[0] * (bins - len(e.total))] for e in found])
    kept = [i for i in range(bins) if total[i]]
    if not kept:
        return []
    return [
        Bars(
            f"{setting.config.method_title}, by age",
            "age in steps, from",
            "percent of replay",
            tuple(_round(edges[i]) for i in kept),
            _two_memories([100 * stable[i] / total[i] for i in kept]),
            stacked=True,
        )
    ]


def _two_memories(stable: Sequence[float]) -> tuple[Series, Series]:
    return (
        Series("stable", Style("blue"), tuple(stable)),
        Series("plastic", Style("sky"), tuple(100 - share for share in stable)),
    )


def memory(settings: Sequence[Setting]) -> Figure | None:
    """Samples of each class in the episodic memory over the stream."""
    charts = []
    most = 0
    for setting in settings:
        events = _thinned([e for e in setting.runs[0].events if isinstance(e, MemoryEvent)])
        width = max((len(e.classes) for e in events), default=0)
        if len(events) < 2 or not 0 < width <= MAX_CLASSES:
            continue
        counts = [[*e.classes, *[0] * (width - len(e.classes))] for e in events]
        layers = tuple(
            Series(class_label(setting, i, "class {}"), Style(shade), tuple(map(float, column)))
            for i, (shade, *column) in enumerate(zip(_shades(width), *counts, strict=True))
            if any(column)
        )
        if not layers:  # the memory stayed empty
            continue
        most = max(most, width)
        steps = tuple(float(e.step) for e in events)
        charts.append(Areas(setting.config.method_title, "step", "samples", steps, layers))
    shades = ", from the first class (dark) to the last (light)" if most > MAX_LEGEND else ""
    return figure(
        "memory",
        "Content of the episodic memory",
        f"Samples of each class in the episodic memory over the stream, first seed{shades}.",
        charts,
    )


def metric(run: RunRecord, name: str, total: Sequence[str] = ()) -> Curve | None:
    """A metric over the stream, averaged over about `MAX_POINTS` intervals.

    If `total` is given, the metric is divided by the sum of these metrics.
    """
    steps: list[float] = []
    values: list[float] = []
    previous = numerator = denominator = 0.0
    events = [e for e in run.events if isinstance(e, MetricsEvent)]
    ends = {e.step for e in _thinned(events)}
    for event in events:
        if not {name, *total} <= set(event.values):
            return None
        width, previous = event.step - previous, float(event.step)
        numerator += width * event.values[name]
        denominator += width * (sum(event.values[n] for n in total) if total else 1)
        if event.step in ends:
            if denominator > 0:
                steps.append(previous)
                values.append(numerator / denominator)
            numerator = denominator = 0.0
    return Curve(tuple(steps), values) if len(steps) > 1 else None


def _aligned(curves: Sequence[Curve | None]) -> list[Curve]:
    """The seeds' curves; none unless they are over the same steps."""
    known = [curve for curve in curves if curve is not None]
    return known if len({curve.steps for curve in known}) == 1 else []


def _thinned(events: Sequence[T]) -> list[T]:
    """At most about `MAX_POINTS` events at equal distances, the last one included."""
    step = math.ceil(len(events) / MAX_POINTS)
    return [e for i, e in enumerate(events, start=1) if i % step == 0 or i == len(events)]


def _task_ends(settings: Sequence[Setting]) -> tuple[float, ...]:
    """Steps at which tasks other than the last ended, if all runs agree on them."""
    found = set()
    for run in (run for setting in settings for run in setting.runs):
        steps = {float(e.step) for e in run.events if isinstance(e, EvaluationEvent) and e.step > 0}
        found.add(tuple(sorted(steps)))
    return next(iter(found))[:-1] if len(found) == 1 else ()


def _round(value: float) -> str:
    """A count as a short label.

    >>> _round(64.0), _round(4096.0), _round(131072.0)
    ('64', '4.1k', '130k')
    """
    return f"{value:g}" if value < 1000 else f"{float(f'{value / 1000:.2g}'):g}k"


def _shades(count: int) -> list[str]:
    """Colours from dark blue to yellow, with evenly rising lightness; all visible on black."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(rgba) for rgba in colormaps["cividis"](np.linspace(0.1, 1.0, count))]
