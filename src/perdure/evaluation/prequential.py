"""Prequential evaluation: each batch is predicted before it is learned."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from perdure.state import State

WINDOW = 1000
"""Samples of the sliding window, unless another length is given."""
MAX_WINDOW = 10_000_000


@dataclass(frozen=True)
class PrequentialAccuracy:
    """Accuracy in percent of predictions that were made before learning from the samples."""

    window: int
    """Samples of the sliding window."""
    samples: int
    """Samples predicted so far."""
    accuracy: float
    """Accuracy on the last `window` samples; on all of them while there are fewer."""
    overall: float
    """Accuracy on all samples so far."""


class Prequential:
    """Counts correct predictions, overall and in a sliding window, without reading the device.

    Memory use does not depend on the length of the stream: one byte per sample of the window.

    Args:
        window: Samples of the sliding window.
        device: Device of the predictions.

    Raises:
        ValueError: If the window is empty or too large.

    >>> counts = Prequential(window=2)
    >>> counts.add(torch.tensor([True, False, False]))
    >>> counts.read()
    PrequentialAccuracy(window=2, samples=3, accuracy=0.0, overall=33.333333333333336)
    """

    def __init__(self, window: int = WINDOW, device: torch.device | str = "cpu") -> None:
        if not 1 <= window <= MAX_WINDOW:
            raise ValueError(
                f"the window of prequential evaluation is {window}; expected 1 to {MAX_WINDOW:,} "
                "samples"
            )
        self.window = window
        self.samples = 0
        self._recent = torch.zeros(window, dtype=torch.bool, device=device)
        """The last `window` outcomes; sample i is at row i % window."""
        self._correct = torch.zeros((), dtype=torch.int64, device=device)

    def add(self, correct: Tensor) -> None:
        """Count the predictions of a batch, given whether each of them is correct."""
        self._correct += correct.sum()
        end = self.samples + len(correct)
        last = correct[-self.window :]
        start = (end - len(last)) % self.window
        before_wrap = last[: self.window - start]
        wrapped = last[len(before_wrap) :]
        self._recent[start : start + len(before_wrap)] = before_wrap
        self._recent[: len(wrapped)] = wrapped
        self.samples = end

    def read(self) -> PrequentialAccuracy | None:
        """The accuracies so far, None before the first sample. Waits for the device."""
        if not self.samples:
            return None
        hits, correct = torch.stack([self._recent.sum(), self._correct]).tolist()
        return PrequentialAccuracy(
            self.window,
            self.samples,
            100 * hits / min(self.samples, self.window),
            100 * correct / self.samples,
        )

    def state_dict(self) -> State:
        """The counts and the content of the window."""
        return {
            "recent": self._recent.clone(),
            "correct": self._correct.clone(),
            "samples": self.samples,
        }

    def load_state_dict(self, state: State) -> None:
        """Restore a state.

        Raises:
            ValueError: If the state has another window.
        """
        if state["recent"].shape != self._recent.shape:
            raise ValueError(
                f"the state has a prequential window of {len(state['recent'])} samples; expected "
                f"{self.window}"
            )
        self._recent.copy_(state["recent"])
        self._correct.copy_(state["correct"])
        self.samples = int(state["samples"])
