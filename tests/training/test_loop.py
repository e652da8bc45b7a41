"""The training loop: order of steps, evaluations and callbacks, and what it refuses."""

from __future__ import annotations

import copy
import itertools
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from perdure import ER, SGD, Samples, Stream, fit, from_batches, from_tensors
from perdure.state import State
from perdure.training import Callback, Interrupted, Progress, Run, TrainingError, train
from perdure.training.loop import METRICS_EVERY

from . import toy
from .toy import Recorder, RecordingLearner, assert_same

# -- runs trained together ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sgd", "er", "clser"])
def test_runs_trained_together_equal_runs_trained_alone(kind: str) -> None:
    together = [toy.run(kind, seed, epochs=2) for seed in (0, 1, 2)]
    train(together)
    for run in together:
        alone = toy.run(kind, run.seed, epochs=2)
        train([alone])
        assert_same(run.learner.state_dict(), alone.learner.state_dict())
        assert run.record.result() == alone.record.result()
    weights = [run.learner.network.state_dict()["1.weight"] for run in together]
    assert not torch.equal(weights[0], weights[1])


def test_the_seed_of_a_run_determines_the_order_of_its_data() -> None:
    def order(seed: int) -> list[list[int]]:
        seen: list[list[int]] = []

        class Watching(RecordingLearner):
            def step(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
                seen.append(inputs.flatten(1).sum(1).tolist())
                super().step(inputs, labels)

        train([Run(Watching(toy.network()), toy.split(), batch=6, seed=seed)])
        return seen

    assert order(3) == order(3) != order(4)
    assert sorted(itertools.chain(*order(3)[:4])) == sorted(itertools.chain(*order(4)[:4]))


# -- evaluation -----------------------------------------------------------------------------


@pytest.mark.parametrize("initially", [True, False])
def test_tasks_seen_and_the_next_task_are_evaluated(initially: bool) -> None:
    (record,) = train([toy.run("clser")], initial_evaluation=initially)
    expected = [
        [initially] * 4,  # before training
        [True, True, False, False],
        [True, True, True, False],
        [True, True, True, True],
        [True, True, True, True],
    ]
    assert record.moments == [-1, 0, 1, 2, 3]
    for matrices in (record.class_il, record.task_il):
        assert list(matrices) == ["stable", "plastic", "working"]
        for matrix in matrices.values():
            assert [[value is not None for value in row] for row in matrix] == expected
            assert all(0 <= value <= 100 for row in matrix for value in row if value is not None)


def test_forward_transfer_requires_an_initial_evaluation() -> None:
    for initially in (True, False):
        (record,) = train([toy.run("er")], initial_evaluation=initially)
        scores = record.result()["predictors"]["working"]["class_il"]
        assert (scores["forward_transfer"] is not None) == initially
        assert scores["forgetting"] is not None


class Kept(Callback):
    """Keeps the state at the last checkpoint."""

    def on_checkpoint(self, runs: Sequence[Run]) -> None:
        self.state = copy.deepcopy(runs[0].state_dict())


@pytest.mark.parametrize("boundaries", [False, True])
def test_training_can_be_stopped_and_resumed_during_an_evaluation(boundaries: bool) -> None:
    def make() -> Run:
        run = toy.run("er", batch=12)
        run.learner.needs_boundaries = boundaries
        run.learner.end_task = ended.append  # type: ignore[method-assign, assignment]
        return run

    ended: list[Samples] = []
    asked = 0

    def stop() -> int:
        nonlocal asked
        asked += 1
        return signal.SIGTERM if asked == after else 0

    after, whole = 0, make()
    (expected,) = train([whole], stop=stop, initial_evaluation=True)
    total, tasks = asked, len(ended)
    assert total > whole.step + 4  # steps, ends of tasks, and evaluations
    for number in range(1, total + 1):
        after = number
        asked, kept, run = 0, Kept(), make()
        ended.clear()
        with pytest.raises(Interrupted):
            train([run], callbacks=[kept], stop=stop, initial_evaluation=True)
        resumed = make()
        resumed.load_state_dict(kept.state)
        (record,) = train([resumed], initial_evaluation=True)
        assert record.result() == expected.result()
        assert len(ended) == tasks


def test_a_run_resumed_in_an_evaluation_reports_the_last_epoch_that_it_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class StopInEvaluation(Callback):
        def on_progress(self, progress: Progress) -> None:
            reports.append((progress.task, progress.epoch))
            if progress.evaluation is not None and progress.task == 1:
                requests.append(signal.SIGINT)

    monkeypatch.setattr("perdure.training.loop.PROGRESS_SECONDS", -1)
    monkeypatch.setattr("perdure.structures.MAX_CHUNK", 16)
    reports: list[tuple[int, int]] = []
    requests: list[int] = []
    kept = Kept()
    limit = 20 + 6  # 5 epochs of 4 steps, and one and a half
    with pytest.raises(Interrupted):
        train(
            [toy.run(epochs=5)],
            callbacks=[StopInEvaluation(), kept],
            max_steps=limit,
            stop=lambda: max(requests, default=0),
        )
    reports.clear()
    resumed = toy.run(epochs=5)
    resumed.load_state_dict(kept.state)
    train([resumed], callbacks=[StopInEvaluation()], max_steps=limit)
    assert set(reports) == {(1, 1)}


def test_long_evaluations_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Watching(Callback):
        def on_progress(self, progress: Progress) -> None:
            if progress.evaluation is not None:
                seen.append(progress.evaluation)

    seen: list[tuple[int, int | None]] = []
    monkeypatch.setattr("perdure.training.loop.PROGRESS_SECONDS", -1)
    monkeypatch.setattr("perdure.structures.MAX_CHUNK", 16)
    train([toy.run("clser")], callbacks=[Watching()], initial_evaluation=True)
    assert seen[:9] == [
        (done, 120) for network in (0, 40, 80) for done in (network, network + 16, network + 32)
    ]


def test_recorded_accuracies_are_those_of_the_learner() -> None:
    run = toy.run("er", epochs=5)
    (record,) = train([run])
    test = toy.inputs(40, 1)
    right = run.learner.predict(test.inputs) == test.labels
    by_task = [right[test.labels // 2 == task].double().mean() * 100 for task in range(4)]
    last = record.class_il["working"][-1]
    assert last == pytest.approx([float(value) for value in by_task])
    assert record.latest() == pytest.approx(sum(map(float, by_task)) / 4)


def test_training_learns() -> None:
    learner = ER(toy.network(), buffer_size=80, lr=0.3)
    record = fit(learner, toy.split(), batch=6, epochs=30)
    assert record.latest() == pytest.approx(100, abs=20)


# -- callbacks ------------------------------------------------------------------------------


def test_on_step_is_called_for_every_step_of_every_run() -> None:
    recorder = Recorder()
    train([toy.run("er", seed) for seed in (5, 6)], callbacks=[recorder])
    assert recorder.steps == [(seed, step) for step in range(1, 17) for seed in (5, 6)]


def test_on_task_is_called_before_training_and_after_each_task() -> None:
    recorder = Recorder()
    fit(toy.learner("sgd"), toy.split(), batch=6, epochs=2, callbacks=[recorder])
    assert recorder.tasks == [(-1, 0), (0, 8), (1, 16), (2, 24), (3, 32)]


def test_callbacks_are_called_in_order() -> None:
    class Named(Callback):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_task(self, run: Run, task: int) -> None:
            calls.append((self.name, task))

    calls: list[tuple[str, int]] = []
    train([toy.run()], callbacks=[Named("a"), Named("b")], max_steps=1)
    assert calls == [("a", -1), ("b", -1), ("a", 0), ("b", 0)]


def test_metrics_are_reported_every_hundred_steps_and_at_the_end_of_a_task() -> None:
    recorder = Recorder()
    train([toy.run(batch=1, epochs=10)], callbacks=[recorder])  # 240 steps per task
    regular = range(METRICS_EVERY, 4 * 240 + 1, METRICS_EVERY)
    assert [step for step, _ in recorder.metrics] == sorted([*regular, 240, 480, 720, 960])


def test_slow_steps_report_progress_between_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []

    class Positions(Callback):
        def on_progress(self, progress: Progress) -> None:
            steps.append(progress.step)

    monkeypatch.setattr("perdure.training.loop.SLOW_SECONDS", 0.0)
    train([toy.run(batch=1)], callbacks=[Positions()], max_steps=20)
    assert set(range(1, 20)) <= set(steps)


def test_metrics_are_reported_once_where_a_task_ends_at_a_multiple_of_a_hundred() -> None:
    recorder = Recorder()
    train([toy.run(batch=6, epochs=25)], callbacks=[recorder])  # 100 steps per task
    assert [step for step, _ in recorder.metrics] == [100, 200, 300, 400]


def test_tasks_without_a_full_batch_report_no_metrics() -> None:
    recorder = Recorder()
    train([toy.run(batch=32, stream=toy.split(drop_last=True))], callbacks=[recorder])
    assert recorder.metrics == []
    assert [task for task, _ in recorder.tasks] == [-1, 0, 1, 2, 3]


def test_metrics_are_means_since_the_last_report() -> None:
    class Losses(Recorder):
        def on_step(self, run: Run) -> None:
            losses.append(run.learner.totals()["loss"] - sum(losses))

    losses: list[float] = []
    recorder = Losses()
    run = toy.run("er", batch=1, epochs=10)
    (record,) = train([run], callbacks=[recorder], max_steps=240)
    (_, first), (_, second), (_, third) = recorder.metrics
    assert first["loss"] == pytest.approx(sum(losses[:100]) / 100)
    assert second["loss"] == pytest.approx(sum(losses[100:200]) / 100)
    assert third["loss"] == pytest.approx(sum(losses[200:]) / 40)
    assert record.totals["loss"] == pytest.approx(sum(losses))


def test_callbacks_do_not_change_the_learner() -> None:
    watched, unwatched = toy.run("clser", epochs=30), toy.run("clser", epochs=30)
    train([watched], callbacks=[Recorder()])
    train([unwatched])
    assert_same(watched.state_dict(), unwatched.state_dict())


def test_progress_is_reported_at_the_end_of_every_task() -> None:
    recorder = Recorder()
    train([toy.run(epochs=2)], callbacks=[recorder])
    reports = recorder.progress
    assert [(p.task, p.step) for p in reports] == [(0, 8), (1, 16), (2, 24), (3, 32)]
    assert {(p.tasks, p.epochs, p.total_steps) for p in reports} == {(4, 2, 32)}
    assert all(p.accuracy is not None and p.seconds > 0 for p in reports)


def test_a_callback_can_request_checkpoints() -> None:
    class Fifth(Callback):
        def checkpoint_due(self) -> bool:
            return len(recorder.steps) % 5 == 0

    recorder = Recorder()
    train([toy.run()], callbacks=[Fifth(), recorder])
    assert recorder.checkpoints == [4, 5, 8, 10, 12, 15, 16]  # a task has 4 steps


# -- max_steps ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_steps", "steps", "moments"),
    [
        (1, 1, [-1, 0]),
        (4, 4, [-1, 0]),
        (5, 5, [-1, 0, 1]),
        (15, 15, [-1, 0, 1, 2, 3]),
        (16, 16, [-1, 0, 1, 2, 3]),
        (1000, 16, [-1, 0, 1, 2, 3]),
    ],
)
def test_training_ends_after_max_steps(max_steps: int, steps: int, moments: list[int]) -> None:
    run = toy.run("er")
    assert run.total_steps(max_steps) == steps
    (record,) = train([run], max_steps=max_steps)
    assert (run.step, record.steps, int(run.learner.steps)) == (steps, steps, steps)
    assert record.moments == moments
    assert record.result()["complete"] == (max_steps >= 16)


def test_a_limited_run_may_have_any_number_of_epochs() -> None:
    (record,) = train([toy.run(epochs=2**62)], max_steps=3)  # counting to it would take too long
    assert record.steps == 3


def test_a_limited_run_equals_the_beginning_of_an_unlimited_one() -> None:
    class Snapshot(Callback):
        def on_step(self, run: Run) -> None:
            if run.step == 7:
                states.append(run.learner.state_dict())

    states: list[State] = []
    limited = toy.run("clser")
    train([toy.run("clser")], callbacks=[Snapshot()])
    train([limited], max_steps=7)
    for part in ("network", "stable", "plastic", "memory"):
        assert_same(limited.learner.state_dict()[part], states[0][part])


# -- streams --------------------------------------------------------------------------------


def test_streams_without_tests_are_trained_on() -> None:
    recorder = Recorder()
    stream = from_tensors(*toy.inputs(40, 0)[:2])
    run = Run(toy.learner("clser"), stream, batch=8)
    (record,) = train([run], callbacks=[recorder])
    assert (run.step, recorder.tasks, record.latest()) == (5, [(-1, 0), (0, 5)], None)
    result = record.result()
    assert (result["moments"], result["tests"], result["complete"]) == ([], [], True)
    assert result["predictors"]["stable"] == {"class_il": None, "task_il": None, "per_class": None}


def test_supplied_batches_are_used_as_they_are() -> None:
    sizes = [5, 3, 1, 7]
    batches = [toy.inputs(size, seed)[:2] for seed, size in enumerate(sizes)]
    learner = RecordingLearner(toy.network())
    learner.needs_boundaries = False
    stream = from_batches(batches, classes=8, shape=(1, 4, 4), test=toy.inputs(16, 9))
    record = fit(learner, stream, epochs=2)
    assert record.steps == 2 * len(sizes)
    assert record.class_il["working"][1][0] is not None
    expected = [f"step on {sorted(set(labels.tolist()))}" for _, labels in batches]
    assert learner.calls == 2 * expected
    for batch in (5, 32):
        with pytest.raises(ValueError, match="batch does not apply to own, which comes in batches"):
            fit(learner, stream, batch=batch)
    joint = stream.joined(32, torch.Generator())
    assert fit(learner, joint, batch=8).steps == 2


def test_endless_streams_end_with_max_steps() -> None:
    drawn = 0

    def endless() -> Iterator[Samples]:
        nonlocal drawn
        while True:
            drawn += 1
            yield toy.inputs(4, drawn)

    stream = from_batches(endless(), classes=8, shape=(1, 4, 4), test=toy.inputs(16, 9))
    run = Run(toy.learner("er"), stream)
    assert (run.total_steps(), run.total_steps(250)) == (None, 250)
    (record,) = train([run], max_steps=250)
    assert record.steps == 250
    assert record.moments == [-1, 0]
    assert drawn == 250


def test_an_invalid_batch_is_refused() -> None:
    good, bad = toy.inputs(4, 0), Samples(torch.zeros(4, 1, 4, 4), torch.tensor([0, 1, 2, 8]))
    stream = from_batches([good, bad], classes=8, shape=(1, 4, 4))
    with pytest.raises(ValueError, match="label is 8; expected 0 to 7"):
        fit(toy.learner("er"), stream)


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))


def test_a_last_batch_of_one_sample_is_refused_before_training_if_batch_norm_cannot_use_it() -> (
    None
):
    stream = from_tensors(*toy.inputs(13, 0)[:2], tasks=[range(8), range(8, 13)])
    learner = SGD(batch_norm())
    with pytest.raises(ValueError, match=r"last batch of task 'task 2' has one sample.*drop_last"):
        fit(learner, stream, batch=4)
    assert int(learner.steps) == 0
    assert fit(learner, stream, batch=4, max_steps=3).steps == 3  # the sample is not reached
    assert fit(learner, stream, batch=5).steps == 3
    short = from_tensors(*toy.inputs(13, 0)[:2], drop_last=True)
    assert fit(learner, short, batch=4).steps == 3


def test_a_batch_of_one_sample_is_used_where_the_network_accepts_it() -> None:
    stream = from_tensors(*toy.inputs(13, 0)[:2])
    maps = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 8))
    for learner in (SGD(maps), ER(batch_norm(), buffer_size=8)):
        assert fit(learner, stream, batch=4).steps == 4


@pytest.mark.parametrize("method", [SGD, partial(ER, buffer_size=8)])
def test_a_supplied_batch_of_one_sample_is_refused_when_it_arrives(method: Any) -> None:
    first = [] if method is not SGD else [toy.inputs(4, 0)]  # otherwise stored samples are added
    learner = method(batch_norm())
    stream = from_batches([*first, toy.inputs(1, 0)], classes=8, shape=(1, 4, 4))
    with pytest.raises(ValueError, match=r"the batch has one sample.*BatchNorm"):
        fit(learner, stream)
    assert int(learner.steps) == len(first)


def test_samples_are_built_when_their_task_begins_and_released_after_it() -> None:
    class Watching(Callback):
        def on_task(self, run: Run, task: int) -> None:
            held = sum(t._samples is not None for t in stream.tasks)
            seen.append((len(built), held))

    built: list[str] = []
    seen: list[tuple[int, int]] = []
    stream = toy.split()

    def building(name: str, samples: Samples) -> Samples:
        built.append(name)
        return samples

    for task in stream.tasks:
        task._make = lambda task=task, make=task._make: building(task.name, make())  # type: ignore[misc]
    fit(toy.learner("sgd"), stream, batch=6, epochs=3, callbacks=[Watching()])
    assert built == ["task 1", "task 2", "task 3", "task 4"]
    assert seen == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]


def test_joined_streams_are_one_task_with_every_test() -> None:
    stream: Stream = toy.split()
    joined = replace(stream.joined(6, torch.Generator()), name="joint")
    run = Run(toy.learner("sgd"), joined, batch=10)
    (record,) = train([run], initial_evaluation=True)
    assert run.step == 10  # 96 samples, including the last short batch
    assert record.moments == [-1, 0]
    for row in record.class_il["working"]:
        assert None not in row


# -- data loaders ---------------------------------------------------------------------------


def loader(count: int = 40, **options: Any) -> DataLoader[tuple[torch.Tensor, ...]]:
    dataset = TensorDataset(*toy.inputs(count, 0)[:2])
    return DataLoader(dataset, **{"batch_size": 12, "shuffle": True, **options})


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"num_workers": 1}])
def test_fit_on_a_data_loader_equals_a_loop_over_it(options: dict[str, Any]) -> None:
    fitted, looped = toy.learner("clser"), toy.learner("clser")
    torch.manual_seed(3)
    record = fit(fitted, loader(**options), epochs=3)
    torch.manual_seed(3)
    batches = loader(**options)
    for _ in range(3):
        for inputs, labels in batches:
            looped.observe(inputs, labels)
    assert record.steps == int(looped.steps) == 3 * len(batches)
    assert record.totals == looped.totals()
    assert_same(fitted.network.state_dict(), looped.network.state_dict())
    assert_same(fitted.state_dict()["memory"], looped.state_dict()["memory"])


def test_a_data_loader_is_read_once_per_epoch() -> None:
    class Counting(Dataset[tuple[torch.Tensor, torch.Tensor]]):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            read.append(index)
            return samples.inputs[index], samples.labels[index]

    read: list[int] = []
    samples = toy.inputs(40, 0)
    fit(toy.learner("er"), DataLoader(Counting(), batch_size=12, shuffle=True), epochs=2)
    assert sorted(read) == sorted([*range(40), *range(40)])
    assert sorted(read[:40]) == [*range(40)]


def test_fit_on_a_data_loader_calls_callbacks_and_knows_its_length() -> None:
    recorder = Recorder()
    fit(toy.learner("er"), loader(), epochs=2, callbacks=[recorder])
    assert [step for _, step in recorder.steps] == [*range(1, 9)]
    assert recorder.tasks == [(-1, 0), (0, 8)]
    assert [step for step, _ in recorder.metrics] == [8]
    assert [p.total_steps for p in recorder.progress] == [8]


def test_fit_accepts_any_iterable_of_batches() -> None:
    class Three(IterableDataset[Samples]):
        def __iter__(self) -> Iterator[Samples]:
            return (toy.inputs(size, size) for size in (3, 5, 1))

    arrays = [(x.numpy(), y.numpy()) for x, y, _ in Three()]
    for data in (Three(), DataLoader(Three(), batch_size=None), arrays, iter(arrays)):
        assert fit(toy.learner("er"), data).steps == 3
    assert fit(toy.learner("er"), arrays, epochs=2).steps == 6


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (loader(), {"batch": 12}, "batch applies to streams only"),
        (iter(loader()), {"epochs": 2}, "iterator, which can be read only once"),
        ([], {}, "no batches"),
        (7, {}, "of type int; expected a Stream or an iterable of batches"),
        (DataLoader, {}, "the class DataLoader, not an instance"),
        (TensorDataset(*toy.inputs(8, 0)[:2]), {}, "wrap a Dataset in a DataLoader"),
        ([{"inputs": 1, "labels": 2}], {}, "must yield batches"),
        ([{"inputs": torch.rand(4, 1, 4, 4), "y": torch.arange(4)}], {}, "labels"),
        (DataLoader(TensorDataset(torch.rand(4, 1, 4, 4))), {}, "has 1 item"),
        (torch.rand(4, 2, 1, 4, 4), {}, "type Tensor"),
        ([(torch.rand(4, 3), torch.arange(4))], {}, r"does not accept inputs .*\[3\]"),
        ([(torch.rand(4, 1, 4, 4), torch.arange(4) + 5)], {}, "label is 8; expected 0 to 7"),
    ],
)
def test_data_that_does_not_fit_is_refused(
    data: Any, options: Mapping[str, Any], message: str
) -> None:
    learner = toy.learner("er")
    before = learner.state_dict()
    with pytest.raises(ValueError, match=message):
        fit(learner, data, **options)
    assert_same(learner.state_dict(), before)


def test_classes_in_place_of_a_learner_or_network_are_refused() -> None:
    with pytest.raises(ValueError, match="the class ER, not an instance"):
        fit(ER, loader())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the class Linear, not an instance"):
        ER(nn.Linear, buffer_size=5)  # type: ignore[arg-type]


def test_batches_with_further_items_are_refused() -> None:
    inputs, labels, _ = toy.inputs(8, 0)
    learner = toy.learner("er")
    before = learner.state_dict()
    numbered = DataLoader(TensorDataset(inputs, torch.arange(8) % 2, labels), batch_size=4)
    with pytest.raises(ValueError, match="has 3 items"):
        fit(learner, numbered)
    assert_same(learner.state_dict(), before)
    assert fit(learner, ((x, y) for x, _, y in numbered)).steps == 2
    with pytest.raises(ValueError, match="has 3 items"):
        fit(learner, [(inputs, labels), (inputs, labels, labels)])
    assert int(learner.steps) == 3


def test_methods_that_need_boundaries_refuse_a_data_loader() -> None:
    with pytest.raises(ValueError, match="RecordingLearner needs task boundaries"):
        fit(RecordingLearner(toy.network()), loader())


# -- task boundaries ------------------------------------------------------------------------


def test_end_task_is_called_for_learners_that_need_it() -> None:
    learner = RecordingLearner(toy.network())
    fit(learner, toy.split(), batch=12)
    expected = [c for a, b in toy.GROUPS for c in [f"step on [{a}, {b}]"] * 2 + ["end of task"]]
    assert learner.calls == expected
    assert [len(samples.labels) for samples in learner.ended] == [toy.PER_TASK] * 4
    assert [set(samples.labels.tolist()) for samples in learner.ended] == [*map(set, toy.GROUPS)]


def test_end_task_is_called_before_the_evaluation() -> None:
    class Watching(Callback):
        def on_task(self, run: Run, task: int) -> None:
            at_evaluation.append(len(learner.ended))

    at_evaluation: list[int] = []
    learner = RecordingLearner(toy.network())
    fit(learner, toy.split(), batch=12, callbacks=[Watching()])
    assert at_evaluation == [0, 1, 2, 3, 4]


def test_learners_that_need_boundaries_are_refused_where_there_are_none() -> None:
    stream = from_tensors(*toy.inputs(16, 0)[:2], name="flow")
    with pytest.raises(ValueError, match="RecordingLearner needs task boundaries, and flow has"):
        Run(RecordingLearner(toy.network()), stream)


def test_end_task_is_not_called_for_learners_that_do_not_need_it() -> None:
    learner = RecordingLearner(toy.network())
    learner.needs_boundaries = False
    fit(learner, toy.split(), batch=12)
    assert learner.ended == []
    assert len(learner.calls) == 8


# -- errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("nan_at", [1, 7, 16])
def test_training_stops_at_a_loss_that_is_not_finite(nan_at: int) -> None:
    learner = RecordingLearner(toy.network(), nan_at=nan_at, lr=0.25)
    run = Run(learner, toy.split(), batch=6, seed=4)
    message = rf"seed 4: the loss .* at step {nan_at}; .* rate \(0.25\) is probably too high"
    with pytest.raises(TrainingError, match=message):
        train([run])
    assert run.step < nan_at + METRICS_EVERY


def test_of_a_group_only_the_run_whose_loss_is_not_finite_ends() -> None:
    bad = Run(RecordingLearner(toy.network(), nan_at=5), toy.split(), batch=6, seed=4)
    good, alone = (Run(RecordingLearner(toy.network()), toy.split(), batch=6) for _ in range(2))
    with pytest.raises(TrainingError, match=r"seed 4: the loss .* at step 5"):
        train([bad, good])
    assert "step 5" in str(bad.failure)
    assert bad.step < good.step
    train([alone])
    assert good.failure is None
    assert good.record.result() == alone.record.result()


def test_a_run_whose_last_update_makes_its_weights_infinite_fails() -> None:
    class Exploding(RecordingLearner):
        def step(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
            super().step(inputs, labels)
            if int(self.steps) == 16:  # the last step; its loss is finite
                torch.nn.init.constant_(next(self.network.parameters()), torch.inf)

    with pytest.raises(TrainingError, match=r"weights are infinite .* at step 16"):
        train([Run(Exploding(toy.network()), toy.split(), batch=6)])


def test_training_stops_if_the_learning_rate_is_too_high() -> None:
    run = toy.run("er", epochs=30)
    for group in run.learner.optimizer.param_groups:
        group["lr"] = 1e30
    with pytest.raises(TrainingError, match=r"rate \(1e\+30\) is probably too high"):
        train([run])


@pytest.mark.parametrize("value", [0, -1, 1.5, "3"])
def test_runs_without_batches_or_epochs_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=f"batch is {value!r}; .* 1 or more"):
        toy.run(batch=value)
    with pytest.raises(ValueError, match=f"epochs is {value!r}; .* 1 or more"):
        toy.run(epochs=value)


@pytest.mark.parametrize(
    "wrong", [{"epochs": 1.5}, {"seed": "a"}, {"max_steps": "5"}, {"prequential": "5"}]
)
@pytest.mark.parametrize("data", [toy.split(), [(torch.rand(4, 1, 4, 4), torch.arange(4))]])
def test_fit_refuses_arguments_that_are_not_whole_numbers(data: Any, wrong: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        fit(toy.learner("er"), data, **wrong)


def test_a_network_instead_of_a_learner_is_refused() -> None:
    network: Any = toy.network()
    with pytest.raises(ValueError, match="learner"):
        fit(network, toy.split())
    with pytest.raises(ValueError, match="learner"):
        fit(network, [(torch.rand(4, 1, 4, 4), torch.arange(4))])
    with pytest.raises(ValueError, match="learner"):
        Run(network, toy.split())


def test_streams_of_different_lengths_cannot_be_trained_together() -> None:
    short = from_tensors(*toy.inputs(48, 0)[:2], groups=toy.GROUPS)
    with pytest.raises(ValueError, match="zip"):
        train([toy.run(), toy.run(stream=short)])


def test_a_network_with_too_few_outputs_is_refused_before_the_first_step() -> None:
    learner = SGD(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3)))
    for stream in (toy.split(), replace(toy.split(), tests=[])):
        with pytest.raises(ValueError, match="3 outputs"):
            fit(learner, stream)
    assert int(learner.steps) == 0
