"""What a report is about: runs, their settings, and the circumstances that settings share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from perdure import catalog
from perdure.evaluation import mean_std
from perdure.results import RunFolder, seconds_taken, tests_overlap
from perdure.training.plan import default_values


class Spread(NamedTuple):
    """A mean over seeds with its sample standard deviation, which one seed does not have."""

    mean: float
    std: float | None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.std is None else f"{self.mean:.2f} ± {self.std:.2f}"


@dataclass(frozen=True)
class Run:
    """A finished run, its files checked."""

    place: str
    """Where it lies, as a reader of the report would look for it."""
    folder: RunFolder
    config: Mapping[str, Any]
    result: Mapping[str, Any]
    timing: Mapping[str, Any]
    events: Sequence[Mapping[str, Any]]
    analysis: Mapping[str, Any] | None
    remarks: tuple[str, ...] = ()
    """What of it could not be used, a sentence each."""

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.config["seed"])

    @property
    def seconds(self) -> float | None:
        """What it took, its share of a card it did not have alone; None if that is not known."""
        return seconds_taken(self.timing)


@dataclass(frozen=True)
class Leftover:
    """A folder that no number of the report comes from."""

    place: str
    state: str
    """unfinished, damaged, twice or foreign."""
    reason: str


@dataclass(frozen=True)
class Setting:
    """The seeds of one setting. Its label tells it from all others on its stream."""

    runs: tuple[Run, ...]
    label: str = ""

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """What all its runs share (and the first one's seed)."""
        return self.runs[0].config

    @property
    def stream(self) -> str:
        """The stream's name."""
        return str(self.config["stream"])

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.config["method"])

    @property
    def title(self) -> str:
        """The method as the paper spells it."""
        return method_title(self.method)

    @property
    def buffer_size(self) -> int | None:
        """Samples that its memory may hold."""
        buffer_size: int | None = self.config["buffer_size"]
        return buffer_size

    @property
    def key(self) -> str:
        """Names it within a page."""
        return f"{self.stream}-{self.method}-{self.config['hash']}"

    @property
    def seeds(self) -> list[int]:
        """The seeds that finished, ascending."""
        return [run.seed for run in self.runs]

    @property
    def published(self) -> bool:
        """Whether the paper's figure may stand beside it: its settings, its data, to the end."""
        return (
            bool(self.config["published"])
            and self.config["dataset"] != "mnist5k"
            and all(run.result["complete"] for run in self.runs)
        )

    @property
    def tests_overlap(self) -> bool:
        """Whether its tests hold those before them."""
        return any(tests_overlap(run.result) for run in self.runs)

    @cached_property
    def predictors(self) -> list[str]:
        """The networks that every run evaluated; the first is the one that answers."""
        first, *others = (run.result["predictors"] for run in self.runs)
        return [name for name in first if all(name in found for found in others)]

    def numbers(self, predictor: str, kind: str, key: str) -> list[float]:
        """One number of each run's result; empty unless all runs have it."""
        found = [run.result["predictors"][predictor][kind] for run in self.runs]
        values = [numbers[key] for numbers in found if numbers is not None]
        known = [value for value in values if value is not None]
        return known if len(known) == len(self.runs) else []

    def spread(self, predictor: str, kind: str = "class_il", key: str = "mean") -> Spread | None:
        """That number over the seeds."""
        values = self.numbers(predictor, kind, key)
        return Spread(*mean_std(values)) if values else None


@dataclass(frozen=True)
class Setup:
    """Settings that may be compared: one stream, the same data, network and length."""

    name: str
    settings: tuple[Setting, ...]

    @property
    def config(self) -> Mapping[str, Any]:
        """What its settings share, and more."""
        return self.settings[0].config

    @property
    def stream(self) -> str:
        """The stream's name."""
        return self.settings[0].stream

    @property
    def about(self) -> str:
        """The stream in words, as far as it is known."""
        entry = catalog.STREAMS.get(self.stream)
        title = entry.title if entry else "a stream of the user's own"
        return title[:1].upper() + title[1:]

    def buffers(self) -> list[int | None]:
        """The sizes of memory among its settings, or None alone where nothing has a memory."""
        sizes = sorted({s.buffer_size for s in self.settings if s.buffer_size is not None})
        return [*sizes] or [None]

    def comparison(self, buffer_size: int | None) -> list[Setting]:
        """One setting of each method with this buffer or none: what figures show side by side.

        Of several the one that is nearest to the published, then the one with the most seeds.
        """
        chosen: dict[str, Setting] = {}
        for setting in self.settings:
            if setting.buffer_size not in (None, buffer_size):
                continue
            best = chosen.get(setting.method)
            if best is None or _rank(setting) > _rank(best):
                chosen[setting.method] = setting
        return list(chosen.values())


@dataclass(frozen=True)
class Collection:
    """All that was found."""

    setups: tuple[Setup, ...]
    leftovers: tuple[Leftover, ...] = ()

    @property
    def settings(self) -> list[Setting]:
        """The settings of all setups."""
        return [setting for setup in self.setups for setting in setup.settings]

    @property
    def runs(self) -> list[Run]:
        """The runs of all settings."""
        return [run for setting in self.settings for run in setting.runs]


def method_title(method: str) -> str:
    """A method as the paper spells it; a user's own as it is."""
    known = catalog.METHODS.get(method)
    return known.title if known else method


def departures(config: Mapping[str, Any]) -> dict[str, float] | None:
    """The hyperparameters that are not what the command takes by itself.

    None if one is missing that it would take: such a run was made in Python. All of them where
    the defaults cannot be known, for a user's own method or stream that is not here.
    """
    values: Mapping[str, float] = config["values"]
    try:
        defaults = default_values(
            config["stream"], config["method"], config["buffer_size"], config["dataset"]
        )
    except ValueError:
        return dict(values)
    if not set(defaults) <= set(values):
        return None
    return {
        name: value
        for name, value in values.items()
        if name not in defaults or json.dumps(value) != json.dumps(defaults[name])
    }


def departs_by(setting: Setting) -> int:
    """How many of its settings depart from the usual: the fewer, the rather it stands for all."""
    departs = departures(setting.config)
    changed = len(setting.config["values"]) if departs is None else len(departs)
    return changed + ("update" in setting.config)


def _rank(setting: Setting) -> tuple[bool, int, int]:
    return setting.published, -departs_by(setting), len(setting.runs)
