"""Results over seeds: runs grouped by their settings, with means and published figures.

Every table and figure of the project, on the terminal, in reports and in the documentation, is a
view of what this module computes.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from perdure import catalog
from perdure.config import PUBLISHED, RunConfig
from perdure.presets import Figure, gcil_run
from perdure.results.records import RunRecord, Scores, SkippedFolder, read_runs
from perdure.results.verdict import Spread, Verdict, figures_for, verdict

ORDER = ("joint", "clser", "mean-er", "derpp", "der", "er-ace", "er")
"""Methods that tables list first, in this order; SGD is last."""
Kind = Literal["class_il", "task_il"]


@dataclass(frozen=True)
class Setting:
    """The runs of one configuration, ascending by seed.

    Attributes:
        runs: At least one run.
        label: Tells the setting from all others of its comparison.
    """

    runs: tuple[RunRecord, ...]
    label: str = ""

    @property
    def config(self) -> RunConfig:
        """The settings that all runs share."""
        return self.runs[0].config

    @property
    def data(self) -> str:
        """Name of the data."""
        return self.runs[0].facts.data

    @property
    def network(self) -> str:
        """The network's name, its layers and its size."""
        facts = self.runs[0].facts
        size = f"{facts.parameters:,} parameters" if facts.parameters else ""
        return ", ".join(filter(None, (self.config.network, facts.architecture, size)))

    @property
    def key(self) -> str:
        """Identifies the setting within a page."""
        return f"{self.config.stream}-{self.config.method}-{self.config.hash}"

    @property
    def stream_title(self) -> str:
        """The stream's name in the catalog, or the one that the stream has given itself."""
        return self.config.stream_title(self.runs[0].facts.stream_name)

    @property
    def seeds(self) -> list[int]:
        """The seeds of the finished runs."""
        return [run.seed for run in self.runs]

    @property
    def analysed(self) -> list[RunRecord]:
        """The runs that have an analysis."""
        return [run for run in self.runs if run.analysis is not None]

    @property
    def complete(self) -> bool:
        """Whether every run learned the whole stream."""
        return all(run.result.complete for run in self.runs)

    @property
    def tests_overlap(self) -> bool:
        """Whether each test contains the earlier ones."""
        return any(run.result.tests_overlap for run in self.runs)

    @cached_property
    def predictors(self) -> list[str]:
        """The networks that every run evaluated, the one that `predict` uses first."""
        first, *others = (run.result.predictors for run in self.runs)
        return [name for name in first if all(name in found for found in others)]

    def scores(self, predictor: str, kind: Kind = "class_il") -> list[Scores]:
        """The scores of each run; empty unless all runs have them."""
        found = [getattr(run.result.predictors[predictor], kind) for run in self.runs]
        return [] if None in found else found

    def spread(
        self, predictor: str | None = None, kind: Kind = "class_il", key: str = "mean"
    ) -> Spread | None:
        """A field of the `Scores` of a predictor over the seeds; None unless every run has it.

        Without `predictor`, the one that `predict` uses, here and below.
        """
        values = self.by_seed(predictor, kind, key)
        return Spread.over(values) if values else None

    def by_seed(
        self, predictor: str | None = None, kind: Kind = "class_il", key: str = "mean"
    ) -> list[float]:
        """The same field for each seed; empty unless every run has it."""
        if not self.predictors:
            return []
        found = self.scores(predictor or self.predictors[0], kind)
        values = [value for scores in found if (value := getattr(scores, key)) is not None]
        return values if len(values) == len(self.runs) else []

    @property
    def prequential_window(self) -> int | None:
        """Samples of the sliding window of prequential evaluation; None without one."""
        found = [run.result.prequential for run in self.runs]
        return found[0].window if found[0] and all(found) else None

    def prequential(self, key: Literal["overall", "accuracy"] = "overall") -> Spread | None:
        """Prequential accuracy over the seeds: overall, or in the last window."""
        found = [run.result.prequential for run in self.runs if run.result.prequential]
        if len(found) < len(self.runs):
            return None
        return Spread.over([getattr(result, key) for result in found])

    def figures(self, predictor: str | None = None, table: str | None = None) -> list[Figure]:
        """The figures of a table, or of all, that may be shown next to a predictor, each once."""
        if not (self.complete and self.predictors):
            return []
        name = predictor or self.predictors[0]
        return figures_for(self.config, name, name == self.predictors[0], table)

    def task_il_figure(self, predictor: str | None = None) -> Figure | None:
        """The published Task-IL accuracy of the default predictor, if there is one."""
        if not (self.complete and self.predictors):
            return None
        return self.config.published_task_il() if predictor in (None, self.predictors[0]) else None

    def verdict(self, predictor: str | None = None, table: str | None = None) -> Verdict | None:
        """The comparison with the first of `figures`, if there is one."""
        ours, figures = self.spread(predictor), self.figures(predictor, table)
        return verdict(ours, figures[0]) if ours and figures else None

    @property
    def command(self) -> str:
        """The command that reproduces these runs."""
        return self.config.command(self.seeds)

    def seconds(self) -> float | None:
        """Seconds that the runs took together; None if unknown for any of them."""
        shares = [run.timing.share for run in self.runs]
        return None if None in shares else sum(share or 0.0 for share in shares)

    def summary(self) -> dict[str, Any]:
        """Plain values for one JSON line; accuracies in percent."""
        config, departures = self.config, self.config.departures()

        def plain(predictor: str, kind: Kind, key: str = "mean") -> dict[str, Any]:
            found = self.spread(predictor, kind, key)
            values = self.by_seed(predictor, kind, key)
            return {"mean": found and found.mean, "std": found and found.std, "by_seed": values}

        predictors: dict[str, dict[str, Any]] = {}
        for name in self.predictors:
            predictors[name] = {kind: plain(name, kind) for kind in ("class_il", "task_il")}
            if self.tests_overlap:
                predictors[name]["last_test"] = plain(name, "class_il", "last_test")
            for key in ("incremental", "forgetting"):
                if self.spread(name, key=key):
                    predictors[name][key] = plain(name, "class_il", key)
        prequential: dict[str, Any] = {}
        if (overall := self.prequential()) and (last := self.prequential("accuracy")):
            prequential = {
                "window": self.prequential_window,
                "overall": {"mean": overall.mean, "std": overall.std},
                "last_window": {"mean": last.mean, "std": last.std},
            }
            found = [run.result.prequential for run in self.runs if run.result.prequential]
            prequential["overall"]["by_seed"] = [result.overall for result in found]
            prequential["last_window"]["by_seed"] = [result.accuracy for result in found]
        timings = [run.timing for run in self.runs]
        machines = {
            "processors": sorted({timing.processor for timing in timings if timing.processor}),
            "torch": sorted({timing.torch for timing in timings if timing.torch}),
        }
        return {
            "stream": config.stream,
            "data": self.data,
            "method": config.method,
            "buffer_size": config.buffer_size,
            **config.non_defaults(),
            **({"departures": departures} if departures else {}),
            "hash": config.hash,
            "seeds": self.seeds,
            "complete": self.complete,
            "steps": [run.result.steps for run in self.runs],
            **{name: values for name, values in machines.items() if values},
            "predictors": predictors,
            **({"prequential_accuracy": prequential} if prequential else {}),
            "seconds": self.seconds(),
        }


def cut_short(settings: Sequence[Setting]) -> str:
    """Sentences if --max-steps ended the training of some settings early; else empty."""
    steps = [run.result.steps for s in settings for run in s.runs if not s.complete]
    if not steps:
        return ""
    ended = f"Training ended at step {max(steps):,}, before the end of the stream."
    if not any(setting.spread() for setting in settings):
        return ended
    return f"{ended} Accuracy is the mean over the tests of the tasks so far."


def on_different_streams(settings: Sequence[Setting]) -> str:
    """A sentence if settings saw different published streams; else empty."""
    streams = {s.config.stream for s in settings if s.config.stream_seed == PUBLISHED}
    same: dict[str, list[str]] = {}
    for setting in settings:
        config = setting.config
        if config.stream in streams:
            shared = json.dumps(config.comparable(), sort_keys=True)
            where = f" on {config.stream}" if len(streams) > 1 else ""
            same.setdefault(shared, []).append((setting.label or config.method_title) + where)
    if len(same) <= len(streams):
        return ""
    text = "Published streams depend on the method and the buffer size."
    comparable = "; ".join(" and ".join(labels) for labels in same.values() if len(labels) > 1)
    if not comparable:
        return f"{text} These rows are on different streams; do not compare them with each other."
    return f"{text} Compare only rows on the same stream: {comparable}."


@dataclass(frozen=True)
class Comparison:
    """Settings whose results may be compared: the same stream, data, network and length.

    Attributes:
        section: The stream, and settings other than the defaults.
        settings: In the order of tables.
        remark: A sentence, if the data are not those of an earlier section of the same name.
        detail: What tells published streams apart; empty for all other streams.
    """

    section: str
    settings: tuple[Setting, ...]
    remark: str = ""
    detail: str = ""

    @property
    def name(self) -> str:
        """The section and the detail."""
        return f"{self.section}, {self.detail}" if self.detail else self.section

    @property
    def config(self) -> RunConfig:
        """The first setting's configuration; all settings share its comparison fields."""
        return self.settings[0].config

    @property
    def stream(self) -> str:
        """The stream's name."""
        return self.config.stream

    @property
    def own(self) -> bool:
        """Whether the stream is a user's own."""
        return self.stream not in catalog.STREAMS

    @property
    def follows_the_paper(self) -> bool:
        """Whether stream, data, network and length are the paper's, so that its claims apply."""
        config, entry = self.config, catalog.STREAMS.get(self.stream)
        if entry is None or config.max_steps is not None or config.validation is not None:
            return False
        return (config.dataset, config.network) == (entry.datasets[0], entry.network)

    @property
    def description(self) -> str:
        """The stream in a few words; a user's own with its shape, network and optimizer."""
        entry = catalog.STREAMS.get(self.stream)
        if entry is not None:
            return f"{entry.title[:1].upper()}{entry.title[1:]}. {self.remark}".removesuffix(". ")
        facts = self.settings[0].runs[0].facts
        about = [self.stream]
        if facts.classes:
            about.append(f"{facts.tasks} task{'s' if facts.tasks > 1 else ''}")
            about.append(f"{facts.classes} classes")
            about.append(f"inputs {_shape_text(facts.shape)}")
        optimizers = sorted({setting.config.optimizer for setting in self.settings})
        network = self.settings[0].network
        found = f"{', '.join(about)}. Network {network}; optimizer {' or '.join(optimizers)}."
        return f"{found} {self.remark}".rstrip()

    def buffers(self) -> list[str]:
        """The capacities of its settings' memories, ascending; [""] if no setting has one."""
        configs = [setting.config for setting in self.settings if setting.config.buffer]
        configs.sort(key=lambda config: (config.buffer_size or 0, config.buffer_bytes or 0))
        return list(dict.fromkeys(config.buffer for config in configs)) or [""]

    def by_method(self, buffer: str) -> dict[str, Setting]:
        """One setting per method with a memory of this capacity or without a memory.

        Of several, the one closest to the published settings, then the one with most seeds.
        """
        chosen: dict[str, Setting] = {}
        for setting in self.settings:
            if setting.config.buffer in ("", buffer):
                method = setting.config.method
                chosen[method] = max(chosen.get(method, setting), setting, key=_preference)
        return chosen


@dataclass(frozen=True)
class Section:
    """The comparisons with the same stream, data, network and length, which tables show together.

    There is only one, unless each is on a published stream of its own.
    """

    comparisons: tuple[Comparison, ...]

    @property
    def name(self) -> str:
        """The stream, and settings other than the defaults."""
        return self.comparisons[0].section

    @property
    def config(self) -> RunConfig:
        """The first setting's configuration."""
        return self.comparisons[0].config

    @property
    def description(self) -> str:
        """The stream in a few words."""
        return self.comparisons[0].description

    @property
    def settings(self) -> list[Setting]:
        """The settings of all comparisons."""
        return [setting for part in self.comparisons for setting in part.settings]


@dataclass(frozen=True)
class Collection:
    """Everything found below some folders.

    Attributes:
        comparisons: Users' own streams, then those of the catalog in its order.
        skipped: Folders that contribute no numbers.
    """

    comparisons: tuple[Comparison, ...]
    skipped: tuple[SkippedFolder, ...] = ()

    @property
    def sections(self) -> list[Section]:
        """The comparisons by section."""
        found = itertools.groupby(self.comparisons, key=lambda part: part.section)
        return [Section(tuple(parts)) for _, parts in found]

    @property
    def settings(self) -> list[Setting]:
        """All settings."""
        return [setting for part in self.comparisons for setting in part.settings]

    @property
    def runs(self) -> list[RunRecord]:
        """All runs."""
        return [run for setting in self.settings for run in setting.runs]


def collect(roots: Iterable[Path]) -> Collection:
    """Read and group every run below these folders."""
    runs, skipped = read_runs(roots)
    return group(runs, skipped)


def group(runs: Iterable[RunRecord], skipped: Iterable[SkippedFolder] = ()) -> Collection:
    """Group runs by configuration, and configurations by what may be compared."""
    runs = list(runs)
    spelling = _Spelling(run.config for run in runs)
    by_config: dict[str, dict[int, RunRecord]] = {}
    duplicates: list[SkippedFolder] = []
    for run in runs:
        identity = spelling.canonical(run.config).identity()
        seeds = by_config.setdefault(json.dumps(identity, sort_keys=True), {})
        first = seeds.setdefault(run.seed, run)
        if first is not run:
            reason = f"the same run as {first.place}"
            duplicates.append(SkippedFolder(run.place, "duplicate", reason))
    by_section: dict[str, list[Setting]] = {}
    for seeds in by_config.values():
        setting = Setting(tuple(seeds[seed] for seed in sorted(seeds)))
        shared = spelling.canonical(setting.config).select("comparison")
        by_section.setdefault(json.dumps(shared, sort_keys=True), []).append(setting)
    groups = sorted(by_section.values(), key=_finished)
    networks: dict[str, set[str]] = {}
    for settings in groups:
        networks.setdefault(_section_name(settings[0]), set()).add(settings[0].config.network)
    comparisons: list[Comparison] = []
    for settings in groups:
        several = len(networks[_section_name(settings[0])]) > 1
        name, remark = _unique_name(settings[0], several, comparisons)
        settings.sort(key=_order)
        by_stream: dict[str, list[Setting]] = {}
        for setting in _labelled(settings):
            by_stream.setdefault(_published_stream(setting.config), []).append(setting)
        comparisons += [Comparison(name, tuple(s), remark, d) for d, s in by_stream.items()]
    streams = list(catalog.STREAMS)
    comparisons.sort(
        key=lambda c: (
            -1 if c.own else streams.index(c.stream),
            _in_numeric_order(c.section),
            _in_numeric_order(c.detail),
        )
    )
    return Collection(tuple(comparisons), (*skipped, *duplicates))


def _in_numeric_order(name: str) -> list[str | int]:
    """A key that sorts names by the numbers in them.

    >>> sorted(["buffer 1000", "buffer 200"], key=_in_numeric_order)
    ['buffer 200', 'buffer 1000']
    """
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _published_stream(config: RunConfig) -> str:
    """What tells a published stream from others of its section; empty if it is not one."""
    if config.stream_seed != PUBLISHED:
        return ""
    run = gcil_run(config.method, config.stream, config.buffer_size)
    parts = [f"buffer {config.buffer_size}"]
    if run is None or run.reads != 1:
        parts.append(f"{'unknown' if run is None else run.reads} memory reads per step")
    if run is None or config.epochs != run.epochs[0]:
        parts.append(f"{config.epochs} epochs")
    if run is None or config.batch != run.batch:
        parts.append(f"batch {config.batch}")
    return ", ".join(parts)


class _Spelling:
    """Recognises users' objects that runs name in several ways: my.py:data, pkg.my:data.

    Two references mean the same object if one ends with the other and the runs have the same data.
    """

    def __init__(self, configs: Iterable[RunConfig]) -> None:
        self.references: dict[str, set[str]] = {}
        """By the checksum of the data."""
        for config in configs:
            found = self.references.setdefault(config.data_checksum, set())
            found |= {config.stream, config.network, config.method}

    def canonical(self, config: RunConfig) -> RunConfig:
        """The configuration with each reference in its shortest spelling."""
        if not config.data_checksum:  # the data may differ
            return config
        known = self.references[config.data_checksum]
        return replace(
            config,
            stream=_shortest(config.stream, known),
            network=_shortest(config.network, known),
            method=_shortest(config.method, known),
        )


def _shortest(reference: str, known: Iterable[str]) -> str:
    """The shortest of the known references that mean the same object.

    >>> _shortest("./src/my.py:data", ["my:data", "other.my:data"])
    'my:data'
    """
    parts = _reference_parts(reference)
    found = {other: _reference_parts(other) for other in {*known, reference}}
    same = [other for other, end in found.items() if parts[-len(end) :] == end]
    return min(same, key=lambda other: (len(found[other]), len(other), other))


def _reference_parts(reference: str) -> list[str]:
    """The module's path and the object's name, from a dotted module or a file."""
    module, colon, name = reference.rpartition(":")
    path = module.removesuffix(".py").replace("\\", "/").replace("/", ".")
    return [*filter(None, path.split(".")), colon + name]


def _shape_text(shape: Any) -> str:
    """The shape of one input.

    >>> _shape_text([3, 8, 8]), _shape_text({"ids": [24], "mask": [24]})
    ('3 × 8 × 8', 'ids (24), mask (24)')
    """
    if isinstance(shape, dict):
        return ", ".join(f"{name} ({_shape_text(part)})" for name, part in shape.items())
    if any(isinstance(part, list | dict) for part in shape):
        return ", ".join(f"({_shape_text(part)})" for part in shape)
    return " × ".join(map(str, shape)) or "scalar"


_CONDITIONS = {"max_steps": "first {} steps", "validation": "validation on {:g}"}


def shared_name(settings: Sequence[Setting]) -> str:
    """The stream of these settings and what they share, if they differ in the stream seed only."""
    seeds = {setting.config.stream_seed for setting in settings}
    return _section_name(settings[0], omit=() if len(seeds) == 1 else ("stream_seed",))


def _section_name(
    setting: Setting, *further: str, network: bool = False, omit: Sequence[str] = ()
) -> str:
    """The stream, its non-default settings, and what else distinguishes it.

    `network` adds the network of a user's stream, `omit` names settings to leave out.
    """
    config = setting.config
    entry = catalog.STREAMS.get(config.stream)
    parts = []
    if entry is not None and setting.data not in (config.stream, entry.datasets[0]):
        parts.append(setting.data)
    if network if entry is None else config.network != entry.network:
        parts.append(config.network)
    known = config.select("comparison")
    for name, value in config.non_defaults().items():
        if name not in known or name in omit:
            continue
        if (name, value) == ("stream_seed", PUBLISHED):
            parts.append("published stream")
        else:
            text = _CONDITIONS.get(name, name.replace("_", " ") + " {}")
            parts.append(text.format(value))
    parts += further
    title = setting.stream_title
    return f"{title} ({', '.join(parts)})" if parts else title


def in_words(name: str, value: object) -> str:
    """A setting as a label shows it.

    >>> in_words("stable_decay", 0.5), in_words("deterministic", True)
    ('stable decay 0.5', 'deterministic')
    """
    words = name.replace("_", " ")
    if value is True:
        return words
    return f"{words} {f'{value:g}' if isinstance(value, float) else value}"


def slug(name: str) -> str:
    """A name for use in a URL fragment or a file name.

    >>> slug("s-mnist (mnist5k, first 100 steps)")
    's-mnist-mnist5k-first-100-steps'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "x"


def _finished(settings: Sequence[Setting]) -> str:
    """When the first of the runs finished; empty if that is unknown."""
    return min(run.timing.finished or "" for setting in settings for run in setting.runs)


def _unique_name(setting: Setting, network: bool, others: Sequence[Comparison]) -> tuple[str, str]:
    """The name of a section and a remark; numbered if an earlier one has the same name."""
    name = _section_name(setting, network=network)
    taken = {slug(other.section): other for other in others}
    first = taken.get(slug(name))
    if first is None:
        return name, ""
    ours, theirs = setting.config.data_checksum, first.config.data_checksum
    differ = ours and theirs and ours != theirs
    names = (
        _section_name(setting, f"{'data ' if differ else ''}no. {i}", network=network)
        for i in itertools.count(2)
    )
    known = f"{first.section} (checksum {theirs[:12]}…)"
    remark = f"The data (checksum {ours[:12]}…) differ from those of {known}."
    return next(n for n in names if slug(n) not in taken), remark if differ else ""


def _order(setting: Setting) -> tuple[Any, ...]:
    methods = [*ORDER, *(m for m in catalog.METHODS if m not in (*ORDER, "sgd")), "sgd"]
    config = setting.config
    place = methods.index(config.method) if config.method in methods else len(methods)
    values = json.dumps(dict(config.hyperparameters), sort_keys=True)
    unusual = len(config.unusual("method"))
    return place, config.method, config.buffer_size or 0, unusual, values


def _preference(setting: Setting) -> tuple[bool, int, int]:
    config = setting.config
    return config.is_published, -len(config.unusual("method")), len(setting.runs)


def _labelled(settings: Sequence[Setting]) -> Iterator[Setting]:
    """Each setting with its method, its buffer size, and what tells it from its variants."""
    for setting in settings:
        config = setting.config
        label = config.method_title
        if config.buffer:
            label += f" {config.buffer}"
        variants = [
            {**other.config.hyperparameters, **other.config.select("method", "execution")}
            for other in settings
            if (other.config.method, other.config.buffer) == (config.method, config.buffer)
        ]
        differs = [
            in_words(name, value)
            for name, value in config.unusual("method", "execution").items()
            if any(other.get(name) != value for other in variants)
        ]
        yield replace(setting, label=f"{label} ({', '.join(differs)})" if differs else label)
