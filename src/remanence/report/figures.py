"""From runs to what the figures show: averages over seeds, CLS-ER beside the others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remanence import catalog
from remanence.evaluation import mean_std
from remanence.report.panels import (
    Areas,
    Bars,
    Curves,
    Dot,
    Dots,
    Figure,
    HeatMap,
    Line,
    Look,
    Panel,
    Reliability,
    Series,
    Values,
    slug,
)
from remanence.report.runs import Run, Setting, Setup, Spread
from remanence.report.tables import theirs

MOST_POINTS = 60
"""Of a curve over a run: more would be noise to the eye and weight to the page."""
MOST_CELLS = 25
"""Rows of a matrix whose numbers can still be read."""

_COLOURS = {
    "clser": "blue",
    "mean-er": "purple",
    "derpp": "green",
    "er": "vermillion",
    "sgd": "grey",
    "joint": "ink",
}
_SPARE = ("ochre", "teal", "purple", "green", "vermillion", "blue", "grey")
_DASHES = {"stable": "solid", "plastic": "dashed", "working": "dotted"}


@dataclass(frozen=True)
class _Network:
    """One network of one setting."""

    setting: Setting
    predictor: str

    @property
    def answers(self) -> bool:
        return self.predictor == self.setting.predictors[0]

    @property
    def label(self) -> str:
        single = len(self.setting.predictors) == 1
        return self.setting.title if single else f"{self.setting.title}, {self.predictor}"

    @property
    def look(self) -> Look:
        return Look(_colour(self.setting.method), _DASHES.get(self._role, "solid"))  # type: ignore[arg-type]

    @property
    def _role(self) -> str:
        """A method with one network has nothing to tell apart; Mean-ER's average answers."""
        return "stable" if self.answers else self.predictor

    def analyses(self, part: str) -> list[Mapping[str, Any]]:
        """This part of the analysis of every seed that has one."""
        found = []
        for run in self.setting.runs:
            mine = (run.analysis or {"predictors": {}})["predictors"].get(self.predictor)
            if mine is not None and mine.get(part):
                found.append(mine[part])
        return found


def overview(setup: Setup) -> Figure | None:
    """Every setting's accuracy on a line, the paper's beside it."""
    dots = []
    for setting in setup.settings:
        ours = setting.spread(setting.predictors[0]) if setting.predictors else None
        if ours is not None:
            figure = theirs(setting)
            paper = (None, None) if figure is None else (figure.mean, figure.std)
            dots.append(Dot(setting.label, Look(_colour(setting.method)), *ours, *paper))
    if len(dots) < 2:
        return None
    beside = any(dot.paper_mean is not None for dot in dots)
    caption = "Points are our means, bars one standard deviation over seeds."
    caption += " Hollow diamonds are the paper's figures." if beside else ""
    panel = Dots("", "accuracy after the last task, percent", tuple(dots))
    return Figure(f"{slug(setup.name)}-accuracy", "Accuracy at the end", caption, (panel,))


def figures(setup: Setup, buffer: int | None) -> list[Figure]:
    """All figures for one stream and one size of memory that the runs allow."""
    settings = [setting for setting in setup.comparison(buffer) if setting.predictors]
    name = slug(setup.name if buffer is None else f"{setup.name} {buffer}")
    makers: Sequence[Callable[[list[Setting]], Figure | None]] = (
        _task_accuracy,
        _class_accuracy,
        _task_probabilities,
        _calibration,
        _flatness,
        _confusion,
        _agreement,
        _losses,
        _provided,
        _ages,
        _memory,
    )
    made = [make(settings) for make in makers]
    return [Figure(f"{name}-{f.name}", f.title, f.caption, f.panels) for f in made if f is not None]


# -- accuracies -----------------------------------------------------------------------------


def _task_accuracy(settings: list[Setting]) -> Figure | None:
    panels = []
    for network in _networks(settings):
        runs = network.setting.runs
        tests, moments = runs[0].result["tests"], runs[0].result["moments"]
        matrices = [_matrix(run, network.predictor) for run in runs]
        if len(tests) < 2 or len(tests) > MOST_CELLS or None in matrices:
            continue
        mean = _mean_matrix([m for m in matrices if m is not None])
        if mean is None or len(mean) < 3:
            continue
        short = [_number(i) for i in range(len(tests))]
        panels.append(
            HeatMap(
                network.label,
                tuple(short[: len(moments) - 1]),
                tuple(short),
                tuple(mean[1:]),
                "after task",
                "test of task",
                100.0,
            )
        )
    return _figure(
        "tasks",
        "What is left of each task",
        "A row is a moment (after which task), a column the test of one task; accuracy in "
        "percent, mean over seeds. Down a column one sees forgetting: the last row is what "
        "remained. Cells above the diagonal are tests of tasks still to come.",
        panels,
    )


def _class_accuracy(settings: list[Setting]) -> Figure | None:
    """For streams without tasks to tell apart: accuracy by class at the end."""
    if any(len(setting.runs[0].result["tests"]) > 1 for setting in settings):
        return None
    rows: list[tuple[str, Values]] = []
    for network in _networks(settings):
        found = [run.result["predictors"][network.predictor] for run in network.setting.runs]
        mean = _mean_matrix([[f["per_class"]] for f in found if f["per_class"]])
        if mean is not None:
            rows.append((network.label, tuple(mean[0])))
    width = max((len(values) for _, values in rows), default=0)
    if not rows or width > MOST_CELLS or any(len(values) != width for _, values in rows):
        return None
    kept = [i for i in range(width) if any(values[i] is not None for _, values in rows)]
    panel = HeatMap(
        "",
        tuple(label for label, _ in rows),
        tuple(str(i) for i in kept),
        tuple(tuple(values[i] for i in kept) for _, values in rows),
        "",
        "class",
        100.0,
    )
    return _figure(
        "classes",
        "What is left of each class",
        "Accuracy by class at the end of the stream, percent, mean over seeds. Pale cells are "
        "classes that were forgotten.",
        [panel],
    )


def _matrix(run: Run, predictor: str) -> list[list[float | None]] | None:
    numbers = run.result["predictors"][predictor]["class_il"]
    return None if numbers is None else numbers["matrix"]


# -- analyses of the saved networks ---------------------------------------------------------


def _task_probabilities(settings: list[Setting]) -> Figure | None:
    series = []
    names: list[str] = []
    kind = "task"
    for network in _answering(settings):
        found = network.analyses("task_probabilities")
        found = [f for f in found if not names or f["names"] == names]
        if not found:
            continue
        names, kind = found[0]["names"], found[0]["kind"]
        columns = list(zip(*(f["mass"] for f in found if f["names"] == names), strict=True))
        spreads = [Spread(*mean_std([100 * v for v in column])) for column in columns]
        series.append(_series(network.label, network.look, spreads))
    if not series:
        return None
    short = tuple(_number(i) for i in range(len(names))) if kind == "task" else tuple(names)
    panel = Bars(
        "", kind, "probability, percent", short, tuple(series), equal=100 / max(len(names), 1)
    )
    return _figure(
        "probabilities",
        "Whom the network expects",
        f"Softmax probability given to each {kind}'s classes over the whole test set. The line "
        "is an equal share; a tall last bar is a bias towards what was learned last.",
        [panel],
    )


def _calibration(settings: list[Setting]) -> Figure | None:
    panels = []
    for network in _networks(settings, also=("clser",)):
        found = network.analyses("calibration")
        edges = [
            [b["lower"] for b in f["bins"]] + [f["bins"][-1]["upper"]] for f in found if f["bins"]
        ]
        found = [f for f in found if f["bins"]]
        if not found or any(e != edges[0] for e in edges):
            continue
        bins = list(zip(*(f["bins"] for f in found), strict=True))
        total = math.fsum(b["count"] for column in bins for b in column)
        mean, std = mean_std([100 * f["ece"] for f in found])
        panels.append(
            Reliability(
                network.label,
                network.look,
                tuple(edges[0]),
                tuple(_weighted(column, "accuracy", 1.0) for column in bins),
                tuple(_weighted(column, "confidence", 100.0) for column in bins),
                tuple(math.fsum(b["count"] for b in column) / max(total, 1) for column in bins),
                mean,
                std,
            )
        )
    return _figure(
        "calibration",
        "How far confidence can be trusted",
        "Accuracy of answers by their confidence, seeds together. On the diagonal a network is "
        "right as often as it thinks; bars below it are over-confidence. The deeper the colour, "
        "the more answers. ECE is the expected calibration error in percent, the smaller the "
        "better.",
        panels,
    )


def _weighted(column: Sequence[Mapping[str, float]], key: str, scale: float) -> float | None:
    """The mean over seeds of a bin, each by its count; percent."""
    count = math.fsum(b["count"] for b in column)
    return scale * math.fsum(b["count"] * b[key] for b in column) / count if count else None


def _flatness(settings: list[Setting]) -> Figure | None:
    accuracy: list[Line] = []
    loss: list[Line] = []
    for network in _networks(settings, also=("clser",)):
        found = network.analyses("flatness")
        found = [f for f in found if f["sigmas"] == found[0]["sigmas"]]
        if not found:
            continue
        for key, lines in (("accuracy", accuracy), ("loss", loss)):
            y, std = _mean_curve([f[key] for f in found])
            lines.append(Line(network.label, network.look, tuple(found[0]["sigmas"]), y, std))
    if not accuracy:
        return None
    noise = "standard deviation of the noise on the weights"
    panels = [
        Curves("accuracy", noise, "percent", tuple(accuracy), whole=True),
        Curves("loss", noise, "cross-entropy", tuple(loss)),
    ]
    return _figure(
        "flatness",
        "How flat the minimum is",
        "Accuracy and loss on training samples when Gaussian noise is added to all weights; mean "
        "over seeds, the band is one standard deviation. The later a curve falls, the flatter "
        "the minimum.",
        panels,
    )


def _confusion(settings: list[Setting]) -> Figure | None:
    panels = []
    for network in _answering(settings):
        found = network.analyses("confusion")
        found = [f for f in found if f["classes"] == found[0]["classes"]]
        if not found or len(found[0]["classes"]) > MOST_CELLS:
            continue
        counts = [
            [math.fsum(cells) for cells in zip(*rows, strict=True)]
            for rows in zip(*(f["counts"] for f in found), strict=True)
        ]
        names = tuple(str(name) for name in found[0]["classes"])
        shares = tuple(tuple(_share(row)) for row in counts)
        panels.append(HeatMap(network.label, names, names, shares, "true", "answer", 100.0))
    return _figure(
        "confusion",
        "What is taken for what",
        "Of the test samples of a class (row), the percentage that got each answer (column), "
        "seeds together. Full columns are classes that swallow others.",
        panels,
    )


def _share(row: Sequence[float]) -> Iterator[float | None]:
    total = math.fsum(row)
    return (100 * value / total if total else None for value in row)


def _agreement(settings: list[Setting]) -> Figure | None:
    panels = []
    for setting in settings:
        found = [run.analysis["agreement"] for run in setting.runs if run.analysis]
        found = [f for f in found if f["predictors"] == found[0]["predictors"]]
        if not found or len(found[0]["predictors"]) < 2:
            continue
        mean = _mean_matrix([f["matrix"] for f in found])
        if mean is None:
            continue
        names = tuple(found[0]["predictors"])
        percent = tuple(tuple(None if v is None else 100 * v for v in row) for row in mean)
        panels.append(HeatMap(setting.title, names, names, percent, "", "", 100.0, decimals=1))
    return _figure(
        "agreement",
        "Where the networks agree",
        "Percentage of the test samples to which two networks of the same learner give the same "
        "answer, mean over seeds.",
        panels,
    )


# -- what was counted during training -------------------------------------------------------


def _losses(settings: list[Setting]) -> Figure | None:
    loss = _rates(settings, "loss")
    consistency = _rates(settings, "consistency")
    marks = _task_ends(settings)
    panels = [Curves("loss", "step", "mean over the steps", tuple(loss), marks)] if loss else []
    if consistency:
        panels.append(Curves("consistency loss", "step", "", tuple(consistency), marks))
    ends = " Upright lines are ends of tasks." if marks else ""
    return _figure(
        "losses",
        "Losses while learning",
        f"Means over stretches of the stream, mean over seeds.{ends} What a loss sums differs "
        "between methods: compare its course, not its height.",
        panels,
    )


def _rates(settings: list[Setting], name: str, per: str = "step") -> list[Line]:
    """What one counter grew by for each unit of another, over the stream."""
    lines = []
    for setting in settings:
        curves = [_rate(run, name, per) for run in setting.runs]
        known = [curve for curve in curves if curve]
        if not known or len({curve[0] for curve in known}) > 1:
            continue  # nothing was counted, or seeds went different ways
        y, std = _mean_curve([curve[1] for curve in known])
        lines.append(Line(setting.title, Look(_colour(setting.method)), known[0][0], y, std))
    return lines


def _rate(run: Run, name: str, per: str) -> tuple[tuple[float, ...], list[float]] | None:
    events = [e for e in run.events if e["event"] == "totals" and name in e and per in e]
    steps = [{"step": 0, name: 0.0, per: 0.0}, *_thinned(events)]
    pairs = [
        (float(later["step"]), (later[name] - earlier[name]) / (later[per] - earlier[per]))
        for earlier, later in itertools.pairwise(steps)
        if _is_number(later[name]) and _is_number(later[per]) and later[per] > earlier[per]
    ]
    if len(pairs) < 2:
        return None
    return tuple(x for x, _ in pairs), [y for _, y in pairs]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _thinned(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Every so many: counters are sums, so what lies between is not lost."""
    every = math.ceil(len(events) / MOST_POINTS)
    return [e for i, e in enumerate(events, start=1) if i % every == 0 or i == len(events)]


def _task_ends(settings: list[Setting]) -> tuple[float, ...]:
    """Steps at which tasks ended, where all settings agree on them."""
    found = set()
    for setting in settings:
        for run in setting.runs:
            events = [e for e in run.events if e["event"] == "evaluation"]
            steps = [e["step"] for e in events if _is_number(e.get("step"))]
            found.add(tuple(float(step) for step in sorted(set(steps)) if step > 0))
    ends = next(iter(found)) if len(found) == 1 else ()
    return ends[:-1]


def _provided(settings: list[Setting]) -> Figure | None:
    panels = []
    for setting in settings:
        (line,) = _rates([setting], "plastic_provided", "replayed") or (None,)
        if line is None:
            continue
        plastic = tuple(None if y is None else 100 * y for y in line.y)
        stable = tuple(None if y is None else 100 - y for y in plastic)
        layers = (
            Series("stable", Look("blue"), stable),
            Series("plastic", Look("sky"), plastic),
        )
        panels.append(Areas(setting.title, "step", "percent of replayed samples", line.x, layers))
    return _figure(
        "provided",
        "Which memory provided the logits",
        "For each replayed sample the memory that knows its class better provides the logits: "
        "how often it was the stable one and how often the plastic one, over the stream.",
        panels,
    )


def _ages(settings: list[Setting]) -> Figure | None:
    panels = []
    for setting in settings:
        last = [[e for e in run.events if e["event"] == "ages"][-1:] for run in setting.runs]
        found = [events[0] for events in last if events]
        found = [f for f in found if f["edges"] == found[0]["edges"] and _aligned(f)]
        if not found:
            continue
        stable = [math.fsum(cells) for cells in zip(*(f["stable"] for f in found), strict=True)]
        total = [math.fsum(cells) for cells in zip(*(f["total"] for f in found), strict=True)]
        kept = [i for i, count in enumerate(total) if count > 0]
        if not kept:
            continue
        share = [100 * stable[i] / total[i] for i in kept]
        names = _ranges(found[0]["edges"], len(total))
        panels.append(
            Bars(
                setting.title,
                "samples of the stream seen since it was stored",
                "percent of replayed samples",
                tuple(names[i] for i in kept),
                (
                    Series("stable", Look("blue"), tuple(share)),
                    Series("plastic", Look("sky"), tuple(100 - v for v in share)),
                ),
                stacked=True,
            )
        )
    return _figure(
        "ages",
        "Which memory provided the logits, by age",
        "The same by how long ago the replayed sample was stored. Were the stable memory the "
        "keeper of what is old, its share would grow to the right.",
        panels,
    )


def _aligned(event: Mapping[str, Any]) -> bool:
    size, edges = len(event["total"]), len(event["edges"])
    return len(event["stable"]) == size and edges in (size - 1, size, size + 1)


def _ranges(edges: Sequence[float], bins: int) -> list[str]:
    """Names of bins from their edges: with both ends named, or open below, above or both."""
    if len(edges) == bins + 1:
        return [f"{_round(a)}–{_round(b)}" for a, b in itertools.pairwise(edges)]
    if len(edges) == bins:
        pairs = [f"{_round(a)}–{_round(b)}" for a, b in itertools.pairwise(edges)]
        return [*pairs, f"≥ {_round(edges[-1])}"]
    inner = [f"{_round(a)}–{_round(b)}" for a, b in itertools.pairwise(edges)]
    return [f"< {_round(edges[0])}", *inner, f"≥ {_round(edges[-1])}"]


def _round(value: float) -> str:
    """A count as short as it can be said.

    >>> _round(64.0), _round(4096.0), _round(2_000_000.0)
    ('64', '4.1k', '2M')
    """
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.2g}{unit}"
    return f"{value:g}"


def _memory(settings: list[Setting]) -> Figure | None:
    panels = []
    for setting in settings:
        run = setting.runs[0]
        events = _thinned([e for e in run.events if e["event"] == "memory"])
        width = max((len(e["classes"]) for e in events), default=0)
        if len(events) < 2 or width > 100:
            continue
        counts = [[*e["classes"], *[0.0] * (width - len(e["classes"]))] for e in events]
        kept = [i for i in range(width) if any(row[i] for row in counts)]
        layers = tuple(
            Series(
                f"class {i}",
                Look(_scale(i / max(width - 1, 1))),
                tuple(float(row[i]) for row in counts),
            )
            for i in kept
        )
        x = tuple(float(e["step"]) for e in events)
        panels.append(Areas(setting.title, "step", "samples", x, layers))
    return _figure(
        "memory",
        "What the memory holds",
        "Samples of each class in the episodic memory over the stream, first seed. A memory that "
        "keeps a fair sample of the past gives every class its share.",
        panels,
    )


# -- shared ---------------------------------------------------------------------------------


def _figure(name: str, title: str, caption: str, panels: Sequence[Panel]) -> Figure | None:
    return Figure(name, title, caption, tuple(panels)) if panels else None


def _networks(
    settings: list[Setting], also: tuple[str, ...] = ("clser", "mean-er")
) -> list[_Network]:
    """The answering network of each setting, and all those of some methods."""
    return [
        _Network(setting, name)
        for setting in settings
        for place, name in enumerate(setting.predictors)
        if place == 0 or setting.method in also or setting.method not in catalog.METHODS
    ]


def _answering(settings: list[Setting]) -> list[_Network]:
    return _networks(settings, also=())


def _colour(method: str) -> str:
    if method in _COLOURS:
        return _COLOURS[method]
    others = [name for name in catalog.METHODS if name not in _COLOURS]
    # A user's own methods are unknown: any number of them share what is left.
    place = others.index(method) if method in others else sum(map(ord, method))
    return _SPARE[place % len(_SPARE)]


def _series(label: str, look: Look, spreads: Sequence[Spread]) -> Series:
    std = tuple(s.std for s in spreads)
    return Series(label, look, tuple(s.mean for s in spreads), None if None in std else std)


def _mean_curve(curves: Sequence[Sequence[float | None]]) -> tuple[Values, Values | None]:
    """Mean and standard deviation over seeds, point by point; None where a seed has no number."""
    y: list[float | None] = []
    std: list[float | None] = []
    for values in zip(*curves, strict=True):
        known = [v for v in values if v is not None]
        mean, spread = mean_std(known) if len(known) == len(values) else (None, None)
        y.append(mean)
        std.append(spread)
    return tuple(y), None if all(v is None for v in std) else tuple(std)


def _mean_matrix(matrices: Sequence[Sequence[Sequence[float | None]]]) -> list[Values] | None:
    """The mean over seeds, cell by cell; None if they are not of one size."""
    shapes = {tuple(len(row) for row in matrix) for matrix in matrices}
    if len(shapes) != 1:
        return None
    return [_mean_curve(rows)[0] for rows in zip(*matrices, strict=True)]


def _number(index: int) -> str:
    return str(index + 1)


_STOPS = (
    (0x00, 0x36, 0x6E),
    (0x5B, 0x6A, 0x82),
    (0x95, 0x93, 0x80),
    (0xC9, 0xB9, 0x6A),
    (0xFD, 0xE7, 0x4C),
)


def _scale(place: float) -> str:
    """A colour between dark blue and yellow that grows evenly lighter, whatever eyes see it."""
    position = place * (len(_STOPS) - 1)
    low = min(int(position), len(_STOPS) - 2)
    mixed = (
        round(a + (b - a) * (position - low))
        for a, b in zip(_STOPS[low], _STOPS[low + 1], strict=True)
    )
    return "#" + "".join(f"{channel:02x}" for channel in mixed)
