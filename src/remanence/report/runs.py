"""The runs below a folder: read, checked once, and grouped; what is no finished run is named."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from remanence import catalog
from remanence.evaluation import mean_std
from remanence.report import schema
from remanence.report.panels import slug
from remanence.results import RunFolder
from remanence.training.plan import default_values

METHOD_ORDER = ("clser", "mean-er", "derpp", "der", "er")
"""How methods stand beside each other: the paper's, what it is compared with, then all others."""
_CIRCUMSTANCES = (
    *("stream", "data", "data_checksum", "network", "stream_seed", "validation", "max_steps"),
)
_VARIANTS = ("update", "ranks", "device", "precision", "engine", "deterministic")
_BEFORE = ("joint", *METHOD_ORDER)


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
    def buffer(self) -> int | None:
        """Samples that its memory may hold."""
        buffer: int | None = self.config["buffer"]
        return buffer

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
        sizes = sorted({s.buffer for s in self.settings if s.buffer is not None})
        return [*sizes] or [None]

    def comparison(self, buffer: int | None) -> list[Setting]:
        """One setting of each method with this buffer or none: what figures show side by side.

        Of several the one that is nearest to the published, then the one with the most seeds.
        """
        chosen: dict[str, Setting] = {}
        for setting in self.settings:
            if setting.buffer not in (None, buffer):
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


def collect(roots: Iterable[Path]) -> Collection:
    """Read every run below these folders. ValueError if there is no such folder, or no run in any.

    Folders that only look like runs, and those that look like nothing, become leftovers.
    """
    roots = list(roots)
    runs: list[Run] = []
    leftovers: list[Leftover] = []
    for root in roots:
        if not root.is_dir():
            raise ValueError(f"{root} is not a folder; expected one with runs in it")
        for path in _candidates(root):
            place = _place(root, path)
            found = _read(path, place)
            (runs if isinstance(found, Run) else leftovers).append(found)  # type: ignore[arg-type]
    if not runs and all(leftover.state == "foreign" for leftover in leftovers):
        where = " and ".join(map(str, roots))
        raise ValueError(f"there are no runs in {where}; `remanence run --out DIR` makes some")
    settings, twice = _settings(runs)
    return Collection(_setups(settings), (*leftovers, *twice))


def _candidates(root: Path) -> Iterator[Path]:
    """Folders with a run's files in them, and those that hold other files and no run, in order."""
    found: list[Path] = []
    strangers: list[Path] = []
    for here, folders, files in os.walk(root):
        path = Path(here)
        if {"config.json", "result.json"} & set(files):
            found.append(path)
            folders.clear()
        elif files and path != root:
            strangers.append(path)
        folders.sort()
    inside = {parent for path in found for parent in path.parents}
    yield from sorted([*found, *(path for path in strangers if path not in inside)])


def _place(root: Path, path: Path) -> str:
    return path.relative_to(root.parent).as_posix() if path != root else root.name or str(root)


def _read(path: Path, place: str) -> Run | Leftover:
    folder = RunFolder(path)
    if not (path / "config.json").is_file() and not folder.complete:
        return Leftover(place, "foreign", "holds no run")
    remarks: list[str] = []
    try:
        config = folder.read("config.json")
        schema.require(config, schema.CONFIG, "config.json")
        if not folder.complete:
            return Leftover(
                place,
                "unfinished",
                "has no result.json: it is still running, was stopped, or failed",
            )
        result = folder.read("result.json")
        schema.require(result, schema.RESULT, "result.json")
        _check_matrices(result)
    except ValueError as error:
        return Leftover(place, "damaged", str(error).replace(f"{path}{os.sep}", ""))
    return Run(
        place,
        folder,
        config,
        result,
        timing=_optional(folder, "timing.json", {}, remarks) or {},
        events=_events(folder, remarks),
        analysis=_optional(folder, "analysis.json", schema.ANALYSIS, remarks),
        remarks=tuple(remarks),
    )


def _optional(
    folder: RunFolder, name: str, pattern: schema.Pattern, remarks: list[str]
) -> dict[str, Any] | None:
    """A file that a run may lack; one that cannot be used is remarked upon."""
    if not (folder.path / name).is_file():
        return None
    try:
        content = folder.read(name)
        schema.require(content, pattern, name)
        if name == "analysis.json":
            _check_analysis(content)
    except ValueError as error:
        remarks.append(f"{error} (left out)".replace(f"{folder.path}{os.sep}", ""))
        return None
    return content


def with_analysis(run: Run) -> Run:
    """The run with the analysis that has been written to its folder since it was read."""
    remarks: list[str] = []
    analysis = _optional(run.folder, "analysis.json", schema.ANALYSIS, remarks)
    return replace(run, analysis=analysis, remarks=(*run.remarks, *remarks))


def _check_matrices(result: Mapping[str, Any]) -> None:
    if not result["predictors"]:
        raise ValueError("result.json names no predictor")
    shape = len(result["moments"]), len(result["tests"])
    for name, found in result["predictors"].items():
        for kind in ("class_il", "task_il"):
            if found[kind] is not None:
                _check_shape(found[kind]["matrix"], shape, f"result.json: {kind} of {name}")


def _check_analysis(content: Mapping[str, Any]) -> None:
    for name, found in content["predictors"].items():
        confusion, flatness = found["confusion"], found.get("flatness")
        square = (len(confusion["classes"]),) * 2
        _check_shape(confusion["counts"], square, f"analysis.json: confusion of {name}")
        if flatness:
            curves = [flatness[key] for key in ("accuracy", "accuracy_std", "loss", "loss_std")]
            _check_shape(curves, (4, len(flatness["sigmas"])), f"analysis.json: flatness of {name}")
        mass = found["task_probabilities"]
        _check_shape(
            [mass["mass"]], (1, len(mass["names"])), f"analysis.json: task probabilities of {name}"
        )
    agreement = content["agreement"]
    size = len(agreement["predictors"])
    _check_shape(agreement["matrix"], (size, size), "analysis.json: agreement")


def _check_shape(matrix: Sequence[Sequence[Any]], shape: tuple[int, int], what: str) -> None:
    rows, columns = shape
    if len(matrix) != rows or any(len(row) != columns for row in matrix):
        raise ValueError(f"{what} is not {rows} by {columns}")


def _events(folder: RunFolder, remarks: list[str]) -> list[dict[str, Any]]:
    """The events that figures are made from; one bad line makes all of them doubtful."""
    path = folder.path / "events.jsonl"
    if not path.is_file():
        return []
    found: list[dict[str, Any]] = []
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            where = f"event {len(found) + 1}"
            schema.require(event, {"event": str}, where)
            schema.require(event, schema.EVENTS.get(event["event"], {}), where)
            found.append(event)
    except (OSError, ValueError, RecursionError) as error:
        remarks.append(f"events.jsonl cannot be used: {error} (its events are left out)")
        return []
    return found


def _settings(runs: Sequence[Run]) -> tuple[list[Setting], list[Leftover]]:
    """Runs by setting, ascending by seed; a run that was found twice counts once."""
    groups: dict[tuple[str, str, str], dict[int, Run]] = {}
    twice: list[Leftover] = []
    for run in runs:
        key = run.config["stream"], run.config["method"], run.config["hash"]
        group = groups.setdefault(key, {})
        first = group.setdefault(run.seed, run)
        if first is not run:
            twice.append(Leftover(run.place, "twice", f"the same run as {first.place}"))
    return [Setting(tuple(group[s] for s in sorted(group))) for group in groups.values()], twice


def _setups(settings: Sequence[Setting]) -> tuple[Setup, ...]:
    groups: dict[str, list[Setting]] = {}
    for setting in settings:
        shared = [setting.config.get(key) for key in _CIRCUMSTANCES]
        groups.setdefault(json.dumps(shared), []).append(setting)
    found: list[Setup] = []
    for group in groups.values():
        group.sort(key=_order)
        name = _setup_name(group[0].config)
        taken = {slug(setup.name) for setup in found}
        if slug(name) in taken:  # the same words for other bytes, or nearly the same
            name = next(n for i in itertools.count(2) if slug(n := f"{name}, no. {i}") not in taken)
        found.append(Setup(name, tuple(_labelled(group))))
    names = list(catalog.STREAMS)
    found.sort(key=lambda s: (names.index(s.stream) if s.stream in names else len(names), s.name))
    return tuple(found)


def _setup_name(config: Mapping[str, Any]) -> str:
    entry = catalog.STREAMS.get(config["stream"])
    parts = []
    if config["data"] != config["stream"] and not (entry and config["data"] == entry.datasets[0]):
        parts.append(str(config["data"]))
    if entry and config["network"] != entry.network:
        parts.append(str(config["network"]))
    for key, text in (
        ("max_steps", "first {} steps"),
        ("validation", "validation on {}"),
        ("stream_seed", "stream seed {}"),
    ):
        if config.get(key) is not None:
            parts.append(text.format(config[key]))
    name = str(config["stream"])
    return f"{name} ({', '.join(parts)})" if parts else name


def _order(setting: Setting) -> tuple[Any, ...]:
    """The paper's order: JOINT, CLS-ER and its kin, the other methods, SGD; then by buffer."""
    known = [*_BEFORE, *(m for m in catalog.METHODS if m not in (*_BEFORE, "sgd")), "sgd"]
    place = known.index(setting.method) if setting.method in known else len(known)
    values = json.dumps(setting.config["values"], sort_keys=True)
    return place, setting.method, setting.buffer or 0, _departs(setting), values


def _labelled(settings: Sequence[Setting]) -> Iterator[Setting]:
    """Each with its method, its buffer, and what else tells it from its kin.

    Of several settings of a method the usual one needs no words; the others say where they depart.
    """
    for setting in settings:
        kin = [s for s in settings if (s.method, s.buffer) == (setting.method, setting.buffer)]
        everything = [{**s.config["values"], **_variant(s)} for s in kin]
        own = everything[kin.index(setting)]
        departs = departures(setting.config)
        usual = () if departs is None else set(setting.config["values"]) - set(departs)
        differs = [
            f"{key.replace('_', ' ')} {_plain(value)}"
            for key, value in own.items()
            if value is not None
            and key not in usual
            and any(other.get(key) != value for other in everything)
        ]
        buffer = [] if setting.buffer is None else [str(setting.buffer)]
        label = " ".join([setting.title, *buffer])
        yield replace(setting, label=f"{label} ({', '.join(differs)})" if differs else label)


def _variant(setting: Setting) -> dict[str, Any]:
    return {key: setting.config.get(key) for key in _VARIANTS}


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def departures(config: Mapping[str, Any]) -> dict[str, float] | None:
    """The hyperparameters that are not what the command takes by itself.

    None if one is missing that it would take: such a run was made in Python. All of them where
    the defaults cannot be known, for a user's own method or stream that is not here.
    """
    values: Mapping[str, float] = config["values"]
    try:
        defaults = default_values(
            config["stream"], config["method"], config["buffer"], config["dataset"]
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


def _departs(setting: Setting) -> int:
    """How many of its settings depart from the usual: the fewer, the rather it stands for all."""
    departs = departures(setting.config)
    changed = len(setting.config["values"]) if departs is None else len(departs)
    return changed + ("update" in setting.config)


def _rank(setting: Setting) -> tuple[bool, int, int]:
    return setting.published, -_departs(setting), len(setting.runs)
