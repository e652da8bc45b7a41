"""Operations in place compute the same bits as the optimizers of torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop
from torch.optim.optimizer import register_optimizer_step_post_hook

from perdure import ER
from perdure.learners.optimizers import in_place_step

SAME: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: SGD(p, lr=0.1),
    "momentum": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "dampening": lambda p: SGD(p, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.01),
    "nesterov": lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "decay": lambda p: SGD(p, lr=0.1, weight_decay=0.01),
    "decay and nesterov": lambda p: SGD(p, 0.1, 0.9, 0, 0.01, True),
    "adam": lambda p: Adam(p, lr=0.01),
    "adam with decay": lambda p: Adam(p, lr=0.01, betas=(0.8, 0.99), eps=1e-4, weight_decay=0.1),
    "adamw": lambda p: AdamW(p, lr=0.01, weight_decay=0.1),
    "groups": lambda p: Adam([{"params": p[:1]}, {"params": p[1:], "lr": 0.05}], lr=0.01),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3), nn.Linear(3, 3))


def set_gradients(module: nn.Module, step: int) -> None:
    draws = torch.Generator().manual_seed(step)
    for number, parameter in enumerate(module.parameters()):
        parameter.grad = torch.randn(parameter.shape, generator=draws)
        if number == 4 and step % 3 == 1:  # its state is younger than the others'
            parameter.grad = None


@pytest.mark.parametrize("name", SAME)
def test_the_bits_are_those_of_torch(name: str) -> None:
    theirs = network()
    ours = copy.deepcopy(theirs)
    optimizers = [SAME[name](list(module.parameters())) for module in (theirs, ours)]
    used = 0
    for step in range(1, 12):
        for module in (theirs, ours):
            set_gradients(module, step)
        optimizers[0].step()
        with torch.no_grad():
            operations = in_place_step(optimizers[1])
            if operations is None:
                optimizers[1].step()
            else:
                used += 1
                gradients = [p.grad.clone() for p in ours.parameters() if p.grad is not None]
                for operation in operations:
                    operation()
                after = [p.grad for p in ours.parameters() if p.grad is not None]
                assert all(map(torch.equal, gradients, after))
        for one, other in zip(theirs.parameters(), ours.parameters(), strict=True):
            assert torch.equal(one, other)
            state, other_state = optimizers[0].state[one], optimizers[1].state[other]
            assert state.keys() == other_state.keys()
            assert all(torch.equal(state[key], other_state[key]) for key in state)
    assert used >= 9


def hooked(parameters: Any) -> Optimizer:
    optimizer = SGD(parameters, lr=0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def scheduled(parameters: Any) -> Optimizer:
    optimizer = SGD(parameters, lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return optimizer


@pytest.mark.parametrize(
    "make",
    [
        lambda p: RMSprop(p, lr=0.1),
        lambda p: Adam(p, lr=0.1, amsgrad=True),
        lambda p: Adam(p, lr=torch.tensor(0.1)),
        lambda p: SGD(p, lr=0.1, maximize=True),
        lambda p: AdamW(p, lr=0.1, foreach=True),
        lambda p: type("Own", (SGD,), {})(p, lr=0.1),
        hooked,
        scheduled,
    ],
)
def test_other_steps_are_left_to_the_optimizer(make: Callable[[Any], Optimizer]) -> None:
    module = network()
    optimizer = make(list(module.parameters()))
    for step in (1, 2):
        set_gradients(module, step)
        assert in_place_step(optimizer) is None
        optimizer.step()


def test_sparse_gradients_are_left_to_the_optimizer() -> None:
    module = nn.Embedding(4, 2, sparse=True)
    optimizer = SGD(module.parameters(), lr=0.1)
    module(torch.tensor([1])).sum().backward()
    assert in_place_step(optimizer) is None


@pytest.mark.parametrize("make", [Adam, lambda p: SGD(p, lr=0.1, momentum=0.9)])
def test_complex_weights_are_left_to_the_optimizer(make: Callable[[Any], Optimizer]) -> None:
    weight = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    weight.grad = torch.ones_like(weight)
    optimizer = make([weight])
    optimizer.step()
    assert in_place_step(optimizer) is None


@pytest.mark.parametrize("name", SAME)
def test_observe_and_a_bare_loop_end_with_the_same_weights(name: str) -> None:
    """`observe` postpones the operations, a bare loop calls the optimizer."""
    module = network()
    bare = copy.deepcopy(module)
    learner = ER(
        module, buffer_size=1, memory_batch=1, optimizer=SAME[name](list(module.parameters()))
    )
    optimizer = SAME[name](list(bare.parameters()))
    inputs, labels = torch.rand(1, 6), torch.tensor([1])
    for _ in range(5):
        learner.observe(inputs, labels)
        replayed = learner.steps > 1
        optimizer.zero_grad()
        losses = [nn.functional.cross_entropy(bare(inputs), labels)] * (2 if replayed else 1)
        torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    for one, other in zip(bare.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [Adam, lambda p: SGD(p, lr=0.1, momentum=0.9)])
def test_half_precision_is_left_to_the_optimizer(
    make: Callable[[Any], Optimizer], dtype: torch.dtype
) -> None:
    weight = nn.Parameter(torch.ones(2, dtype=dtype))
    weight.grad = torch.ones_like(weight)
    optimizer = make([weight])
    optimizer.step()
    assert in_place_step(optimizer) is None


@pytest.mark.parametrize("separate", [False, True])
def test_parameters_that_share_data_are_left_to_the_optimizer(separate: bool) -> None:
    weights = [nn.Parameter(torch.ones(2))]
    weights.append(nn.Parameter(weights[0].data))
    for weight in weights:
        weight.grad = torch.ones(2)
    groups = [{"params": [weight]} for weight in weights] if separate else weights
    assert in_place_step(SGD(groups, lr=0.1, weight_decay=0.5)) is None


def test_hooks_of_all_optimizers_are_called() -> None:
    calls: list[None] = []
    learner = ER(network(), buffer_size=4)
    with register_optimizer_step_post_hook(lambda *_: calls.append(None)):
        learner.observe(torch.rand(2, 6), [0, 1])
    learner.observe(torch.rand(2, 6), [0, 1])
    assert len(calls) == 1


def test_rates_that_are_tensors_are_left_to_the_optimizer() -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones_like(weight)
    optimizer = Adam([weight], lr=0.1, betas=(torch.tensor(0.9), torch.tensor(0.99)))
    optimizer.step()
    assert in_place_step(optimizer) is None
