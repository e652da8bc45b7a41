"""What a grid will be and what it came to: the plan, and each setting beside the paper's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from perdure import catalog, results
from perdure.display import clock_time, spread
from perdure.files import write_atomic
from perdure.grid.planning import Entry, Plan
from perdure.grid.speeds import Speeds, duration, seconds_of
from perdure.grid.standing import Standing
from perdure.presets import Figure, paper_figures
from perdure.results import settings_hash

Summary = dict[str, Any]
NAMED = 8
"""Settings that a sentence names at most."""


def plan_table(plan: Plan, speeds: Speeds) -> Table:
    """What there is and what is to be done, a row per setting."""
    table = Table(title=escape(plan.grid.title))
    for name in ("setting", "complete", "half done", "to do", "each run"):
        table.add_column(name, justify="left" if name == "setting" else "right")
    for entry in plan.entries:
        seconds = speeds.seconds(entry.settings, entry.steps)
        counts = (len(seeds) for seeds in (entry.complete, entry.half_done, entry.missing))
        table.add_row(
            escape(str(entry.cell)),
            *(str(count or "–") for count in counts),
            "unknown" if seconds is None else clock_time(seconds),
        )
    return table


def plan_sentence(standing: Standing) -> str:
    """How much there is to do, and how long it may take."""
    expected = standing.expected()
    known = [seconds for seconds in expected if seconds is not None]
    unknown = len(expected) - len(known)
    time = f"about {clock_time(duration(known, standing.width))}" if known else "time unknown"
    rest = f", and {unknown} of which nothing is known" if known and unknown else ""
    return (
        f"{standing.total - standing.done} of {standing.total} runs to do, {standing.width} at a "
        f"time: {time if expected else 'nothing left'}{rest}"
    )


def failures_sentence(standing: Standing) -> str:
    """Which runs have failed, a clause per setting; why was said when they did."""
    seeds: dict[str, list[int]] = {}
    for course in standing.courses:
        if course.state == "failed":
            for entry, seed in course.runs:
                seeds.setdefault(str(entry.cell), []).append(seed)
    clauses = [
        f"{cell}, {'seed' if len(failed) == 1 else 'seeds'} {', '.join(map(str, sorted(failed)))}"
        for cell, failed in seeds.items()
    ]
    named, rest = clauses[:NAMED], len(clauses) - NAMED
    if rest > 0:
        named.append(f"and {rest} more setting{'s' if rest > 1 else ''}")
    return (
        f"{standing.runs('failed')} of {standing.total} runs failed, for the reasons above: "
        f"{'; '.join(named)}"
    )


def summaries(plan: Plan, *, all_seeds: bool = False) -> list[tuple[Entry, Summary]]:
    """A summary of every setting that has a complete run, as `perdure run --json` ends with.

    With `hash`, that of the settings; `given`, where hyperparameters are not the published ones;
    and `seconds` the time that the runs have taken together, if it is known. Over the seeds that
    were asked for, or over all that are there.
    """
    found = []
    for entry in plan.entries:
        seeds = _seeds_there(plan, entry) if all_seeds else entry.seeds
        folders = [plan.folder(entry, seed) for seed in seeds]
        done = [folder for folder in folders if folder.complete]
        if not done:
            continue
        runs = [(folder.read("config.json"), folder.read("result.json")) for folder in done]
        seconds = [taken for folder in done if (taken := seconds_of(folder)) is not None]
        whole = len(seconds) == len(done)
        summary = results.summary(runs, round(sum(seconds), 1) if whole else None)
        summary["hash"] = settings_hash(entry.settings.deciding())
        if entry.cell.given:
            summary["given"] = dict(entry.cell.given)
        found.append((entry, summary))
    return found


def _seeds_there(plan: Plan, entry: Entry) -> list[int]:
    names = [place.name for place in plan.folder(entry, 0).path.parent.glob("seed-*")]
    return sorted(int(name[5:]) for name in names if name[5:].isdecimal())


def read_summaries(path: Path) -> dict[str, Summary]:
    """The lines of a file of results by the hash of their settings; none if it is not there."""
    try:
        there = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return {summary["hash"]: summary for summary in there}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is not a file of results; move it away") from None


def write_summaries(path: Path, found: Sequence[Summary]) -> None:
    """One JSON line per setting; lines of other settings that the file has stay there."""
    lines = read_summaries(path) | {summary["hash"]: summary for summary in found}
    text = "".join(f"{json.dumps(summary)}\n" for summary in lines.values())
    write_atomic(path, text.encode())


def figures_table(plan: Plan, found: Sequence[tuple[Entry, Summary]]) -> Table:
    """Ours beside the paper's, a row per setting, or per network where the paper has those."""
    data = "/".join(dict.fromkeys(summary["data"] for _, summary in found))
    title = f"{plan.grid.title}, data {data}: accuracy in percent"
    table = Table(title=escape(title), min_width=len(title))
    apart = plan.grid.table in ("S1", "S3")
    compared = any(map(as_in_the_paper, (entry for entry, _ in found)))
    varied = any(entry.cell.given or entry.cell.network for entry, _ in found)
    for name in ("stream", "method"):
        table.add_column(name, overflow="fold")
    table.add_column("buffer_size", justify="right", no_wrap=True)
    if varied:
        table.add_column("settings", overflow="fold")
    table.add_column("seeds", justify="right", no_wrap=True)
    if apart:
        table.add_column("network", no_wrap=True)
    answers = [numbers for _, summary in found for numbers in summary["predictors"].values()]
    overlapping = any("last_test" in numbers for numbers in answers)
    columns = ["ours", *(["paper"] if compared else []), *(["last test"] if overlapping else [])]
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    last = None
    for entry, summary in found:
        cell = entry.cell
        if last not in (None, cell.stream):
            table.add_section()
        known = catalog.METHODS.get(cell.method)
        settings = [f"{name.replace('_', ' ')} {value:g}" for name, value in cell.given.items()]
        settings += [] if cell.network is None else [cell.network]
        made, planned = len(summary["seeds"]), len(entry.seeds)
        row = [
            escape(cell.stream) if cell.stream != last else "",
            known.title if known else escape(cell.method),
            "–" if cell.buffer_size is None else str(cell.buffer_size),
            *([escape("\n".join(settings))] if varied else []),
            str(made) if made == planned else f"{made} of {planned}",
        ]
        last = cell.stream
        names = list(summary["predictors"])
        for i, name in enumerate(names if apart else names[:1]):
            ours, alone = (summary["predictors"][name].get(k) for k in ("class_il", "last_test"))
            table.add_row(
                *(row if i == 0 else [""] * len(row)),
                *([name] if apart else []),
                spread(ours["mean"], ours["std"]),
                *([paper_text(plan.grid.table, entry, name, first=i == 0)] if compared else []),
                *([spread(alone["mean"], alone["std"]) if alone else "–"] if overlapping else []),
            )
    return table


def paper_text(table: str | None, entry: Entry, predictor: str, *, first: bool) -> str:
    """The paper's figure for a setting: of this table, else of any that has it; – for none.

    Only where data, stream and length are the paper's.
    """
    if not as_in_the_paper(entry):
        return "–"
    cell = entry.cell
    asked: Mapping[str, Any] = {
        "stream": cell.stream,
        "method": cell.method,
        "buffer_size": cell.buffer_size,
    }

    def fits(figure: Figure) -> bool:
        named = figure.predictor == predictor or (figure.predictor is None and first)
        return named and dict(figure.settings) == dict(cell.given)

    figures = [f for f in paper_figures(table, **asked) if fits(f)]
    figures = figures or [f for f in paper_figures(**asked) if fits(f)]
    by_mean = {figure.mean: spread(figure.mean, figure.std) for figure in reversed(figures)}
    return "; ".join(reversed(by_mean.values())) or "–"


def as_in_the_paper(entry: Entry) -> bool:
    """Whether the setting is one that the paper's figures can stand beside."""
    known, settings = catalog.STREAMS.get(entry.settings.stream), entry.settings
    return (
        known is not None
        and settings.dataset == known.datasets[0]
        and (settings.validation, settings.max_steps, settings.stream_seed) == (None,) * 3
        and settings.network == known.network
    )
