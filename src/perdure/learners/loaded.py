"""What must hold for a state that was read from a file, beyond names and shapes.

A file can be intact and still wrong: written for another optimizer, by a run that diverged, or by
an attacker.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from perdure.memory import EpisodicMemory, ExemplarSet, Reservoir
from perdure.memory.episodic import load_samples
from perdure.state import State, flatten
from perdure.structures import Inputs, layout

if TYPE_CHECKING:
    from perdure.learners.learner import Learner

_NOT_HYPERPARAMETERS = {"params", "initial_lr", "foreach", "fused", "capturable", "differentiable"}
"""Entries of an optimizer's groups that do not change what it computes."""


def check_optimizer_state(
    optimizer: Optimizer, first_settings: Sequence[Mapping[str, Any]], state: State
) -> None:
    """Raise ValueError if a state is of another optimizer, or of one with other hyperparameters.

    Compares the settings with which the learners were created: a schedule may have changed them.

    Args:
        optimizer: The learner's optimizer.
        first_settings: The settings of its groups when the learner was created.
        state: The optimizer's part of a learner's state.
    """
    kind = type(optimizer).__name__
    if state.get("class", kind) != kind:
        raise ValueError(f"optimizer: the state is of {state['class']}; this learner uses {kind}")
    first_saved = state["initial"] if "initial" in state else state["groups"]  # as once saved
    if {len(first_saved), len(state["groups"])} != {len(first_settings)}:
        raise ValueError(
            f"optimizer: the state has {len(state['groups'])} groups of parameters; this learner "
            f"has {len(first_settings)}"
        )
    for place, (own, saved) in enumerate(zip(first_settings, first_saved, strict=True)):
        for name in (own.keys() & saved.keys()) - _NOT_HYPERPARAMETERS:
            ours, theirs = (_plain(group, name) for group in (own, saved))
            if ours != theirs:
                raise ValueError(
                    f"optimizer: the state has {name} {theirs}; this learner has {ours}; create "
                    f"it with {name} {theirs} and set optimizer.param_groups[{place}][{name!r}] "
                    "after loading"
                )
    for own, saved in zip(first_settings, state["groups"], strict=True):
        for name in (own.keys() & saved.keys()) - _NOT_HYPERPARAMETERS:
            if not _is_possible(saved[name], own[name]):
                raise ValueError(f"optimizer: the state has {name} {saved[name]!r}")


def _plain(group: Mapping[str, Any], name: str) -> Any:
    value = group.get("initial_lr", group[name]) if name == "lr" else group[name]
    return tuple(value) if isinstance(value, list) else value


def _is_possible(value: Any, example: Any) -> bool:
    """Whether a schedule can have changed a setting of an optimizer to this value."""
    if isinstance(example, list | tuple):
        same_length = isinstance(value, list | tuple) and len(value) == len(example)
        return same_length and all(map(_is_possible, value, example))
    if isinstance(example, bool) or not isinstance(example, int | float):
        return type(value) is type(example)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    largest = 2**53 if isinstance(value, int) else torch.finfo(torch.float32).max
    return value == example or 0 <= value <= largest  # torch cannot compute with others


def check_finite(state: State) -> None:
    """Raise ValueError if a value of a learner's state, other than its totals, is not finite."""
    for name, value in flatten(state):
        is_float = isinstance(value, Tensor) and value.is_floating_point()
        if is_float and not name.startswith("totals/") and not torch.isfinite(value).all():
            raise ValueError(f"{name} has values that are infinite or not a number")


def check_loaded(learner: Learner, state: State) -> None:
    """Raise ValueError if a learner cannot be in this state.

    Args:
        learner: A learner that has just loaded the state, except its memories.
        state: The state.
    """
    check_finite(state)
    spec = learner._input_spec
    if spec is not None and not (
        isinstance(spec.layout, str)
        and _leaf_layouts(spec.layout)
        and type(spec.classes) is type(spec.smallest_batch) is int
        and 0 < spec.classes < 2**31
        and spec.smallest_batch in (1, 2)
    ):
        raise ValueError(f"the state describes its inputs as {spec}")
    for name, total in learner._totals.items():
        if total.ndim:
            raise ValueError(f"the total of {name} is not a single number")
    steps, finite = int(learner.steps), int(learner.finite_steps)
    loss = learner._totals.get("loss")
    diverged = loss is not None and not math.isfinite(loss)
    if not 0 <= finite <= steps or (loss is not None and diverged != (finite < steps)):
        raise ValueError(
            f"the state has {finite} finite steps of {steps} and a total loss of {loss}"
        )
    if not 0 <= learner._last_read[0] <= steps:
        raise ValueError(f"the state has metrics read at step {learner._last_read[0]} of {steps}")
    if learner.device.type == "cpu":
        torch.Generator().set_state(learner._global_random)  # refuses what is no such state
    for name, part in learner._parts().items():
        if isinstance(part, EpisodicMemory):
            _check_memory(name, part, state[name], learner)


def _check_memory(name: str, memory: EpisodicMemory, state: State, learner: Learner) -> None:
    """Raise ValueError if a memory cannot have this state, which it has not loaded yet."""
    samples, classes = load_samples(state), 0
    if samples is not None and len(samples.labels):
        spec = learner._input_spec
        stored = layout(samples.inputs)
        if spec is not None and _leaf_layouts(stored) != _leaf_layouts(spec.layout):
            raise ValueError(f"{name} stores inputs {stored}; the learner's are {spec.layout}")
        classes = _outputs(samples.inputs, learner)
        if spec is not None and spec.classes != classes:
            raise ValueError(
                f"the state has {spec.classes} classes, but the network has {classes} outputs"
            )
        if samples.labels.dtype != torch.int64 or samples.labels.ndim != 1:
            raise ValueError(f"{name} has labels {layout(samples.labels)}, not int64 []")
        low, high = map(int, samples.labels.aminmax())
        if low < 0 or high >= classes:
            raise ValueError(f"{name} has labels from {low} to {high}, not from 0 to {classes - 1}")
        logits = samples.logits
        if learner.stores_logits and logits is None:
            raise ValueError(f"{name} has no logits")
        if logits is not None and not (logits.is_floating_point() and logits.ndim == 2):
            raise ValueError(f"{name} has logits {layout(logits)}")
        if logits is not None and logits.shape[1] != classes:
            raise ValueError(f"{name} has logits of {logits.shape[1]} classes, not {classes}")
    if isinstance(memory, ExemplarSet) and not all(0 <= c < classes for c in state["groups"]):
        raise ValueError(f"{name} has exemplars of the classes {state['groups']}, of {classes}")
    if isinstance(memory, Reservoir):
        seen, filled = int(state["seen"]), int(state["filled"])
        if seen < filled or (filled < int(state["buffer_size"]) and seen != filled):
            raise ValueError(f"{name} holds {filled} samples of {seen} seen")


def _outputs(inputs: Inputs, learner: Learner) -> int:
    """The number of outputs that the network has for stored inputs."""
    devices = [learner.device] if learner.device.type == "cuda" else []
    with torch.random.fork_rng(devices):  # a network may draw even in evaluation mode
        return learner._find_spec(inputs).classes


def _leaf_layouts(text: str) -> list[str]:
    """The layouts of all tensors in the result of `layout`, whatever the order of a dict."""
    return sorted(re.findall(r"\w+ \[[^]]*\]", text))
