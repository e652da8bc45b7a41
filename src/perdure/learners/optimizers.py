"""The steps of torch's SGD, Adam and AdamW as operations in place that allocate nothing.

Such operations can be executed at the end of a training step, when nothing can fail any more, so
that `observe` needs no copies of the weights. On small networks they also take less time than
`optimizer.step`. They compute the same bits as torch does on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

Operation = Callable[[], object]

_UNSUPPORTED = ("maximize", "foreach", "fused", "differentiable", "capturable", "amsgrad")
"""Options of optimizers with other operations."""
_EXACT = (torch.float32, torch.float64)
"""Dtypes for which operations on lists compute the same bits as those on single tensors."""


def in_place_step(optimizer: Optimizer) -> list[Operation] | None:
    """Return the operations of a step with the current gradients, to be executed in this order.

    Args:
        optimizer: Any optimizer.

    Returns:
        None if `optimizer.step` must be called: for another class or other options, if hooks or a
        learning-rate scheduler wait for the call, and if the optimizer has to create its state
        first; unless this is plain SGD, also on other devices than a CPU, in half precision and if
        parameters share their data.
    """
    kind = type(optimizer)
    if kind not in (SGD, Adam, AdamW) or "step" in vars(optimizer):  # wrapped by a scheduler
        return None
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return None
    if _global_optimizer_pre_hooks or _global_optimizer_post_hooks:
        return None
    operations: list[Operation] = []
    addresses: list[int] = []
    for group in optimizer.param_groups:
        if type(group["lr"]) is not float or any(map(group.get, _UNSUPPORTED)):
            return None
        trained = [p for p in group["params"] if p.grad is not None]
        gradients = [p.grad for p in trained]
        if any(gradient.layout is not torch.strided for gradient in gradients):
            return None
        if kind is SGD and not (group["momentum"] or group["weight_decay"]):
            operations.append(partial(torch._foreach_add_, trained, gradients, alpha=-group["lr"]))
            continue
        if any(p.dtype not in _EXACT or p.device.type != "cpu" for p in trained):
            return None
        addresses += (p.data_ptr() for p in trained)
        if len(set(addresses)) < len(addresses):  # torch updates shared weights one by one
            return None
        if kind is not SGD and any(isinstance(beta, Tensor) for beta in group["betas"]):
            return None
        states = [optimizer.state.get(p, {}) for p in trained]
        if not all(states) and (kind is not SGD or group["momentum"]):
            return None
        step = _sgd if kind is SGD else _adam
        operations += step(group, trained, gradients, states)
    return operations


def _sgd(
    group: Mapping[str, Any],
    parameters: list[Tensor],
    gradients: list[Tensor],
    states: list[dict[str, Any]],
) -> list[Operation]:
    momentum = group["momentum"]
    if group["weight_decay"]:
        gradients = _add_weights(gradients, parameters, group["weight_decay"])
    move = partial(torch._foreach_add_, parameters, alpha=-group["lr"])
    if not momentum:
        return [partial(move, gradients)]
    buffers = [state["momentum_buffer"] for state in states]
    operations: list[Operation] = [
        partial(torch._foreach_mul_, buffers, momentum),
        partial(torch._foreach_add_, buffers, gradients, alpha=1 - group["dampening"]),
    ]
    if not group["nesterov"]:
        return [*operations, partial(move, buffers)]
    ahead = [gradient.clone() for gradient in gradients]
    operations.append(partial(torch._foreach_add_, ahead, buffers, alpha=momentum))
    return [*operations, partial(move, ahead)]


def _adam(
    group: Mapping[str, Any],
    parameters: list[Tensor],
    gradients: list[Tensor],
    states: list[dict[str, Any]],
) -> list[Operation]:
    (beta1, beta2), lr, decay = group["betas"], group["lr"], group["weight_decay"]
    counts, means, squares = (
        [state[name] for state in states] for name in ("step", "exp_avg", "exp_avg_sq")
    )
    steps = [count.item() + 1 for count in counts]
    operations: list[Operation] = [partial(torch._foreach_add_, counts, 1)]
    if decay and group["decoupled_weight_decay"]:
        operations.append(partial(torch._foreach_mul_, parameters, 1 - lr * decay))
    elif decay:
        gradients = _add_weights(gradients, parameters, decay)
    divisors = [torch.empty_like(square) for square in squares]
    roots = [(1 - beta2**step) ** 0.5 for step in steps]
    sizes = [-(lr / (1 - beta1**step)) for step in steps]
    return [
        *operations,
        partial(torch._foreach_lerp_, means, gradients, 1 - beta1),
        partial(torch._foreach_mul_, squares, beta2),
        partial(torch._foreach_addcmul_, squares, gradients, gradients, value=1 - beta2),
        partial(torch._foreach_copy_, divisors, squares),
        partial(torch._foreach_sqrt_, divisors),
        partial(torch._foreach_div_, divisors, roots),
        partial(torch._foreach_add_, divisors, group["eps"]),
        partial(torch._foreach_addcdiv_, parameters, means, divisors, sizes),
    ]


def _add_weights(gradients: list[Tensor], weights: list[Tensor], decay: float) -> list[Tensor]:
    values = [weight.detach() for weight in weights]  # no_grad would take longer
    return list(torch._foreach_add(gradients, values, alpha=decay))
