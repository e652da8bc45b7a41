"""A state that is impossible or of another optimizer is refused; the learner is unchanged."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler

from perdure import AGEM, CLSER, DERPP, ER, FDR, GEM, GSS, SGD, ICaRL, Learner, Samples
from perdure.memory import Storage
from perdure.state import State, as_bytes, write_file

INPUTS, LABELS = torch.rand(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3


def learner(kind: type[Learner] = CLSER, **other: Any) -> Learner:
    torch.manual_seed(0)
    return kind(nn.Linear(4, 3), **{"buffer_size": 5, "seed": 0, **other})


def fill(tensor: Tensor, value: float) -> None:
    tensor.view(-1)[0] = value


def change(state: State, name: str, how: Callable[[Tensor], Tensor]) -> None:
    stored = state["memory"]["stored"]
    stored[name] = how(stored[name])


def add_class(state: State, label: int, *, described: bool = True) -> None:
    fill(state["memory"]["stored"]["labels"], label)
    state["input_spec"] = {**state["input_spec"], "classes": label + 1} if described else {}


IMPOSSIBLE: dict[str, Callable[[State], object]] = {
    "a weight that is infinite": lambda s: fill(s["network"]["weight"], math.inf),
    "a weight of a memory that is NaN": lambda s: fill(s["stable"]["network"]["bias"], math.nan),
    "a label below 0": lambda s: fill(s["memory"]["stored"]["labels"], -1),
    "a label beyond the classes": lambda s: fill(s["memory"]["stored"]["labels"], 3),
    "stored inputs that are NaN": lambda s: fill(s["memory"]["stored"]["inputs"], math.nan),
    "stored inputs of another type": lambda s: change(s, "inputs", Tensor.double),
    "stored inputs that are bytes": lambda s: change(s, "inputs", Tensor.byte),
    "stored inputs of another shape": lambda s: change(s, "inputs", lambda x: x[:, :2]),
    "labels that are not integers": lambda s: change(s, "labels", Tensor.float),
    "labels of another type": lambda s: change(s, "labels", Tensor.int),
    "labels in two dimensions": lambda s: change(s, "labels", lambda y: y[:, None]),
    "a label beyond the network's outputs": lambda s: add_class(s, 500),
    "such a label, inputs not described": lambda s: add_class(s, 500, described=False),
    "more classes than can be counted": lambda s: s["input_spec"].update(classes=10**30),
    "a smallest batch of many": lambda s: s["input_spec"].update(smallest_batch=10**9),
    "inputs described by a word": lambda s: s["input_spec"].update(layout="x"),
    "a finite loss of fewer finite steps": lambda s: fill(s["steps"], 10**9),
    "a loss that is NaN in finite steps": lambda s: fill(s["totals"]["loss"], math.nan),
    "fewer samples seen than stored": lambda s: fill(s["memory"]["seen"], 2),
    "negative steps": lambda s: fill(s["steps"], -7),
    "more finite steps than steps": lambda s: fill(s["finite_steps"], 100),
    "several totals of one name": lambda s: s["totals"].update(consistency=torch.zeros(2)),
    "metrics of the past": lambda s: s["last_read"].update(steps=-1),
    "metrics of the future": lambda s: s["last_read"].update(steps=10**9),
    "a generator that is none": lambda s: s["augmentation"].zero_(),
    "a global generator that is none": lambda s: s["_global_random"].zero_(),
    "another optimizer": lambda s: s["optimizer"].update({"class": "Adam"}),
    "another learning rate": lambda s: s["optimizer"]["initial"][0].update(lr=0.5),
    "another momentum": lambda s: s["optimizer"]["initial"][0].update(momentum=0.9),
    "a negative learning rate": lambda s: s["optimizer"]["groups"][0].update(lr=-0.1),
    "an infinite learning rate": lambda s: s["optimizer"]["groups"][0].update(lr=math.inf),
    "a learning rate beyond all floats": lambda s: s["optimizer"]["groups"][0].update(lr=2**64),
    "a decay beyond float32": lambda s: s["optimizer"]["groups"][0].update(weight_decay=1e300),
    "a momentum that is no number": lambda s: s["optimizer"]["groups"][0].update(momentum="x"),
    "a number instead of a switch": lambda s: s["optimizer"]["groups"][0].update(nesterov=3),
    "a switch instead of a number": lambda s: s["optimizer"]["groups"][0].update(momentum=True),
    "two groups instead of one": lambda s: s["optimizer"].update(groups=[{}, {}]),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_impossible_state_is_refused_and_changes_nothing(name: str, tmp_path: Path) -> None:
    trained = learner()
    for _ in range(3):
        trained.observe(INPUTS, LABELS)
    state = copy.deepcopy(trained.state_dict())
    IMPOSSIBLE[name](state)
    write_file(tmp_path / "file", state, {"learner": "CLSER"})
    fresh = learner()
    for _ in range(2):
        before = as_bytes(fresh.state_dict(), {})
        with pytest.raises(ValueError, match="file"):
            fresh.load(tmp_path / "file")
        assert as_bytes(fresh.state_dict(), {}) == before
        fresh.observe(INPUTS, LABELS)


@pytest.mark.parametrize(
    "network",
    [nn.Linear(4, 1), nn.Linear(4, 100), nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))],
)
def test_networks_of_many_kinds_are_restored(network: nn.Module) -> None:
    one, other = ER(network, buffer_size=20), ER(copy.deepcopy(network), buffer_size=20)
    one.observe(INPUTS, LABELS * 0)
    other.load_state_dict(one.state_dict())
    assert as_bytes(other.state_dict(), {}) == as_bytes(one.state_dict(), {})
    state = one.state_dict()
    fill(state["memory"]["seen"], 7)  # of 6 samples, none of which was replaced
    with pytest.raises(ValueError, match="6 samples of 7"):
        other.load_state_dict(state)


SCHEDULES: list[Callable[[Optimizer], Any]] = [
    partial(lr_scheduler.StepLR, step_size=1, gamma=0.5),
    partial(lr_scheduler.OneCycleLR, max_lr=0.2, total_steps=9),
    partial(lr_scheduler.CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=2),
    partial(lr_scheduler.LambdaLR, lr_lambda=lambda step: min(1.0, (step + 1) / 10)),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.func.__name__)
@pytest.mark.parametrize("first", ["schedule", "learner"])
def test_a_schedule_may_have_changed_the_optimizer(
    schedule: Callable[[Optimizer], Any], first: str, tmp_path: Path
) -> None:
    def create(lr: float = 0.1) -> tuple[Learner, Any]:
        torch.manual_seed(0)
        network = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(network.parameters(), lr=lr, momentum=0.9)
        early = schedule(optimizer) if first == "schedule" else None
        made = CLSER(network, buffer_size=5, optimizer=optimizer)
        return made, early or schedule(optimizer)

    def train(made: Learner, scheduled: Any) -> None:
        for _ in range(3):
            made.observe(INPUTS, LABELS)
            scheduled.step()

    (trained, schedule_then), (resumed, schedule_now) = create(), create()
    train(trained, schedule_then)
    trained.save(tmp_path / "a")
    resumed.load(tmp_path / "a")
    schedule_now.load_state_dict(schedule_then.state_dict())
    for each in (trained, schedule_then), (resumed, schedule_now):
        train(*each)
    about = {"learner": "CLSER"}
    assert as_bytes(resumed.state_dict(), about) == as_bytes(trained.state_dict(), about)


def test_a_state_with_other_groups_of_parameters_is_refused() -> None:
    network = nn.Linear(4, 3)
    groups = [{"params": [parameter]} for parameter in network.parameters()]
    two = CLSER(network, buffer_size=5, optimizer=torch.optim.SGD(groups, lr=0.1))
    with pytest.raises(ValueError, match=r"the state has 2 groups of parameters; .* has 1"):
        learner().load_state_dict(two.state_dict())


def test_settings_of_the_optimizer_may_be_changed_by_hand(tmp_path: Path) -> None:
    trained, resumed = learner(lr=0.1), learner(lr=0.1)
    trained.optimizer.param_groups[0]["lr"] = 0.025
    trained.save(tmp_path / "a")
    resumed.load(tmp_path / "a")
    assert resumed.optimizer.param_groups[0]["lr"] == 0.025
    trained.optimizer.param_groups[0]["lr"] = 0.0
    resumed.load_state_dict(trained.state_dict())
    assert resumed.optimizer.param_groups[0]["lr"] == 0
    with pytest.raises(ValueError, match=r"has lr 0\.1;.* has 0\.025;.*param_groups\[0\]\['lr'\]"):
        learner(lr=0.025).load(tmp_path / "a")


def test_only_some_arguments_of_the_constructor_are_in_a_file(tmp_path: Path) -> None:
    trained = learner()
    trained.observe(INPUTS, LABELS)
    trained.save(tmp_path / "a")

    def continued(**other: Any) -> bytes:
        made = learner(**other)
        made.load(tmp_path / "a")
        for _ in range(20):
            made.observe(INPUTS, LABELS)
        return as_bytes(made.state_dict(), {})

    expected = continued()
    for ignored in ({"seed": 5}, {"memory_device": "cpu"}, {"memory_folder": tmp_path}):
        assert continued(**ignored) == expected
    for applied in (
        {"memory_batch": 2},
        {"stable_window": 0.3},
        {"plastic_rate": 0.5},
        {"consistency_weight": 3.0},
        {"augment": lambda x, draws: x + 1},
        {"normalise": lambda x: 2 * x},
    ):
        assert continued(**applied) != expected
    for compared in ({"buffer_size": 6}, {"lr": 0.3}):
        with pytest.raises(ValueError, match="the state has"):
            continued(**compared)


def test_a_diverged_learner_replaces_no_file(tmp_path: Path) -> None:
    trained = learner()
    trained.observe(INPUTS, LABELS)
    trained.save(tmp_path / "a")
    before = (tmp_path / "a").read_bytes()
    with torch.no_grad():
        fill(trained.network.weight, math.nan)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="diverged"):
        trained.save(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == before


@pytest.mark.parametrize("how", [lambda z: z[:, :2], lambda z: z.long(), lambda z: z[:, :, None]])
def test_impossible_logits_are_refused(how: Callable[[Tensor], Tensor]) -> None:
    trained, fresh = learner(DERPP), learner(DERPP)
    trained.observe(INPUTS, LABELS)
    fresh.load_state_dict(trained.state_dict())
    state = copy.deepcopy(trained.state_dict())
    change(state, "logits", how)
    before = as_bytes(fresh.state_dict(), {})
    with pytest.raises(ValueError, match="logits"):
        fresh.load_state_dict(state)
    assert as_bytes(fresh.state_dict(), {}) == before


def test_missing_logits_are_refused() -> None:
    trained = learner(DERPP)
    trained.observe(INPUTS, LABELS)
    state = trained.state_dict()
    del state["memory"]["stored"]["logits"]
    with pytest.raises(ValueError, match="no logits"):
        learner(DERPP).load_state_dict(state)


def test_checking_a_state_draws_no_random_numbers() -> None:
    class Noisy(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) + torch.randn(())

    trained = ER(Noisy(4, 3), buffer_size=5)
    trained.observe(INPUTS, LABELS)
    before = torch.default_generator.get_state()
    trained.load_state_dict(trained.state_dict())
    assert torch.equal(torch.default_generator.get_state(), before)


def test_inputs_may_be_dicts_in_any_order() -> None:
    def make() -> Learner:
        torch.manual_seed(0)
        return ER(Both(), buffer_size=5)

    trained, fresh = make(), make()
    trained.observe({"b": INPUTS, "a": INPUTS.double()}, LABELS)
    fresh.load_state_dict(trained.state_dict())
    fresh.observe({"a": INPUTS.double(), "b": INPUTS}, LABELS)


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        logits: Tensor = self.layer(a + b)
        return logits


def test_a_negative_setting_of_an_optimizer_is_kept(tmp_path: Path) -> None:
    networks = [nn.Linear(4, 3) for _ in range(2)]
    first, second = (
        ER(each, buffer_size=5, optimizer=torch.optim.Adafactor(each.parameters()))
        for each in networks
    )
    first.observe(INPUTS, LABELS)
    first.save(tmp_path / "learner.safetensors")
    second.load(tmp_path / "learner.safetensors")
    assert as_bytes(second.state_dict(), {}) == as_bytes(first.state_dict(), {})


@pytest.mark.parametrize("betas", [[0.9], [0.9, 0.99, 0.999], [0.9, 2 * [0.9]], "ab", 0.9])
def test_impossible_pairs_of_settings_are_refused(betas: Any) -> None:
    networks = [nn.Linear(4, 3) for _ in range(2)]
    first, second = (
        ER(each, buffer_size=5, optimizer=torch.optim.Adam(each.parameters())) for each in networks
    )
    state = first.state_dict()
    second.load_state_dict(state)
    state["optimizer"]["groups"][0]["betas"] = betas
    with pytest.raises(ValueError, match="betas"):
        second.load_state_dict(state)


def test_a_learning_rate_in_a_tensor_is_compared() -> None:
    def make(lr: float) -> Learner:
        network = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(network.parameters(), lr=torch.tensor(lr))
        return ER(network, buffer_size=5, optimizer=optimizer)

    trained = make(0.5)
    trained.observe(INPUTS, LABELS)
    make(0.5).load_state_dict(trained.state_dict())
    with pytest.raises(ValueError, match=r"has lr 0\.5;.* has 0\.25"):
        make(0.25).load_state_dict(trained.state_dict())


def test_the_learning_rate_before_a_schedule_is_compared() -> None:
    def make(*, momentum: float = 0.9, schedule: bool = True) -> Learner:
        network = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=momentum)
        if schedule:
            lr_scheduler.LambdaLR(optimizer, lambda step: 0.1)
        return ER(network, buffer_size=5, optimizer=optimizer)

    make(schedule=False).load_state_dict(make().state_dict())
    with pytest.raises(ValueError, match="momentum"):
        make(momentum=0.5).load_state_dict(make().state_dict())


def test_a_state_may_lack_settings_of_other_versions_of_an_optimizer() -> None:
    state = learner().state_dict()
    for groups in ("initial", "groups"):
        del state["optimizer"][groups][0]["maximize"]
    learner().load_state_dict(state)


def test_impossible_counts_without_a_memory_are_refused() -> None:
    fresh = SGD(nn.Linear(4, 3))
    state = copy.deepcopy(fresh.state_dict())
    fill(state["finite_steps"], -1)
    with pytest.raises(ValueError, match="finite steps"):
        fresh.load_state_dict(state)
    fresh.observe(INPUTS, LABELS)
    for classes in (0, 2**31):
        state = copy.deepcopy(fresh.state_dict())
        state["input_spec"]["classes"] = classes
        with pytest.raises(ValueError, match="describe"):
            fresh.load_state_dict(state)


# -- groups of samples ----------------------------------------------------------------------


def grouped(kind: type[Learner], *, tasks: int = 0) -> Learner:
    """A learner whose memory has groups, after this number of tasks."""
    other = {"tasks": 3} if kind in (AGEM, GEM) else {}
    made = learner(kind, buffer_size=12, **other)
    for _ in range(tasks):
        made.observe(INPUTS, LABELS)
        made.end_task(Samples(INPUTS, LABELS))
    return made


def set_groups(state: State, counts: dict[int, int]) -> None:
    state["memory"].update(groups=list(counts), counts=list(counts.values()))


GROUPS: dict[str, tuple[type[Learner], dict[int, int]]] = {
    "a negative count, A-GEM": (AGEM, {0: -4, 1: 4, 2: 8}),
    "a negative count, GEM": (GEM, {0: 12, 1: -4}),
    "a negative count, FDR": (FDR, {0: 18, 1: -6}),
    "a negative count, iCaRL": (ICaRL, {0: 14, 1: -2}),
    "a task of no samples": (GEM, {0: 4, 1: 0, 2: 4}),
    "more than a task's share": (GEM, {0: 8}),
    "more than a task's share, FDR": (FDR, {0: 3, 1: 9}),
    "more tasks than the memory is for": (AGEM, {0: 2, 1: 2, 2: 2, 3: 2}),
    "tasks in another order": (GEM, {1: 4, 0: 4}),
    "tasks that do not start at 0": (FDR, {1: 6, 2: 6}),
    "a class beyond all": (ICaRL, {0: 4, 1: 4, 99: 4}),
    "a class beyond all without samples": (ICaRL, {0: 4, 1: 4, 2: 4, 99: 0}),
    "a class below 0 without samples": (ICaRL, {-1: 0, 0: 4, 1: 4, 2: 4}),
    "classes of other samples": (ICaRL, {0: 4, 2: 4, 1: 4}),
    "other numbers of samples": (ICaRL, {0: 3, 1: 5, 2: 4}),
}


@pytest.mark.parametrize("name", GROUPS)
def test_impossible_groups_are_refused_and_change_nothing(name: str) -> None:
    kind, counts = GROUPS[name]
    trained, fresh = grouped(kind, tasks=2), grouped(kind)
    state = copy.deepcopy(trained.state_dict())
    assert sum(counts.values()) == state["memory"]["filled"]
    fresh.load_state_dict(state)
    set_groups(state, counts)
    before = as_bytes(fresh.state_dict(), {})
    with pytest.raises(ValueError, match=r"group|class|task"):
        fresh.load_state_dict(state)
    assert as_bytes(fresh.state_dict(), {}) == before
    fresh.end_task(Samples(INPUTS, LABELS))


def test_a_group_may_be_listed_only_once() -> None:
    trained = grouped(FDR, tasks=2)
    state = copy.deepcopy(trained.state_dict())
    state["memory"].update(groups=[0, 1, 1], counts=[6, 5, 6])
    with pytest.raises(ValueError, match="group"):
        grouped(FDR).load_state_dict(state)


# -- sizes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [CLSER, GSS])
def test_a_huge_memory_is_refused_when_it_is_needed(kind: type[Learner]) -> None:
    made = learner(kind, buffer_size=2**40)
    before = as_bytes(made.state_dict(), {})
    with pytest.raises(ValueError, match="memory"):
        made.observe(INPUTS, LABELS)
    assert as_bytes(made.state_dict(), {}) == before


def refuses_before_it_allocates(
    fresh: Learner, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    def allocate(*arguments: Any) -> None:
        raise AssertionError("allocated")

    before = as_bytes(fresh.state_dict(), {})
    with monkeypatch.context() as patched:
        patched.setattr(Storage, "allocate", allocate)
        with pytest.raises(ValueError, match="the state does not fit"):
            fresh.load_state_dict(state)
    assert as_bytes(fresh.state_dict(), {}) == before


LARGER: dict[str, Callable[[Tensor], Any]] = {
    "larger inputs": lambda x: x.repeat(1, 1000),
    "inputs of many tensors": lambda x: {"inputs": {"0": x}, "structure": str([0] * 1000)},
    "a tensor that is not used": lambda x: {"inputs": {"0": x, "1": x}, "structure": "[0]"},
    "a number that is text": lambda x: {"inputs": {"0": x, "1": x}, "structure": '[0, "0"]'},
    "fewer inputs than labels": lambda x: x[1:],
}


@pytest.mark.parametrize("described", [True, False])
@pytest.mark.parametrize("name", LARGER)
def test_nothing_is_allocated_for_samples_that_do_not_fit(
    name: str, described: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = learner()
    trained.observe(INPUTS, LABELS)
    state = copy.deepcopy(trained.state_dict())
    found = LARGER[name](state["memory"]["stored"]["inputs"])
    state["memory"]["stored"].update(found if isinstance(found, dict) else {"inputs": found})
    if not described:
        state["input_spec"] = {}
    refuses_before_it_allocates(learner(), state, monkeypatch)


def test_nothing_is_allocated_for_logits_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = learner(DERPP)
    trained.observe(INPUTS, LABELS)
    state = copy.deepcopy(trained.state_dict())
    change(state, "logits", lambda z: z.repeat(1, 1000))
    refuses_before_it_allocates(learner(DERPP), state, monkeypatch)


@pytest.mark.parametrize("kind", [CLSER, DERPP, GSS, FDR, ICaRL])
def test_a_memory_without_samples_is_restored(kind: type[Learner]) -> None:
    """Also one that had samples, whose state per row is created again later."""
    empty, used, other = learner(kind), learner(kind), learner(kind)
    state = empty.state_dict()
    used.observe(INPUTS, LABELS)
    used.load_state_dict(state)
    assert as_bytes(used.state_dict(), {}) == as_bytes(state, {})
    for each in (empty, used, other):
        for _ in range(3):
            each.observe(INPUTS, LABELS)
    assert as_bytes(used.state_dict(), {}) == as_bytes(empty.state_dict(), {})
    other.load_state_dict(used.state_dict())
    assert as_bytes(other.state_dict(), {}) == as_bytes(empty.state_dict(), {})
