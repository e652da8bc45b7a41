"""Semantic memory: a network whose weights are a running average of the working network's."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor, nn

from perdure.arguments import is_number
from perdure.kernels import has_triton
from perdure.memory.frozen import copy_network, shared_names, training_mode
from perdure.randomness import generator
from perdure.state import State, get_state, load_state
from perdure.structures import Inputs, call
from perdure.undo import Undoable, postpone, save_generator, save_tensors

if TYPE_CHECKING:
    from perdure.kernels.average import MovingAverage

Update = Literal["random", "regular"]
"""When a semantic memory is updated: at random steps or at evenly spaced ones."""


class SemanticMemory(Undoable):
    """A running average of a network's weights.

    An update moves the weights θ towards those of the working network: θ ← θ + w·(θ_W − θ).

    With a `window`, the n-th update of the memory has w = max(1 / (1 + window·(n − 1)), 1 − decay).
    The memory then averages over roughly the last `window` share of its updates (polynomial-decay
    averaging, Shamir and Zhang, 2013), at most 1 / (1 − decay) of them, whatever the length of the
    stream. The first step always makes an update, which copies the working network. `update` can
    limit n − 1.

    Without one, w = max(1 / (step + 1), 1 − decay), the warm-up that the CLS-ER paper uses. It
    counts all training steps: with a small `rate`, the random initial weights keep a large share
    for thousands of steps.

    Parameters are averaged, buffers are not: the running statistics of BatchNorm come from this
    network's own forward passes. The network therefore stays in training mode. Frozen parameters,
    and the buffers of frozen modules in evaluation mode, are shared with the working network
    instead of copied.

    Args:
        network: Working network to average. The memory starts as a copy of it.
        window: Share of the past updates to average over, in (0, 1]; None for the published
            warm-up.
        decay: Largest share of the old weights that an update keeps, in [0, 1).
        rate: Share of the training steps that update the memory, in (0, 1].
        name: Name of the memory, which selects its random generator.
        update: "random" updates at each step with probability `rate`; "regular" spaces the
            updates evenly, so that n steps make exactly ⌊n·rate⌋ updates.
        seed: Seed of the random draws.
    """

    saved_by_itself = ("draws",)

    def __init__(
        self,
        network: nn.Module,
        *,
        decay: float,
        rate: float,
        name: str,
        window: float | None = None,
        update: Update = "random",
        seed: int = 0,
    ) -> None:
        if not (is_number(decay) and 0 <= decay < 1):
            raise ValueError(f"{name} decay is {decay!r}; expected a number from 0 to below 1")
        if not (is_number(rate) and 0 < rate <= 1):
            raise ValueError(f"{name} rate is {rate!r}; expected a number above 0, at most 1")
        if window is not None and not (is_number(window) and 0 < window <= 1):
            raise ValueError(
                f"{name} window is {window!r}; expected a number above 0, at most 1, or None for "
                "the published warm-up"
            )
        if update not in get_args(Update):
            raise ValueError(f"update is {update!r}; expected {' or '.join(get_args(Update))}")
        self.network = training_mode(copy_network(network)).requires_grad_(False)
        self._shared = shared_names(self.network, network)
        self.window = window
        self.decay = decay
        self.rate = rate
        self.regular = update == "regular"
        pairs = zip(self.network.parameters(), network.parameters(), strict=True)
        averaged = [pair for pair in pairs if pair[0] is not pair[1]]
        if not averaged:
            raise ValueError("the network has no parameters to average: all are frozen")
        self._averaged: list[Tensor] = [own for own, _ in averaged]
        self._working: list[Tensor] = [working for _, working in averaged]
        self._device = self._averaged[0].device
        self.updates = torch.zeros((), dtype=torch.int64, device=self._device)
        """Number of updates so far; counted only with a window."""
        self.draws = generator(seed, f"{name} update", self._device)
        self._kernel: MovingAverage | None = None
        self._addresses: list[int] = []

    def __call__(self, x: Inputs) -> Tensor:
        """Return logits for a replay batch, without gradient.

        BatchNorm normalises the batch by its own statistics.

        Args:
            x: Normalised inputs.
        """
        with torch.no_grad():
            return call(self.network, x)

    @torch.no_grad()
    def update(self, step: Tensor, counted_steps: Tensor | None = None) -> None:
        """Move towards the working network if this step is one that updates the memory.

        Other steps use a weight of zero, so that the decision stays on the device.

        Args:
            step: Number of the current training step, counted from 1.
            counted_steps: Number of training steps whose updates a window counts at most; None for
                all.
        """
        weight = self._weight(step, counted_steps)
        if self._device.type == "cuda" and self._can_fuse():
            save_tensors(self, self._averaged)
            self._fused_update(weight)
            return
        weights = [weight] * len(self._averaged)
        update = partial(torch._foreach_lerp_, self._averaged, self._working, weights)
        if not postpone(update):
            save_tensors(self, self._averaged)
            update()

    def _weight(self, step: Tensor, counted_steps: Tensor | None) -> Tensor:
        """Return the weight of the working network in this step: 0 if no update is due."""
        dtype = self._averaged[0].dtype
        due = self._is_due(step) if self.rate < 1 else None
        if self.window is None:
            weight = (step + 1).to(dtype).reciprocal_()
        else:
            if due is not None:
                due |= self.updates == 0
            past = self.updates
            if counted_steps is not None:
                past = torch.minimum(past, counted_steps * self.rate)
            weight = past.to(dtype).mul_(self.window).add_(1).reciprocal_()
            self.updates += 1 if due is None else due
        weight.clamp_(min=1 - self.decay)
        return weight if due is None else weight.mul_(due)

    def _fused_update(self, weight: Tensor) -> None:
        """Update in one kernel."""
        from perdure.kernels.average import MovingAverage

        addresses = [t.data_ptr() for t in (*self._averaged, *self._working)]
        if self._kernel is None or addresses != self._addresses:
            self._kernel = MovingAverage(self._averaged, self._working)
            self._addresses = addresses
        self._kernel(weight)

    def _can_fuse(self) -> bool:
        """Return whether the kernel supports the tensors: dense float32 with equal strides."""
        return has_triton() and all(
            a.dtype == b.dtype == torch.float32
            and a.stride() == b.stride()
            and (a.is_contiguous() or a.is_contiguous(memory_format=torch.channels_last))
            for a, b in zip(self._averaged, self._working, strict=True)
        )

    def _is_due(self, step: Tensor) -> Tensor:
        """Return whether this step updates the memory, as a boolean scalar on the device."""
        if not self.regular:
            save_generator(self.draws)
            return torch.rand((), device=self._device, generator=self.draws) < self.rate
        # An update is due whenever step · rate passes an integer. The small offset compensates
        # for rounding: ten steps at rate 0.1 must reach 1.
        before, now = ((step - 1).double(), step.double())
        return (now * self.rate + 1e-9).floor() > (before * self.rate + 1e-9).floor()

    def state_dict(self) -> State:
        """Return the memory's own weights and buffers, number of updates and random generator."""
        network = get_state(self.network)
        own = {name: part for name, part in network.items() if name not in self._shared}
        return {"network": own, **{name: get_state(part) for name, part in self._parts().items()}}

    def load_state_dict(self, state: State) -> None:
        """Restore a state in place."""
        own, current = state["network"], self.network.state_dict()
        if unexpected := sorted(self._shared & own.keys()):
            raise ValueError(f"{unexpected[0]} is frozen here but was not when the state was saved")
        load_state(self.network, {**own, **{name: current[name] for name in self._shared}})
        for name, part in self._parts().items():
            load_state(part, state[name])

    def _parts(self) -> dict[str, object]:
        counted = {} if self.window is None else {"updates": self.updates}
        return {"draws": self.draws, **counted}
