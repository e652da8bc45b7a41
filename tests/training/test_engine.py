"""Recorded steps on a CPU give the results of eager ones."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from perdure.learners import (
    AGEM,
    CLSER,
    DER,
    DERPP,
    ER,
    ERACE,
    FDR,
    GEM,
    GSS,
    MER,
    SGD,
    ICaRL,
    Learner,
    MeanER,
)
from perdure.records import Samples, join
from perdure.streams import CropFlip
from perdure.structures import Inputs
from perdure.training import engine as engines
from perdure.training.engine import Captured, Eager, Recorded, _RecordedLearner

BATCH = 8
METHODS: list[type[Learner]] = [
    *(SGD, ER, MeanER, CLSER, ERACE, DER, DERPP, FDR, AGEM, MER, ICaRL),
]


def layers(kind: str) -> nn.Module:
    if kind == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.ReLU(), nn.Linear(20, 4))
    width = nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)
    dropout = nn.Dropout(0.2 if kind == "cnn" else 0.0)
    return nn.Sequential(*width, nn.Flatten(), dropout, nn.Linear(54, 4))


def build(kind: type[Learner], network: str = "mlp", seed: int = 0, **other: object) -> Learner:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = layers(network)
    if kind is not SGD:
        other["buffer_size"] = 40
    if kind not in (SGD, GEM, ICaRL):
        other["memory_batch"] = BATCH
    if kind in (AGEM, GEM):
        other["tasks"] = 4
    return kind(model, augment=CropFlip(1), seed=seed, **{"lr": 0.05, **other})  # type: ignore[arg-type]


def batches(count: int, last: int = BATCH) -> list[Samples]:
    draws = torch.Generator().manual_seed(7)
    return [
        Samples(
            torch.randint(0, 256, (n, 1, 6, 6), generator=draws).byte(),
            torch.randint(0, 4, (n,), generator=draws),
        )
        for n in [BATCH] * (count - 1) + [last]
    ]


def train(engine: Eager, learner: Learner, supply: list[Samples]) -> Learner:
    """Take a step per batch; a task ends after every 15."""
    for number, batch in enumerate(supply, 1):
        engine.step(learner, batch)
        if number % 15 == 0 and learner.needs_boundaries:
            learner.end_task(join(*supply[number - 15 : number]))
    return learner


def equal(one: Learner, other: Learner) -> bool:
    def flat(state: object) -> list[Tensor]:
        if isinstance(state, dict):
            return [t for key in sorted(state) for t in flat(state[key])]
        return [state] if isinstance(state, Tensor) else []

    states = flat(one.state_dict()), flat(other.state_dict())
    return all(a.equal(b) for a, b in zip(*states, strict=True))


def only(engine: Recorded) -> _RecordedLearner:
    (recorded,) = engine.learners.values()
    return recorded


@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize("kind", METHODS)
def test_recorded_steps_equal_eager_steps_bit_for_bit(kind: type[Learner], network: str) -> None:
    supply, engine = batches(55, last=5), Recorded()
    eager = train(Eager(), build(kind, network), supply)
    recorded = train(engine, build(kind, network), supply)
    # A recording cannot repeat draws, and the CNN has dropout.
    shares_draws = network == "cnn" and kind in (CLSER, MeanER)
    assert (only(engine).recording is None) == shares_draws
    assert equal(eager, recorded)


@pytest.mark.parametrize("kind", [CLSER, MeanER])
def test_networks_without_dropout_are_recorded_whatever_their_layers(
    kind: type[CLSER] | type[MeanER],
) -> None:
    supply, engine = batches(20), Recorded()
    network = nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    network(supply[0].inputs.float())
    learners = [kind(copy.deepcopy(network), buffer_size=40) for _ in range(2)]
    eager, recorded = (
        train(each, learner, supply)
        for each, learner in zip((Eager(), engine), learners, strict=True)
    )
    assert only(engine).recording is not None
    assert equal(eager, recorded)


@pytest.mark.parametrize("kind", [CLSER, MeanER])
def test_a_step_that_begins_to_share_draws_is_not_replayed(
    kind: type[CLSER] | type[MeanER],
) -> None:
    """Also if it is the step that is recorded."""
    supply = batches(20)

    def trained(engine: Eager, before: int) -> Learner | None:
        """With dropout after some steps; None if a step was recorded before."""
        learner = build(kind, "cnn without dropout")
        train(engine, learner, supply[:before])
        if isinstance(engine, Recorded) and only(engine).recording is not None:
            return None
        for module in [part for network in learner.networks() for part in network.modules()]:
            if isinstance(module, nn.Dropout):
                module.p = 0.5
        return train(engine, learner, supply[before:])

    before = 1
    while (recorded := trained(Recorded(), before)) is not None:
        eager = trained(Eager(), before)
        assert eager is not None
        assert equal(eager, recorded)
        before += 1
    assert before > 2


def test_recorded_steps_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    supply, engine, learner = batches(30), Recorded(), build(CLSER)
    train(engine, learner, supply[:20])
    monkeypatch.setattr(CLSER, "step", lambda *_: pytest.fail("the step ran eagerly"))
    train(engine, learner, supply[20:])
    assert int(learner.steps) == 30


def test_a_short_batch_now_and_then_does_not_replace_the_recording() -> None:
    full, short, engine, learner = batches(20), batches(1, last=5), Recorded(), build(CLSER)
    train(engine, learner, full)
    recording = only(engine).recording
    for batch in full[:6]:
        train(engine, learner, [*short, batch])
    assert recording is not None
    assert only(engine).recording is recording


def test_a_recording_stays_valid_when_a_state_is_loaded() -> None:
    supply, engine, learner = batches(30), Recorded(), build(CLSER)
    train(engine, learner, supply[:20])
    learner.load_state_dict(learner.state_dict())
    train(engine, learner, supply[20:])
    assert learner.totals() == train(Eager(), build(CLSER), supply).totals()


def test_several_learners_do_not_affect_each_other() -> None:
    supply, engine = batches(30), Recorded()
    alone = train(Recorded(), build(CLSER, seed=1), supply)
    several = [build(CLSER, seed=seed) for seed in range(3)]
    for batch in supply:
        for learner in several:
            engine.step(learner, batch)
    assert equal(alone, several[1])
    assert not equal(alone, several[2])


@pytest.mark.parametrize("kind", [ER, CLSER, DERPP, ICaRL])
def test_grown_networks_are_recorded_again(kind: type[Learner]) -> None:
    supply, engine = batches(50), Recorded()
    for batch in supply[25:]:
        batch.labels.add_(2)
    eager, recorded = build(kind), build(kind)
    for each, learner in ((Eager(), eager), (engine, recorded)):
        train(each, learner, supply[:25])
        learner.grow(6)
        train(each, learner, supply[25:])
    assert only(engine).recorded_key == only(engine).key
    assert equal(eager, recorded)


def test_a_new_learning_rate_takes_effect() -> None:
    supply = batches(40)
    eager, recorded = build(ER), build(ER)
    for engine, learner in ((Eager(), eager), (Recorded(), recorded)):
        train(engine, learner, supply[:20])
        learner.optimizer.param_groups[0]["lr"] = 0.01
        train(engine, learner, supply[20:])
    assert equal(eager, recorded)


@pytest.mark.parametrize("kind", [GEM, GSS, ER])
def test_steps_that_read_values_run_eagerly(kind: type[Learner]) -> None:
    def learner() -> Learner:
        if kind is not ER:
            return build(kind)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            network = layers("mlp")
        adam = torch.optim.Adam(network.parameters())  # reads its number of steps
        return ER(network, buffer_size=40, memory_batch=BATCH, optimizer=adam)

    supply, engine = batches(20), Recorded()
    eager, recorded = train(Eager(), learner(), supply), train(engine, learner(), supply)
    assert only(engine).recording is None
    assert equal(eager, recorded)


def test_large_steps_run_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "MAX_RECORDED_BYTES", 10_000)
    supply, engine = batches(20), Recorded()
    eager, recorded = train(Eager(), build(ER), supply), train(engine, build(ER), supply)
    assert only(engine).recording is None
    assert equal(eager, recorded)


def test_a_learner_saved_between_recorded_steps_resumes_bit_for_bit() -> None:
    supply = batches(40)
    whole = train(Recorded(), build(CLSER, "cnn"), supply)
    first, second = build(CLSER, "cnn"), build(CLSER, "cnn", seed=5)
    train(Recorded(), first, supply[:25])
    second.load_state_dict(first.state_dict())
    assert equal(whole, train(Recorded(), second, supply[25:]))


class AddsTwice(ER):
    """Presents every batch to the memory twice."""

    def step(self, inputs: Inputs, labels: Tensor) -> None:
        super().step(inputs, labels)
        self.memory.add(Samples(inputs, labels))


def test_a_graph_may_add_any_number_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", Mock())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Mock())
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: nullcontext())
    learner = AddsTwice(nn.Linear(4, 2), buffer_size=100)
    batch = Samples(torch.rand(3, 4), torch.tensor([0, 1, 0]))
    captured = Captured("cpu", "fp32")._captured(learner)
    captured._capture(batch)
    assert captured.graph is not None
    assert learner.memory.filled == 0
    captured._replay(captured.graph, batch)
    assert learner.memory.filled == 6
