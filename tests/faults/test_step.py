"""An exception at any call made inside a step leaves the learner as it was."""

from __future__ import annotations

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
from perdure.learners import Learner
from perdure.records import Samples
from perdure.state import as_bytes

from .conftest import Count

NAMES = [name for name in METHODS if name != "joint"]
STEPS = 3
"""Steps in which faults are injected: with a new network, as the memory fills, and later."""


class Fault(BaseException):
    """Not an Exception, so that no library handles it."""


class Countdown:
    """Raises a fault at the n-th event."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Fault


class Calls:
    """Counts calls of functions, in Python and in C.

    Not counted: generators, which are also called to be closed, where Python ignores exceptions;
    the release of a lock, which happens after the step; functions of this file, and of functorch,
    which does not survive an exception while it leaves `vmap`.
    """

    def __init__(self, countdown: Countdown) -> None:
        self.countdown = countdown

    def __enter__(self) -> None:
        sys.setprofile(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if code.co_filename == __file__ or event not in ("call", "c_call"):
            return
        callers = (code, frame.f_back.f_code) if frame.f_back else (code,)
        if any("functorch" in caller.co_filename for caller in callers):
            return
        if event == "call" and code.co_flags & inspect.CO_GENERATOR:
            return
        if event == "c_call" and isinstance(argument.__self__, type(threading.RLock())):
            return
        self.countdown()


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations on tensors, until all that can fail has succeeded."""

    def __init__(self, countdown: Countdown) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.countdown = countdown

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if undo._current.snapshot is not None:
            self.countdown()
        return func(*args, **(kwargs or {}))


Inject = Callable[[Countdown], Any]
INJECT: dict[str, Inject] = {"call": Calls, "operation": _Operations}


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
    hooks = [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in learner.network.modules()]
    shapes = [tuple(p.shape) for n in learner.networks() for p in n.parameters()]
    heads = [m.out_features for m in learner.network.modules() if isinstance(m, nn.Linear)]
    host = learner._observed, learner.grown, len(learner._examples), learner.host_state()
    random = torch.get_rng_state().numpy().tobytes()
    return as_bytes(learner.state_dict(), {}), modes, hooks, shapes, heads, host, random


def check(build: Callable[[], Learner], inject: Inject, stride: int, grow: bool) -> int:
    """Fail in every `stride`-th event of each step and end of a task, then let it succeed.

    Returns:
        The number of faults.
    """
    learner, undisturbed = build(), build()
    faults = 0
    for number, batch in enumerate(batches(grow)):
        for call in ("observe", "end_task") if learner.needs_boundaries else ("observe",):
            arguments: tuple[Any, ...] = batch[:2] if call == "observe" else (batch,)
            before, at = state(learner), 1 + number
            backup = copy.deepcopy(learner)
            getattr(undisturbed, call)(*arguments)
            while True:
                countdown = Countdown(at)
                try:
                    with inject(countdown):
                        getattr(learner, call)(*arguments)
                except Fault:
                    faults += 1
                    after = state(learner)
                    assert after == before, f"fault {at} in {call} {number}"
                else:
                    assert state(learner) == state(undisturbed)
                    if countdown.left > 0:
                        break
                    learner = copy.deepcopy(backup)  # a library has handled the fault
                at += stride
    return faults


@pytest.mark.parametrize("inject", INJECT)
@pytest.mark.parametrize("method", NAMES)
def test_a_failed_step_changes_nothing(method: str, inject: str) -> None:
    assert check(partial(make, method), INJECT[inject], 127 if inject == "call" else 43, False) > 5


@pytest.mark.parametrize("method", ["derpp", "clser", "icarl"])
def test_a_failed_step_that_grows_changes_nothing(method: str) -> None:
    assert check(partial(make, method, adam=True, grow=True), Calls, 397, True) > 10


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("options", [{}, {"adam": True}, {"grow": True}], ids=str)
@pytest.mark.parametrize("method", NAMES)
def test_a_fault_at_every_call_and_operation(
    method: str, options: dict[str, bool], count: Count
) -> None:
    for inject in INJECT.values():
        grow = options.get("grow", False)
        count("faults inside a step", check(partial(make, method, **options), inject, 1, grow))
