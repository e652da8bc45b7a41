"""The loop: a group of runs goes through its streams, evaluated at the right moments."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from perdure import ER, Samples, Stream, fit, from_batches, from_tensors
from perdure.state import State
from perdure.training import Hooks, Progress, Run, TrainingError, train
from perdure.training.loop import READ_EVERY

from . import toy


def assert_same(one: State, other: State, path: str = "") -> None:
    """Bit for bit."""
    assert one.keys() == other.keys(), path
    for key, value in one.items():
        if isinstance(value, dict):
            assert_same(value, other[key], f"{path}{key}/")
        elif isinstance(value, torch.Tensor):
            assert value.dtype == other[key].dtype, f"{path}{key}"
            assert torch.equal(value, other[key]), f"{path}{key}"
        else:
            assert value == other[key], f"{path}{key}"


# -- runs side by side ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sgd", "er", "clser"])
def test_runs_side_by_side_are_the_runs_one_by_one(kind: str) -> None:
    together = [toy.run(kind, seed, epochs=2) for seed in (0, 1, 2)]
    train(together)
    for run in together:
        alone = toy.run(kind, run.seed, epochs=2)
        train([alone])
        assert_same(run.learner.state_dict(), alone.learner.state_dict())
        assert run.record.result() == alone.record.result()
    weights = [run.learner.network.state_dict()["1.weight"] for run in together]
    assert not torch.equal(weights[0], weights[1])


def test_the_seed_of_a_run_decides_the_order_of_its_data() -> None:
    def order(seed: int) -> list[list[int]]:
        seen: list[list[int]] = []

        class Watching(toy.Listener):
            def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
                seen.append(images.flatten(1).sum(1).tolist())
                super().step(images, labels)

        train([Run(Watching(toy.network()), toy.split(), batch=6, seed=seed)])
        return seen

    assert order(3) == order(3) != order(4)
    assert sorted(itertools.chain(*order(3)[:4])) == sorted(itertools.chain(*order(4)[:4]))


# -- when what is evaluated -----------------------------------------------------------------


def test_every_task_seen_and_the_next_are_evaluated() -> None:
    (record,) = train([toy.run("clser")])
    expected = [
        [True, True, True, True],  # before training
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


def test_the_record_is_what_the_learner_scores() -> None:
    run = toy.run("er", epochs=5)
    (record,) = train([run])
    test = toy.inputs(40, 1)
    right = run.learner.predict(test.inputs) == test.labels
    by_task = [right[test.labels // 2 == task].double().mean() * 100 for task in range(4)]
    last = record.class_il["working"][-1]
    assert last == pytest.approx([float(value) for value in by_task])
    assert record.latest() == pytest.approx(sum(map(float, by_task)) / 4)


def test_untrained_networks_are_evaluated_before_the_first_step() -> None:
    heard: list[tuple[int, int]] = []
    hooks = Hooks(on_task=lambda run, task: heard.append((task, run.step)))
    train([toy.run(batch=6, epochs=2)], hooks=hooks)
    assert heard == [(-1, 0), (0, 8), (1, 16), (2, 24), (3, 32)]


def test_training_learns() -> None:
    learner = ER(toy.network(), buffer_size=80, lr=0.3)
    record = fit(learner, toy.split(), batch=6, epochs=30)
    assert record.latest() == pytest.approx(100, abs=20)


# -- callbacks ------------------------------------------------------------------------------


def test_on_step_hears_every_step_of_every_run() -> None:
    heard: list[tuple[int, int]] = []
    runs = [toy.run("er", seed) for seed in (5, 6)]
    train(runs, hooks=Hooks(on_step=lambda run: heard.append((run.seed, run.step))))
    assert heard == [(seed, step) for step in range(1, 17) for seed in (5, 6)]


def test_fit_takes_the_callbacks() -> None:
    steps: list[int] = []
    tasks: list[int] = []
    fit(
        toy.learner("sgd"),
        toy.split(),
        batch=6,
        on_step=lambda run: steps.append(run.step),
        on_task=lambda run, task: tasks.append(task),
    )
    assert steps == list(range(1, 17))
    assert tasks == [-1, 0, 1, 2, 3]


def test_counters_are_read_every_hundred_steps_and_when_a_task_ends() -> None:
    heard: list[int] = []
    run = toy.run(batch=1, epochs=10)  # 240 steps a task
    train([run], hooks=Hooks(on_read=lambda run: heard.append(run.step)))
    regular = range(READ_EVERY, 4 * 240 + 1, READ_EVERY)
    assert heard == sorted([*regular, 240, 480, 720, 960])


def test_progress_ends_with_the_last_step() -> None:
    heard: list[Progress] = []
    train([toy.run(epochs=2)], hooks=Hooks(on_progress=heard.append))
    assert [(p.task, p.step) for p in heard] == [(0, 8), (1, 16), (2, 24), (3, 32)]
    assert {(p.tasks, p.epochs, p.total_steps) for p in heard} == {(4, 2, 32)}
    assert all(p.accuracy is not None and p.seconds > 0 for p in heard)


# -- leaving early --------------------------------------------------------------------------


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
def test_the_stream_is_left_after_max_steps(max_steps: int, steps: int, moments: list[int]) -> None:
    run = toy.run("er")
    assert run.total_steps(max_steps) == steps
    (record,) = train([run], max_steps=max_steps)
    assert (run.step, record.steps, int(run.learner.steps)) == (steps, steps, steps)
    assert record.moments == moments
    assert record.result()["complete"] == (len(moments) == 5)


def test_a_run_that_is_cut_short_starts_like_the_whole_one() -> None:
    early: list[State] = []
    whole, cut = toy.run("clser"), toy.run("clser")

    def note(run: Run) -> None:
        if run.step == 7:
            early.append(run.learner.state_dict())

    train([whole], hooks=Hooks(on_step=note))
    train([cut], max_steps=7)
    assert_same(cut.learner.state_dict(), early[0])


# -- streams of all kinds -------------------------------------------------------------------


def test_streams_without_tests_are_trained_all_the_same() -> None:
    train_samples = toy.inputs(40, 0)
    stream = from_tensors(*train_samples[:2])
    tasks: list[int] = []
    run = Run(toy.learner("clser"), stream, batch=8)
    (record,) = train([run], hooks=Hooks(on_task=lambda run, task: tasks.append(task)))
    assert (run.step, tasks, record.latest()) == (5, [-1, 0], None)
    result = record.result()
    assert (result["moments"], result["tests"], result["complete"]) == ([], [], True)
    assert result["predictors"]["stable"] == {"class_il": None, "task_il": None, "per_class": None}


def test_iterables_of_batches_are_taken_as_they_come() -> None:
    sizes = [5, 3, 1, 7]
    batches = [toy.inputs(size, seed)[:2] for seed, size in enumerate(sizes)]
    listener = toy.Listener(toy.network())
    listener.needs_boundaries = False
    stream = from_batches(batches, classes=8, shape=(1, 4, 4), test=toy.inputs(16, 9))
    record = fit(listener, stream, batch=99, epochs=2)
    assert record.steps == 2 * len(sizes)
    assert record.class_il["working"][0][0] is not None
    expected = [f"step on {sorted(set(labels.tolist()))}" for _, labels in batches]
    assert listener.heard == 2 * expected


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


def test_a_bad_batch_in_mid_stream_is_named() -> None:
    good, bad = toy.inputs(4, 0), Samples(torch.zeros(4, 1, 4, 4), torch.tensor([0, 1, 2, 8]))
    stream = from_batches([good, bad], classes=8, shape=(1, 4, 4))
    with pytest.raises(ValueError, match="label is 8; expected 0 to 7"):
        fit(toy.learner("er"), stream)


def test_samples_are_built_when_their_task_begins_and_let_go_after_it() -> None:
    built: list[str] = []
    stream = toy.split()

    def building(name: str, samples: Samples) -> Samples:
        built.append(name)
        return samples

    for task in stream.tasks:
        task._make = lambda task=task, made=task._make: building(task.name, made())  # type: ignore[misc]
    seen: list[tuple[int, int]] = []
    fit(
        toy.learner("sgd"),
        stream,
        batch=6,
        epochs=3,
        on_task=lambda run, task: seen.append(
            (len(built), sum(t._samples is not None for t in stream.tasks))
        ),
    )
    assert built == ["task 1", "task 2", "task 3", "task 4"]
    assert seen == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]


# -- learners that listen for the end of tasks ----------------------------------------------


def test_learners_that_need_it_are_told_where_tasks_end() -> None:
    listener = toy.Listener(toy.network())
    fit(listener, toy.split(), batch=12)
    expected = [event for a, b in toy.GROUPS for event in [f"step on [{a}, {b}]"] * 2 + ["end"]]
    assert [event.removesuffix(" of task") for event in listener.heard] == expected
    assert [len(samples.labels) for samples in listener.ended] == [toy.PER_TASK] * 4
    assert [set(samples.labels.tolist()) for samples in listener.ended] == [*map(set, toy.GROUPS)]


def test_the_end_of_a_task_is_heard_before_the_evaluation() -> None:
    listener = toy.Listener(toy.network())
    at_evaluation: list[int] = []
    fit(
        listener,
        toy.split(),
        batch=12,
        on_task=lambda run, task: at_evaluation.append(len(listener.ended)),
    )
    assert at_evaluation == [0, 1, 2, 3, 4]


def test_learners_that_need_boundaries_are_refused_where_there_are_none() -> None:
    stream = from_tensors(*toy.inputs(16, 0)[:2], name="flow")
    expected = "Listener must be told where tasks end, and flow has no task boundaries"
    with pytest.raises(ValueError, match=expected):
        Run(toy.Listener(toy.network()), stream)


def test_learners_that_need_no_boundaries_hear_nothing_of_tasks() -> None:
    listener = toy.Listener(toy.network())
    listener.needs_boundaries = False
    fit(listener, toy.split(), batch=12)
    assert listener.ended == []
    assert len(listener.heard) == 8


# -- what goes wrong ------------------------------------------------------------------------


@pytest.mark.parametrize("poison", [1, 7, 16])
def test_a_loss_that_is_no_number_stops_training_and_is_named(poison: int) -> None:
    run = Run(toy.Listener(toy.network(), poison=poison, lr=0.25), toy.split(), batch=6, seed=4)
    expected = rf"seed 4: the loss .* at step {poison}; .* learning rate \(0.25\) is too high"
    with pytest.raises(TrainingError, match=expected):
        train([run])
    assert run.step < poison + READ_EVERY


def test_an_absurd_learning_rate_stops_training() -> None:
    run = toy.run("er", epochs=30)
    for group in run.learner.optimizer.param_groups:
        group["lr"] = 1e30
    with pytest.raises(TrainingError, match=r"the learning rate \(1e\+30\) is too high"):
        train([run])


@pytest.mark.parametrize("value", [0, -1])
def test_runs_without_batches_or_epochs_are_refused(value: int) -> None:
    with pytest.raises(ValueError, match=f"batch is {value}; expected 1 or more"):
        toy.run(batch=value)
    with pytest.raises(ValueError, match=f"epochs is {value}; expected 1 or more"):
        toy.run(epochs=value)


def test_streams_that_differ_in_length_cannot_go_side_by_side() -> None:
    short = from_tensors(*toy.inputs(48, 0)[:2], groups=toy.GROUPS)
    with pytest.raises(ValueError, match="zip"):
        train([toy.run(), toy.run(stream=short)])


def test_joined_streams_are_one_task_with_every_test() -> None:
    stream: Stream = toy.split()
    joined = replace(stream.joined(6, torch.Generator()), name="joint")
    run = Run(toy.learner("sgd"), joined, batch=10)
    (record,) = train([run])
    assert run.step == 10  # 96 samples, the last short batch kept
    assert record.moments == [-1, 0]
    for row in record.class_il["working"]:
        assert None not in row
