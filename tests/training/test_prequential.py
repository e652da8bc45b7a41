"""Prequential evaluation: predictions before learning, which leave training as it is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from perdure import CLSER, ER, SGD, ICaRL, Learner, Samples, fit, from_batches, from_tensors
from perdure.evaluation import Prequential, PrequentialAccuracy
from perdure.evaluation.prequential import MAX_WINDOW
from perdure.results import RunFolder
from perdure.state import as_bytes
from perdure.training import Callback, EventLog, Run, train

from . import toy
from .toy import Recorder, assert_same


class Meddling(nn.Module):
    """Draws random numbers and changes its inputs, in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(F.dropout(inputs.mul_(0.5).flatten(1), 0.3))  # type: ignore[no-any-return]


def batch_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(0.3),
        nn.Flatten(), nn.Linear(16, 8),
    )  # fmt: skip


NETWORKS = {"dropout": toy.network, "BatchNorm and dropout": batch_norm, "meddling": Meddling}
LEARNERS: dict[str, Any] = {
    "sgd": SGD,
    "er": lambda network: ER(network, buffer_size=20, memory_batch=6),
    "clser": lambda network: CLSER(network, buffer_size=20, memory_batch=6),
    "icarl": lambda network: ICaRL(network, buffer_size=20),
}


def make(method: str, network: str = "dropout") -> Learner:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LEARNERS[method](NETWORKS[network]())  # type: ignore[no-any-return]


class Outcomes(Callback):
    """Keeps every accuracy, and the outcome of every prediction as a plain list."""

    def __init__(self) -> None:
        self.read: list[tuple[int, PrequentialAccuracy]] = []

    def on_prequential(self, run: Run, accuracy: PrequentialAccuracy) -> None:
        assert run.record.prequential is accuracy
        self.read.append((run.step, accuracy))


# -- the counts -----------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 7, 40, 1000])
def test_the_window_holds_the_last_samples(window: int) -> None:
    draws = torch.Generator().manual_seed(0)
    counts, outcomes = Prequential(window), list[bool]()
    assert counts.read() is None
    for size in (3, 1, 50, 0, 8, 8, 100):
        correct = torch.rand(size, generator=draws) < 0.6
        counts.add(correct)
        outcomes += correct.tolist()
        found, recent = counts.read(), outcomes[-window:]
        assert found is not None
        assert found.samples == len(outcomes)
        assert found.accuracy == pytest.approx(100 * sum(recent) / len(recent))
        assert found.overall == pytest.approx(100 * sum(outcomes) / len(outcomes))


def test_a_restored_window_continues_identically() -> None:
    one, other = Prequential(4), Prequential(4)
    one.add(torch.tensor([True, True, True, False, True]))
    other.add(torch.tensor([False]))
    other.load_state_dict(one.state_dict())
    for _ in range(3):
        assert other.read() == one.read()
        for each in (one, other):
            each.add(torch.tensor([False]))


def test_the_largest_window_is_accepted() -> None:
    assert Prequential(MAX_WINDOW).window == MAX_WINDOW


@pytest.mark.parametrize("window", [0, -1, MAX_WINDOW + 1])
def test_an_impossible_window_is_refused(window: int) -> None:
    with pytest.raises(ValueError, match="window"):
        fit(toy.learner("sgd"), toy.split(), prequential=window)


def test_the_state_is_as_large_after_many_samples_as_after_few() -> None:
    counts = Prequential(100)
    counts.add(torch.ones(10, dtype=torch.bool))
    few = len(as_bytes(counts.state_dict(), {}))
    for _ in range(200):
        counts.add(torch.ones(50, dtype=torch.bool))
    assert abs(len(as_bytes(counts.state_dict(), {})) - few) < 16  # digits of the count


# -- training -------------------------------------------------------------------------------


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", LEARNERS)
def test_predicting_does_not_change_what_is_learned(method: str, network: str) -> None:
    samples = toy.inputs(96, 0)
    stream = from_tensors(samples.inputs.float() / 255, samples.labels, groups=toy.GROUPS)
    states = []
    for prequential in (False, True):
        learner = make(method, network)
        torch.manual_seed(5)
        record = fit(learner, stream, batch=6, epochs=2, prequential=prequential)
        states.append({"learner": learner.state_dict(), "global": torch.get_rng_state()})
        assert (record.prequential is not None) == prequential
    assert_same(states[0], states[1])


def test_each_batch_is_predicted_by_the_answering_network_before_it_is_learned() -> None:
    batches = [toy.inputs(8, seed) for seed in range(30)]
    expected, learner = list[bool](), make("clser")
    for inputs, labels, _ in batches:
        expected += (learner.predict(inputs) == labels).tolist()
        learner.observe(inputs, labels)
    outcomes = Outcomes()
    record = fit(make("clser"), batches, prequential=50, callbacks=[outcomes])
    found = record.prequential
    assert found is not None
    assert (found.window, found.samples) == (50, 240)
    assert found.overall == pytest.approx(100 * sum(expected) / 240)
    assert found.accuracy == pytest.approx(100 * sum(expected[-50:]) / 50)
    assert [(step, a.samples) for step, a in outcomes.read] == [(10, 80), (20, 160), (30, 240)]
    assert outcomes.read[0][1].overall == pytest.approx(100 * sum(expected[:80]) / 80)


def test_accuracies_are_read_at_a_bounded_number_of_points() -> None:
    outcomes = Outcomes()
    batches = itertools.cycle([toy.inputs(2, 0)])
    fit(make("sgd"), batches, max_steps=1250, prequential=True, callbacks=[outcomes])
    dense, metrics = range(10, 1000, 10), range(1000, 1201, 100)
    assert [step for step, _ in outcomes.read] == [*dense, *metrics, 1250]


def test_runs_trained_together_are_evaluated_separately(tmp_path: Path) -> None:
    runs = [toy.run("er", seed, prequential=30) for seed in (0, 1)]
    folders = [RunFolder(tmp_path / str(run.seed)) for run in runs]
    for folder in folders:
        folder.path.mkdir()
    recorder = Recorder()
    logs = [EventLog(folder, run) for folder, run in zip(folders, runs, strict=True)]
    train(runs, callbacks=[*logs, recorder])
    for run, folder in zip(runs, folders, strict=True):
        alone = toy.run("er", run.seed, prequential=30)
        train([alone])
        assert run.record.result() == alone.record.result()
        last = [e for e in folder.events() if e["event"] == "prequential"][-1]
        result = run.record.result()["prequential"]
        assert last == {"event": "prequential", "step": 16, **result}
    windows = [run.record.prequential.accuracy for run in runs if run.record.prequential]
    assert recorder.progress[-1].prequential == pytest.approx(sum(windows) / 2)


def test_a_resumed_run_has_the_same_window() -> None:
    class Stop(Callback):
        def on_step(self, run: Run) -> None:
            if run.step == 7:
                states.append(run.state_dict())

    states: list[dict[str, Any]] = []
    whole = toy.run("er", prequential=30)
    train([whole], callbacks=[Stop()])
    states[0]["position"] = [1, 0, 3]  # as between two steps
    resumed = toy.run("er", prequential=30)
    resumed.load_state_dict(states[0])
    train([resumed])
    assert resumed.record.result()["prequential"] == whole.record.result()["prequential"]
    for other in (False, 31):
        with pytest.raises(ValueError, match="prequential"):
            toy.run("er", prequential=other).load_state_dict(states[0])


def test_labels_that_were_not_announced_are_predicted_before_the_network_grows() -> None:
    learner = ER(nn.Linear(4, 2), buffer_size=20, grow=True)
    inputs = torch.rand(8, 4)
    batches = [(inputs, torch.full((8,), label)) for label in (0, 1, 2, 3)]
    record = fit(learner, batches, prequential=8)
    assert record.prequential is not None
    assert record.prequential.accuracy == 0  # class 3 had no output yet
    assert learner.predict_proba(inputs).shape == (8, 4)


def test_structured_inputs_are_predicted() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.linear(left + right)  # type: ignore[no-any-return]

    batches = [
        ({"left": torch.rand(6, 4), "right": torch.rand(6, 4)}, torch.arange(6) % 3)
        for _ in range(3)
    ]
    states = []
    for prequential in (False, 10):
        torch.manual_seed(0)
        learner = ER(Sum(), buffer_size=10)
        record = fit(learner, batches, prequential=prequential)
        states.append(learner.state_dict())
    assert record.prequential is not None
    assert record.prequential.samples == 18
    assert_same(states[0], states[1])


# -- streams without tests ------------------------------------------------------------------


class Endless(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        samples = toy.inputs(8, 0)
        yield from itertools.cycle(zip(samples.inputs, samples.labels, strict=True))


def endless() -> Iterator[Samples]:
    yield from (toy.inputs(4, seed) for seed in itertools.count())


@pytest.mark.parametrize(
    "data",
    [
        from_tensors(*toy.inputs(60, 0)[:2]),
        from_batches(endless(), classes=8, shape=(1, 4, 4)),
        DataLoader(TensorDataset(*toy.inputs(60, 0)[:2]), batch_size=4),
        DataLoader(Endless(), batch_size=4),
        endless(),
    ],
    ids=["stream", "stream of batches", "loader", "endless loader", "iterator"],
)
def test_data_without_tests_is_evaluated(data: Any) -> None:
    record = fit(make("er"), data, max_steps=12, prequential=True)
    assert record.prequential is not None
    samples = record.prequential.samples
    assert (record.steps, samples) in [(12, 48), (2, 60)]  # a stream has batches of 32
    result = record.result()
    assert result["complete"] == (samples == 60)
    assert 0 <= result["prequential"]["accuracy"] <= 100


def test_max_steps_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="max_steps"):
        fit(make("er"), endless(), max_steps=0)


def test_progress_names_the_epoch_in_which_max_steps_ended_a_task() -> None:
    recorder = Recorder()
    train([toy.run("er", epochs=5)], callbacks=[recorder], max_steps=9)  # a task has 4 steps
    last = recorder.progress[-1]
    assert (last.task, last.epoch, last.task_ended) == (0, 2, True)
