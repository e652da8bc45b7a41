"""Which networks a figure shows, what they are called in it, and their colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perdure import catalog
from perdure.report.panels import Dash, Figure, Look, Panel
from perdure.report.runs import Setting

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
_DASHES: Mapping[str, Dash] = {"plastic": "dashed", "working": "dotted"}


@dataclass(frozen=True)
class Network:
    """One network of one setting."""

    setting: Setting
    predictor: str

    @property
    def label(self) -> str:
        """Its method, and which of its networks it is where there are several."""
        single = len(self.setting.predictors) == 1
        return self.setting.title if single else f"{self.setting.title}, {self.predictor}"

    @property
    def look(self) -> Look:
        """The method's colour; the network that answers is drawn solid."""
        answers = self.predictor == self.setting.predictors[0]
        dash: Dash = "solid" if answers else _DASHES.get(self.predictor, "dotted")
        return Look(colour(self.setting.method), dash)

    def analyses(self, part: str) -> list[Mapping[str, Any]]:
        """This part of the analysis of every seed that has one."""
        found = []
        for run in self.setting.runs:
            mine = {} if run.analysis is None else run.analysis["predictors"].get(self.predictor)
            if mine and mine.get(part):
                found.append(mine[part])
        return found


def networks(
    settings: Sequence[Setting], whole: tuple[str, ...] = ("clser", "mean-er")
) -> list[Network]:
    """The network that answers for each setting; all those of some methods and of a user's own."""
    return [
        Network(setting, name)
        for setting in settings
        for place, name in enumerate(setting.predictors)
        if place == 0
        or setting.method in whole
        or (whole and setting.method not in catalog.METHODS)
    ]


def answering(settings: Sequence[Setting]) -> list[Network]:
    """The network that answers for each setting."""
    return networks(settings, whole=())


def colour(method: str) -> str:
    """The method's colour, on every page the same."""
    if method in _COLOURS:
        return _COLOURS[method]
    others = [name for name in catalog.METHODS if name not in _COLOURS]
    # There is no end to users' methods: they share what there is, each by its name.
    place = others.index(method) if method in others else sum(map(ord, method))
    return _SPARE[place % len(_SPARE)]


def figure(name: str, title: str, caption: str, panels: Sequence[Panel]) -> Figure | None:
    """A figure, if there is anything to show."""
    return Figure(name, title, caption, tuple(panels)) if panels else None
