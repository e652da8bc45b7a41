"""`perdure reproduce`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional, arg

from perdure.cli.options import (
    DataFlags,
    ExecutionFlags,
    File,
    Name,
    Names,
    OutputFlags,
    Repeated,
    Switch,
    TrainingFlags,
    listed,
    writable,
)
from perdure.cli.run import show_results
from perdure.experiment.grid import PAPER_TABLES, Grid, paper_grid, plan_grid, read_grid, select
from perdure.experiment.plan import Plan
from perdure.experiment.pool import run_tasks
from perdure.experiment.progress import Backend, GridProgress, clock_time, print_status, run_jobs
from perdure.experiment.resolve import choose_device, resolve
from perdure.experiment.speeds import Speeds
from perdure.files import read_bytes, write_atomic
from perdure.results.table import Setting
from perdure.results.terminal import show

RETRIES = 2
"""How often a failed job is attempted again."""


@dataclass(frozen=True)
class ReproduceOptions:
    """Run the settings behind a table of the paper, or those of your own grid.

    Completed runs are reused; interrupted runs resume from their last checkpoint, so the same
    command continues after a stop. Ends with a table of our results next to the published ones
    and writes one JSON line per setting to OUT/TABLE.jsonl.
    """

    table: Annotated[
        Positional[str | None],
        arg(metavar="[{table1,table2,table3,s1,s2,s3}]", help_behavior_hint=""),
    ] = None
    """The table."""
    grid: File = None
    """Your own grid: a TOML file of [[runs]] with streams (as for run), methods, buffer_sizes, …"""
    streams: Names = None
    """Only these streams."""
    methods: Names = None
    """Only these methods; methods that the table lacks are added, your own included."""
    buffer_sizes: Names = None
    """Only these buffer sizes; methods without a memory are kept."""
    where: Annotated[Repeated, arg(metavar="NAME=X,Y", help_behavior_hint="")] = ()
    """Only these values of a hyperparameter, for example plastic_rate=0.2,0.5 in s3."""
    seeds: Annotated[str | None, arg(metavar="SEEDS", help_behavior_hint="")] = None
    """3, or 0,4,7, or 0:10 (10 excluded); default: those of the grid, or as many as the paper."""
    stream_seed: Name = None
    """Composition of r-mnist, p-mnist and gcil, as for run; default: that of the paper's runs."""
    dry_run: Switch = False
    """Show what would be run and how long it may take."""
    backend: Literal["local", "ray"] = "local"
    """Run on this machine, or on a Ray cluster."""
    address: Annotated[str | None, arg(metavar="HOST:PORT", help_behavior_hint="")] = None
    """Head of the Ray cluster, or auto on one of its nodes; default: a new one on this machine."""
    data: DataFlags = field(default_factory=DataFlags)
    execution: ExecutionFlags = field(default_factory=ExecutionFlags)
    training: TrainingFlags = field(default_factory=TrainingFlags)
    output: OutputFlags = field(default_factory=OutputFlags)


def reproduce(options: ReproduceOptions) -> int:
    """Run what is missing and show the table."""
    options.execution.prepare()
    options.training.prepare()
    grid, quiet, data = _grid(options), options.output.quiet, options.data
    with ExitStack() as stack:
        device, width, backend = _backend(options, stack)
        plan = plan_grid(
            grid,
            options.training.out.absolute(),
            dataset=data.dataset,
            data_root=data.data_root and data.data_root.absolute(),
            resolve=partial(
                resolve,
                max_steps=data.max_steps,
                **{**options.execution.settings(), "device": device},
                check_device=False,  # below, unless all runs are complete
                progress=not quiet,
            ),
        )
        results_file = plan.out / f"{plan.name}.jsonl"
        if not options.dry_run:
            if options.backend == "local" and not plan.complete:
                choose_device(device, options.execution.precision, options.execution.engine)
            writable(plan.out)
            _read_summaries(results_file)  # fails now rather than after training
            plan.clear_leftovers()
        if not quiet:
            notes = [f"note: {note}" for setting in plan.settings for note in setting.config.notes]
            for sentence in dict.fromkeys([*plan.skipped, *notes]):
                print_status(sentence)
        speeds = plan.speeds()
        jobs = plan.jobs(
            speeds,
            side_by_side=options.training.side_by_side,
            checkpoint_every=options.training.checkpoint_every,
        )
        progress = GridProgress(plan, jobs, speeds, width)
        if options.dry_run:
            show(_plan_table(plan, speeds))
            print(_plan_sentence(progress))
            return 0
        if progress.reused and not quiet:
            print_status(f"{progress.reused} of {progress.total} runs are complete already")
        try:
            run_jobs(progress, backend, quiet=quiet)
        except KeyboardInterrupt:
            print_status(f"{progress.done} of {progress.total} runs are complete")
            raise
    _show_results(plan, results_file, options.output)
    if progress.failed:
        _print_failures(progress)
    return 1 if progress.failed else 0


def _grid(options: ReproduceOptions) -> Grid:
    if (options.table is None) == (options.grid is None):
        raise ValueError(f"expected either a table ({', '.join(PAPER_TABLES)}) or --grid FILE")
    grid = paper_grid(options.table) if options.table else read_grid(Path(options.grid or ""))
    where: dict[str, list[float]] = {}
    for text in options.where:
        name, sign, values = text.partition("=")
        if not (sign and name):
            raise ValueError(f"--where {text!r}; expected NAME=NUMBER,NUMBER")
        numbers = listed(f"--where {name}", values, float) or []
        where.setdefault(name.replace("-", "_"), []).extend(numbers)
    return select(
        grid,
        streams=listed("--streams", options.streams, str),
        methods=listed("--methods", options.methods, str),
        buffer_sizes=listed("--buffer-sizes", options.buffer_sizes, int),
        where=where,
        seeds=options.seeds,
        stream_seed=options.stream_seed,
    )


def _backend(options: ReproduceOptions, stack: ExitStack) -> tuple[str, int, Backend]:
    """The device, the number of jobs at a time, and what executes them."""
    execution, training = options.execution, options.training
    if options.backend == "ray":
        if training.workers is not None:
            raise ValueError("--workers applies to this machine; Ray decides where runs execute")
        try:
            from perdure.experiment.ray import RayCluster
        except ModuleNotFoundError:
            raise ValueError(
                "--backend ray requires Ray; install it, or perdure with the extra ray"
            ) from None
        cluster = stack.enter_context(
            RayCluster(options.address, execution.device, execution.threads, RETRIES)
        )
        if not options.dry_run:
            writable(training.out)
            cluster.check(training.out)
        return cluster.device, cluster.width, cluster.run
    if options.address is not None:
        raise ValueError("--address names a Ray cluster; add --backend ray")
    device: str = execution.device
    if device != "cuda":  # planning and showing results do not need the GPU
        device = choose_device(device, execution.precision, execution.engine)
    width = training.width(device)
    local = partial(run_tasks, workers=width, threads=execution.threads, retries=RETRIES)
    return device, width, local


def _plan_table(plan: Plan, speeds: Speeds) -> Table:
    table = Table(title=escape(plan.title))
    for name in ("setting", "complete", "to resume", "to do", "time per run"):
        table.add_column(name, justify="left" if name == "setting" else "right")
    for setting in plan.settings:
        seconds = speeds.seconds(setting.config, setting.steps)
        counts = map(len, (setting.complete, setting.resumable, setting.missing))
        table.add_row(
            escape(setting.label),
            *(str(count or "–") for count in counts),
            "unknown" if seconds is None else clock_time(seconds),
        )
    return table


def _plan_sentence(progress: GridProgress) -> str:
    todo = progress.total - progress.done
    if not todo:
        return f"all {progress.total} runs are complete"
    left = progress.time_left()
    time = f"{'at least' if left.unknown else 'about'} {clock_time(left.seconds)}"
    if len(progress.jobs) == left.unknown:
        time = "duration unknown"
    return f"{todo} of {progress.total} runs to do, {progress.width} at a time: {time}"


def _show_results(plan: Plan, path: Path, output: OutputFlags) -> None:
    found = plan.results()
    if not found:
        return
    data = "/".join(dict.fromkeys(setting.data for setting in found))
    title = f"{plan.title}, data {data}: accuracy in percent"
    by_predictor = plan.table in ("S1", "S3")
    show_results(plan, found, title, output, by_predictor=by_predictor, table=plan.table)
    _write_summaries(path, plan.results(all_seeds=True))
    if not output.quiet:
        print_status(f"Results are in {path}")


def _read_summaries(path: Path) -> dict[str, dict[str, Any]]:
    """The lines of a results file by the hash of their settings; empty if there is no file."""
    try:
        lines = [json.loads(line) for line in read_bytes(path).splitlines()]
        return {line["hash"]: line for line in lines}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is not a results file; move it away") from None


def _write_summaries(path: Path, settings: Sequence[Setting]) -> None:
    """Write one JSON line per setting, keeping lines of other settings."""
    lines = _read_summaries(path) | {s.config.hash: s.summary() for s in settings}
    write_atomic(path, "".join(f"{json.dumps(line)}\n" for line in lines.values()).encode())


def _print_failures(progress: GridProgress) -> None:
    """Print which runs failed; the reasons were printed when they did."""
    settings = [
        f"{label}, {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, sorted(seeds)))}"
        for label, seeds in progress.failed.items()
    ]
    count = f"{progress.count('failed')} of {progress.total} runs failed (reasons above)"
    print_status(f"perdure: {count}: {'; '.join(settings)}")
