"""Studies: searching hyperparameters on a validation split, in any number of processes."""

from __future__ import annotations

import csv
import io
import itertools
import math
import os
import platform
import re
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import PartialFixedSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._file import BaseJournalFileLock, get_lock_file
from optuna.trial import FrozenTrial, TrialState

from perdure.config import RunConfig, short_hash
from perdure.data import Dataset
from perdure.experiment.build import build_engine, build_run, read_dataset
from perdure.experiment.pool import Event, Failure, run_tasks
from perdure.experiment.space import Choice, Range, Space
from perdure.files import MAX_EVENTS, open_regular, read_bytes, write_atomic
from perdure.lock import waited_for
from perdure.randomness import derive
from perdure.results.folder import RunFolder
from perdure.training.loop import TrainingError, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True)
class Search:
    """What a study searches and how.

    Attributes:
        config: The settings, with a validation split; its hyperparameters that are part of the
            space are tried first.
        space: The search space.
        seeds: Seeds of each trial, whose value is the mean over them.
        study_seed: Seed of the sampler.
        storage: A file, or the address of a database.
    """

    config: RunConfig
    space: Space
    seeds: tuple[int, ...]
    study_seed: int
    storage: str

    def __post_init__(self) -> None:
        if self.config.validation is None:
            raise ValueError("a search requires a validation split")

    @property
    def initial(self) -> dict[str, float]:
        """The hyperparameters of the first trial, as far as the space contains them."""
        values = self.config.hyperparameters
        return {n: values[n] for n, part in self.space.items() if n in values and values[n] in part}

    def folder(self, root: Path) -> Path:
        """The study's folder. Different studies have different folders."""
        values = self.config.hyperparameters
        fixed = {name: value for name, value in values.items() if name not in self.space}
        identity = {
            **self.config.identity(),
            "hyperparameters": fixed,
            "space": {name: asdict(part) for name, part in self.space.items()},
            "seeds": list(self.seeds),
            "study_seed": self.study_seed,
        }
        group = RunFolder.group(root, self.config)
        return group.with_name(group.name.removesuffix(self.config.hash) + short_hash(identity))

    @property
    def name(self) -> str:
        """The study's name in its storage."""
        return self.folder(Path()).as_posix()


def tune(
    search: Search,
    trials: int,
    *,
    workers: int = 1,
    threads: int = 1,
    on_trial: Callable[[FrozenTrial], None] = lambda trial: None,
) -> tuple[list[FrozenTrial], list[Failure]]:
    """Add trials until the study has enough.

    A trial has the user attributes "by_seed", the accuracy of each seed, or "reason", why it
    failed. Its value is the mean over the seeds in percent. `trials` is their total number,
    including completed ones and those of other processes.

    Returns:
        All trials, and why worker processes died, if any did.

    Raises:
        ValueError: If the storage cannot be used.
        Interrupted: If asked to stop.
    """
    study = open_study(search)
    discard_lost_trials(study)
    missing = trials - len(read_trials(study))
    failures: list[Failure] = []

    def on_event(event: Event) -> None:
        if event.failure is not None:
            failures.append(event.failure)
        elif event.kind == "progress":
            on_trial(event.progress)

    processes = min(workers, missing)
    if missing > 0:
        tasks = [_AddTrials(search, trials)] * processes
        run_tasks(tasks, on_event, workers=processes, threads=threads, in_process=processes == 1)
        discard_lost_trials(study)
    return read_trials(study), failures


def best_trial(trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """The trial with the highest accuracy, the first of several; None if all failed."""
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    return max(done, key=lambda trial: trial.value or 0.0, default=None)


# -- the study ------------------------------------------------------------------------------


def open_study(search: Search) -> optuna.Study:
    """The study, created if necessary.

    Raises:
        ValueError: If the storage cannot be used.
    """
    try:
        study = optuna.create_study(
            storage=_storage(search.storage),
            study_name=search.name,
            direction="maximize",
            load_if_exists=True,
        )
        for trial in study.get_trials(deepcopy=False):
            _check_trial(trial, search)
        return study
    except Exception as error:  # from the file system or from any database driver
        place = search.storage.rpartition("@")[2]  # without a password
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise ValueError(f"--storage {place} cannot be used: {reason[0]}") from error


def _check_trial(trial: FrozenTrial, search: Search) -> None:
    """Raise ValueError unless this is a trial of the search, as `ask` and `_conduct` make them."""
    found = trial.user_attrs
    values = [trial.value, *found.get("by_seed", [])]
    is_whole = len(values) == 1 + len(search.seeds) and all(
        isinstance(value, int | float) and 0 <= value <= 100 for value in values
    )
    if (
        (trial.state == TrialState.COMPLETE and not is_whole)
        or not trial.params.keys() <= search.space.keys()
        or not all(isinstance(value, int | float) for value in trial.params.values())
        or not isinstance(found.get("place", 0), int)
        or not isinstance(found.get("reason", ""), str)
        or not re.fullmatch(r"\S* \d{1,18}:\d*", found.get("process", " 0:"))
    ):
        raise ValueError(f"trial {trial.number} was not written by perdure")


def _storage(place: str) -> str | BaseStorage:
    if "://" in place:
        return place
    path = Path(place)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = _JournalLock(path)
    _drop_torn_line(path, lock)
    return JournalStorage(JournalFileBackend(place, lock))


class _JournalLock(BaseJournalFileLock):
    """A lock on the journal itself, which does not outlive a process that is killed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.held = ExitStack()

    def acquire(self) -> bool:
        """Wait for the lock."""
        self.held.enter_context(waited_for(self.path))
        return True

    def release(self) -> None:
        """Release the lock."""
        self.held.close()


def _drop_torn_line(path: Path, lock: _JournalLock) -> None:
    """Remove a last line without an end, left when the disk was full or the process was killed."""
    if not os.path.lexists(path):
        return
    with (
        get_lock_file(lock),  # another process may be writing
        os.fdopen(open_regular(path, os.O_RDWR), "r+b") as file,
    ):
        content = read_bytes(path, MAX_EVENTS)
        file.truncate(content.rfind(b"\n") + 1)


def ask(study: optuna.Study, search: Search) -> optuna.Trial:
    """Start a trial. Its values depend on its place in the study and on earlier trials.

    A study that was interrupted and continues therefore tries the same values as one that was
    not. The first trial uses the search's own values.
    """
    trial = study.ask()
    trial.set_user_attr("process", f"{platform.node()} {_process(os.getpid())}")
    place = _free_place(study, trial.number)
    trial.set_user_attr("place", place)
    seed = derive(search.study_seed, f"trial {place}") % 2**32
    with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
        sampler = PartialFixedSampler({} if place else search.initial, TPESampler(seed=seed))
    study.sampler = sampler
    for name, part in search.space.items():
        if isinstance(part, Choice):
            trial.suggest_categorical(name, part.values)
        elif part.integer:
            trial.suggest_int(name, int(part.low), int(part.high), log=part.log)
        else:
            trial.suggest_float(name, part.low, part.high, log=part.log)
    return trial


def _free_place(study: optuna.Study, number: int) -> int:
    """The smallest place that no trial occupies, possibly left by an interrupted one.

    Trials that other processes have just started may not have a place yet. They have lower
    numbers and take the smallest places first.
    """
    others = [trial for trial in read_trials(study) if trial.number != number]
    taken = {trial.user_attrs.get("place") for trial in others}
    pending = sum("place" not in trial.user_attrs for trial in others if trial.number < number)
    free = (place for place in itertools.count() if place not in taken)
    return next(itertools.islice(free, pending, None))


def read_trials(study: optuna.Study) -> list[FrozenTrial]:
    """The trials that count, in order: interrupted ones, which failed without a reason, do not."""
    return [
        trial
        for trial in study.get_trials(deepcopy=False)
        if trial.state in (TrialState.COMPLETE, TrialState.RUNNING) or "reason" in trial.user_attrs
    ]


def discard_lost_trials(study: optuna.Study) -> None:
    """End the trials whose process on this machine was killed, so that others replace them."""
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        host, _, process = trial.user_attrs.get("process", "").partition(" ")
        if host == platform.node() and _process(int(process.partition(":")[0])) != process:
            study.tell(trial.number, state=TrialState.FAIL)


def _process(pid: int) -> str | None:
    """Identifies a process on its machine; None if it does not exist.

    Includes the start time where the system reports it, since ids are reused.
    """
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # too large for an id: not written by us
        return None
    except PermissionError:
        pass
    try:
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        started = ""
    return f"{pid}:{started}"


# -- trials ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _AddTrials:
    """Task of a process: add trials to a study until it has enough."""

    search: Search
    trials: int

    def execute(self, report: Callable[[FrozenTrial], None], stop: Callable[[], int]) -> None:
        study, dataset = open_study(self.search), read_dataset(self.search.config, stop=stop)
        while len(read_trials(study)) < self.trials:
            trial = ask(study, self.search)
            if sum(other.number < trial.number for other in read_trials(study)) >= self.trials:
                study.tell(trial, state=TrialState.FAIL)  # another process was faster
                return
            report(_conduct(self.search, study, trial, dataset, stop))

    def explain(self, error: Exception) -> Failure:
        return Failure(f"{type(error).__name__}: {error}", traceback.format_exc())


def _conduct(
    search: Search,
    study: optuna.Study,
    trial: optuna.Trial,
    dataset: Dataset | None,
    stop: Callable[[], int],
) -> FrozenTrial:
    """Train with a trial's hyperparameters and store the outcome in the study."""
    try:
        by_seed = evaluate(search, trial.params, dataset, stop)
    except (TrainingError, ValueError, OSError) as error:
        trial.set_user_attr("reason", str(error))
    except Exception as error:  # in a user's code, or in ours
        traceback.print_exc()
        trial.set_user_attr("reason", f"{type(error).__name__}: {error}")
    except BaseException:  # interrupted
        study.tell(trial, state=TrialState.FAIL)
        raise
    else:
        trial.set_user_attr("by_seed", by_seed)
        return study.tell(trial, sum(by_seed) / len(by_seed))
    return study.tell(trial, state=TrialState.FAIL)


def evaluate(
    search: Search,
    params: Mapping[str, float],
    dataset: Dataset | None,
    stop: Callable[[], int] | None = None,
) -> list[float]:
    """The accuracy of each seed on the validation split, in percent.

    As in the paper's tables, the mean over the tasks seen, after the last of them.
    """
    values = {**search.config.hyperparameters, **params}
    config = replace(search.config, hyperparameters=values)
    runs = [build_run(config, dataset, seed) for seed in search.seeds]
    records = train(runs, max_steps=config.max_steps, engine=build_engine(config), stop=stop)
    found = [value for record in records if (value := record.latest()) is not None]
    assert len(found) == len(runs)
    return found


# -- the outcome ----------------------------------------------------------------------------


def write_trials(path: Path, trials: Sequence[FrozenTrial], space: Space) -> None:
    """Write all trials as comma-separated values."""
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(["trial", "accuracy", *space, "seconds", "failed"])
    for trial in trials:
        params = [trial.params.get(name) for name in space]
        seconds = trial.duration.total_seconds() if trial.duration else None
        reason = trial.user_attrs.get("reason")
        rows.writerow([trial.number, trial.value, *params, seconds, reason])
    write_atomic(path, text.getvalue().encode())


def write_figure(path: Path, trials: Sequence[FrozenTrial], space: Space, title: str) -> None:
    """Write the figure of a study as SVG, the same bytes for the same study."""
    import matplotlib

    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "perdure"}):
        draw(trials, space, title).savefig(file, format="svg", metadata={"Date": None})
    write_atomic(path, file.getvalue())


def draw(trials: Sequence[FrozenTrial], space: Space, title: str) -> Figure:
    """A panel with the accuracy of each trial, and one for each hyperparameter."""
    from matplotlib.figure import Figure

    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    numbers, values = [trial.number for trial in done], [trial.value or 0.0 for trial in done]
    columns = min(3, 1 + len(space))
    rows = math.ceil((1 + len(space)) / columns)
    figure = Figure(figsize=(4 * columns, 3 * rows), layout="constrained")
    figure.suptitle(title)
    figure.supylabel("validation accuracy, percent")
    history = figure.add_subplot(rows, columns, 1, xlabel="trial")
    history.plot(numbers, values, "o", label="trial")
    best = list(itertools.accumulate(values, max))
    history.step(numbers, best, where="post", label="best so far")
    history.legend()
    for place, (name, part) in enumerate(space.items(), start=2):
        panel = figure.add_subplot(rows, columns, place, xlabel=name, sharey=history)
        chosen = [trial.params[name] for trial in done]
        if isinstance(part, Range):
            panel.set(xscale="log" if part.log else "linear", xlim=(part.low, part.high))
        else:  # evenly spaced
            chosen = [part.values.index(value) for value in chosen]
            panel.set_xticks(range(len(part.values)), [f"{value:g}" for value in part.values])
        panel.plot(chosen, values, "o", clip_on=False)
    return figure
