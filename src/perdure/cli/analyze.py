"""`perdure analyze`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from tyro.conf import Positional, arg

from perdure.cli.options import Count, Folder, OutputFlags, Switch, listed
from perdure.experiment.analyze import AnalysisSettings, has_analysis
from perdure.experiment.analyze import analyze as analyze_run
from perdure.experiment.progress import print_status
from perdure.experiment.resolve import choose_device
from perdure.results.records import RunRecord, read_runs
from perdure.results.table import cut_short, group
from perdure.results.terminal import analyses_table, show


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
    draws: Count = AnalysisSettings.draws
    """Draws of that noise."""
    samples: Count = AnalysisSettings.samples
    """Training samples that are evaluated under noise."""
    bins: Count = AnalysisSettings.bins
    """Bins of the reliability diagram."""
    seed: Count = AnalysisSettings.seed
    """Seed of the noise and of the choice of samples."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto uses a GPU if there is one."""
    again: Switch = False
    """Replace existing analyses."""
    trust_code: Switch = False
    """Import streams, networks and methods that the folders name as module:name."""
    output: OutputFlags = field(default_factory=OutputFlags)


def analyze(options: AnalyzeOptions) -> int:
    """Analyse the runs; status 1 if one failed, 2 if there is none."""
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
    runs, folders = read_runs(options.runs)
    skipped = {f.place: f.reason for f in folders if f.state != "unknown"}
    analyzed: dict[str, RunRecord] = {}
    reused: dict[str, RunRecord] = {}
    failed: dict[str, str] = {}
    for run in {run.folder.path.resolve(): run for run in runs}.values():
        name, has_networks = str(run.folder.path), run.folder.has_networks
        if has_analysis(run, settings) and not (options.again and has_networks):
            reused[name] = run
            for remark in run.remarks:
                print_status(f"note: {name}: {remark}")
        elif not run.result.tests:
            skipped[name] = "has no tests"
        elif not has_networks:
            skipped[name] = "does not contain its networks"
        else:
            try:
                found = analyze_run(
                    name,
                    settings,
                    data_root=options.data,
                    device=device,
                    trust_code=options.trust_code,
                    progress=not quiet,
                )
            except (ValueError, OSError) as error:
                failed[name] = str(error).removeprefix(name).lstrip(":/\\ ")
                print_status(f"failed: {name}: {failed[name]}")
                continue
            analyzed[name] = replace(run, analysis=found)
            if not quiet:
                print_status(f"analysed: {name}")
    for name, reason in skipped.items():
        print_status(f"skipped: {name}: {reason}")
    if not (analyzed or reused or failed):
        places = ", ".join(map(str, options.runs))
        raise ValueError(f"no finished run with its networks in {places}")
    if not quiet:
        if reused:
            hint = any(run.folder.has_networks for run in reused.values())
            again = "; use --again to replace them" if hint else ""
            print_status(f"{len(reused)} analyses exist already{again}")
        if shown := [*analyzed.values(), *reused.values()]:
            collection = group(shown)
            show(analyses_table(collection), stderr=options.output.json)
            if note := cut_short(collection.settings):
                print_status(note)
    if options.output.json:
        done = {"analyzed": list(analyzed), "reused": list(reused)}
        print(json.dumps({**done, "skipped": skipped, "failed": failed}), flush=True)
    return 1 if failed else 0
