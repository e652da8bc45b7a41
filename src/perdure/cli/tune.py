"""`perdure tune`."""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.markup import escape
from rich.table import Table
from tyro.conf import arg

from perdure.cli.options import (
    Count,
    LearnerOptions,
    Repeated,
    Seeds,
    Share,
    at_least_one,
    writable,
)
from perdure.config import as_flag, parse_seeds
from perdure.experiment.build import build_run, read_dataset
from perdure.experiment.progress import print_status
from perdure.experiment.resolve import check_names
from perdure.experiment.space import Space, check_space, default_space, fit_to_method, parse_space
from perdure.files import make_folder
from perdure.results.terminal import show
from perdure.results.verdict import Spread

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from perdure.experiment.tune import Search

MAX_ROWS = 10
"""Trials in the table; the file has all."""


@dataclass(frozen=True)
class TuneOptions(LearnerOptions):
    """Search a method's hyperparameters on a validation split; the test set is not used.

    The study is stored in a file: the same command continues it, and processes that use the same
    file share it. Prints the command of the best trial, and writes a table and a figure of all
    trials.
    """

    trials: Count = 20
    """Total number of trials, including completed ones."""
    space: Annotated[Repeated, arg(metavar="NAME=LOW:HIGH", help_behavior_hint="")] = ()
    """Search space: NAME=LOW:HIGH[:log], NAME=A,B,C, or a TOML file. May be repeated."""
    seeds: Seeds = "0"
    """Each trial is the mean over these seeds: 3, or 0,4,7, or 0:10 (10 excluded)."""
    study_seed: Count = 0
    """Seed of the search; with several workers, their timing matters too."""
    validation: Share = 0.1
    """Share of the training samples to evaluate on."""
    storage: Annotated[str | None, arg(metavar="PLACE", help_behavior_hint="")] = None
    """File of the study, or a database URL; default: a file in the study's folder."""
    out: Annotated[Path, arg(metavar="DIR")] = Path("studies")
    """Folder for the studies."""
    workers: Count = 1
    """Worker processes."""


def tune(options: TuneOptions) -> int:
    """Search, and show the best trials."""
    try:
        from perdure.experiment.tune import best_trial, write_figure, write_trials
        from perdure.experiment.tune import tune as run_study
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise ValueError(
            "tuning requires Optuna; install it, or perdure with the extra tune"
        ) from None

    at_least_one("--trials", options.trials)
    at_least_one("--workers", options.workers)
    options.execution.prepare()
    search, quiet = _search(options), options.output.quiet
    writable(options.out)
    folder = search.folder(options.out)
    make_folder(folder)
    if not quiet:
        searched = tuple(f"{as_flag(name)} is not given" for name in search.space)
        for note in search.config.notes:
            if not note.startswith(searched):
                print_status(f"note: {note}")
    trials, deaths = run_study(
        search,
        options.trials,
        workers=options.workers,
        threads=options.execution.threads,
        on_trial=(lambda trial: None) if quiet else _print_trial,
    )
    write_trials(folder / "trials.csv", trials, search.space)
    for failure in deaths:
        print_status(f"{failure.trace}perdure: a worker failed: {failure.reason}")
    if deaths:
        print_status("perdure: rerun the same command to replace the trials that were lost")
    states = Counter(trial.state.name for trial in trials)
    running = states["RUNNING"]
    if running:
        print_status(
            f"perdure: trials running in other processes: {running}; rerun the same command for "
            "the final table"
        )
    best = best_trial(trials)
    if best is None:
        if not running:
            print_status(f"perdure: all trials failed; reasons are in {folder / 'trials.csv'}")
        return 1
    title = f"{search.config}: validation accuracy of {len(trials)} trials"
    if search.config.max_steps is not None:
        title += f" (first {search.config.max_steps} steps)"
    write_figure(folder / "study.svg", trials, search.space, title)
    command = _command(options, search, best)
    if not quiet:
        show(_trials_table(trials, search.space, title), stderr=options.output.json)
        print_status(f"All trials and their figure are in {folder}")
        print_status("Evaluate the best one on the test set:")
        print(command, file=sys.stderr if options.output.json else sys.stdout, flush=True)
    if options.output.json:
        line = {
            "study": search.name,
            "trials": len(trials),
            "failed": states["FAIL"],
            "best": {"trial": best.number, "accuracy": best.value, "values": dict(best.params)},
            "command": command,
            "figure": str(folder / "study.svg"),
        }
        print(json.dumps(line), flush=True)
    return 1 if deaths else 0


def _search(options: TuneOptions) -> Search:
    """What to search. Raises ValueError before any training if that is invalid."""
    from perdure.experiment.tune import Search

    if not 0 <= options.study_seed < 2**32:
        raise ValueError(f"--study-seed is {options.study_seed}; expected 0 to {2**32 - 1}")
    seeds, optimizer = parse_seeds(options.seeds), options.optimizer.optimizer
    fixed = options.given()
    config = options.resolve(options.method, fixed, validation=options.validation)
    dataset = read_dataset(config)
    build_run(config, dataset, seeds[0])  # rejects invalid values
    if options.space:
        space = parse_space(options.space)
    else:
        space = default_space(options.method, optimizer, own_stream=config.dataset is None)
    if options.space and (both := sorted(space.keys() & fixed.keys())):
        raise ValueError(f"{both[0]} is in --space and fixed; omit one of them")
    space = {name: part for name, part in space.items() if name not in fixed}
    if not space:
        raise ValueError("every hyperparameter of the search space is fixed")
    try:
        check_names(space, options.method, optimizer)
        space = fit_to_method(space, options.method)
        check_space(space, config, dataset, seeds[0])
    except ValueError as error:
        files = ", ".join(text for text in options.space if "=" not in text)
        raise ValueError(f"--space {files}: {error}" if files else str(error)) from None
    search = Search(config, space, tuple(seeds), options.study_seed, options.storage or "")
    file = search.folder(options.out) / "study.journal"
    return search if options.storage else replace(search, storage=str(file))


def _print_trial(trial: FrozenTrial) -> None:
    params = ", ".join(f"{name} {value:.4g}" for name, value in trial.params.items())
    reason = trial.user_attrs.get("reason")
    outcome = f"{trial.value:.2f} %" if reason is None else f"failed: {reason}"
    print_status(f"trial {trial.number}: {outcome} ({params})")


def _trials_table(trials: Sequence[FrozenTrial], space: Space, title: str) -> Table:
    """The best trials, best first."""
    table = Table(title=escape(title), min_width=len(title))
    for name in ("trial", "accuracy", *space):
        table.add_column(name.replace("_", " "), justify="right")  # headings break at spaces
    ranked = sorted(trials, key=lambda t: -1.0 if t.value is None else t.value, reverse=True)
    for trial in ranked[:MAX_ROWS]:
        accuracy = {"RUNNING": "running", "FAIL": "failed"}.get(trial.state.name)
        accuracy = accuracy or str(Spread.over(trial.user_attrs["by_seed"]))
        values = [f"{trial.params[name]:.4g}" if name in trial.params else "" for name in space]
        table.add_row(str(trial.number), accuracy, *values)
    failed = sum(trial.state.name == "FAIL" for trial in trials)
    more = len(trials) - MAX_ROWS
    notes = [f"{more} more"] * (more > 0) + [f"{failed} failed"] * (failed > 0)
    table.caption = ", ".join(notes) or None
    return table


def _command(options: TuneOptions, search: Search, best: FrozenTrial) -> str:
    """The command that evaluates the best hyperparameters on the test set."""
    values = {**search.config.hyperparameters, **best.params}
    config = replace(search.config, validation=None, hyperparameters=values)
    root = options.data.data_root
    words = [] if root is None else ["--data", str(root)]
    if options.execution.threads != 1:
        words += ["--threads", str(options.execution.threads)]
    return " ".join([config.command(search.seeds), *([shlex.join(words)] if words else [])])
