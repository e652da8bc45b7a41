"""What figures share: which networks they show, in which style, and means over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from perdure import catalog
from perdure.evaluation import mean_std
from perdure.report.charts import Chart, Dash, Figure, Style, Values
from perdure.results.records import PredictorAnalysis
from perdure.results.table import Setting

MAX_CELLS = 25
"""Rows or columns of a matrix whose numbers are still legible."""
MAX_NAME = 14
"""Characters of a class name that fit under a column."""
_STYLES = {
    "clser": Style("blue"),
    "mean-er": Style("purple"),
    "derpp": Style("green"),
    "er": Style("vermillion"),
    "er-ace": Style("teal"),
    "der": Style("ochre"),
    "sgd": Style("grey"),
    "joint": Style("ink"),
    "fdr": Style("teal", "dashdot"),
    "gem": Style("purple", "dashdot"),
    "agem": Style("green", "dashdot"),
    "gss": Style("vermillion", "dashdot"),
    "mer": Style("blue", "dashdot"),
    "icarl": Style("grey", "dashdot"),
}
_OWN_COLOURS = ("ochre", "teal", "purple", "green", "vermillion", "blue", "grey")
_DASHES: Mapping[str, Dash] = {"plastic": "dashed", "working": "dotted"}


@dataclass(frozen=True)
class Network:
    """One network of one setting."""

    setting: Setting
    predictor: str

    @property
    def label(self) -> str:
        """The method's title, with the network's name if the method has several."""
        title = self.setting.config.method_title
        return title if len(self.setting.predictors) == 1 else f"{title}, {self.predictor}"

    @property
    def style(self) -> Style:
        """That of the method; other networks than the default predictor have a pattern."""
        usual = method_style(self.setting.config.method)
        if self.predictor == self.setting.predictors[0]:
            return usual
        return replace(usual, dash=_DASHES.get(self.predictor, "dotted"))

    def analyses(self) -> list[PredictorAnalysis]:
        """The network's analysis of every seed that has one."""
        found = [run.analysis.predictors for run in self.setting.runs if run.analysis is not None]
        return [analyses[self.predictor] for analyses in found if self.predictor in analyses]


def class_label(setting: Setting, label: int, unnamed: str = "{}") -> str:
    """A class as figures show it: its name, shortened, or its number."""
    names = setting.runs[0].facts.class_names
    if label >= len(names):
        return unnamed.format(label)
    name = names[label]
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"


def networks(settings: Sequence[Setting], in_full: tuple[str, ...] = ()) -> list[Network]:
    """The default predictor of each setting, and all networks of the methods `in_full`.

    Unless `in_full` is empty, users' own methods are shown in full too.
    """
    return [
        Network(setting, name)
        for setting in settings
        for place, name in enumerate(setting.predictors)
        if place == 0
        or setting.config.method in in_full
        or (in_full and setting.config.method not in catalog.METHODS)
    ]


def method_style(method: str) -> Style:
    """The method's style, the same in every figure; users' own methods share a few colours."""
    own = Style(_OWN_COLOURS[sum(map(ord, method)) % len(_OWN_COLOURS)], "dashdot")
    return _STYLES.get(method, own)


def figure(name: str, title: str, caption: str, charts: Sequence[Chart]) -> Figure | None:
    """A figure; None if it has no charts."""
    return Figure(name, title, caption, tuple(charts)) if charts else None


def mean_curve(curves: Sequence[Sequence[float | None]]) -> tuple[Values, Values | None]:
    """Mean and standard deviation of each point; None where any seed has no value.

    >>> mean_curve([[1.0, 2.0], [3.0, None]])
    ((2.0, None), (1.4142135623730951, None))
    """
    points: list[tuple[float | None, float | None]] = []
    for values in zip(*curves, strict=True):
        known = [v for v in values if v is not None]
        points.append(mean_std(known) if len(known) == len(values) else (None, None))
    stds = tuple(std for _, std in points)
    return tuple(mean for mean, _ in points), stds if any(s is not None for s in stds) else None


def mean_matrix(matrices: Sequence[Sequence[Sequence[float | None]]]) -> list[Values] | None:
    """The mean of each cell; None if there are no matrices or if their shapes differ.

    >>> mean_matrix([[[1.0, None]], [[3.0, 5.0]]])
    [(2.0, None)]
    """
    shapes = {tuple(len(row) for row in matrix) for matrix in matrices}
    if len(shapes) != 1:
        return None
    return [mean_curve(rows)[0] for rows in zip(*matrices, strict=True)]


def sums(rows: Sequence[Sequence[float]]) -> list[float]:
    """The sum of each column.

    >>> sums([[1, 2], [3, 4]])
    [4.0, 6.0]
    """
    return [float(sum(column)) for column in zip(*rows, strict=True)]
