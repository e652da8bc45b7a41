"""The runs below a folder: read, checked once, and grouped; what is no finished run is named."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from perdure import catalog
from perdure.report import schema
from perdure.report.panels import slug
from perdure.report.runs import Collection, Leftover, Run, Setting, Setup, departs_by, departures
from perdure.results import RunFolder

_BEFORE = ("joint", "clser", "mean-er", "derpp", "der", "er")
"""Methods that stand before all others: the bound, the paper's, and what it is compared with."""
_CIRCUMSTANCES = (
    *("stream", "data", "data_checksum", "network", "stream_seed", "validation", "max_steps"),
)
_VARIANTS = ("update", "ranks", "device", "precision", "engine", "deterministic")


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
        raise ValueError(f"there are no runs in {where}; `perdure run --out DIR` makes some")
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
    return place, setting.method, setting.buffer_size or 0, departs_by(setting), values


def _labelled(settings: Sequence[Setting]) -> Iterator[Setting]:
    """Each with its method, its buffer, and what else tells it from its kin.

    Of several settings of a method the usual one needs no words; the others say where they depart.
    """
    for setting in settings:
        kin = [
            s
            for s in settings
            if (s.method, s.buffer_size) == (setting.method, setting.buffer_size)
        ]
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
        buffer_size = [] if setting.buffer_size is None else [str(setting.buffer_size)]
        label = " ".join([setting.title, *buffer_size])
        yield replace(setting, label=f"{label} ({', '.join(differs)})" if differs else label)


def _variant(setting: Setting) -> dict[str, Any]:
    return {key: setting.config.get(key) for key in _VARIANTS}


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
