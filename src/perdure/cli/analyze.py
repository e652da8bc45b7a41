"""`perdure analyze`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from tyro.conf import Positional, arg

from perdure.cli.values import Count, Folder, Switch, at_least_one

if TYPE_CHECKING:
    from perdure.analysis import AnalysisSettings


@dataclass(frozen=True)
class AnalyzeOptions:
    """Look inside finished runs: calibration, flat minima, task bias, confusion, agreement.

    Each run's findings go to `analysis.json` in its folder. What is there already is kept.
    """

    runs: Annotated[
        Positional[tuple[Path, ...]], arg(metavar="[RUN ...]", help_behavior_hint="")
    ] = (Path("runs"),)
    """Run folders, or folders that hold runs; the folder runs unless given."""
    data: Folder = None
    """Folder with the datasets, and the only one searched; else $PERDURE_DATA, then the cache."""
    sigmas: Annotated[str, arg(metavar="X,X,...", help_behavior_hint="")] = ""
    """Strengths of the noise on the weights, rising; 0 to 0.15 in 11 steps unless given."""
    draws: Count = 5
    """Draws of that noise."""
    samples: Count = 5000
    """Training samples looked at under noise."""
    bins: Count = 15
    """Bins of the reliability diagram."""
    seed: Count = 0
    """Seed of the noise and of the choice of samples."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes a GPU if there is one."""
    again: Switch = False
    """Analyse again what was analysed already."""
    json: Switch = False
    """End with one JSON line: what was analysed, what was there already, what was not and why."""
    quiet: Switch = False
    """No progress and no table."""


class Finding(NamedTuple):
    """What became of one folder."""

    folder: Path
    state: Literal["analyzed", "reused", "skipped", "failed"]
    run: Mapping[str, Any] | None = None
    """Its configuration, result and analysis, by these names."""
    reason: str = ""


def analyze(options: AnalyzeOptions) -> int:
    """Analyse the runs; status 1 if a finished one cannot be, 2 if there is none."""
    import torch

    from perdure.analysis import AnalysisSettings, find_runs
    from perdure.cli.tables import show
    from perdure.display import analyses_table, tell_user
    from perdure.results import RunFolder

    settings = AnalysisSettings(
        draws=at_least_one("--draws", options.draws),
        samples=at_least_one("--samples", options.samples),
        bins=at_least_one("--bins", options.bins),
        seed=options.seed,
        **({"sigmas": _numbers(options.sigmas)} if options.sigmas else {}),
    )
    device = _device(options.device)
    if device == "cpu":
        torch.set_num_threads(1)  # the same numbers, whatever the machine
    findings = []
    for folder in find_runs(options.runs):
        finding = _look(folder, settings, options, device)
        findings.append(finding)
        if finding.reason:
            tell_user(f"{finding.state}: {finding.reason}")
        elif finding.state == "analyzed" and not options.quiet:
            tell_user(f"analyzed: {folder}")
    by_state = {state: [f for f in findings if f.state == state] for state in _STATES}
    if len(findings) == len(by_state["skipped"]):
        places = ", ".join(map(str, options.runs))
        finished = any(RunFolder(finding.folder).complete for finding in findings)
        lacking = " with its networks" if finished else ""
        raise ValueError(f"there is no finished run{lacking} in {places}; `perdure run` makes some")
    if not options.quiet:
        if by_state["reused"]:
            again = any(RunFolder(finding.folder).has_networks for finding in by_state["reused"])
            way = "; --again makes them anew" if again else ""
            tell_user(f"{len(by_state['reused'])} were there already{way}")
        runs = [f.run for f in findings if f.run is not None]
        if runs:
            show(analyses_table(runs))
    if options.json:
        line = {
            state: {str(f.folder): f.reason for f in found}
            if state in ("skipped", "failed")
            else [str(f.folder) for f in found]
            for state, found in by_state.items()
        }
        print(json.dumps(line), flush=True)
    return 1 if by_state["failed"] else 0


_STATES = ("analyzed", "reused", "skipped", "failed")


def _look(
    folder: Path, settings: AnalysisSettings, options: AnalyzeOptions, device: str
) -> Finding:
    """Analyse one run, unless it is none, or has been analysed already."""
    from perdure.analysis import analysis_of, analyze
    from perdure.results import RunFolder

    files = RunFolder(folder)
    if not files.complete:
        return Finding(folder, "skipped", reason=f"{folder} is not a finished run")
    try:
        run = {"config": files.read("config.json"), "result": files.read("result.json")}
        if not {"stream", "method", "hash", "seed"} <= {*run["config"]}:
            raise ValueError(f"{folder} is not a run of perdure")
    except ValueError as error:
        return Finding(folder, "skipped", reason=str(error))
    known = analysis_of(folder, settings)
    if known is not None and not (options.again and files.has_networks):
        return Finding(folder, "reused", {**run, "analysis": known})
    if not files.has_networks:
        return Finding(folder, "skipped", reason=f"{folder} was kept without its networks")
    try:
        found = analyze(folder, settings, data_root=options.data, device=device)
    except ValueError as error:
        named = str(error).startswith((f"{folder} ", f"{folder}{os.sep}"))
        return Finding(folder, "failed", reason=str(error) if named else f"{folder}: {error}")
    return Finding(folder, "analyzed", {**run, "analysis": found})


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--sigmas is {text!r}; expected numbers such as 0,0.01,0.02") from None


def _device(wanted: str) -> str:
    import torch

    if wanted == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "--device cuda: no CUDA device can be used here; leave it out to use the CPU"
        )
    return "cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu"
