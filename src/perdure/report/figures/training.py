"""What was counted during training: losses, who provided the logits, what the memory held."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.report.figures.averages import mean_curve, sums
from perdure.report.figures.networks import colour, figure
from perdure.report.panels import (
    MOST_KEYS,
    Areas,
    Bars,
    Curves,
    Figure,
    Line,
    Look,
    Panel,
    Series,
)
from perdure.report.runs import Run, Setting

MOST_POINTS = 60
"""Of a curve over a run: more would be noise to the eye and weight to the page."""
MOST_CLASSES = 100
Event = Mapping[str, Any]
Curve = tuple[tuple[float, ...], list[float]]


def losses(settings: Sequence[Setting]) -> Figure | None:
    """The loss, and the part of it that is consistency, over the stream."""
    marks = _task_ends(settings)
    panels = []
    for name, title in (("loss", "loss"), ("consistency", "consistency loss")):
        lines = []
        for setting in settings:
            curves = _alike([_rate(run, name) for run in setting.runs])
            if curves:
                mean, std = mean_curve([y for _, y in curves])
                look = Look(colour(setting.method))
                lines.append(Line(setting.title, look, curves[0][0], mean, std))
        if lines:
            panels.append(Curves(title, "step", "mean of the steps", tuple(lines), marks))
    ends = " Upright lines are ends of tasks." if marks else ""
    return figure(
        "losses",
        "Losses while learning",
        f"Means over stretches of the stream, mean over seeds.{ends} What a loss sums differs "
        "between methods: compare its course, not its height.",
        panels,
    )


def provided(settings: Sequence[Setting]) -> Figure | None:
    """How often the stable and the plastic memory provided the logits: over the stream, by age."""
    panels: list[Panel] = []
    for setting in settings:
        curves = _alike([_stable_share(run) for run in setting.runs])
        if curves:
            mean, _ = mean_curve([y for _, y in curves])
            about = f"{setting.title}, over the stream"
            layers = _two_memories([100 * share for share in mean if share is not None])
            panels.append(Areas(about, "step", "percent of replay", curves[0][0], layers))
        panels += _by_age(setting)
    return figure(
        "provided",
        "Which memory provided the logits",
        "For each replayed sample the memory that knows its class better provides the logits: "
        "how often it was the stable one, how often the plastic one; over the stream, and by the "
        "steps since the sample was stored. Were the stable memory the keeper of what is old, "
        "its share would grow with age.",
        panels,
    )


def _by_age(setting: Setting) -> list[Panel]:
    last = [[e for e in run.events if e["event"] == "ages"][-1:] for run in setting.runs]
    found = [e for events in last for e in events if len(e["edges"]) == len(e["total"]) + 1]
    if not found or any(len(e["stable"]) != len(e["total"]) for e in found):
        return []
    # Bins double in width, so seeds differ in their number only: the longest names them all.
    edges = max((e["edges"] for e in found), key=len)
    if any(e["edges"] != edges[: len(e["edges"])] for e in found):
        return []
    bins = len(edges) - 1
    stable = sums([[*e["stable"], *[0] * (bins - len(e["stable"]))] for e in found])
    total = sums([[*e["total"], *[0] * (bins - len(e["total"]))] for e in found])
    kept = [i for i in range(bins) if total[i]]
    return [
        Bars(
            f"{setting.title}, by age",
            "steps since it was stored, from",
            "percent of replay",
            tuple(_round(edges[i]) for i in kept),
            _two_memories([100 * stable[i] / total[i] for i in kept]),
            stacked=True,
        )
    ]


def _two_memories(stable: Sequence[float]) -> tuple[Series, Series]:
    return (
        Series("stable", Look("blue"), tuple(stable)),
        Series("plastic", Look("sky"), tuple(100 - share for share in stable)),
    )


def memory(settings: Sequence[Setting]) -> Figure | None:
    """Samples of each class in the episodic memory, over the stream."""
    panels = []
    most = 0
    for setting in settings:
        events = thinned([e for e in setting.runs[0].events if e["event"] == "memory"])
        width = max((len(e["classes"]) for e in events), default=0)
        if len(events) < 2 or not 0 < width <= MOST_CLASSES:
            continue
        counts = [[*e["classes"], *[0] * (width - len(e["classes"]))] for e in events]
        most = max(most, width)
        layers = tuple(
            Series(f"class {i}", Look(_shade(i / max(width - 1, 1))), tuple(map(float, column)))
            for i, column in enumerate(zip(*counts, strict=True))
            if any(column)
        )
        x = tuple(float(e["step"]) for e in events)
        panels.append(Areas(setting.title, "step", "samples", x, layers))
    return figure(
        "memory",
        "What the memory holds",
        "Samples of each class in the episodic memory over the stream, first seed"
        + (", from the first class (dark) to the last (light)" if most > MOST_KEYS else "")
        + ". A memory that keeps a fair sample of the past gives every class its share.",
        panels,
    )


def _rate(run: Run, name: str, per: str = "step") -> Curve | None:
    """What one sum grew by for each unit of another, over the stream."""
    events = [e for e in run.events if e["event"] == "totals" and _numbers(e, name, per)]
    start: Event = {"step": 0, name: 0.0, per: 0.0}
    pairs = [
        (float(later["step"]), (later[name] - earlier[name]) / (later[per] - earlier[per]))
        for earlier, later in itertools.pairwise([start, *thinned(events)])
        if later[per] > earlier[per]
    ]
    if len(pairs) < 2:
        return None
    return tuple(x for x, _ in pairs), [y for _, y in pairs]


def _stable_share(run: Run) -> Curve | None:
    """Of the replay logits, over the stream."""
    events = [
        {**e, "replayed": e["stable_used"] + e["plastic_used"]}
        for e in run.events
        if e["event"] == "totals" and _numbers(e, "stable_used", "plastic_used")
    ]
    counted = Run(**{**vars(run), "events": events})
    return _rate(counted, "stable_used", "replayed")


def _numbers(event: Event, *names: str) -> bool:
    return all(isinstance(event.get(name), int | float) for name in names)


def _alike(curves: Sequence[Curve | None]) -> list[Curve]:
    """The seeds' curves if there are any and they are over the same steps."""
    known = [curve for curve in curves if curve is not None]
    return known if len({x for x, _ in known}) == 1 else []


def thinned(events: Sequence[Event]) -> list[Event]:
    """Every so many of them, and the last: of sums, what lies between is not lost."""
    every = math.ceil(len(events) / MOST_POINTS)
    return [e for i, e in enumerate(events, start=1) if i % every == 0 or i == len(events)]


def _task_ends(settings: Sequence[Setting]) -> tuple[float, ...]:
    """Steps at which tasks ended, but for the last, where all settings agree on them."""
    found = set()
    for run in (run for setting in settings for run in setting.runs):
        events = [e for e in run.events if e["event"] == "evaluation" and _numbers(e, "step")]
        found.add(tuple(sorted({float(e["step"]) for e in events if e["step"] > 0})))
    return next(iter(found))[:-1] if len(found) == 1 else ()


def _round(value: float) -> str:
    """A count as short as it can be said.

    >>> _round(64.0), _round(4096.0), _round(2_000_000.0)
    ('64', '4.1k', '2M')
    """
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.2g}{unit}"
    return f"{value:g}"


_STOPS = ("00366e", "5b6a82", "959380", "c9b96a", "fde74c")


def _shade(place: float) -> str:
    """A colour from dark blue to yellow that grows evenly lighter: order, for all eyes.

    >>> _shade(0.0), _shade(1.0)
    ('#00366e', '#fde74c')
    """
    position = place * (len(_STOPS) - 1)
    low = min(int(position), len(_STOPS) - 2)
    darker, lighter = (bytes.fromhex(stop) for stop in _STOPS[low : low + 2])
    mixed = (a + (b - a) * (position - low) for a, b in zip(darker, lighter, strict=True))
    return "#" + "".join(f"{round(channel):02x}" for channel in mixed)
