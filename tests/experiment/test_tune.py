"""Studies: what is tried, what is stored, how several processes share one, and the outcome."""

from __future__ import annotations

import csv
import os
import platform
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from textwrap import dedent
from typing import Any
from xml.etree import ElementTree

import optuna
import pytest
import torch
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console

from perdure import data
from perdure.cli.tune import _trials_table
from perdure.data import Dataset
from perdure.experiment import build
from perdure.experiment import tune as studies
from perdure.experiment.resolve import resolve
from perdure.experiment.space import Choice, Range, Space
from perdure.experiment.tune import (
    Search,
    best_trial,
    draw,
    open_study,
    read_trials,
    tune,
    write_figure,
    write_trials,
)
from perdure.training import train

SPACE: Space = {"lr": Range(0.01, 0.5, log=True), "memory_batch": Choice((10, 32))}


def search(folder: Path, method: str = "er", space: Space = SPACE, **other: Any) -> Search:
    config = resolve("s-mnist", method, dataset="mnist5k", validation=0.1, max_steps=25)
    kept = {"seeds": (0,), "study_seed": 0, "storage": str(folder / "study.journal"), **other}
    return Search(config, space, **kept)


def found(trials: list[FrozenTrial]) -> list[tuple[int, dict[str, float], float | None]]:
    """What a study is known by: what was tried, and what came of it."""
    return [(trial.number, dict(trial.params), trial.value) for trial in trials]


def run(search: Search, trials: int, **how: Any) -> list[FrozenTrial]:
    done, deaths = tune(search, trials, **how)
    assert deaths == []
    return done


# -- what is stored -------------------------------------------------------------------------


def test_a_torn_last_line_of_the_journal_is_dropped(tmp_path: Path) -> None:
    whole = search(tmp_path)
    before = found(run(whole, 1))
    journal = Path(whole.storage)
    content = journal.read_bytes()
    journal.write_bytes(content + content.splitlines(keepends=True)[-1][:-10])
    assert found(read_trials(open_study(whole))) == before
    assert journal.read_bytes().startswith(content)
    assert found(run(whole, 2))[:1] == before


def test_the_lock_of_a_killed_process_ends_with_it(tmp_path: Path) -> None:
    whole = search(tmp_path)
    lock = open_study(whole)._storage._backend._lock  # type: ignore[attr-defined]
    child = os.fork()
    if not child:
        lock.acquire()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    began = time.monotonic()
    assert read_trials(open_study(whole)) == []
    assert time.monotonic() - began < 10


def test_processes_wait_for_each_other(tmp_path: Path) -> None:
    whole = search(tmp_path)
    first, second = (open_study(whole) for _ in range(2))
    lock = first._storage._backend._lock  # type: ignore[attr-defined]
    lock.acquire()
    other = threading.Thread(target=second.ask)
    other.start()
    other.join(0.2)
    assert other.is_alive()
    assert not first.trials
    lock.release()
    other.join(30)
    assert len(first.trials) == 1


def test_a_journal_is_not_written_through_a_link(tmp_path: Path) -> None:
    whole = search(tmp_path)
    Path(whole.storage).symlink_to(tmp_path / "notes")
    with pytest.raises(ValueError, match="symbolic link"):
        open_study(whole)
    assert not (tmp_path / "notes").exists()
    (tmp_path / "notes").write_text("of the user, without an end of the line")
    with pytest.raises(ValueError, match="symbolic link"):
        open_study(whole)
    assert (tmp_path / "notes").read_text() == "of the user, without an end of the line"


def test_a_trial_of_an_impossible_process_is_lost(tmp_path: Path) -> None:
    study = open_study(search(tmp_path))
    study.ask().set_user_attr("process", f"{platform.node()} {10**17}:1")
    studies.discard_lost_trials(study)
    assert not read_trials(study)


# -- what is tried --------------------------------------------------------------------------


def test_the_same_seed_tries_the_same_values(tmp_path: Path) -> None:
    one, again, other = (
        found(run(search(tmp_path / name, study_seed=seed), 3))
        for name, seed in (("one", 0), ("again", 0), ("other", 1))
    )
    assert one == again
    assert [params for _, params, _ in one] != [params for _, params, _ in other]


def test_the_published_values_are_tried_first(tmp_path: Path) -> None:
    first = run(search(tmp_path), 1)[0]
    values = search(tmp_path).config.hyperparameters
    assert first.params == {name: values[name] for name in SPACE}
    elsewhere: Space = {"lr": Range(0.3, 0.5), "memory_batch": Choice((10, 64))}
    second = run(search(tmp_path, space=elsewhere), 1)[0]
    assert 0.3 <= second.params["lr"] <= 0.5
    assert second.params["memory_batch"] == values["memory_batch"]


def test_trials_are_inside_the_space(tmp_path: Path) -> None:
    space: Space = {"lr": Range(0.2, 0.3), "batch": Range(5, 9, integer=True)}
    for trial in run(search(tmp_path, "sgd", space), 4)[1:]:
        assert 0.2 <= trial.params["lr"] <= 0.3
        assert trial.params["batch"] in range(5, 10)


def test_the_value_is_the_mean_over_seeds_on_the_validation_split(tmp_path: Path) -> None:
    trial = run(search(tmp_path, seeds=(0, 3)), 1)[0]
    assert trial.value is not None
    config = search(tmp_path).config
    config = replace(config, hyperparameters={**config.hyperparameters, **trial.params})
    for seed, accuracy in zip((0, 3), trial.user_attrs["by_seed"], strict=True):
        single = build.build_run(config, build.read_dataset(config), seed)
        record = train([single], max_steps=25)[0]
        assert single.stream.data == "mnist5k-validation"
        assert record.result()["predictors"]["working"]["class_il"]["mean"] == accuracy
    assert trial.value == sum(trial.user_attrs["by_seed"]) / 2


def test_the_test_set_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = found(run(search(tmp_path / "before"), 3))
    load = data.load

    def permuted(*args: Any, **options: Any) -> Dataset:
        dataset = load(*args, **options)
        labels = dataset.test.labels[torch.randperm(len(dataset.test.labels))]
        assert not torch.equal(labels, dataset.test.labels)
        return replace(dataset, test=dataset.test._replace(labels=labels))

    monkeypatch.setattr(build, "load", permuted)
    assert found(run(search(tmp_path / "after"), 3)) == before


def test_a_search_without_a_validation_split_is_refused(tmp_path: Path) -> None:
    config = replace(search(tmp_path).config, validation=None)
    with pytest.raises(ValueError, match="validation split"):
        Search(config, SPACE, (0,), 0, "")


# -- what is kept ---------------------------------------------------------------------------


def test_an_interrupted_study_continues_with_the_same_values(
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
        tune(search(tmp_path), 4)
    assert len(read_trials(open_study(search(tmp_path)))) == 2
    parts = run(search(tmp_path), 4)
    assert len(calls) == 5
    assert [f[1:] for f in found(parts)] == [f[1:] for f in found(whole)]
    assert run(search(tmp_path), 3) == parts  # there are as many already
    assert len(calls) == 5


def test_different_studies_have_different_names(tmp_path: Path) -> None:
    one = search(tmp_path)
    others = [
        replace(one, seeds=(1,)),
        replace(one, study_seed=1),
        replace(one, space={**SPACE, "lr": Range(0.01, 0.4, log=True)}),
        replace(one, config=replace(one.config, max_steps=26)),
    ]
    assert len({s.name for s in (one, *others)}) == 5
    assert run(one, 1) != []
    assert read_trials(open_study(others[0])) == []
    other_lr = {**one.config.hyperparameters, "lr": 9.0}  # searched, so its value is irrelevant
    assert replace(one, config=replace(one.config, hyperparameters=other_lr)).name == one.name


def test_failed_trials_count_and_the_study_continues(tmp_path: Path) -> None:
    trials = run(search(tmp_path, "sgd", {"lr": Choice((0.03, 1e30))}), 5)
    failed = [trial for trial in trials if trial.state == TrialState.FAIL]
    assert len(trials) == 5
    assert {trial.params["lr"] for trial in failed} == {1e30}
    assert all("1e+30" in trial.user_attrs["reason"] for trial in failed)
    assert all(trial.value is not None for trial in trials if trial not in failed)
    assert run(search(tmp_path, "sgd", {"lr": Choice((0.03, 1e30))}), 5) == trials


def test_the_trial_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    one = search(tmp_path)
    study = open_study(one)
    for process in (f"{platform.node()} 999999999:1", f"{platform.node()} {os.getpid()}:1"):
        studies.ask(study, one).set_user_attr("process", process)
    elsewhere = studies.ask(study, one)
    elsewhere.set_user_attr("process", "another-machine 999999999:1")
    assert len(run(one, 2)) == 2
    states = [trial.state for trial in study.get_trials()]
    assert states == [TrialState.FAIL, TrialState.FAIL, TrialState.RUNNING, TrialState.COMPLETE]


@pytest.mark.parametrize("lost", [0, 2])
def test_a_lost_trial_is_replaced_with_the_same_values(lost: int, tmp_path: Path) -> None:
    whole = run(search(tmp_path / "whole"), 4)
    one = search(tmp_path)
    study = open_study(one)
    for number in range(4):  # as of two workers, of which one is killed while the other goes on
        trial = studies.ask(study, one)
        assert dict(trial.params) == whole[number].params
        if number == lost:
            trial.set_user_attr("process", f"{platform.node()} 999999999:1")
        else:
            trial.set_user_attr("by_seed", [50.0])
            study.tell(trial, 50.0)
    made_up = run(one, 4)[-1]
    assert made_up.number == 4
    assert made_up.params == whole[lost].params
    assert run(one, 5)[-1].params not in [trial.params for trial in whole]


def test_a_trial_without_a_place_keeps_the_smallest_free_one(tmp_path: Path) -> None:
    one = search(tmp_path)
    study = open_study(one)
    storage = studies._storage(one.storage)
    other = optuna.load_study(study_name=one.name, storage=storage)
    begun = other.ask()  # by another process, which has come no further
    for _ in range(2):
        studies.ask(study, one)
    assert [trial.user_attrs.get("place") for trial in study.get_trials()] == [None, 1, 2]
    assert studies._free_place(study, begun.number) == 0


def test_a_study_can_be_stored_in_a_database(tmp_path: Path) -> None:
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
def test_a_worker_that_dies_is_reported_and_its_trial_discarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_dies.py").write_text(
        "import os, perdure\n"
        "class Dies(perdure.SGD):\n"
        "    def step(self, images, labels): os.kill(os.getpid(), 9)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    one = search(tmp_path, "own_dies:Dies", {"lr": Range(0.01, 0.5)})
    trials, deaths = tune(one, 2, workers=2)
    assert trials == []
    assert ["signal 9" in failure.reason for failure in deaths] == [True, True]


# -- the outcome ----------------------------------------------------------------------------


def make_trial(
    number: int,
    params: Mapping[str, float],
    *,
    by_seed: Sequence[float] = (),
    reason: str | None = None,
) -> FrozenTrial:
    """A trial that is complete, failed with a reason, or still running."""
    state, attributes = TrialState.RUNNING, dict[str, object]()
    if by_seed:
        state, attributes = TrialState.COMPLETE, {"by_seed": by_seed}
    elif reason is not None:
        state, attributes = TrialState.FAIL, {"reason": reason}
    start = datetime(2025, 1, 1)
    return FrozenTrial(
        number=number,
        state=state,
        value=sum(by_seed) / len(by_seed) if by_seed else None,
        datetime_start=start,
        datetime_complete=None if state == TrialState.RUNNING else start,
        params=dict(params),
        distributions={},
        user_attrs=attributes,
        system_attrs={},
        intermediate_values={},
        trial_id=number,
    )


WIDE: Space = {
    "lr": Range(0.001, 1, log=True),
    "memory_batch": Choice((16, 32)),
    "batch": Range(1, 4, integer=True),
}
TRIALS = [
    make_trial(0, {"lr": 0.1, "memory_batch": 16, "batch": 2}, by_seed=[79.0, 81.0]),
    make_trial(1, {"lr": 1.0, "memory_batch": 32, "batch": 2}, reason="diverged, and more"),
    make_trial(3, {"lr": 0.01, "memory_batch": 32, "batch": 2}, by_seed=[90.0]),
    make_trial(4, {"lr": 0.02, "memory_batch": 16, "batch": 2}, by_seed=[85.0]),
    make_trial(5, {"lr": 0.03, "memory_batch": 16, "batch": 2}, by_seed=[90.0]),
    make_trial(6, {"lr": 0.04, "memory_batch": 16, "batch": 2}),
]


def test_the_best_trial_is_the_first_with_the_highest_accuracy() -> None:
    best = best_trial(TRIALS)
    assert best is not None
    assert best.number == 3
    assert best_trial(TRIALS[1:2]) is None
    assert best_trial([]) is None


def test_the_file_contains_all_trials(tmp_path: Path) -> None:
    write_trials(tmp_path / "trials.csv", TRIALS, WIDE)
    with (tmp_path / "trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["trial"] for row in rows] == ["0", "1", "3", "4", "5", "6"]
    assert (rows[0]["accuracy"], rows[0]["lr"]) == ("80.0", "0.1")
    assert rows[1]["failed"] == "diverged, and more"


def test_the_figure_shows_completed_trials_over_the_whole_space() -> None:
    history, lr, memory_batch, batch = draw(TRIALS, WIDE, "A study").axes[:4]
    points, best = history.lines
    assert points.get_xydata().tolist() == [[0, 80], [3, 90], [4, 85], [5, 90]]  # type: ignore[union-attr]
    assert list(best.get_ydata()) == [80, 90, 90, 90]  # type: ignore[arg-type]
    assert (lr.get_xscale(), lr.get_xlim(), batch.get_xlim()) == ("log", (0.001, 1), (1, 4))
    assert list(memory_batch.lines[0].get_xdata()) == [0, 1, 0, 0]  # type: ignore[arg-type]
    assert [label.get_text() for label in memory_batch.get_xticklabels()] == ["16", "32"]


def test_the_figure_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    for name in ("one.svg", "other.svg"):
        write_figure(tmp_path / name, TRIALS, WIDE, "A study")
    one, other = ((tmp_path / name).read_bytes() for name in ("one.svg", "other.svg"))
    assert one == other
    assert ElementTree.fromstring(one).tag.endswith("svg")
    for words in (b"A study", b"memory_batch", b"validation accuracy"):
        assert words in one


def test_the_table_ranks_trials() -> None:
    space: Space = {"lr": Range(0.001, 1, log=True), "memory_batch": Choice((16, 32))}
    trials = [
        make_trial(0, {"lr": 0.1, "memory_batch": 16}, by_seed=[79.0, 81.0]),
        make_trial(1, {"lr": 1.0, "memory_batch": 32}, reason="diverged"),
        make_trial(3, {"lr": 0.01, "memory_batch": 32}, by_seed=[90.0]),
        make_trial(6, {}),
    ]
    console = Console(width=100)
    with console.capture() as captured:
        console.print(_trials_table(trials, space, "A study"))
    rows = [line.split("│")[1:-1] for line in captured.get().splitlines() if "│" in line]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["3", "90.00", "0.01", "32"],
        ["0", "80.00 ± 1.41", "0.1", "16"],
        ["1", "failed", "1", "32"],
        ["6", "running", "", ""],
    ]
    assert "1 failed" in captured.get()
    many = [make_trial(n, {"lr": 0.1, "memory_batch": 16}, by_seed=[n]) for n in range(30)]
    with console.capture() as captured:
        console.print(_trials_table(many, space, "A study"))
    assert "20 more" in captured.get()
