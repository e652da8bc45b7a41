"""What the scikit-learn and the river classifier share: rows of numbers, labels of any kind."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from perdure.learners import CLSER, Learner
from perdure.learners.checks import describe
from perdure.networks import MLP
from perdure.randomness import seeded_globally
from perdure.streams.table_encoder import LIMIT
from perdure.structures import as_tensors

Floats = NDArray[np.float64]
MakeNetwork = Callable[[int, int], nn.Module]
MakeLearner = Callable[..., Learner]

CHUNK = 4096
"""Rows per forward pass when predicting."""
MAX_VALUE = float(np.finfo(np.float32).max)
"""Largest absolute value of a feature: learners store rows in single precision."""


class Standardise(nn.Module):
    """Standardises features by the mean and variance of all rows so far.

    The learner stores raw rows, so replayed rows are standardised like new ones. Constant features
    are only centred, and results are limited to ±10: early in a stream the variance of a feature
    can be almost zero.

    Args:
        features: Number of features.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor
    """Sum of squared deviations from the mean."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(features, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(features, dtype=torch.float64))

    def update(self, rows: Tensor) -> None:
        """Include rows [n, features] in the statistics (Chan et al., 1983)."""
        rows = rows.to(self.mean)
        count, mean = len(rows), rows.mean(dim=0)
        total, shift = self.count + count, mean - self.mean
        self.squares += (rows - mean).square().sum(dim=0)
        self.squares += shift.square() * (self.count * count / total)
        self.mean += shift * (count / total)
        self.count.copy_(total)

    def forward(self, rows: Tensor) -> Tensor:
        """Return standardised rows as float32."""
        deviation = (self.squares / self.count.clamp(min=1)).sqrt()
        scale = torch.where(deviation > 1e-12 * self.mean.abs(), deviation, 1.0)
        return ((rows - self.mean) / scale).clamp(-LIMIT, LIMIT).to(torch.float32)


def as_floats(rows: Tensor) -> Tensor:
    """Return rows as float32: the normalisation without standardisation."""
    return rows.to(torch.float32)


@dataclass(eq=False)
class OnlineClassifier:
    """A learner for rows of numbers that is built at the first batch and grows with the labels.

    Attributes:
        features: Numbers per row.
        make_network: Builds the network from (features, classes); None for an MLP.
        make_learner: Builds the learner from (network, ...); None for CLS-ER.
        buffer_size: Maximum number of stored samples.
        standardise: Whether to standardise the features by their statistics so far.
        seed: Seed of the initial weights and of all random draws.
        labels: Labels in the order of their arrival: label i belongs to output i.
        learner: The learner, once it is built.
    """

    features: int
    make_network: MakeNetwork | None
    make_learner: MakeLearner | None
    buffer_size: int
    standardise: bool
    seed: int
    labels: list[Hashable] = field(default_factory=list)
    learner: Learner | None = None

    def __post_init__(self) -> None:
        if isinstance(self.make_network, nn.Module) or not callable(self.make_network or MLP):
            raise ValueError(
                f"network is {describe(self.make_network)}; expected a function network(features, "
                "classes) that builds an nn.Module"
            )
        if not callable(self.make_learner or CLSER):
            raise ValueError(
                f"learner is {self.make_learner!r}; expected a class, such as perdure.ER, or a "
                "function that builds a learner from a network"
            )

    def announce(self, labels: Sequence[Hashable]) -> None:
        """Add an output for each new label."""
        new = [label for label in dict.fromkeys(labels) if label not in self.labels]
        if new and self.learner is not None:
            self.learner.grow(len(self.labels) + len(new))
        self.labels += new

    def observe(self, rows: Floats, labels: Sequence[Hashable]) -> None:
        """Learn from one batch of finite rows [n, features], entirely or not at all."""
        before = self.labels.copy(), self.learner
        try:
            if self.learner is None:
                self.announce(labels)
                self.learner = self._build()
            self.learner.undo_on_failure(partial(self._learn, self.learner, rows, labels))
        except BaseException:
            self.labels, self.learner = before
            raise

    def _learn(self, learner: Learner, rows: Floats, labels: Sequence[Hashable]) -> None:
        self.announce(labels)
        inputs = as_tensors(rows)
        normalise: Any = learner.normalise
        if isinstance(normalise, Standardise):
            normalise.update(inputs.to(learner.device))
        index = {label: i for i, label in enumerate(self.labels)}
        learner.observe(inputs, torch.tensor([index[label] for label in labels]))

    def probabilities(self, rows: Floats) -> Floats:
        """Return the probability of each label [n, labels], in the order of `labels`."""
        if self.learner is None:
            self.learner = self._build()
        parts = torch.split(as_tensors(rows), CHUNK)
        found = torch.cat([self.learner.predict_proba(part).cpu() for part in parts]).double()
        return np.asarray(found / found.sum(dim=1, keepdim=True))

    def _build(self) -> Learner:
        with seeded_globally(self.seed, "initialisation"):
            network = (self.make_network or MLP)(self.features, len(self.labels))
        make = self.make_learner or CLSER
        normalise = Standardise(self.features) if self.standardise else as_floats
        arguments: dict[str, Any] = {"normalise": normalise, "seed": self.seed}
        if "buffer_size" in inspect.signature(make).parameters:
            arguments["buffer_size"] = self.buffer_size
        arguments |= getattr(make, "keywords", {})  # what a partial fixes has precedence
        learner = make(network, **arguments)
        if not isinstance(learner, Learner):
            raise ValueError(f"learner returned {type(learner).__name__}; expected a Learner")
        if learner.needs_boundaries:
            raise ValueError(
                f"{type(learner).__name__} needs task boundaries, and a stream of rows has none; "
                "choose another learner"
            )
        if isinstance(learner.normalise, Standardise):
            learner.normalise.to(learner.device)
        return learner

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes with the state of the learner in place of the learner."""
        state = None if self.learner is None else self.learner.state_dict()
        return {**vars(self), "learner": state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the attributes and build the learner from its state."""
        vars(self).update(state, learner=None)
        if state["learner"] is not None:
            self.learner = self._build()
            self.learner.load_state_dict(state["learner"])
