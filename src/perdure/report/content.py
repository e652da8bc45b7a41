"""The content of a report, in order; `page`, `markdown` and `latex` write it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perdure.config import method_title
from perdure.report import figures, tables
from perdure.report.charts import Figure
from perdure.report.paper_tables import paper_tables
from perdure.report.tables import Cell, Table, spread_cell
from perdure.results.claims import Claim, check_claims
from perdure.results.table import Collection, Comparison, Setting


@dataclass(frozen=True)
class FigureGroup:
    """The figures for one buffer size; the title is empty if there is only one."""

    title: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Chapter:
    """The results and figures of one comparison."""

    comparison: Comparison
    results: Table
    overview: Figure | None
    groups: tuple[FigureGroup, ...]
    remarks: tuple[str, ...]
    """What is missing from the figures, and why."""


@dataclass(frozen=True)
class CheckedClaim:
    """A claim of the paper with its evidence; None if no runs are about it."""

    claim: Claim
    evidence: Table | None


@dataclass(frozen=True)
class Detail:
    """Everything known about a setting."""

    setting: Setting
    comparison: str
    commands: tuple[str, ...]
    values: dict[str, str]
    seeds: Table
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """The content of a report."""

    title: str
    summary: str
    collection: Collection
    overview: Table
    chapters: tuple[Chapter, ...]
    claims: tuple[CheckedClaim, ...]
    paper: tuple[Table, ...]
    details: tuple[Detail, ...]

    @property
    def claims_summary(self) -> str:
        """How many of the claims are supported, contradicted and inconclusive."""
        statuses = [checked.claim.status for checked in self.claims]
        counts = {s: statuses.count(s) for s in ("supported", "contradicted", "inconclusive")}
        listed = _listed([f"{count} {status}" for status, count in counts.items() if count])
        return f"Of {len(statuses)} claims, {listed}."

    def tables(self) -> list[Table]:
        """Every table of results, in order."""
        return [*(chapter.results for chapter in self.chapters), *self.paper]

    def figures(self) -> list[Figure]:
        """Every figure, in order."""
        found: list[Figure] = []
        for chapter in self.chapters:
            found += [chapter.overview] if chapter.overview else []
            found += [figure for group in chapter.groups for figure in group.figures]
        return found


def compose(collection: Collection, title: str, missing: Mapping[str, str] | None = None) -> Report:
    """Compose a report.

    Args:
        collection: The runs.
        title: The report's title.
        missing: Why runs have no analysis, by `RunRecord.place`.
    """
    return Report(
        title,
        _summary(collection),
        collection,
        tables.overview(collection),
        tuple(_chapter(comparison, missing or {}) for comparison in collection.comparisons),
        tuple(_checked(claim) for claim in check_claims(collection)),
        tuple(paper_tables(collection)),
        tuple(
            _detail(part, setting) for part in collection.comparisons for setting in part.settings
        ),
    )


def _summary(collection: Collection) -> str:
    count = len(collection.runs)
    if not count:
        return "No run has finished."
    methods = dict.fromkeys(setting.config.method_title for setting in collection.settings)
    names = [comparison.name for comparison in collection.comparisons]
    runs = f"{count} run{'s' if count > 1 else ''}"
    return f"{runs}: {_listed([*methods])} on {_listed(names)}."


def _listed(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _chapter(comparison: Comparison, missing: Mapping[str, str]) -> Chapter:
    sizes = comparison.buffer_sizes()
    groups = []
    for size in sizes:
        found = figures.figures(comparison, size)
        if found:
            title = f"Buffer of {size} samples" if len(sizes) > 1 else ""
            groups.append(FigureGroup(title, tuple(found)))
    return Chapter(
        comparison,
        tables.results(comparison),
        figures.overview(comparison),
        tuple(groups),
        _without_analysis(comparison, missing),
    )


def _without_analysis(comparison: Comparison, missing: Mapping[str, str]) -> tuple[str, ...]:
    """Which settings lack analyses, and why."""
    reasons: dict[str, list[str]] = {}
    for setting in comparison.settings:
        lacking = [run for run in setting.runs if run.analysis is None]
        for reason in dict.fromkeys(missing.get(r.place, "no analysis.json") for r in lacking):
            part = f" ({len(lacking)} of {len(setting.runs)} seeds)"
            label = setting.label + (part if len(lacking) < len(setting.runs) else "")
            reasons.setdefault(reason, []).append(label)
    return tuple(
        f"Not analysed ({reason}): {', '.join(labels)}." for reason, labels in reasons.items()
    )


def _checked(claim: Claim) -> CheckedClaim:
    names = list(dict.fromkeys(name for e in claim.evidence for name in e.numbers))
    rows = []
    for evidence in claim.evidence:
        cells = []
        for name in names:
            spread = evidence.numbers.get(name)
            cell = spread_cell(spread, 2 if spread and abs(spread.mean) >= 1 else 3)
            if spread is not None and spread.std is None:
                plural = "s" if spread.seeds > 1 else ""
                cell = Cell(f"{cell.text} ({spread.seeds} seed{plural})", cell.value)
            cells.append(cell)
        rows.append((Cell(evidence.setting), *cells, Cell(evidence.status)))
    columns = ("setting", *(method_title(name) for name in names), "result")
    table = Table(f"claim-{claim.name}", claim.text, "", columns, tuple(rows))
    return CheckedClaim(claim, table if rows else None)


def _detail(comparison: Comparison, setting: Setting) -> Detail:
    config = setting.config
    values = {n.replace("_", " "): f"{v:g}" for n, v in config.hyperparameters.items()}
    for name in ("network", "device", "precision", "engine", "update"):
        values[name] = str(getattr(config, name))
    remarks = [*config.notes]
    remarks += [f"Seed {run.seed}: {remark}" for run in setting.runs for remark in run.remarks]
    if not setting.complete:
        remarks.append("Training ended before the end of the stream.")
    analysis = _analysis_command(setting)
    return Detail(
        setting,
        comparison.name,
        (setting.command, *([analysis] if analysis else [])),
        values,
        _seeds(comparison, setting),
        tuple(remarks),
    )


def _seeds(comparison: Comparison, setting: Setting) -> Table:
    rows = []
    for run in setting.runs:
        accuracies = []
        for name in setting.predictors:
            scores = run.result.predictors[name].class_il
            mean = None if scores is None else scores.mean
            accuracies.append(Cell("–" if mean is None else f"{mean:.2f}", mean))
        rows.append(
            (
                Cell(str(run.seed), float(run.seed)),
                *accuracies,
                Cell(str(run.result.steps), float(run.result.steps)),
                Cell(tables.duration(run.timing.share), run.timing.share),
                Cell(run.timing.host or "–"),
                Cell(run.place),
            )
        )
    return Table(
        f"seeds-{setting.key}",
        f"Seeds of {setting.label} on {comparison.name}",
        "Accuracy of each network after the last task, percent.",
        ("seed", *setting.predictors, "steps", "time", "host", "folder"),
        tuple(rows),
    )


def _analysis_command(setting: Setting) -> str | None:
    """The command that computes the analyses of these runs; None if they have none."""
    analysed = [run for run in setting.runs if run.analysis is not None]
    if not analysed:
        return None
    words = ["perdure", "analyze"]
    words += dict.fromkeys(run.place.rpartition("/")[0] or run.place for run in analysed)
    settings = analysed[0].analysis.settings if analysed[0].analysis else {}
    for name, value in settings.items():
        text = ",".join(f"{v:g}" for v in value) if isinstance(value, list) else f"{value:g}"
        words += [f"--{name}", text]
    return shlex.join(words)
