"""Replay with a consistency loss towards semantic memories, shared by CLS-ER and Mean-ER."""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from perdure.learners.replay import ReplayLearner
from perdure.memory import Reservoir, SemanticMemory
from perdure.randomness import global_state, set_global_state
from perdure.records import Samples
from perdure.structures import Inputs, length, select
from perdure.user_code import warn_caller

_LAG = 0.1
"""Difference in accuracy from which the predicting memory lags behind the working network."""
_LAG_CHECKS = 3
"""Successive checks that must show a lag before there is a warning."""
_LAG_SAMPLES = 256
"""Stored samples that a check evaluates."""
_CLASS_LAG = 0.3
"""Difference in the recall of a class from which a prediction produces a warning."""
_CLASS_SAMPLES = 10
"""Stored samples of a class that its recall requires."""


class ReplayLogits(NamedTuple):
    """Targets of the consistency loss for a replay batch."""

    logits: Tensor
    """Z: [n, classes], without gradient."""
    source: Tensor | None = None
    """Boolean [n], with two semantic memories: whether the plastic one provided each row."""


class _SharedDraws:
    """Lets several networks draw the same random numbers, such as dropout masks, within a step.

    Args:
        device: Device of the networks, which draw from torch's global generator.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._first: Tensor | None = None
        """State of the generator before the first network."""
        self.drew = False
        """Whether the first network drew anything."""

    def run(self, forward: Callable[[], Tensor]) -> Tensor:
        """Return the logits of a network, which draws the numbers that the first one drew."""
        before = global_state(self._device)
        if self._first is None:
            self._first = before
            logits = forward()
            self.drew = _content(global_state(self._device)) != _content(before)
            return logits
        if not self.drew:
            return forward()
        set_global_state(self._first, self._device)
        try:
            return forward()
        finally:
            set_global_state(before, self._device)


def _content(state: Tensor) -> bytes:
    """The bytes of a generator's state, read without an operation, which a recording would see."""
    return ctypes.string_at(state.data_ptr(), state.numel())


class ConsistentReplay(ReplayLearner):
    """Equation 1: L = CE(f(X), Y) + λ MSE(f(X_m), Z), where Z are the memories' replay logits.

    All networks draw the same dropout masks for X_m. With separate masks, the loss would include
    the differences between the masks, and these would often decide which memory provides a row.
    """

    replays_with_batch = True
    memory: Reservoir
    consistency_weight: float
    _lags = 0
    """Successive checks that showed a lag; -1 after a warning."""
    _checked = 12
    """Batches observed until the last check of the classes."""
    _shared_draws: _SharedDraws | None = None
    """Draws of the current step; None outside of `step` and if `_may_share_draws` is false."""

    def step(self, inputs: Inputs, labels: Tensor) -> None:
        """One iteration of Algorithm 1.

        Args:
            inputs: Raw inputs of the batch.
            labels: Their labels [n].
        """
        batch = Samples(inputs, labels)
        past = self.memory.draw(self.memory_batch)
        if past is None:
            x, y = self.prepare(batch)
            self.optimizer_step(F.cross_entropy(self.logits(x), y))
        else:
            x, y = self.prepare(batch, past)
            y_m = y[len(labels) :]
            x_m = select(x, slice(len(labels), None))
            self._shared_draws = _SharedDraws(self.device) if self._may_share_draws() else None
            try:
                z, source = self.replay_logits(x_m, y_m)
                self.record_sources(source)
                replayed, logits = self._working_logits(x_m, x)
            finally:
                self._shared_draws = None
            consistency = F.mse_loss(replayed, z)
            loss = F.cross_entropy(logits, y) + self.consistency_weight * consistency
            self.optimizer_step(loss, consistency=consistency)
        self.memory.add(batch)
        self.consolidate()

    def _working_logits(self, x_m: Inputs, x: Inputs) -> tuple[Tensor, Tensor]:
        """Return f(X_m) and f(X).

        With BatchNorm, the replay batch alone gives other logits than the same samples inside X,
        so the network runs on both, replay first; training diverges if f(X_m) is taken from f(X).
        For networks that process every sample independently, the two are the same.
        """
        if self.forward_batches.per_sample:
            logits = self.logits(x)
            return logits[-length(x_m) :], logits
        if self._shared_draws is None or not self._shared_draws.drew:
            replayed, logits = self.forward_batches(x_m, x)
            return replayed, logits
        self.capturable = False  # graphs and recordings do not repeat draws
        return self.with_shared_draws(lambda: self.logits(x_m)), self.logits(x)

    def _may_share_draws(self) -> bool:
        """Whether networks may draw, and no CUDA graph is captured, which cannot repeat draws."""
        captured = self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        return not (captured or self.forward_batches.per_sample)

    @abstractmethod
    def replay_logits(self, x: Inputs, y: Tensor) -> ReplayLogits:
        """Compute Z, the target logits of replayed samples, from the semantic memories.

        Call each memory in `with_shared_draws`.

        Args:
            x: Prepared inputs X_m of the replayed samples.
            y: Their labels [n].
        """

    def with_shared_draws(self, forward: Callable[[], Tensor]) -> Tensor:
        """Return the logits of a network, with the dropout masks of the first one in this step.

        Applies to what is drawn from torch's global generator. Outside of `step`, masks differ.
        """
        return forward() if self._shared_draws is None else self._shared_draws.run(forward)

    @abstractmethod
    def consolidate(self) -> None:
        """Update the semantic memories after the optimizer step."""

    def record_sources(self, source: Tensor | None) -> None:
        """Collect statistics about the sources of replay logits. No-op by default."""

    def check_progress(self) -> None:
        """Warn once if the memory that predicts lags behind the working network for long.

        Compares their accuracy on stored samples.
        """
        if self._lags < 0 or (checked := self._check_stored()) is None:
            return
        accuracy, working = checked[1].float().mean(1).tolist()
        self._lags = self._lags + 1 if working - accuracy > _LAG else 0
        if self._lags == _LAG_CHECKS:
            self._warn_of_lag(
                f"classifies {accuracy:.0%} of the stored samples correctly, the working network "
                f"{working:.0%}"
            )

    def check_prediction(self) -> None:
        """Warn once if the memory that predicts does not recognise a class that is learned.

        Compares the recall of each class on stored samples, when a quarter more batches have been
        observed than at the last check. Short streams that end with a new class may end with such a
        lag. There is no warning if the memory is better in the mean over all classes.
        """
        super().check_prediction()
        if self._lags < 0 or self._observed < 1.25 * self._checked:
            return
        self._checked = self._observed
        if (checked := self._check_stored()) is None:
            return
        labels, correct = checked
        count = labels.bincount()
        right = [labels[row].bincount(minlength=len(count)) for row in correct]
        recall, working = torch.stack(right) / count
        lag = torch.where(count >= _CLASS_SAMPLES, working - recall, 0)
        if lag.max() > _CLASS_LAG and lag.sum() > 0:  # not if it is better in the mean
            worst = int(lag.argmax())
            self._warn_of_lag(
                f"recognises {recall[worst]:.0%} of the stored samples of class {worst}, the "
                f"working network {working[worst]:.0%}"
            )

    def _check_stored(self) -> tuple[Tensor, Tensor] | None:
        """Predict stored samples; None if there are none.

        Returns:
            Their labels [n], and boolean [2, n]: whether the memory that predicts and the working
            network are right.
        """
        stored = self.memory.contents()
        if stored is None:
            return None
        # From all rows: until the memory is full, the first ones are the oldest.
        every = -(-self.memory.filled // _LAG_SAMPLES)
        samples = stored.map(lambda rows: rows[::every].contiguous()).to(self.device)
        memory, *_, working = self.predictors().values()
        scores = torch.stack([memory(samples.inputs), working(samples.inputs)])
        return samples.labels, scores.argmax(2) == samples.labels

    def _warn_of_lag(self, evidence: str) -> None:
        self._lags = -1
        name = next(iter(self.predictors()))
        setting = "window" if name == "mean" else f"{name}_window"
        memory: SemanticMemory = getattr(self, name)
        remedy = "0.05" if memory.window is None else f"{memory.window / 5:g}"
        warn_caller(
            f"the {name} memory, which predicts, lags behind the working network: after "
            f"{int(self.steps)} steps it {evidence}; predict with predictors()['working'] or train "
            f"for more steps and, if the lag persists, set {setting} to {remedy}"
        )
