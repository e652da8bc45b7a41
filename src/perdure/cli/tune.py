"""`perdure tune`."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from perdure.cli.run import HYPERPARAMETERS, assignment
from perdure.cli.values import (
    Count,
    Folder,
    Name,
    Precision,
    Several,
    Share,
    Steps,
    Switch,
    Whole,
    at_least_one,
    thread_count,
    writable,
)

if TYPE_CHECKING:
    from perdure.training import Settings
    from perdure.tuning.study import Search


@dataclass(frozen=True)
class TuneOptions:
    """Search a method's hyperparameters on a validation split; the test set is not touched.

    The study is kept in a file: called again it goes on, and processes that share the file share
    the study. Ends with the best trial's command line, and leaves a table and a figure of all.
    """

    stream: Annotated[Positional[str], arg(metavar="STREAM")] = "s-mnist"
    """A stream's name."""
    method: Annotated[str, arg(metavar="NAME")] = "clser"
    """A method's name, or your own as module:class."""
    buffer_size: Annotated[Whole, arg(aliases=["--buffer"])] = None
    """Samples that the memory may hold; 500 unless given."""
    trials: Count = 20
    """Trials that the study shall have in the end, those that it has already counted."""
    space: Annotated[Several, arg(metavar="NAME=LOW:HIGH", help_behavior_hint="")] = ()
    """Search here instead: low:high[:log] or a,b,c; or a TOML file of such. May recur."""
    set: Annotated[Several, arg(metavar="NAME=VALUE", help_behavior_hint="")] = ()
    """Hold a hyperparameter at this value in all trials. May recur."""
    seeds: Annotated[str, arg(metavar="SEEDS")] = "0"
    """Each trial is the mean over these: 3, or 0,4,7, or 0:10 (10 left out)."""
    study_seed: Count = 0
    """Decides what is tried; with several workers, so does the order in which trials end."""
    validation: Share = 0.1
    """Share of the training samples to evaluate on."""
    storage: Annotated[str | None, arg(metavar="PLACE", help_behavior_hint="")] = None
    """File of the study, or a database's address; a file in the study's folder unless given."""

    network: Name = None
    """mlp, resnet18, or your own as module:function, called with (image shape, classes)."""
    data: Folder = None
    """Folder with the datasets, and the only one searched; else $PERDURE_DATA, then the cache."""
    dataset: Name = None
    """mnist or mnist5k (5,000 digits that ship with perdure), for streams made from either."""
    stream_seed: Name = None
    """Composition of r-mnist, p-mnist and gcil: a number, or per-run for a new one each seed."""
    max_steps: Whole = None
    """Leave the stream after so many steps."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes a GPU if there is one."""
    precision: Precision = None
    """Arithmetic on a GPU; bf16 unless given."""
    engine: Steps = None
    """On a GPU: steps one operation at a time, as CUDA graphs (the default), or those compiled."""
    out: Annotated[Path, arg(metavar="DIR")] = Path("studies")
    """Folder for the studies."""
    workers: Count = 1
    """Processes that try at once."""
    threads: Count = 1
    """Threads of each; more change the last digits of the results."""
    json: Switch = False
    """End with one JSON line."""
    quiet: Switch = False
    """No lines about trials and no table."""


def tune(options: TuneOptions) -> int:
    """Search, and show what was found. A stop, at whatever point, leaves the study as it is."""
    from perdure.training.loop import Interrupted

    try:
        return _tune(options)
    except KeyboardInterrupt:
        raise Interrupted(signal.SIGINT) from None  # the same command goes on
    except SystemExit as end:
        if end.code == 128 + signal.SIGTERM:
            raise Interrupted(signal.SIGTERM) from None
        raise


def _tune(options: TuneOptions) -> int:
    try:
        from perdure.tuning import outcome, workers
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise ValueError("tuning needs Optuna: pip install 'perdure[tune]'") from None

    from perdure.cli.tables import show
    from perdure.display import tell_user

    trials = at_least_one("--trials", options.trials)
    processes = at_least_one("--workers", options.workers)
    threads = thread_count(options.threads)
    search = _search(options)
    writable(options.out)
    folder = search.folder(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    if not options.quiet:
        for note in search.settings.notes:
            tell_user(f"note: {note}")
    found, died = workers.tune(
        search, trials, workers=processes, threads=threads, quiet=options.quiet
    )
    outcome.write_trials(folder / "trials.csv", found, search.space)
    if died:
        who = "1 worker process" if died == 1 else f"{died} worker processes"
        tell_user(f"perdure: {who} died; call again to make up for what was lost")
    running = sum(trial.value is None and trial.reason is None for trial in found)
    if running:
        still = "trial still runs" if running == 1 else "trials still run"
        tell_user(f"perdure: {running} {still} elsewhere; call again for the final table")
    best = outcome.best_of(found)
    if best is None:
        if not running:
            tell_user(f"perdure: no trial came to an end; why is in {folder / 'trials.csv'}")
        return 1
    title = _title(search, len(found))
    figure = folder / "study.svg"
    outcome.draw(outcome.study_figure(found, search.space), search.space, title, figure)
    command = _command(options, best.params)
    if not options.quiet:
        show(outcome.trials_table(found, search.space, title))
        tell_user(f"all trials and their figure are in {folder}\nthe best one, on the test set:")
        print(command, flush=True)
    if options.json:
        line = {
            "study": search.name,
            "trials": len(found),
            "failed": sum(trial.reason is not None for trial in found),
            "best": {"trial": best.number, "accuracy": best.value, "values": dict(best.params)},
            "command": command,
            "figure": str(figure),
        }
        print(json.dumps(line), flush=True)
    return 1 if died else 0


def _search(options: TuneOptions) -> Search:
    """What the options ask for. ValueError, before any work, for what cannot be searched."""
    from perdure.training.build import read_dataset
    from perdure.training.plan import parse_seeds, plan
    from perdure.tuning.space import check, default_space, fitted, read_space
    from perdure.tuning.study import Search

    if ":" in options.stream:
        raise ValueError(
            f"{options.stream} brings its own tests, on which nothing may be chosen; tuning needs "
            "a stream of the catalog, whose training samples it can divide"
        )
    if not 0 <= options.study_seed < 2**32:
        raise ValueError(
            f"--study-seed is {options.study_seed}; expected a whole number from 0 to {2**32 - 1}"
        )
    seeds = parse_seeds(options.seeds)
    held = dict(map(assignment, options.set))
    stream_seed = options.stream_seed

    def planned(given: Mapping[str, float]) -> Settings:
        return plan(
            options.stream,
            options.method,
            options.buffer_size,
            given=given,
            network=options.network,
            dataset=options.dataset,
            data_root=options.data,
            stream_seed=int(stream_seed)
            if stream_seed and stream_seed.isdecimal()
            else stream_seed,
            validation=options.validation,
            max_steps=options.max_steps,
            device=options.device,
            precision=options.precision,
            engine=options.engine,
        )

    settings = planned(held)
    space = read_space(options.space) if options.space else default_space(options.method)
    if options.space and (both := sorted(space.keys() & held.keys())):
        raise ValueError(f"{both[0]} is in --space and in --set: search it or hold it, not both")
    space = {name: part for name, part in space.items() if name not in held}
    if not space:
        raise ValueError("--set holds every hyperparameter of the space: nothing is left to search")
    dataset = read_dataset(settings)
    try:
        planned({**held, **{name: part.extremes()[0] for name, part in space.items()}})
        space = fitted(space, options.method)
        check(space, settings, dataset, seeds[0])
    except ValueError as error:
        files = ", ".join(text for text in options.space if "=" not in text)
        raise ValueError(f"--space {files}: {error}" if files else str(error)) from None
    search = Search(settings, space, tuple(seeds), options.study_seed, options.storage or "")
    file = search.folder(options.out) / "study.journal"
    return search if options.storage else replace(search, storage=str(file))


def _title(search: Search, trials: int) -> str:
    settings = search.settings
    buffer_size = "" if settings.buffer_size is None else f", buffer {settings.buffer_size}"
    count = f"{trials} trial{'s' if trials > 1 else ''}"
    return f"{settings.method} on {settings.stream}{buffer_size}: {count}, validation accuracy"


def _command(options: TuneOptions, best: Mapping[str, float]) -> str:
    """The command that trains with the best trial's hyperparameters and evaluates on the test."""
    words = ["perdure", "run", options.stream, "--method", options.method]
    same = (
        "buffer_size",
        "network",
        "data",
        "dataset",
        "stream_seed",
        "max_steps",
        "precision",
        "engine",
    )
    for name in same:
        if (value := getattr(options, name)) is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    for name in ("device", "seeds", "threads"):
        if (value := getattr(options, name)) != getattr(TuneOptions, name):
            words += [f"--{name}", str(value)]
    own = []
    for name, value in {**dict(map(assignment, options.set)), **best}.items():
        if name in HYPERPARAMETERS:
            words += [f"--{name.replace('_', '-')}", repr(value)]
        else:
            own += ["--set", f"{name}={value!r}"]
    return shlex.join([*words, *own])
