"""Frozen parameters are shared by all networks of a learner and are never changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perdure import catalog, fit
from perdure.learners import CLSER, ER, MER, ICaRL, Learner, MeanER
from perdure.memory import SemanticMemory
from perdure.memory.frozen import copy_network
from perdure.records import Samples


def network(*, frozen: bool = True, evaluation: bool = True, seed: int = 0) -> nn.Sequential:
    """A backbone with BatchNorm and dropout, and a trained block and head."""
    torch.manual_seed(seed)
    backbone = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5))
    model = nn.Sequential(backbone, nn.Linear(16, 12), nn.BatchNorm1d(12), nn.Linear(12, 4))
    if frozen:
        backbone.requires_grad_(False)
        backbone.train(not evaluation)
    return model


def samples(seed: int, classes: tuple[int, ...] = (0, 1, 2, 3)) -> Samples:
    draws = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes).repeat(4)
    return Samples(torch.randn(len(labels), 8, generator=draws) + labels[:, None], labels)


def train(learner: Learner, steps: int = 4) -> Learner:
    for step in range(steps):
        learner.observe(*samples(step)[:2])
    return learner


def require_same_predictions(one: Learner, other: Learner) -> None:
    inputs = samples(9).inputs
    for name, predictor in one.predictors().items():
        torch.testing.assert_close(other.predictors()[name](inputs), predictor(inputs))


WITH_COPIES: dict[str, Callable[[nn.Module], Learner]] = {
    "clser": partial(CLSER, buffer_size=20),
    "mean-er": partial(MeanER, buffer_size=20),
    "icarl": partial(ICaRL, buffer_size=20),
}
ARGUMENTS: dict[str, Any] = {"buffer_size": 20, "tasks": 2}


def test_statistics_that_still_change_are_not_shared() -> None:
    backbone = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4)).requires_grad_(False).eval()
    backbone[1].train()
    copied = copy_network(backbone)
    copied(torch.rand(8, 4))
    assert copied.get_buffer("0.running_mean") is backbone.get_buffer("0.running_mean")
    assert backbone.get_buffer("1.running_mean").tolist() == [0] * 4


@pytest.mark.parametrize("method", sorted({m.learner for m in catalog.METHODS.values()}, key=repr))
def test_no_method_changes_frozen_parameters_and_statistics(method: type[Learner]) -> None:
    accepted = {k: v for k, v in ARGUMENTS.items() if k in catalog.accepted(method)}
    learner = method(network(), **accepted)
    backbone, head = learner.network[0], learner.network[-1]  # type: ignore[index]
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    old_head = head.weight.clone()
    train(learner)
    if learner.needs_boundaries:
        learner.end_task(samples(0))
        train(learner)
    assert all(tensor.equal(before[name]) for name, tensor in backbone.state_dict().items())
    assert not head.weight.equal(old_head)
    assert not any(module.training for module in backbone.modules())
    assert learner.network.training
    assert head.training


@pytest.mark.parametrize("method", WITH_COPIES)
def test_frozen_tensors_exist_once(method: str) -> None:
    learner = train(WITH_COPIES[method](network()))
    working, *others = learner.networks()
    fixed = {id(t) for t in (*working[0].parameters(), *working[0].buffers())}  # type: ignore[index]
    for other in others:
        tensors = [*other.parameters(), *other.buffers()]
        assert {id(t) for t in other[0].state_dict(keep_vars=True).values()} == fixed  # type: ignore[index]
        assert len([t for t in tensors if id(t) in fixed]) == len(fixed)


def test_frozen_parameters_are_neither_optimised_nor_averaged() -> None:
    learner = CLSER(network(), buffer_size=20)
    trained = [p for p in learner.network.parameters() if p.requires_grad]
    assert [id(p) for p in learner.optimizer.param_groups[0]["params"]] == [id(p) for p in trained]
    assert len(learner.stable._averaged) == len(learner.stable._working) == len(trained)


def test_state_contains_frozen_tensors_once(tmp_path: Path) -> None:
    learner = train(CLSER(network(), buffer_size=20))
    state = learner.state_dict()
    frozen = {name for name in state["network"] if name.startswith("0.")}
    assert frozen
    assert not frozen & state["stable"]["network"].keys()
    learner.save(tmp_path / "learner")
    resumed = CLSER(network(seed=1), buffer_size=20)
    resumed.load(tmp_path / "learner")
    x = samples(9).inputs
    for one, other in zip(
        learner.predictors().values(), resumed.predictors().values(), strict=True
    ):
        assert one(x).equal(other(x))
    assert resumed.stable.network[0][0].weight is resumed.network[0][0].weight  # type: ignore[index]
    for one, other in zip(
        *(train(x).predictors().values() for x in (learner, resumed)), strict=True
    ):
        assert one(x).equal(other(x))


@pytest.mark.parametrize("method", WITH_COPIES)
def test_states_of_other_frozen_parts_are_rejected(method: str) -> None:
    make = WITH_COPIES[method]
    for own, other in ((True, False), (False, True)):
        learner, source = make(network(frozen=own)), train(make(network(frozen=other)))
        if method == "icarl" and own is False:  # iCaRL's state is complete, so it fits
            continue
        before = {k: v.clone() for k, v in learner.network.state_dict().items()}
        with pytest.raises(ValueError, match="does not fit"):
            learner.load_state_dict(source.state_dict())
        assert all(v.equal(before[k]) for k, v in learner.network.state_dict().items())


def test_results_equal_those_of_copied_frozen_parameters() -> None:
    """Sharing is a saving only: averaging equal parameters gives the same network."""
    shared = CLSER(network(), buffer_size=20, seed=3)
    copied = CLSER(network(frozen=False), buffer_size=20, seed=3)
    for each in copied.networks():
        each[0].eval()  # type: ignore[index]
    copied.optimizer.param_groups[0]["params"] = list(copied.network[1:].parameters())  # type: ignore[index]
    require_same_predictions(train(shared), train(copied))


def test_statistics_of_frozen_modules_in_training_mode_belong_to_each_network() -> None:
    learner = CLSER(network(evaluation=False), buffer_size=20)
    train(learner, steps=1)
    working, stable = learner.network[0][1], learner.stable.network[0][1]  # type: ignore[index]
    assert working.training
    assert stable.training
    assert working.weight is stable.weight
    assert working.running_mean is not stable.running_mean
    assert int(working.num_batches_tracked) == 1
    assert int(stable.num_batches_tracked) == 0


def test_evaluation_mode_of_trained_modules_does_not_persist() -> None:
    model = network().eval()
    learner = ER(model, buffer_size=20)
    assert model.training
    assert model[1].training
    assert model[2].training
    assert not any(module.training for module in model[0].modules())
    learner.predict(samples(0).inputs)
    assert model.training
    assert not model[0].training


def test_unfreezing_is_rejected_and_freezing_later_works() -> None:
    learner = train(CLSER(network(), buffer_size=20))
    learner.network[0].requires_grad_(True)  # type: ignore[index]
    before = learner.state_dict()
    with pytest.raises(ValueError, match="frozen"):
        learner.observe(*samples(0)[:2])
    with pytest.raises(ValueError, match="frozen"):
        fit(learner, [samples(0)[:2]])
    assert all(v.equal(before["network"][k]) for k, v in learner.network.state_dict().items())
    learner.network[0].requires_grad_(False)  # type: ignore[index]
    learner.network[1].requires_grad_(False)  # type: ignore[index]
    old = learner.network[1].weight.clone()  # type: ignore[index]
    assert train(learner).network[1].weight.equal(old)  # type: ignore[index]


def test_network_without_trained_parameters_is_rejected() -> None:
    with pytest.raises(ValueError, match="no parameters to train"):
        ER(network().requires_grad_(False), buffer_size=20)
    with pytest.raises(ValueError, match="frozen"):
        SemanticMemory(network().requires_grad_(False), decay=0.9, rate=1.0, name="it")


def test_reptile_updates_leave_frozen_parameters_alone() -> None:
    learner = MER(network(), buffer_size=20, beta=0.5, gamma=0.3, inner_steps=2)
    old: Tensor = learner.network[0][0].weight  # type: ignore[index]
    value = old.clone()
    train(learner)
    assert learner.network[0][0].weight is old  # type: ignore[index]
    assert old.equal(value)
