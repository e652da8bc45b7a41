"""Semantic memory: a network whose weights are a running average of the working network's."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor, nn

from perdure.randomness import generator
from perdure.state import State, give, take

if TYPE_CHECKING:
    from perdure.kernels.average import MovingAverage

Update = Literal["coin", "every"]
"""When a memory is updated: as a coin says, or at regular steps."""


class SemanticMemory:
    """An exponential moving average of a network's weights, updated at a share of the steps.

    Which steps these are is left to chance (`update="coin"`: each with probability `rate`), or they
    are spread evenly (`update="every"`: of n steps exactly ⌊n·rate⌋; every tenth at a rate of 0.1).

    At a step that updates it, θ ← d·θ + (1 − d)·θ_W with d = min(1 − 1/(step + 1), decay): the
    average warms up over the first steps. Parameters are averaged; buffers are not. BatchNorm's
    running statistics are those of this network's own forward passes, which is why it stays in
    training mode while it serves replay.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        decay: float,
        rate: float,
        name: str,
        update: Update = "coin",
        seed: int = 0,
    ) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"{name} decay is {decay}; expected a number from 0 to below 1")
        if not 0 < rate <= 1:
            raise ValueError(f"{name} rate is {rate}; expected a number above 0, at most 1")
        if update not in get_args(Update):
            raise ValueError(f"update is {update!r}; expected {' or '.join(get_args(Update))}")
        self.network = copy.deepcopy(network).requires_grad_(False).train()
        self.decay = decay
        self.rate = rate
        self.regular = update == "every"
        self._working: list[Tensor] = list(network.parameters())
        self._averaged: list[Tensor] = list(self.network.parameters())
        self._device = self._averaged[0].device
        self.coin = generator(seed, f"{name} update", self._device)
        self._mover: MovingAverage | None = None
        self._addresses: list[int] = []

    def __call__(self, x: Tensor) -> Tensor:
        """Logits for a replay batch, with that batch's own BatchNorm statistics."""
        with torch.no_grad():
            return self.network(x)  # type: ignore[no-any-return]

    @torch.no_grad()
    def update(self, step: Tensor) -> None:
        """Move towards the working network, if this is a step to do so.

        `step` counts every training step of the stream from 1, updated or not. A step that does
        not update moves by a weight of zero: the decision never leaves the device.
        """
        weight = (step + 1).to(self._averaged[0].dtype).reciprocal_().clamp_(min=1 - self.decay)
        if self.rate < 1:
            weight *= self._is_due(step)
        if self._device.type == "cuda" and self._fuses():
            self._move(weight)
        else:
            torch._foreach_lerp_(self._averaged, self._working, [weight] * len(self._averaged))

    def _move(self, weight: Tensor) -> None:
        """The update in one kernel, which a weight of zero ends at once."""
        from perdure.kernels.average import MovingAverage

        addresses = [t.data_ptr() for t in (*self._averaged, *self._working)]
        if self._mover is None or addresses != self._addresses:
            self._mover = MovingAverage(self._averaged, self._working)
            self._addresses = addresses
        self._mover(weight)

    def _fuses(self) -> bool:
        """Whether the kernel takes these tensors: dense float32, both sides laid out alike."""
        pairs = zip(self._averaged, self._working, strict=True)
        return find_spec("triton") is not None and all(
            a.dtype == b.dtype == torch.float32
            and a.stride() == b.stride()
            and (a.is_contiguous() or a.is_contiguous(memory_format=torch.channels_last))
            for a, b in pairs
        )

    def _is_due(self, step: Tensor) -> Tensor:
        if not self.regular:
            return torch.rand((), device=self._device, generator=self.coin) < self.rate
        # The rates of all steps so far are added up; each time the sum passes a whole number an
        # update is due. A billionth more, or 10 steps of 0.1 would add up to less than 1.
        before, now = ((step - 1).double(), step.double())
        return (now * self.rate + 1e-9).floor() > (before * self.rate + 1e-9).floor()

    def state_dict(self) -> State:
        """Weights, buffers and the coin."""
        return {"network": take(self.network), "coin": take(self.coin)}

    def load_state_dict(self, state: State) -> None:
        """Become what the state says, in place."""
        give(self.network, state["network"])
        give(self.coin, state["coin"])
