"""An exception at any call made inside a step leaves the learner as it was."""

from __future__ import annotations

import contextlib
import copy
import inspect
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from perdure import undo
from perdure.catalog import METHODS
from perdure.learners import SGD, Learner
from perdure.memory import Reservoir
from perdure.records import Samples
from perdure.state import as_bytes

from .conftest import Count

NAMES = [name for name in METHODS if name != "joint"]
STEPS = 3
"""Steps in which faults are injected: with a new network, as the memory fills, and later."""


class Fault(BaseException):
    """Not an Exception, so that no library handles it."""


class Calls:
    """Raises a fault at a call of a function, in Python or in C: the first after so many events.

    Events are calls and returns. Not counted as calls: generators, which are also called to be
    closed, where Python ignores exceptions; the release of a lock, which happens after the step;
    functions of this file, and of functorch, which does not survive an exception while it enters
    or leaves `vmap`.
    """

    def __init__(self, after: int) -> None:
        self.after = after
        self.events = 0
        self.raised = False

    def __enter__(self) -> None:
        sys.setprofile(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> None:
        self.events += 1
        if self.events <= self.after or event not in ("call", "c_call"):
            return
        code = frame.f_code
        if code.co_filename == __file__ or self._in_functorch(frame):
            return
        if event == "call" and code.co_flags & inspect.CO_GENERATOR:
            return
        if event == "c_call" and isinstance(argument.__self__, type(threading.RLock())):
            return
        self.raised = True
        raise Fault

    def _in_functorch(self, frame: FrameType | None) -> bool:
        """Whether functorch itself called this function, not a function that it maps."""
        while frame is not None and "/perdure/" not in frame.f_code.co_filename:
            if "functorch" in frame.f_code.co_filename:
                return True
            frame = frame.f_back
        return False


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises a fault at an operation on tensors, until all that can fail has succeeded."""

    def __init__(self, after: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.after = after
        self.events = 0
        self.raised = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if undo._current.snapshot is not None and not self.raised:
            self.events += 1
            if self.events > self.after:
                self.raised = True
                raise Fault
        return func(*args, **(kwargs or {}))


Inject = Callable[[int], Any]
INJECT: dict[str, Inject] = {"call": Calls, "operation": Operations}


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)
        )


def jitter(inputs: Tensor, generator: torch.Generator) -> Tensor:
    return inputs + torch.rand(inputs.shape, generator=generator)


def make(method: str, *, adam: bool = False, grow: bool = False) -> Learner:
    arguments: dict[str, Any] = {} if method == "sgd" else {"buffer_size": 12}
    if method in ("gem", "agem"):
        arguments["tasks"] = 3
    if method in ("gss", "mer"):
        arguments["inner_steps"] = 2
    if method == "mer":
        arguments |= {"beta": 0.5, "gamma": 0.5}
    if method in ("clser", "mean-er"):
        names = ("rate",) if method == "mean-er" else ("stable_rate", "plastic_rate")
        arguments |= dict.fromkeys(names, 0.7)
    module = network()
    if adam:
        arguments["optimizer"] = torch.optim.Adam(module.parameters(), lr=0.01)
    return METHODS[method].learner(module, augment=jitter, grow=grow, **arguments)


def batches(grow: bool) -> list[Samples]:
    draws = torch.Generator().manual_seed(1)
    found = []
    for number in range(STEPS):
        classes = 3 + (number if grow else 0)
        labels = torch.arange(classes - 1, classes - 6, -1) % classes
        found.append(Samples(torch.rand(5, 6, generator=draws), labels))
    return found


def state(learner: Learner) -> tuple[Any, ...]:
    """Everything that must be as before, including what is not saved to files."""
    modes = [m.training for n in learner.networks() for m in n.modules()]
    every = [m for v in vars(learner).values() if isinstance(v, nn.Module) for m in v.modules()]
    hooks = [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in every]
    shapes = [tuple(p.shape) for n in learner.networks() for p in n.parameters()]
    heads = [m.out_features for m in learner.network.modules() if isinstance(m, nn.Linear)]
    host = learner._observed, learner.grown, len(learner._examples), learner.host_state()
    random = torch.get_rng_state().numpy().tobytes()
    return as_bytes(learner.state_dict(), {}), modes, hooks, shapes, heads, host, random


def check(build: Callable[[], Learner], inject: Inject, stride: int, grow: bool) -> int:
    """Fail at calls in each step and end of a task, then let it succeed.

    Args:
        build: Creates the learner.
        inject: Raises the faults.
        stride: Events between two faults; 1 means at every call.
        grow: Whether the learner grows.

    Returns:
        The number of faults.
    """
    learner, undisturbed = build(), build()
    faults = 0
    for number, batch in enumerate(batches(grow)):
        for call in ("observe", "end_task") if learner.needs_boundaries else ("observe",):
            arguments: tuple[Any, ...] = batch[:2] if call == "observe" else (batch,)
            before, after = state(learner), number
            backup = copy.deepcopy(learner)
            getattr(undisturbed, call)(*arguments)
            while True:
                fault = inject(after)
                try:
                    with fault:
                        getattr(learner, call)(*arguments)
                except Fault:
                    faults += 1
                    assert state(learner) == before, f"event {fault.events} in {call} {number}"
                else:
                    assert state(learner) == state(undisturbed)
                    if not fault.raised:
                        break
                    learner = copy.deepcopy(backup)  # a library has handled the fault
                after = fault.events - 1 + stride
    return faults


@pytest.mark.parametrize("inject", INJECT)
@pytest.mark.parametrize("method", NAMES)
def test_a_failed_step_changes_nothing(method: str, inject: str) -> None:
    assert check(partial(make, method), INJECT[inject], 400 if inject == "call" else 43, False) > 5


@pytest.mark.parametrize("method", ["derpp", "clser", "icarl"])
def test_a_failed_step_that_grows_changes_nothing(method: str) -> None:
    assert check(partial(make, method, adam=True, grow=True), Calls, 1500, True) > 10


class Steps:
    """An object with a state, as a user might write it."""

    def __init__(self) -> None:
        self.number = 0

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number = int(state["number"])


class Own(SGD):
    """A user's method with attributes of every kind."""

    fails = False

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.object = Steps()
        self.draws = torch.Generator()
        self.tensor, self.table = torch.zeros(3), {"a": torch.zeros(()), "b": torch.ones(2)}
        self.replaced: Tensor | None = None
        self.number = 0

    def step(self, inputs: Any, labels: Tensor) -> None:
        super().step(inputs, labels)
        self.object.number += 1
        self.tensor += torch.rand(3, generator=self.draws)
        self.table["a"] += 1
        self.table["b"] += 1
        self.table[f"new {self.number}"] = torch.ones(1)
        self.replaced = torch.rand(2) if self.replaced is None else self.replaced + 1
        self.number += 1
        if self.fails:
            raise Fault


def test_gradients_are_enabled_after_an_interrupted_restoration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interruptions = iter([KeyboardInterrupt])

    def leave(*_: object) -> None:
        monkeypatch.undo()
        raise next(interruptions)

    snapshot = undo.Snapshot(Reservoir(4))
    snapshot.take()
    monkeypatch.setattr(torch.no_grad, "__exit__", leave)
    with contextlib.suppress(KeyboardInterrupt):
        snapshot.restore()
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("converted", [(0,), (1,), (0, 1)])
def test_tensors_are_restored_exactly_after_a_conversion(converted: tuple[int, ...]) -> None:
    owner, tensors = Reservoir(4), [torch.rand(2), torch.rand(2)]
    snapshot = undo.Snapshot(owner)
    snapshot.take()
    undo.save_tensors(owner, tensors)
    snapshot.commit()
    for number in converted:
        tensors[number].data = torch.rand(2, dtype=torch.float64)
    before = copy.deepcopy(tensors)
    snapshot.take()
    undo.save_tensors(owner, tensors)
    for tensor in tensors:
        tensor.zero_()
    snapshot.restore()
    assert all(map(torch.equal, tensors, before))


class Holder(undo.Undoable):
    """An object with a tensor."""

    def __init__(self) -> None:
        self.tensor = torch.zeros(3)
        self.number: Any = 0
        self.module = nn.ReLU()


@pytest.mark.parametrize("name", ["tensor", "other"])
def test_attributes_that_were_replaced_or_added_are_restored(name: str) -> None:
    owner = Holder()
    snapshot = undo.Snapshot(owner)
    snapshot.take()
    snapshot.commit()
    setattr(owner, name, torch.ones(1))
    snapshot.take()
    getattr(owner, name).add_(1)
    snapshot.restore()
    assert getattr(owner, name).tolist() == [1]


def test_a_number_that_became_a_tensor_is_restored() -> None:
    owner = Holder()
    snapshot = undo.Snapshot(owner)
    snapshot.take()
    owner.number += torch.ones(1)
    snapshot.commit()
    snapshot.take()
    owner.number += 1
    snapshot.restore()
    assert owner.number.tolist() == [1]


def test_the_first_buffer_of_a_module_is_removed_and_restored() -> None:
    owner = Holder()
    module = owner.module
    snapshot = undo.Snapshot(owner)
    snapshot.take()
    module.register_buffer("count", torch.ones(1))
    snapshot.restore()
    assert not list(module.buffers())
    snapshot.take()
    module.register_buffer("count", torch.ones(1))
    snapshot.commit()
    snapshot.take()
    module.get_buffer("count").add_(1)
    snapshot.restore()
    assert module.get_buffer("count").tolist() == [1]


def test_what_a_step_saves_twice_is_restored_to_the_first_value() -> None:
    owner, tensor, network = Holder(), torch.zeros(2), nn.Linear(2, 2)
    optimizer = torch.optim.Adam(network.parameters())
    snapshot = undo.Snapshot(owner)
    for _ in range(2):  # without a state of the optimizer, and with one
        before = copy.deepcopy([network.state_dict(), optimizer.state_dict()["state"]])
        snapshot.take()
        for _ in range(2):
            undo.save_tensors(owner, [tensor])
            tensor += 1
            undo.save_optimizer(optimizer)
            network(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        snapshot.restore()
        assert tensor.tolist() == [0, 0]
        after = [network.state_dict(), optimizer.state_dict()["state"]]
        torch.testing.assert_close(after, before, rtol=0, atol=0)
        network(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def test_a_step_whose_postponed_update_fails_changes_nothing() -> None:
    learner = make("er")
    first, second, third = batches(False)
    learner.observe(*first[:2])
    learner.observe(*second[:2])
    before = state(learner)
    learner.optimizer.param_groups[0]["lr"] = 1e39  # overflows in single precision
    with pytest.raises(RuntimeError):
        learner.observe(*third[:2])
    learner.optimizer.param_groups[0]["lr"] = 0.1
    assert state(learner) == before
    assert torch.is_grad_enabled()


def test_only_updates_before_a_failed_one_are_kept() -> None:
    owner, first, second = Holder(), torch.zeros(2), torch.zeros(2)
    owner.tensor = torch.zeros(2)
    snapshot = undo.Snapshot(owner)
    snapshot.take(may_postpone=True)
    owner.tensor += 1
    fails = partial(second.index_copy_, 0, torch.tensor([5]), torch.ones(1))
    assert undo.postpone(partial(first.add_, 1), fails, partial(second.add_, 1))
    with pytest.raises(IndexError):
        snapshot.commit()
    snapshot.restore()
    assert first.tolist() == [1, 1]
    assert second.tolist() == owner.tensor.tolist() == [0, 0]


def test_state_that_a_later_update_of_a_step_creates_is_removed() -> None:
    network, snapshot = nn.Linear(2, 2), undo.Snapshot(Holder())
    optimizer = torch.optim.Adam(network.parameters())
    network.weight.sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    before = copy.deepcopy([network.state_dict(), optimizer.state[network.weight]])
    snapshot.take()
    with torch.no_grad():
        undo.save_optimizer(optimizer, in_place=True)
    optimizer.step()
    network(torch.ones(1, 2)).sum().backward()
    with torch.no_grad():
        undo.save_optimizer(optimizer)
    optimizer.step()
    snapshot.restore()
    assert list(optimizer.state) == [network.weight]
    after = [network.state_dict(), optimizer.state[network.weight]]
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_a_generator_that_draws_twice_is_restored_to_its_first_state() -> None:
    draws = torch.Generator()
    before, snapshot = draws.get_state(), undo.Snapshot(Holder())
    for _ in range(2):
        snapshot.take()
        for _ in range(2):
            undo.save_generator(draws)
            torch.rand(2, generator=draws)
        snapshot.restore()
        assert draws.get_state().equal(before)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, TimeoutError])
def test_an_interrupted_restoration_is_completed(kind: type[BaseException]) -> None:
    tensors, signals = [torch.zeros(2), torch.zeros(2)], iter([kind("signal")])
    snapshot = undo.Snapshot(Holder())
    snapshot.take()

    def restore_with_a_signal() -> None:
        tensors[0].zero_()
        for signal in signals:
            raise signal
        tensors[1].zero_()

    undo.on_failure(restore_with_a_signal)
    for tensor in tensors:
        tensor += 1
    with pytest.raises(kind, match="signal"):
        snapshot.restore()
    assert not snapshot.taken
    assert [tensor.tolist() for tensor in tensors] == [[0, 0], [0, 0]]


def test_an_action_that_always_fails_does_not_keep_the_others_from_being_undone() -> None:
    tensor, snapshot = torch.ones(2), undo.Snapshot(Holder())
    snapshot.take()
    undo.on_failure(tensor.zero_)
    undo.on_failure(int, "no number")
    with pytest.raises(ValueError, match="no number"):
        snapshot.restore()
    assert not snapshot.taken
    assert tensor.tolist() == [0, 0]


def test_hooks_and_parameters_of_a_call_that_failed_are_removed() -> None:
    network = nn.Linear(2, 2)
    weight, snapshot = network.weight, undo.Snapshot(Holder())
    snapshot.take()
    undo.save_hooks(network)
    undo.save_parameters(network)
    network.register_forward_pre_hook(print)
    network.weight = nn.Parameter(torch.zeros(2, 2))
    snapshot.restore()
    assert not network._forward_pre_hooks
    assert network.weight is weight


def test_a_step_that_contains_one_of_another_learner_is_undone() -> None:
    class Outer(SGD):
        def step(self, inputs: Any, labels: Tensor) -> None:
            inner.observe(inputs, labels)
            super().step(inputs, labels)
            raise Fault

    inner, outer, batch = SGD(network()), Outer(network()), batches(False)[0]
    before = state(outer)
    with pytest.raises(Fault):
        outer.observe(*batch[:2])
    assert state(outer) == before
    assert inner.steps == 1


def test_attributes_of_a_users_method_are_restored() -> None:
    learner = Own(network())
    for batch in batches(False):
        learner.observe(*batch[:2])
        before = state(learner)
        table, replaced = dict(learner.table), learner.replaced
        values = [value.clone() for value in table.values()]
        learner.fails = True
        with pytest.raises(Fault):
            learner.observe(*batch[:2])
        learner.fails = False
        assert state(learner) == before
        assert learner.object.number == learner.number == int(learner.steps)
        assert learner.replaced is replaced
        assert learner.table == table
        assert all(map(torch.equal, table.values(), values))


def test_an_error_while_a_step_is_undone_does_not_last(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("cannot restore")

    learner = Own(network())
    first, second, *_ = batches(False)
    learner.observe(*first[:2])
    learner.fails = True
    with monkeypatch.context() as patch:
        patch.setattr(Steps, "load_state_dict", fail)
        with pytest.raises(RuntimeError, match="cannot restore"):
            learner.observe(*second[:2])
    before = state(learner)
    with pytest.raises(Fault):
        learner.observe(*second[:2])
    assert state(learner) == before
    assert torch.is_grad_enabled()


def test_attributes_may_be_exchanged() -> None:
    learner = SGD(network())
    first, second, *_ = batches(False)
    setattr(learner, "scratch", torch.zeros(2))  # noqa: B010
    learner.observe(*first[:2])
    delattr(learner, "scratch")
    setattr(learner, "other", 1)  # noqa: B010
    learner.observe(*second[:2])
    assert learner.steps == 2


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("method", NAMES)
def test_a_fault_at_every_call_and_operation(method: str, count: Count) -> None:
    for inject in INJECT.values():
        count("faults inside a step", check(partial(make, method), inject, 1, False))


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("options", [{"adam": True}, {"grow": True}], ids=str)
@pytest.mark.parametrize("method", NAMES)
def test_faults_with_other_options(method: str, options: dict[str, bool], count: Count) -> None:
    """A fifth of the calls, and every operation."""
    grow = options.get("grow", False)
    for inject, stride in ((Calls, 17), (Operations, 1)):
        count("faults inside a step", check(partial(make, method, **options), inject, stride, grow))


class Interrupts(Calls):
    """Raises a fault where Python handles signals: as a function starts, or after one in C."""

    def _trace(self, frame: FrameType, event: str, argument: Any) -> None:
        self.events += 1
        due = self.events > self.after and not self.raised
        if due and event in ("call", "c_return") and frame.f_code.co_filename != __file__:
            self.raised = True
            raise Fault


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("what", "stride"),
    [("predict", 1), ("grow", 40), pytest.param("grow", 10, marks=pytest.mark.slow)],
)
def test_an_interruption_leaves_every_mode_as_it_was(what: str, stride: int, count: Count) -> None:
    def act(learner: Learner) -> None:
        learner.predict(batch.inputs) if what == "predict" else learner.grow(5)

    batch, learner = batches(False)[0], make("er")
    learner.observe(*batch[:2])
    backup, done = copy.deepcopy(learner), copy.deepcopy(learner)
    act(done)
    before, after, kept = state(learner), state(done), list[Fault]()
    fault = Interrupts(0)
    while True:
        try:
            with fault:
                act(learner)
        except Fault as error:
            kept.append(error)  # as a notebook does: its frames and all they refer to stay alive
            assert torch.is_grad_enabled()
            if (found := state(learner)) != before:
                assert found == after
                learner = copy.deepcopy(backup)
        else:
            if not fault.raised:
                break
            learner = copy.deepcopy(backup)  # a library, or a finalizer, has handled the fault
        fault = Interrupts(fault.events - 1 + stride)
    assert len(kept) > 50
    count("interrupted predictions and growths", len(kept))
