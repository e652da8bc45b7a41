"""Replay with a consistency loss towards semantic memories, shared by CLS-ER and Mean-ER."""

from __future__ import annotations

import ctypes
import warnings
from abc import abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from perdure.learners.replay import ReplayLearner
from perdure.memory import Reservoir, SemanticMemory
from perdure.randomness import global_state, set_global_state
from perdure.records import Samples
from perdure.structures import Inputs, length, select

_LAG = 0.1
"""Difference in accuracy from which the predicting memory lags behind the working network."""
_LAG_CHECKS = 3
"""Successive checks that must show a lag before there is a warning."""
_LAG_SAMPLES = 256


class ReplayLogits(NamedTuple):
    """Targets of the consistency loss for a replay batch."""

    logits: Tensor
    """Z: [n, classes], without gradient."""
    source: Tensor | None = None
    """Boolean [n], with two semantic memories: whether the plastic one provided each row."""


class _SharedDraws:
    """Lets several networks draw the same random numbers, such as dropout masks.

    Args:
        device: Device of the networks, which draw from torch's global generator.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.used = False
        """Whether any number has been drawn so far."""
        self._first: Tensor | None = None
        self._last: Tensor | None = None

    def begin(self) -> None:
        """Remember the state of the generator, unless a CUDA graph is captured."""
        captured = self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        self._first, self._last = None if captured else global_state(self.device), None

    def repeat(self) -> None:
        """Draw the numbers since `begin` once more."""
        if self._first is None:
            return
        now = global_state(self.device)
        self.used = self.used or _content(now) != _content(self._first)
        if not self.used:  # nothing was drawn, nor will be by the others
            self._first = None
            return
        self._last = now
        set_global_state(self._first, self.device)

    def end(self) -> None:
        """Draw new numbers again."""
        if self._last is not None:
            set_global_state(self._last, self.device)
        self._first = self._last = None


def _content(state: Tensor) -> bytes:
    """The bytes of a generator's state, read without an operation, which a recording would see."""
    return ctypes.string_at(state.data_ptr(), state.numel())


class ConsistentReplay(ReplayLearner):
    """Equation 1: L = CE(f(X), Y) + λ MSE(f(X_m), Z), where Z are the memories' replay logits.

    All networks draw the same dropout masks for X_m. With separate masks, the loss would also
    punish their noise, and the surer of two memories would often be the one with a lucky mask.
    """

    replays_with_batch = True
    memory: Reservoir
    consistency_weight: float
    _lags = 0
    """Successive checks that showed a lag; -1 after the warning."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._shared_draws = _SharedDraws(self.device)

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
            if not self.forward_batches.per_sample:
                self._shared_draws.begin()
            z, source = self.replay_logits(x_m, y_m)
            self.record_sources(source)
            replayed, logits = self._working_logits(x_m, x)
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
        self.repeat_draws()
        if not self._shared_draws.used:
            self._shared_draws.end()
            replayed, logits = self.forward_batches(x_m, x)
            return replayed, logits
        self.capturable = False  # a graph cannot repeat draws
        replayed = self.logits(x_m)
        self._shared_draws.end()
        return replayed, self.logits(x)

    @abstractmethod
    def replay_logits(self, x: Inputs, y: Tensor) -> ReplayLogits:
        """Compute Z, the target logits of replayed samples, from the semantic memories.

        Call `repeat_draws` before the second memory and each further one.

        Args:
            x: Prepared inputs X_m of the replayed samples.
            y: Their labels [n].
        """

    def repeat_draws(self) -> None:
        """Let the next network draw the dropout masks of the first one for the replayed samples.

        Applies to what is drawn from torch's global generator. No-op outside of `step`.
        """
        self._shared_draws.repeat()

    @abstractmethod
    def consolidate(self) -> None:
        """Update the semantic memories after the optimizer step."""

    def record_sources(self, source: Tensor | None) -> None:
        """Collect statistics about the sources of replay logits. No-op by default."""

    def check_progress(self) -> None:
        """Warn once if the memory that predicts lags behind the working network for long.

        Compares their accuracy on stored samples.
        """
        stored = self.memory.contents()
        if stored is None or self._lags < 0:
            return
        # From all rows: until the memory is full, the first ones are the oldest.
        every = -(-self.memory.filled // _LAG_SAMPLES)
        samples = stored.map(lambda rows: rows[::every].contiguous()).to(self.device)
        predictors = self.predictors()
        name = next(iter(predictors))
        accuracy = {
            key: float((predictors[key](samples.inputs).argmax(1) == samples.labels).float().mean())
            for key in (name, "working")
        }
        lags = accuracy["working"] - accuracy[name] > _LAG
        self._lags = self._lags + 1 if lags else 0
        if self._lags == _LAG_CHECKS:
            self._lags = -1
            setting = "window" if name == "mean" else f"{name}_window"
            memory: SemanticMemory = getattr(self, name)
            remedy = "0.05" if memory.window is None else f"less than {memory.window:g}"
            warnings.warn(
                f"the {name} memory, which predicts, lags behind the working network: after "
                f"{int(self.steps)} steps it is right for {accuracy[name]:.0%} of the stored "
                f"samples, the working network for {accuracy['working']:.0%}; set {setting} to "
                f"{remedy}, or train for more steps",
                stacklevel=3,
            )
