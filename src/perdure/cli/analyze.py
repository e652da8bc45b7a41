"""`perdure analyze`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from tyro.conf import Positional, arg

from perdure.cli.options import Count, Folder, OutputFlags, Switch, listed

if TYPE_CHECKING:
    from perdure.experiment.analyze import AnalysisSettings
    from perdure.results.records import RunRecord

State = Literal["analyzed", "reused", "skipped", "failed"]


@dataclass(frozen=True)
class AnalyzeOptions:
    """Analyse finished runs: calibration, flatness, task bias, confusion, agreement.

    The results of each run are written to `analysis.json` in its folder. Existing ones are kept.
    """

    runs: Annotated[
        Positional[tuple[Path, ...]], arg(metavar="[RUN ...]", help_behavior_hint="")
    ] = (Path("runs"),)
    """Run folders, or folders that contain runs; default: the folder runs."""
    data: Folder = None
    """Folder with the datasets, the only one searched; default: $PERDURE_DATA, then the cache."""
    sigmas: Annotated[str | None, arg(metavar="X,X,...", help_behavior_hint="")] = None
    """Standard deviations of the noise on the weights, ascending; default: 0 to 0.15, 11 steps."""
    draws: Count = 5
    """Draws of that noise."""
    samples: Count = 5000
    """Training samples that are evaluated under noise."""
    bins: Count = 15
    """Bins of the reliability diagram."""
    seed: Count = 0
    """Seed of the noise and of the choice of samples."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto uses a GPU if there is one."""
    again: Switch = False
    """Replace existing analyses."""
    output: OutputFlags = field(default_factory=OutputFlags)


class Finding(NamedTuple):
    """The outcome for one folder."""

    folder: Path
    state: State
    run: RunRecord | None = None
    """The run with its analysis."""
    reason: str = ""


def analyze(options: AnalyzeOptions) -> int:
    """Analyse the runs; status 1 if one failed, 2 if there is none."""
    import torch

    from perdure.experiment.analyze import AnalysisSettings
    from perdure.experiment.progress import print_status
    from perdure.experiment.resolve import choose_device
    from perdure.results.table import group
    from perdure.results.terminal import analyses_table, show

    sigmas = listed("--sigmas", options.sigmas, float)
    settings = AnalysisSettings(
        draws=options.draws,
        samples=options.samples,
        bins=options.bins,
        seed=options.seed,
        **({} if sigmas is None else {"sigmas": tuple(sigmas)}),
    )
    device = choose_device(options.device, "fp32")
    if device == "cpu":
        torch.set_num_threads(1)  # the same numbers on every machine
    quiet = options.output.quiet
    findings: dict[State, list[Finding]] = {
        state: [] for state in ("analyzed", "reused", "skipped", "failed")
    }
    for folder in _run_folders(options.runs):
        finding = _analyze(folder, settings, options, device)
        findings[finding.state].append(finding)
        if finding.reason:
            print_status(f"{finding.state}: {finding.reason}")
        elif finding.state == "analyzed" and not quiet:
            print_status(f"analyzed: {folder}")
    if not any(findings[state] for state in ("analyzed", "reused", "failed")):
        places = ", ".join(map(str, options.runs))
        kept = any(f.run is not None for f in findings["skipped"])
        networks = " with its networks" if kept else ""
        raise ValueError(f"no finished run{networks} in {places}; create one with `perdure run`")
    if not quiet:
        if reused := findings["reused"]:
            hint = any(f.run and f.run.folder.has_networks for f in reused)
            again = "; use --again to replace them" if hint else ""
            print_status(f"{len(reused)} analyses exist already{again}")
        runs = [f.run for s in ("analyzed", "reused") for f in findings[s] if f.run]
        if runs:
            show(analyses_table(group(runs).settings))
    if options.output.json:
        line = {
            state: {str(f.folder): f.reason for f in found}
            if state in ("skipped", "failed")
            else [str(f.folder) for f in found]
            for state, found in findings.items()
        }
        print(json.dumps(line), flush=True)
    return 1 if findings["failed"] else 0


def _run_folders(places: tuple[Path, ...]) -> Iterator[Path]:
    """The folders at or below these places that contain a `config.json`, each once."""
    seen: set[Path] = set()
    for place in places:
        if not place.is_dir():
            raise ValueError(f"{place} is not a folder; expected a run, or a folder of runs")
        here = (place / "config.json").is_file()
        folders = [place] if here else sorted(c.parent for c in place.rglob("config.json"))
        for folder in folders:
            if folder.resolve() not in seen:
                seen.add(folder.resolve())
                yield folder


def _analyze(
    folder: Path, settings: AnalysisSettings, options: AnalyzeOptions, device: str
) -> Finding:
    """Analyse one run unless it is unfinished or already analysed."""
    from perdure.experiment.analyze import analyze, has_analysis
    from perdure.results.folder import RunFolder
    from perdure.results.records import read_run, with_analysis

    if not RunFolder(folder).complete:
        return Finding(folder, "skipped", reason=f"{folder} is not a finished run")
    try:
        run = read_run(folder)
    except ValueError as error:
        return Finding(folder, "skipped", reason=str(error))
    has_networks = run.folder.has_networks
    if has_analysis(run, settings) and not (options.again and has_networks):
        return Finding(folder, "reused", run)
    if not has_networks:
        reason = f"{folder} does not contain its networks"
        return Finding(folder, "skipped", run, reason)
    try:
        analyze(folder, settings, data_root=options.data, device=device)
    except ValueError as error:
        named = str(error).startswith((f"{folder} ", f"{folder}{os.sep}"))
        return Finding(folder, "failed", reason=str(error) if named else f"{folder}: {error}")
    return Finding(folder, "analyzed", with_analysis(run))
