"""How a step is executed. The loop knows engines only through `step`."""

from __future__ import annotations

from typing import Protocol

from remanence.learners import Learner
from remanence.records import Samples


class Engine(Protocol):
    """Takes a learner one step further."""

    name: str

    def step(self, learner: Learner, batch: Samples) -> None:
        """Let the learner learn from a batch that was checked with its dataset."""


class Eager:
    """Operation by operation, as the method is written."""

    name = "eager"

    def step(self, learner: Learner, batch: Samples) -> None:
        """Let the learner learn from a batch that was checked with its dataset."""
        with learner.randomness():
            learner.step(batch.images, batch.labels)
