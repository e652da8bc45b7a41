"""A study: trials of one setting's hyperparameters, kept where several processes can add to it."""

from __future__ import annotations

import itertools
import os
import platform
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from perdure.data import Dataset
from perdure.randomness import derive
from perdure.results import RunFolder, settings_hash
from perdure.training import Settings, TrainingError, train
from perdure.training.build import build_engine, build_run, read_dataset
from perdure.tuning.space import Range, Space

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True)
class Search:
    """All that a worker process needs to know to add trials to a study."""

    settings: Settings
    """With a validation split; of its values, those of the space are what is searched."""
    space: Space
    seeds: tuple[int, ...]
    """Each trial is the mean over these."""
    study_seed: int
    """Decides what is tried, given what was found before."""
    storage: str
    """A file, or the address of a database."""

    def __post_init__(self) -> None:
        if self.settings.validation is None:
            raise ValueError("a search needs a validation split: the test set is not for choosing")

    @property
    def fixed(self) -> dict[str, float]:
        """The hyperparameters that are not searched."""
        values = self.settings.values
        return {name: value for name, value in values.items() if name not in self.space}

    @property
    def published(self) -> dict[str, float]:
        """The values that the settings have, where they lie in the space."""
        values = self.settings.values
        return {
            name: values[name]
            for name, part in self.space.items()
            if name in values and part.holds(values[name])
        }

    def folder(self, root: Path) -> Path:
        """Where the study's figure and table belong; studies that differ have folders that do."""
        deciding = {
            **replace(self.settings, values=self.fixed).deciding(),
            "space": {name: asdict(part) for name, part in self.space.items()},
            "seeds": list(self.seeds),
            "study_seed": self.study_seed,
        }
        s = self.settings
        digest = settings_hash(deciding)
        return RunFolder.place(root, s.stream, s.method, s.buffer_size, digest, 0).path.parent

    @property
    def name(self) -> str:
        """The study's name in its storage, where there may be others."""
        return self.folder(Path()).as_posix()


@dataclass(frozen=True)
class Trial:
    """What became of one choice of hyperparameters."""

    number: int
    params: Mapping[str, float]
    value: float | None
    """Mean accuracy over the seeds, in percent; None if it failed or still runs."""
    by_seed: Sequence[float] = ()
    reason: str | None = None
    """Why it failed."""
    seconds: float | None = None


def open_study(search: Search) -> optuna.Study:
    """The search's study, made if it is not there. ValueError if its storage cannot be used."""
    try:
        return optuna.create_study(
            storage=_storage(search.storage),
            sampler=_Sampler(search.study_seed, search.published),
            study_name=search.name,
            direction="maximize",
            load_if_exists=True,
        )
    except Exception as error:  # of the file system, or of any database's driver
        place = search.storage.rpartition("@")[2]  # what is before it may be a password
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise ValueError(f"--storage {place} cannot be used: {reason[0]}") from error


def _storage(place: str) -> str | BaseStorage:
    if "://" in place:
        return place
    Path(place).parent.mkdir(parents=True, exist_ok=True)
    return JournalStorage(JournalFileBackend(place))


class _Sampler(BaseSampler):
    """Optuna's TPE, each trial seeded by its place in the study; the first has known values.

    So a study that is interrupted and taken up again tries what it would have tried, which a
    sampler that lives as long as its process cannot promise.
    """

    def __init__(self, seed: int, first: Mapping[str, float]) -> None:
        self.seed = seed
        self.first = first
        self.known: Mapping[str, float] = {}
        self.sampler: BaseSampler = TPESampler(seed=seed)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        place = _free_place(study, trial.number)
        # Kept with the trial, as later ones need it; what we are handed is only a copy of it.
        study._storage.set_trial_user_attr(trial._trial_id, "place", place)
        self.known = self.first if place == 0 else {}
        self.sampler = TPESampler(seed=derive(self.seed, f"trial {place}") % 2**32)
        self.sampler.before_trial(study, trial)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self.sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        return self.sampler.sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        if param_name in self.known:
            return self.known[param_name]
        return self.sampler.sample_independent(study, trial, param_name, param_distribution)


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """The space in Optuna's words."""
    found: dict[str, BaseDistribution] = {}
    for name, part in space.items():
        if not isinstance(part, Range):
            found[name] = CategoricalDistribution(part.values)
        elif part.whole:
            found[name] = IntDistribution(int(part.low), int(part.high), log=part.log)
        else:
            found[name] = FloatDistribution(part.low, part.high, log=part.log)
    return found


# -- which trials count ---------------------------------------------------------------------


def _counts(trial: FrozenTrial) -> bool:
    """Whether a trial is one of those asked for: not if it was broken off, which has no reason."""
    if trial.state == TrialState.FAIL:
        return "reason" in trial.user_attrs
    return trial.state in (TrialState.COMPLETE, TrialState.RUNNING)


def _counted_before(study: optuna.Study, number: int) -> int:
    trials = study.get_trials(deepcopy=False)
    return sum(_counts(trial) for trial in trials if trial.number < number)


def _free_place(study: optuna.Study, number: int) -> int:
    """The smallest place that no trial which counts has: of one that was cut off, or a new one.

    Trials that other processes began a moment ago may have yet to name theirs. They have lower
    numbers and take the smallest places before this one does.
    """
    others = [t for t in study.get_trials(deepcopy=False) if _counts(t) and t.number != number]
    taken = {trial.user_attrs.get("place") for trial in others}
    unnamed = sum("place" not in trial.user_attrs for trial in others if trial.number < number)
    free = (place for place in itertools.count() if place not in taken)
    return next(itertools.islice(free, unnamed, None))


def trials_of(study: optuna.Study) -> list[Trial]:
    """The trials that count, in order."""
    return [
        Trial(
            number=trial.number,
            params=trial.params,
            value=trial.value if trial.state == TrialState.COMPLETE else None,
            by_seed=trial.user_attrs.get("by_seed", ()),
            reason=trial.user_attrs.get("reason"),
            seconds=trial.duration.total_seconds() if trial.duration else None,
        )
        for trial in study.get_trials(deepcopy=False)
        if _counts(trial)
    ]


def begin(search: Search) -> optuna.Study:
    """The study, made ready for more trials.

    Trials whose process was killed on this machine are broken off, so that others take their place.
    """
    study = open_study(search)
    break_off_lost(study)
    return study


def break_off_lost(study: optuna.Study) -> None:
    """End the trials whose process on this machine is gone."""
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        host, _, process = trial.user_attrs.get("process", "").partition(" ")
        if host == platform.node() and _process(int(process.partition(":")[0])) != process:
            study.tell(trial.number, state=TrialState.FAIL)


def _process(pid: int) -> str | None:
    """What tells a process from all others on its machine; None if there is none with this id.

    Ids are used again, in a container even the same ones: where the system tells when a process
    began, that belongs to it.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    try:
        began = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        began = ""
    return f"{pid}:{began}"


# -- trials ---------------------------------------------------------------------------------


def work(search: Search, trials: int, tell: Callable[[Trial, optuna.Study], None]) -> None:
    """Add trials to the study until it has so many, those of other processes counted."""
    study, dataset = open_study(search), read_dataset(search.settings)
    while _counted_before(study, number=2**63) < trials:
        trial = study.ask(distributions(search.space))
        trial.set_user_attr("process", f"{platform.node()} {_process(os.getpid())}")
        if _counted_before(study, trial.number) >= trials:  # another process was faster
            study.tell(trial, state=TrialState.FAIL)
            return
        found = _conduct(search, study, trial, dataset)
        tell(found, study)


def _conduct(
    search: Search, study: optuna.Study, trial: optuna.Trial, dataset: Dataset | None
) -> Trial:
    """Train with a trial's hyperparameters, and tell the study what came of it."""
    began = time.perf_counter()
    found = Trial(trial.number, trial.params, None)
    try:
        by_seed = evaluate(search, trial.params, dataset)
    except (TrainingError, ValueError, OSError) as error:
        found = replace(found, reason=str(error))
    except Exception as error:  # in a user's own code, or ours: they will want to see where
        traceback.print_exc()
        found = replace(found, reason=f"{type(error).__name__}: {error}")
    except BaseException:  # interrupted: it says nothing about the hyperparameters
        study.tell(trial, state=TrialState.FAIL)
        raise
    else:
        found = replace(found, value=sum(by_seed) / len(by_seed), by_seed=by_seed)
        trial.set_user_attr("by_seed", by_seed)
    if found.reason is None:
        study.tell(trial, found.value)
    else:
        trial.set_user_attr("reason", found.reason)
        study.tell(trial, state=TrialState.FAIL)
    return replace(found, seconds=time.perf_counter() - began)


def evaluate(search: Search, params: Mapping[str, float], dataset: Dataset | None) -> list[float]:
    """For each seed, the accuracy in percent that the method's answer has on the validation split.

    As in the paper's tables: the mean over the tasks seen, after the last of them.
    """
    settings = replace(search.settings, values={**search.settings.values, **params})
    runs = [build_run(settings, dataset, seed) for seed in search.seeds]
    records = train(runs, max_steps=settings.max_steps, engine=build_engine(settings))
    found = [value for record in records if (value := record.latest()) is not None]
    assert len(found) == len(runs)  # a validation split is there to be evaluated on
    return found
