"""Studies: what is tried and why, what is kept, and how processes share one."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import optuna
import pytest
import torch
from optuna.trial import TrialState

from perdure import data
from perdure.data import Dataset
from perdure.training import build, plan, train
from perdure.tuning import study as studies
from perdure.tuning.space import Choice, Range, Space
from perdure.tuning.study import Search, Trial, begin, open_study, trials_of
from perdure.tuning.workers import tune

SPACE: Space = {"lr": Range(0.01, 0.5, log=True), "memory_batch": Choice((10, 32))}


def search(folder: Path, method: str = "er", space: Space = SPACE, **other: Any) -> Search:
    settings = plan("s-mnist", method, dataset="mnist5k", validation=0.1, max_steps=25)
    kept = {"seeds": (0,), "study_seed": 0, "storage": str(folder / "study.journal"), **other}
    return Search(settings, space, **kept)


def found(trials: list[Trial]) -> list[tuple[int, dict[str, float], float | None]]:
    """What a study is known by: what was tried, and what came of it."""
    return [(trial.number, dict(trial.params), trial.value) for trial in trials]


def run(search: Search, trials: int, **how: Any) -> list[Trial]:
    done, died = tune(search, trials, quiet=True, **how)
    assert died == 0
    return done


# -- what is tried --------------------------------------------------------------------------


def test_the_same_seed_tries_the_same(tmp_path: Path) -> None:
    one, again, other = (
        found(run(search(tmp_path / name, study_seed=seed), 3))
        for name, seed in (("one", 0), ("again", 0), ("other", 1))
    )
    assert one == again
    assert [params for _, params, _ in one] != [params for _, params, _ in other]


def test_the_published_values_are_tried_first(tmp_path: Path) -> None:
    first = run(search(tmp_path), 1)[0]
    values = search(tmp_path).settings.values
    assert first.params == {name: values[name] for name in SPACE}
    elsewhere: Space = {"lr": Range(0.3, 0.5), "memory_batch": Choice((10, 64))}
    second = run(search(tmp_path, space=elsewhere), 1)[0]
    assert 0.3 <= second.params["lr"] <= 0.5
    assert second.params["memory_batch"] == values["memory_batch"]


def test_trials_lie_in_the_space(tmp_path: Path) -> None:
    space: Space = {"lr": Range(0.2, 0.3), "batch": Range(5, 9, whole=True)}
    for trial in run(search(tmp_path, "sgd", space), 4)[1:]:
        assert 0.2 <= trial.params["lr"] <= 0.3
        assert trial.params["batch"] in range(5, 10)


def test_the_value_is_the_mean_over_seeds_on_the_validation_split(tmp_path: Path) -> None:
    trial = run(search(tmp_path, seeds=(0, 3)), 1)[0]
    assert trial.value is not None
    settings = search(tmp_path).settings
    values = {**settings.values, **trial.params}
    for seed, accuracy in zip((0, 3), trial.by_seed, strict=True):
        single = build.build_run(
            replace(settings, values=values), build.read_dataset(settings), seed
        )
        record = train([single], max_steps=25)[0]
        assert single.stream.data == "mnist5k-validation"
        assert record.result()["predictors"]["working"]["class_il"]["mean"] == accuracy
    assert trial.value == sum(trial.by_seed) / 2


def test_the_test_set_has_no_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = found(run(search(tmp_path / "before"), 3))
    load = data.load

    def permuted(*args: Any) -> Dataset:
        dataset = load(*args)
        labels = dataset.test.labels[torch.randperm(len(dataset.test.labels))]
        assert not torch.equal(labels, dataset.test.labels)
        return replace(dataset, test=dataset.test._replace(labels=labels))

    monkeypatch.setattr(build, "load", permuted)
    assert found(run(search(tmp_path / "after"), 3)) == before


def test_a_search_without_a_validation_split_is_refused(tmp_path: Path) -> None:
    settings = replace(search(tmp_path).settings, validation=None)
    with pytest.raises(ValueError, match="needs a validation split"):
        Search(settings, SPACE, (0,), 0, "")


# -- what is kept ---------------------------------------------------------------------------


def test_a_study_goes_on_where_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(search(tmp_path / "whole"), 4)
    evaluate, calls = studies.evaluate, []

    def interrupted(*args: Any) -> list[float]:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return evaluate(*args)

    monkeypatch.setattr(studies, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tune(search(tmp_path), 4, quiet=True)
    assert len(trials_of(open_study(search(tmp_path)))) == 2
    parts = run(search(tmp_path), 4)
    assert len(calls) == 5
    assert [f[1:] for f in found(parts)] == [f[1:] for f in found(whole)]
    assert run(search(tmp_path), 3) == parts  # there are as many already
    assert len(calls) == 5


def test_studies_that_differ_are_kept_apart(tmp_path: Path) -> None:
    one = search(tmp_path)
    others = [
        replace(one, seeds=(1,)),
        replace(one, study_seed=1),
        replace(one, space={**SPACE, "lr": Range(0.01, 0.4, log=True)}),
        replace(one, settings=replace(one.settings, max_steps=26)),
    ]
    assert len({s.name for s in (one, *others)}) == 5
    assert run(one, 1) != []
    assert trials_of(open_study(others[0])) == []
    searched = replace(one.settings, values={**one.settings.values, "lr": 9.0})
    assert replace(one, settings=searched).name == one.name  # what is searched is not held


def test_trials_that_fail_are_kept_and_the_study_goes_on(tmp_path: Path) -> None:
    trials = run(search(tmp_path, "sgd", {"lr": Choice((0.03, 1e30))}), 5)
    failed = [trial for trial in trials if trial.reason is not None]
    assert len(trials) == 5
    assert {trial.params["lr"] for trial in failed} == {1e30}
    assert all("infinite or not a number at step" in str(trial.reason) for trial in failed)
    assert all(trial.value is not None for trial in trials if trial not in failed)
    assert run(search(tmp_path, "sgd", {"lr": Choice((0.03, 1e30))}), 5) == trials


def test_the_trial_of_a_process_that_was_killed_is_made_up_for(tmp_path: Path) -> None:
    one = search(tmp_path)
    study = begin(one)
    for process in (f"{platform.node()} 999999999:1", f"{platform.node()} {os.getpid()}:1"):
        study.ask(studies.distributions(SPACE)).set_user_attr("process", process)
    elsewhere = study.ask(studies.distributions(SPACE))
    elsewhere.set_user_attr("process", "another-machine 999999999:1")
    assert len(run(one, 2)) == 2
    states = [trial.state for trial in study.get_trials()]
    assert states == [TrialState.FAIL, TrialState.FAIL, TrialState.RUNNING, TrialState.COMPLETE]


@pytest.mark.parametrize("lost", [0, 2])
def test_a_trial_that_was_lost_among_others_is_made_up_for_with_its_own_values(
    lost: int, tmp_path: Path
) -> None:
    whole = run(search(tmp_path / "whole"), 4)
    one = search(tmp_path)
    study = begin(one)
    for number in range(4):  # as of two workers, of which one is killed while the other goes on
        trial = study.ask(studies.distributions(SPACE))
        assert dict(trial.params) == whole[number].params
        if number == lost:
            trial.set_user_attr("process", f"{platform.node()} 999999999:1")
        else:
            study.tell(trial, 50.0)
    made_up = run(one, 4)[-1]
    assert made_up.number == 4
    assert made_up.params == whole[lost].params
    assert run(one, 5)[-1].params not in [trial.params for trial in whole]


def test_a_trial_that_has_yet_to_name_its_place_is_left_one(tmp_path: Path) -> None:
    one = search(tmp_path)
    study = begin(one)
    storage = studies._storage(one.storage)
    other = optuna.load_study(study_name=one.name, storage=storage)
    begun = other.ask()  # by another process, which has come no further
    for _ in range(2):
        study.ask()
    assert [trial.user_attrs.get("place") for trial in study.get_trials()] == [None, 1, 2]
    assert studies._free_place(study, begun.number) == 0


def test_a_database_serves_as_well(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path / 'study.db'}"
    assert len(run(search(tmp_path, storage=address), 2)) == 2
    assert len(run(search(tmp_path, storage=address), 3)) == 3
    assert found(run(search(tmp_path), 3)) == found(run(search(tmp_path, storage=address), 3))


# -- processes ------------------------------------------------------------------------------


def test_two_workers_share_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_meets.py").write_text(
        dedent(
            """
            import os, time
            from pathlib import Path
            import perdure

            class Meets(perdure.SGD):
                '''Begins when it runs in two processes, so that both have a part in the study.'''
                def __init__(self, network, **common):
                    super().__init__(network, **common)
                    Path(f"met-{os.getpid()}").touch()
                    deadline = time.monotonic() + 60
                    while len(list(Path().glob("met-*"))) < 2:
                        assert time.monotonic() < deadline
                        time.sleep(0.02)
            """
        )
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    one = search(tmp_path, "own_meets:Meets", {"lr": Range(0.01, 0.5)})
    trials = run(one, 5, workers=2)
    assert len(trials) == 5
    assert all(trial.value is not None for trial in trials)
    kept = optuna.load_study(study_name=one.name, storage=studies._storage(one.storage))
    processes = {trial.user_attrs["process"] for trial in kept.get_trials()}
    assert len(processes) == 2
    assert f"{platform.node()} {studies._process(os.getpid())}" not in processes


@pytest.mark.slow
def test_a_worker_that_dies_is_counted_and_its_trial_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_dies.py").write_text(
        "import os, perdure\n"
        "class Dies(perdure.SGD):\n"
        "    def step(self, images, labels): os.kill(os.getpid(), 9)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    trials, died = tune(
        search(tmp_path, "own_dies:Dies", {"lr": Range(0.01, 0.5)}), 2, workers=2, quiet=True
    )
    assert (trials, died) == ([], 2)
