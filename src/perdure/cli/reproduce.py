"""`perdure reproduce`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from tyro.conf import Positional, arg

from perdure.cli.values import (
    Count,
    Folder,
    Name,
    Precision,
    Seconds,
    Several,
    Switch,
    Whole,
    above_zero,
    at_least_one,
    cores,
    thread_count,
    writable,
)

if TYPE_CHECKING:
    from perdure.grid import Engine, Grid, Plan
    from perdure.grid.standing import Standing

Number = TypeVar("Number", int, float)
Names = Annotated[str | None, arg(metavar="A,B,…", help_behavior_hint="")]
File = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]


@dataclass(frozen=True)
class ReproduceOptions:
    """Make the runs behind a table of the paper, or those of a grid of your own.

    Runs that are complete are taken as they are, those half done go on from their checkpoints:
    after a stop, the same command goes on. It ends with the table, ours beside the paper's, and
    with a line of JSON per setting in OUT/TABLE.jsonl.
    """

    table: Annotated[
        Positional[str | None],
        arg(metavar="[{table1,table2,table3,s1,s2,s3}]", help_behavior_hint=""),
    ] = None
    """Which table."""
    grid: File = None
    """Your own grid instead: a TOML file of [[runs]] with streams, methods, buffers, seeds, …"""
    streams: Names = None
    """Only these streams of the table."""
    methods: Names = None
    """Only these methods; one that the table does not have is added to it, your own too."""
    buffers: Names = None
    """Only these buffers (methods without a memory stay)."""
    where: Annotated[Several, arg(metavar="NAME=X,Y", help_behavior_hint="")] = ()
    """Only rows with these hyperparameters, say plastic_rate=0.2,0.5 in s3."""
    seeds: Annotated[str | None, arg(metavar="SEEDS", help_behavior_hint="")] = None
    """3, or 0,4,7, or 0:10 (10 left out); else those of the grid, of a table as the paper had."""

    data: Folder = None
    """Folder with the datasets, and the only one searched; else $PERDURE_DATA, then the cache."""
    dataset: Name = None
    """mnist or mnist5k (5,000 digits that ship with it); streams of other data are left out."""
    max_steps: Whole = None
    """Leave each stream after so many steps."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes a GPU if there is one."""
    precision: Precision = None
    """Arithmetic on a GPU; bf16 unless given."""
    deterministic: Switch = False
    """On a GPU: the same bits again for the same seed, a little slower."""

    engine: Literal["local", "ray"] = "local"
    """This machine, or a Ray cluster."""
    address: Annotated[str | None, arg(metavar="HOST:PORT", help_behavior_hint="")] = None
    """Of the cluster's head, or auto on one of its nodes; else a cluster of this machine alone."""
    workers: Whole = None
    """Runs at once on this machine: as many as cores unless given; on a GPU one group."""
    threads: Count = 1
    """Threads of each run; more change the last digits of the results."""
    side_by_side: Count = 8
    """Runs trained at once on one GPU."""
    checkpoint_every: Seconds = 60.0
    """Seconds from one checkpoint to the next; the end of a task has one as well."""
    out: Annotated[Path, arg(metavar="DIR")] = Path("runs")
    """Folder for the runs; on a cluster, one that all its nodes see."""
    dry_run: Switch = False
    """Show what would be run, and how long it may take."""
    json: Switch = False
    """End with the lines of JSON."""
    quiet: Switch = False
    """No progress and no table."""


def reproduce(options: ReproduceOptions) -> int:
    """Plan, make what is missing, and show the table."""
    from perdure.cli.tables import show
    from perdure.display import tell_user
    from perdure.grid import report
    from perdure.grid.planning import plan_grid
    from perdure.grid.standing import Standing

    if options.deterministic:  # cuBLAS reads it when it starts
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    grid = _grid(options)
    side_by_side = at_least_one("--side-by-side", options.side_by_side)
    checkpoint_every = above_zero("--checkpoint-every", options.checkpoint_every)
    with ExitStack() as stack:
        device, engine = _engine(options, stack)
        plan = plan_grid(
            grid,
            options.out.absolute(),
            dataset=options.dataset,
            data_root=None if options.data is None else options.data.absolute(),
            max_steps=options.max_steps,
            device=device,
            precision=options.precision,
            deterministic=options.deterministic,
            elsewhere=options.engine == "ray" or options.dry_run,
        )
        if not options.dry_run:
            writable(options.out)
            report.read_summaries(_results_file(plan))  # refused now, not after the work
        if not options.quiet:
            notes = dict.fromkeys(note for entry in plan.entries for note in entry.settings.notes)
            for sentence in (*plan.skipped, *(f"note: {note}" for note in notes)):
                tell_user(sentence)
        speeds = plan.measured()
        jobs = plan.jobs(speeds, side_by_side=side_by_side, checkpoint_every=checkpoint_every)
        standing = Standing(plan, jobs, speeds, engine.width)
        if options.dry_run:
            show(report.plan_table(plan, speeds))
            print(report.plan_sentence(standing))
            return 0
        _work_through(options, standing, engine)
    _show_results(options, plan)
    if not standing.runs("failed"):
        return 0
    _say_failures(standing)
    return 1


def _grid(options: ReproduceOptions) -> Grid:
    from perdure.grid.tables import PAPER, choose, paper_grid, read_grid

    if options.table is not None and options.grid is not None:
        raise ValueError(f"expected a table or --grid FILE, not both {options.table} and a grid")
    if options.table is None and options.grid is None:
        raise ValueError(f"expected a table ({', '.join(PAPER)}) or --grid FILE")
    grid = paper_grid(options.table) if options.table else read_grid(Path(options.grid or ""))
    return choose(
        grid,
        streams=_listed("--streams", options.streams),
        methods=_listed("--methods", options.methods),
        buffers=_numbers("--buffers", options.buffers, int),
        where=_conditions(options.where),
        seeds=options.seeds,
    )


def _listed(flag: str, text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError(f"{flag} is {text!r}; expected names with commas between them")
    return names


def _numbers(flag: str, text: str | None, kind: Callable[[str], Number]) -> list[Number] | None:
    try:
        names = _listed(flag, text)
        return None if names is None else [kind(name) for name in names]
    except ValueError:
        raise ValueError(f"{flag} is {text!r}; expected numbers with commas between them") from None


def _conditions(texts: Sequence[str]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for text in texts:
        name, sign, values = text.partition("=")
        if not (sign and name):
            raise ValueError(f"--where {text!r}; expected name=number,number")
        numbers = _numbers(f"--where {name}", values, float) or []
        found.setdefault(name.replace("-", "_"), []).extend(numbers)
    return found


def _engine(options: ReproduceOptions, stack: ExitStack) -> tuple[str, Engine]:
    """The device to plan for, and what runs the jobs."""
    from perdure.grid.engines import Local
    from perdure.training.plan import choose_device

    threads = thread_count(options.threads)
    workers = None if options.workers is None else at_least_one("--workers", options.workers)
    if options.engine == "ray":
        if workers is not None:
            raise ValueError("--workers counts processes of this machine; Ray places runs itself")
        try:
            from perdure.grid.cluster import OnRay
        except ModuleNotFoundError:
            raise ValueError(
                "--engine ray needs Ray, which is not installed: pip install 'perdure[ray]'"
            ) from None
        cluster = stack.enter_context(OnRay(options.address, options.device, threads))
        if not options.dry_run:
            writable(options.out)
            cluster.check(options.out)
        return cluster.device, cluster
    if options.address is not None:
        raise ValueError("--address names a Ray cluster; add --engine ray")
    if options.dry_run and options.device == "cuda":
        device = "cuda"  # what there is to do can be seen without a GPU
    else:
        device = choose_device(options.device, options.precision)
    default = cores() if device == "cpu" else 1
    return device, Local(default if workers is None else workers, threads)


def _work_through(options: ReproduceOptions, standing: Standing, engine: Engine) -> None:
    """Do the jobs under the live view."""
    from perdure.display import tell_user
    from perdure.grid.view import GridView

    if standing.before and not options.quiet:
        tell_user(f"{standing.before} of {standing.total} runs are there already")
    try:
        with GridView(standing, quiet=options.quiet) as view:
            while standing.current:
                engine.run([course.job for course in standing.current], view)
                standing.separate()
    except KeyboardInterrupt:
        tell_user(f"{standing.done} of {standing.total} runs are done")
        raise


def _say_failures(standing: Standing) -> None:
    """In one line, which a terminal shows with its words whole."""
    from rich.console import Console
    from rich.text import Text

    from perdure.grid.report import failures_sentence

    console = Console(stderr=True)
    sentence = Text(f"perdure: {failures_sentence(standing)}")
    console.print(sentence, soft_wrap=not console.is_terminal)


def _results_file(plan: Plan) -> Path:
    return plan.out / f"{plan.grid.name}.jsonl"


def _show_results(options: ReproduceOptions, plan: Plan) -> None:
    from perdure.cli.tables import show
    from perdure.display import tell_user
    from perdure.grid import report

    found = report.summaries(plan)
    if not found:
        return
    if not options.quiet:
        show(report.figures_table(plan, found))
    path = _results_file(plan)
    report.write_summaries(path, [line for _, line in report.summaries(plan, all_seeds=True)])
    if not options.quiet:
        tell_user(f"results are in {path}")
    if options.json:
        for _, summary in found:
            print(json.dumps(summary), flush=True)
