"""What a report says, in the order it says it; how it looks is for the page, Markdown or LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perdure.claims import Claim, Evidence, check_claims
from perdure.claims import Spread as Number
from perdure.report import figures, tables
from perdure.report.commands import analysis_command, command
from perdure.report.panels import Figure, slug
from perdure.report.paper_tables import paper_tables
from perdure.report.runs import Collection, Run, Setting, Setup, method_title
from perdure.report.tables import Cell, Table

VERDICTS = {True: "borne out", False: "not borne out", None: "cannot be told"}


@dataclass(frozen=True)
class Verdict:
    """A claim of the paper's, what these runs say to it, and by which numbers."""

    text: str
    answer: str
    measure: str
    needs: str
    evidence: Table | None


@dataclass(frozen=True)
class Group:
    """The figures for one size of memory."""

    title: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Chapter:
    """One stream: its results, and what its runs look like inside."""

    setup: Setup
    results: Table
    overview: Figure | None
    groups: tuple[Group, ...]
    remarks: tuple[str, ...]
    """What is missing from the figures, and why."""


@dataclass(frozen=True)
class Detail:
    """All that is known of a setting."""

    setting: Setting
    stream: str
    command: str | None
    analysis: str | None
    """The command that makes its analyses."""
    values: dict[str, str]
    seeds: Table
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """The whole of it."""

    title: str
    summary: str
    tally: str
    """How many of the paper's claims are borne out."""
    collection: Collection
    overview: Table
    chapters: tuple[Chapter, ...]
    verdicts: tuple[Verdict, ...]
    paper: tuple[Table, ...]
    details: tuple[Detail, ...]

    def tables(self) -> list[Table]:
        """Every table of numbers, in order."""
        return [*(chapter.results for chapter in self.chapters), *self.paper]

    def figures(self) -> list[Figure]:
        """Every figure, in order."""
        found: list[Figure] = []
        for chapter in self.chapters:
            found += [chapter.overview] if chapter.overview else []
            found += [figure for group in chapter.groups for figure in group.figures]
        return found


def compose(collection: Collection, title: str, missing: dict[str, str] | None = None) -> Report:
    """The report on what was collected; `missing` says for a run's place why it has no analysis."""
    claims = check_claims(map(_plain, collection.runs))
    return Report(
        title,
        _summary(collection),
        _tally(claims),
        collection,
        tables.overview(collection),
        tuple(_chapter(setup, missing or {}) for setup in collection.setups),
        tuple(_verdict(claim) for claim in claims),
        tuple(paper_tables(collection)),
        tuple(_detail(setup, s) for setup in collection.setups for s in setup.settings),
    )


def _plain(run: Run) -> dict[str, Any]:
    return {"config": run.config, "result": run.result, "analysis": run.analysis}


def _summary(collection: Collection) -> str:
    if not collection.runs:
        return "No run has finished."
    methods = list(dict.fromkeys(setting.title for setting in collection.settings))
    names = [setup.name for setup in collection.setups]
    count = len(collection.runs)
    runs = f"{count} run{'s' if count > 1 else ''}"
    return f"{runs}: {_listed(methods)} on {_listed(names)}."


def _tally(claims: Sequence[Claim]) -> str:
    counts = {answer: sum(claim.holds is answer for claim in claims) for answer in VERDICTS}
    said = [f"{counts[answer]} {VERDICTS[answer]}" for answer in VERDICTS if counts[answer]]
    return f"Of the paper's {len(claims)} claims that runs can speak to: {', '.join(said)}."


def _listed(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _chapter(setup: Setup, missing: dict[str, str]) -> Chapter:
    sizes = setup.buffers()
    groups = []
    for buffer_size in sizes:
        found = figures.figures(setup, buffer_size)
        title = "" if buffer_size is None else f"Memory of {buffer_size} samples"
        if found:
            groups.append(Group(title if len(sizes) > 1 else "", tuple(found)))
    remarks = _without_analysis(setup, missing)
    return Chapter(setup, tables.results(setup), figures.overview(setup), tuple(groups), remarks)


def _without_analysis(setup: Setup, missing: dict[str, str]) -> tuple[str, ...]:
    """Which settings lack analyses, and why; of how many seeds, where others have one."""
    reasons: dict[str, list[str]] = {}
    for setting in setup.settings:
        lacking = [run for run in setting.runs if run.analysis is None]
        for reason in dict.fromkeys(missing.get(r.place, "no analysis.json") for r in lacking):
            few = f" ({len(lacking)} of {len(setting.runs)} seeds)"
            whole = len(lacking) == len(setting.runs)
            reasons.setdefault(reason, []).append(setting.label + ("" if whole else few))
    return tuple(
        f"Without an analysis ({reason}): {', '.join(labels)}."
        for reason, labels in reasons.items()
    )


def _verdict(claim: Claim) -> Verdict:
    return Verdict(
        claim.text,
        VERDICTS[claim.holds],
        claim.measure,
        claim.needs,
        _evidence(claim) if claim.evidence else None,
    )


def _evidence(claim: Claim) -> Table:
    """The numbers that decide, a row for each setting."""
    names = list(dict.fromkeys(name for e in claim.evidence for name in e.numbers))
    rows = []
    for evidence in claim.evidence:
        found = [evidence.numbers.get(name) for name in names]
        cells = [Cell("–") if n is None else Cell(_said(n), n.mean) for n in found]
        rows.append((Cell(evidence.setting), *cells, Cell(_clarity(evidence))))
    return Table(
        f"claim-{slug(claim.name)}",
        claim.text,
        "",
        ("setting", *(method_title(name) for name in names), "holds"),
        tuple(rows),
    )


def _said(number: Number) -> str:
    decimals = 2 if abs(number.mean) >= 1 else 3
    mean = f"{number.mean:.{decimals}f}"
    if number.std is None:
        return f"{mean} ({number.seeds} seed{'s' if number.seeds > 1 else ''})"
    return f"{mean} ± {number.std:.{decimals}f}"


def _clarity(evidence: Evidence) -> str:
    """Whether it holds, and whether the difference is more than chance would make."""
    answer = "yes" if evidence.holds else "no"
    return f"{answer}, but within the noise" if evidence.clear is False else answer


def _detail(setup: Setup, setting: Setting) -> Detail:
    values = {
        key.replace("_", " "): f"{value:g}" for key, value in setting.config["values"].items()
    }
    for key in ("network", "device", "precision", "engine", "update"):
        if key in setting.config:
            values[key] = str(setting.config[key])
    rows = []
    for run in setting.runs:
        accuracies = []
        for name in setting.predictors:
            numbers = run.result["predictors"][name]["class_il"]
            mean = None if numbers is None else numbers["mean"]
            accuracies.append(Cell("–") if mean is None else Cell(f"{mean:.2f}", mean))
        rows.append(
            (
                Cell(str(run.seed), float(run.seed)),
                *accuracies,
                Cell(str(run.result["steps"]), float(run.result["steps"])),
                Cell(tables.duration(run.seconds), run.seconds),
                Cell(str(run.timing.get("host", "–"))),
                Cell(run.place),
            )
        )
    table = Table(
        f"seeds-{setting.key}",
        f"Seeds of {setting.label} on {setup.name}",
        "Accuracy in percent after the last task, by network.",
        ("seed", *setting.predictors, "steps", "time", "host", "folder"),
        tuple(rows),
    )
    remarks = [*setting.config["notes"]]
    remarks += [f"seed {run.seed}: {remark}" for run in setting.runs for remark in run.remarks]
    if not all(run.result["complete"] for run in setting.runs):
        remarks.append("the stream was left before its end")
    return Detail(
        setting,
        setup.name,
        command(setting),
        analysis_command(setting),
        values,
        table,
        tuple(remarks),
    )
