"""`perdure run`."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from tyro.conf import arg

from perdure.catalog import accepted, find_learner, takes_buffer
from perdure.cli.options import (
    Folder,
    LearnerOptions,
    OptionalCount,
    OptionalNumber,
    OutputFlags,
    Seeds,
    Switch,
    TrainingFlags,
    listed,
    writable,
)
from perdure.config import RunConfig, as_flag, parse_seeds
from perdure.experiment.build import build_run, read_dataset
from perdure.experiment.plan import Plan, PlannedSetting, plan_setting, runs_on_other_data
from perdure.experiment.pool import run_tasks
from perdure.experiment.progress import GridProgress, print_status, run_jobs
from perdure.experiment.resolve import check_method, hyperparameter_names
from perdure.integrations.trackers import OpenLog, RunLogs
from perdure.results.folder import RunFolder
from perdure.results.table import Setting, cut_short, on_different_streams, shared_name
from perdure.results.terminal import results_table, show
from perdure.streams.from_batches import not_resumable
from perdure.training.distributed import from_rank_0
from perdure.training.launch import is_main_process, setup_ranks


@dataclass(frozen=True)
class RunOptions(LearnerOptions):
    """Train and evaluate one or several methods on a stream.

    Without arguments: CLS-ER on s-mnist with a buffer of 500 samples, as published. `perdure list`
    shows all methods and streams.
    """

    method: Annotated[str, arg(metavar="A,B,…")] = "clser"
    """One method or several to compare, by name or as module:class."""

    seeds: Seeds = "0"
    """One run per seed: 3, or 0,4,7, or 0:10 (10 excluded)."""
    validation: OptionalNumber = None
    """Evaluate on this share of the training samples instead of the test set, for example 0.1."""
    update: Literal["random", "regular"] = "random"
    """clser, mean-er: update the semantic memories at random steps, or at regular intervals."""
    prequential: Switch = False
    """Predict each batch before learning from it, for example if the stream has no tests."""
    prequential_window: OptionalCount = None
    """Size of the sliding window of these predictions, in samples; default: 1000."""
    initial_evaluation: Switch = False
    """Also evaluate the untrained networks, for forward transfer. Always done on a GPU."""
    restart: Switch = False
    """Discard complete and interrupted runs and train them again."""
    resume: Switch = False
    """Fail if the stream cannot be resumed. Interrupted runs always resume from checkpoints."""
    tensorboard: Folder = None
    """Log losses, accuracies and the classes in memory for TensorBoard in this folder."""
    wandb: Annotated[str | None, arg(metavar="PROJECT", help_behavior_hint="")] = None
    """Log the same to this project of Weights & Biases."""
    mlflow: Annotated[str | None, arg(metavar="EXPERIMENT", help_behavior_hint="")] = None
    """Log the same to this experiment of MLflow."""
    training: TrainingFlags = field(default_factory=TrainingFlags)


def run(options: RunOptions) -> int:
    """Train the runs that are missing and show the results."""
    if options.restart and options.resume:
        raise ValueError("--restart starts over and --resume continues; omit one of them")
    options.execution.prepare()
    options.training.prepare()
    seeds = parse_seeds(options.seeds)
    ranks = setup_ranks(seeds, options.execution.device, options.execution.engine)
    configs = _resolve(options, ranks)
    if ranks > 1 and len(configs) > 1:
        raise ValueError("torchrun trains one method at a time; name one with --method")
    firsts = [_FirstRun.build(c, seeds[0], progress=not options.output.quiet) for c in configs]
    once = next((first.once for first in firsts if first.once), "")
    if options.resume and once:
        raise ValueError(once)
    out = options.training.out
    if ranks == 1:
        writable(out)
    else:  # rank 0 writes; all ranks stop if it cannot
        from_rank_0(lambda: writable(out))
    if options.tensorboard is not None:
        writable(options.tensorboard, "--tensorboard")
    settings = []
    for config, first in zip(configs, firsts, strict=True):
        label = config.describe(first.stream)
        settings.append(
            plan_setting(
                config, seeds, out, label=label, steps=first.steps, restart=options.restart
            )
        )
    for setting in settings:
        for seed in (*setting.missing, *setting.resumable):
            setting.folder(out, seed).refuse_if_locked()
    if not options.output.quiet:
        notes = [note for setting in settings for note in setting.config.notes]
        notes += _partial_notes(options, [config.method for config in configs])
        notes += [
            f"{config.stream_title(first.stream)} has no tests; add --prequential to measure "
            "accuracy"
            for config, first in zip(configs, firsts, strict=True)
            if not (first.has_tests or config.prequential)
        ]
        notes += [note for s in settings for note in _notes(s, out)]
        for note in dict.fromkeys(notes):
            print_status(f"note: {note}")
    trackers = _trackers(options) if is_main_process() else []
    plan = Plan("all runs", str(configs[0]), out, settings)
    try:
        failed = train_plan(
            plan,
            options.training,
            threads=options.execution.threads,
            resume=not options.restart,
            quiet=options.output.quiet,
            trackers=trackers,
        )
    except KeyboardInterrupt as stop:
        if once:
            stop.add_note(once)
        raise
    if is_main_process():  # other ranks may not see the folder
        _show(plan, options.output)
    return 1 if failed else 0


class _FirstRun(NamedTuple):
    """What planning needs to know about the first run of a configuration."""

    stream: str
    """The name of its stream."""
    has_tests: bool
    steps: int | None
    once: str
    """Why the run cannot be resumed; empty if it can."""

    @classmethod
    def build(cls, config: RunConfig, seed: int, *, progress: bool) -> _FirstRun:
        """Build the run, which rejects invalid values before any training, and release its data.

        Without a writable cache, the data is decoded again for the training.
        """
        run = build_run(config, read_dataset(config, progress=progress), seed)
        stream = run.stream
        once = [not_resumable(task) for task in stream.tasks if not task.resumable]
        steps = run.total_steps(config.max_steps)
        return cls(stream.name, bool(stream.tests), steps, once[0] if once else "")


def _trackers(options: RunOptions) -> list[OpenLog]:
    """The experiment trackers that log the runs."""
    found = []
    for name in ("tensorboard", "wandb", "mlflow"):
        if (target := getattr(options, name)) is not None:
            try:
                module = importlib.import_module(f"perdure.integrations.{name}")
            except ImportError as error:
                raise ValueError(f"--{name}: {error}") from None
            found.append(module.track(target))
    return found


def _resolve(options: RunOptions, ranks: int) -> list[RunConfig]:
    """A configuration for each method, with the settings that it has."""
    methods = list(dict.fromkeys(listed("--method", options.method, str) or []))
    given, known = options.given(), _known_settings(options, methods)

    def applies(name: str, method: str) -> bool:  # `resolve` rejects what no method has
        return name in known[method] or not any(name in names for names in known.values())

    return [
        _suited(options, method, len(methods)).resolve(
            method,
            {name: value for name, value in given.items() if applies(name, method)},
            validation=options.validation,
            update=options.update if applies("update", method) else "random",
            ranks=ranks,
            prequential=options.prequential,
            prequential_window=options.prequential_window,
            initial_evaluation=options.initial_evaluation,
            reread=method == methods[0],
        )
        for method in methods
    ]


def _known_settings(options: RunOptions, methods: Sequence[str]) -> dict[str, set[str]]:
    """The hyperparameters of each method and, if it has semantic memories, "update"."""
    found: dict[str, set[str]] = {}
    for method in methods:
        check_method(method)
        found[method] = hyperparameter_names(method, options.optimizer.optimizer)
        found[method] |= {"update"} & accepted(find_learner(method)).keys()
    return found


def _partial_notes(options: RunOptions, methods: Sequence[str]) -> list[str]:
    """The settings that apply to some of the methods only."""
    known = _known_settings(options, methods)
    names = [*options.hyperparameters.given(), *(["update"] if options.update != "random" else [])]
    having = {name: [method for method in methods if name in known[method]] for name in names}
    return [
        f"{as_flag(name)} applies to {' and '.join(found)} only"
        for name, found in having.items()
        if len(found) < len(methods)
    ]


def _suited(options: RunOptions, method: str, methods: int) -> RunOptions:
    """The options for one of several methods: without a buffer if it has no memory."""
    if methods == 1 or takes_buffer(method):
        return options
    return replace(
        options, buffer_size=None, buffer_bytes=None, memory_device=None, memory_folder=None
    )


def _notes(setting: PlannedSetting, out: Path) -> list[str]:
    """Earlier runs that are continued, or that the user may have wanted to continue."""
    notes = []
    if setting.resumable:
        notes.append(f"resuming {setting.config.method}; use --restart to start over")
    checksum = setting.config.data_checksum or "unknown"
    for folder, other in runs_on_other_data(setting.config, out).items():
        notes.append(
            f"the runs in {folder} used other data (checksum {other or 'unknown'}, now {checksum}) "
            "and are not reused"
        )
    return notes


def train_plan(
    plan: Plan,
    training: TrainingFlags,
    *,
    threads: int = 1,
    resume: bool,
    quiet: bool = False,
    trackers: Sequence[OpenLog] = (),
) -> int:
    """Train the missing runs of a plan on this machine; returns how many failed."""
    plan.clear_leftovers()
    speeds = plan.speeds()
    jobs = plan.jobs(
        speeds,
        resume=resume,
        side_by_side=training.side_by_side,
        checkpoint_every=training.checkpoint_every,
    )
    width = min(training.width(plan.settings[0].config.device), len(jobs))
    progress = GridProgress(plan, jobs, speeds, max(width, 1))
    if progress.reused and not quiet:
        reused = f"{progress.reused} of {progress.total} runs are complete already"
        print_status(f"{reused}; use --restart to train them again")
    folders = [RunFolder.locate(plan.out, s.config, n) for s in plan.settings for n in s.seeds]
    with RunLogs(trackers, folders) as log:
        run_jobs(
            progress,
            partial(run_tasks, workers=width, threads=threads, in_process=width <= 1),
            quiet=quiet,
            by_task=len(plan.settings) == 1,
            on_event=lambda event: log.update(),
        )
    return progress.count("failed")


def show_results(
    plan: Plan, found: Sequence[Setting], title: str, output: OutputFlags, **how: Any
) -> None:
    """Show the results of a plan; `how` has further arguments of `results_table`."""
    if not output.quiet:
        planned = {setting.config.hash: len(setting.seeds) for setting in plan.settings}
        show(results_table(found, title, planned=planned, **how), stderr=output.json)
        for note in filter(None, (on_different_streams(found), cut_short(found))):
            print_status(note)
    if output.json:
        for setting in found:
            print(json.dumps(setting.summary()), flush=True)


def _show(plan: Plan, output: OutputFlags) -> None:
    found = plan.results()
    if not found:  # all runs failed
        return
    several, config, name = len(plan.settings) > 1, found[0].config, shared_name(found)
    if not several:
        buffer = f", buffer {config.buffer}" if config.buffer else ""
        name = f"{config.method_title} on {name}{buffer}"
    most = max(len(setting.runs) for setting in found)
    title = f"{name}, {most} seed{'s' if most > 1 else ''}: accuracy in percent"
    show_results(plan, found, title, output, by_predictor=not several)
    if not output.quiet:
        folder = RunFolder.group(plan.out, config)
        print_status(f"Runs are in {folder.parent if several else folder}")
