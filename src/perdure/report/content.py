"""The content of a report, in order; `rendering` writes it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from perdure.report import figures, tables
from perdure.report.charts import Figure
from perdure.report.tables import Table
from perdure.results.claims import Claim, Status, check_claims
from perdure.results.table import Collection, Comparison, Section, Setting, cut_short

MAX_STREAMS_IN_TITLE = 3
NOT_ANALYSED = "use --analyze, or the analyze command"
"""Why runs have no analysis, unless it was requested and failed."""


@dataclass(frozen=True)
class Chapter:
    """The results and figures of one section.

    Attributes:
        section: The section.
        results: Its settings.
        overview: The accuracies of all settings.
        groups: Further figures by heading: one for each stream and buffer, empty if there is only
            one.
        remarks: What is missing from the figures, and why.
    """

    section: Section
    results: Table
    overview: Figure | None
    groups: Mapping[str, Sequence[Figure]]
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class Detail:
    """Everything known about a setting."""

    setting: Setting
    section: str
    commands: tuple[str, ...]
    values: dict[str, str]
    seeds: Table
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """The content of a report; each claim has a table of its evidence.

    A report on users' own streams has no claims and no tables of the paper.
    """

    title: str
    summary: str
    collection: Collection
    overview: tuple[Table, ...]
    chapters: tuple[Chapter, ...]
    claims: tuple[tuple[Claim, Table], ...]
    paper: tuple[Table, ...]
    details: tuple[Detail, ...]

    @property
    def claims_summary(self) -> str:
        """How many of the claims have each status."""
        counts = Counter(claim.status for claim, _ in self.claims)
        parts = [(counts[s], s) for s in get_args(Status) if counts[s]]
        listed = _listed([f"{n} {'is' if n == 1 else 'are'} {s}" for n, s in parts])
        return f"Of {len(self.claims)} claims, {listed}."

    def tables(self) -> list[Table]:
        """Every table of results, in order."""
        return [*(chapter.results for chapter in self.chapters), *self.paper]

    def figures(self) -> list[Figure]:
        """Every figure, in order."""
        found: list[Figure] = []
        for chapter in self.chapters:
            found += [chapter.overview] if chapter.overview else []
            found += [figure for group in chapter.groups.values() for figure in group]
        return found


def compose(collection: Collection, title: str, missing: Mapping[str, str] | None = None) -> Report:
    """Compose a report; `missing` says why runs have no analysis, by `RunRecord.place`."""
    pairs = [(part, setting) for part in collection.comparisons for setting in part.settings]
    paper = _comparable_with_paper(collection)
    claims = check_claims(paper) if any(c.follows_the_paper for c in paper.comparisons) else []
    return Report(
        title,
        _summary(collection),
        collection,
        tuple(tables.overview(collection)),
        tuple(_chapter(section, missing or {}) for section in collection.sections),
        tuple((claim, tables.evidence(claim)) for claim in claims),
        tuple(tables.paper_tables(paper)),
        tuple(_detail(comparison, setting) for comparison, setting in pairs),
    )


def default_title(collection: Collection, folders: Sequence[str]) -> str:
    """The names of the users' streams in the report or, without any, of the folders."""
    own = dict.fromkeys(c.settings[0].stream_title for c in collection.comparisons if c.own)
    if len(own) > MAX_STREAMS_IN_TITLE:
        return f"Report on {len(own)} streams"
    return f"Report on {_listed([*own] or folders)}"


def _comparable_with_paper(collection: Collection) -> Collection:
    """The part for which the paper's claims and tables make sense.

    Next to a user's own streams, runs on the digits that ship with perdure are a demonstration.
    """
    own = any(comparison.own for comparison in collection.comparisons)
    return Collection(
        tuple(
            comparison
            for comparison in collection.comparisons
            if not (comparison.own or (own and comparison.config.dataset == "mnist5k"))
        )
    )


def _summary(collection: Collection) -> str:
    count = len(collection.runs)
    if not count:
        return "No run has finished."
    methods = dict.fromkeys(setting.config.method_title for setting in collection.settings)
    names = [section.name for section in collection.sections]
    runs = f"{count} run{'s' if count > 1 else ''}"
    return f"{runs}: {_listed([*methods])} on {_listed(names)}."


def _listed(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _chapter(section: Section, missing: Mapping[str, str]) -> Chapter:
    parts = [(part, buffer) for part in section.comparisons for buffer in part.buffers()]
    groups: dict[str, list[Figure]] = {}
    for part, buffer in parts:
        heading = f"Buffer of {buffer}{' samples' if buffer.isdecimal() else ''}"
        heading += f" ({further})" if (further := part.detail.partition(", ")[2]) else ""
        groups[heading if len(parts) > 1 else ""] = figures.figures(part, buffer)
    return Chapter(
        section,
        tables.results(section),
        figures.overview(section),
        {title: found for title, found in groups.items() if found},
        _without_analysis(section, missing),
    )


def _without_analysis(section: Section, missing: Mapping[str, str]) -> tuple[str, ...]:
    """Which settings lack analyses, and why."""
    reasons: dict[str, list[str]] = {}
    for setting in section.settings:
        lacking = [run for run in setting.runs if run.analysis is None and run.result.tests]
        for reason in dict.fromkeys(missing.get(run.place, NOT_ANALYSED) for run in lacking):
            part = f" ({len(lacking)} of {len(setting.runs)} seeds)"
            label = setting.label + (part if len(lacking) < len(setting.runs) else "")
            reasons.setdefault(reason, []).append(label)
    return tuple(
        f"Not analysed ({reason}): {', '.join(labels)}." for reason, labels in reasons.items()
    )


def _detail(comparison: Comparison, setting: Setting) -> Detail:
    config = setting.config
    values = {n.replace("_", " "): f"{v:g}" for n, v in config.hyperparameters.items()}
    values["network"] = setting.network
    for name in ("optimizer", "device", "precision", "engine", "update"):
        values[name] = str(getattr(config, name))
    remarks = [*config.notes]
    remarks += [f"Seed {run.seed}: {remark}" for run in setting.runs for remark in run.remarks]
    if short := cut_short([setting]):
        remarks.append(short)
    return Detail(
        setting,
        comparison.section,
        (setting.command, *_analysis_commands(setting)),
        values,
        tables.seeds(comparison, setting),
        tuple(remarks),
    )


def _analysis_commands(setting: Setting) -> list[str]:
    """The command that computes the analyses of these runs; none if they have none."""
    if not setting.analysed:
        return []
    words = ["perdure", "analyze"]
    words += dict.fromkeys(run.place.rpartition("/")[0] or run.place for run in setting.analysed)
    first = setting.analysed[0].analysis
    for name, value in (first.settings if first else {}).items():
        text = ",".join(f"{v:g}" for v in value) if isinstance(value, list) else f"{value:g}"
        words += [f"--{name}", text]
    return [shlex.join(words)]
