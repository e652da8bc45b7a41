"""Which networks a figure shows, and their labels and styles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perdure import catalog
from perdure.report.charts import Chart, Dash, Figure, Style
from perdure.results.records import PredictorAnalysis
from perdure.results.table import Setting

MAX_CELLS = 25
"""Rows or columns of a matrix whose numbers are still legible."""
_COLOURS = {
    "clser": "blue",
    "mean-er": "purple",
    "derpp": "green",
    "er": "vermillion",
    "sgd": "grey",
    "joint": "ink",
}
_OTHER_COLOURS = ("ochre", "teal", "purple", "green", "vermillion", "blue", "grey")
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
        """The method's colour; solid for the answering network."""
        answering = self.predictor == self.setting.predictors[0]
        dash: Dash = "solid" if answering else _DASHES.get(self.predictor, "dotted")
        return Style(colour(self.setting.config.method), dash)

    def analyses(self) -> list[PredictorAnalysis]:
        """The network's analysis of every seed that has one."""
        found = [run.analysis.predictors for run in self.setting.runs if run.analysis is not None]
        return [analyses[self.predictor] for analyses in found if self.predictor in analyses]


def networks(
    settings: Sequence[Setting], in_full: tuple[str, ...] = ("clser", "mean-er")
) -> list[Network]:
    """The answering network of each setting.

    Args:
        settings: What to show.
        in_full: Methods of which all networks are shown. Unless this is empty, users' own
            methods are shown in full too.
    """
    return [
        Network(setting, name)
        for setting in settings
        for place, name in enumerate(setting.predictors)
        if place == 0
        or setting.config.method in in_full
        or (in_full and setting.config.method not in catalog.METHODS)
    ]


def answering(settings: Sequence[Setting]) -> list[Network]:
    """Only the answering network of each setting."""
    return networks(settings, in_full=())


def colour(method: str) -> str:
    """The method's colour, the same in every figure."""
    if method in _COLOURS:
        return _COLOURS[method]
    others = [name for name in catalog.METHODS if name not in _COLOURS]
    # Users' own methods share these colours, each by its name.
    place = others.index(method) if method in others else sum(map(ord, method))
    return _OTHER_COLOURS[place % len(_OTHER_COLOURS)]


def figure(name: str, title: str, caption: str, charts: Sequence[Chart]) -> Figure | None:
    """A figure; None if it has no charts."""
    return Figure(name, title, caption, tuple(charts)) if charts else None
