"""A river classifier that learns from a stream without forgetting."""

from __future__ import annotations

import math
import zlib
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from perdure.integrations import missing
from perdure.integrations.online import (
    MAX_VALUE,
    Floats,
    MakeLearner,
    MakeNetwork,
    OnlineClassifier,
)
from perdure.streams.columns import is_missing

try:
    from river.base import MiniBatchClassifier
except ImportError:
    raise missing("river", "river") from None

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[Any, Any]


class ContinualClassifier(MiniBatchClassifier):  # type: ignore[misc]
    """A classifier that learns continually, with CLS-ER by default.

    Features are numbers in dictionaries. They may appear later or be absent: an absent feature, or
    one that is None or NaN, counts as 0. The first `max_features` names have an input of the
    network each; later names share these inputs by a hash of the name, so that memory stays
    constant. New labels may appear at any time.

    `learn_one` takes a training step on every sample, together with replayed ones. A larger
    `batch_size` collects samples for each step, which is faster and less accurate. `learn_many`
    treats its rows one after the other, so both give the same result.

    Args:
        network: Function `network(features, classes)` that builds an `nn.Module` from float32 rows
            to logits; None for an MLP with two hidden layers of 100 units.
        learner: A learner class, or a function that builds a learner from a network, for example
            `functools.partial(perdure.ER, lr=0.05)`; None for `perdure.CLSER`. It is called with
            the keyword arguments `normalise`, `seed` and, if it has it, `buffer_size`.
        buffer_size: Maximum number of samples that the learner stores.
        batch_size: Samples per training step.
        max_features: Number of inputs of the network.
        standardise: Whether to standardise the features by the mean and variance of all samples
            so far.
        seed: Seed of the initial weights and of all random draws.

    Examples:
        >>> classifier = ContinualClassifier()
        >>> for i in range(320):
        ...     side = "right" if i % 2 else "left"
        ...     classifier.learn_one({"x": 1.0 if side == "right" else -1.0}, side)
        >>> classifier.predict_one({"x": 3.0})
        'right'
    """

    def __init__(
        self,
        network: MakeNetwork | None = None,
        *,
        learner: MakeLearner | None = None,
        buffer_size: int = 1000,
        batch_size: int = 1,
        max_features: int = 256,
        standardise: bool = True,
        seed: int = 0,
    ) -> None:
        for name in ("buffer_size", "batch_size", "max_features"):
            if (value := locals()[name]) < 1:
                raise ValueError(f"{name} is {value}; expected 1 or more")
        self.network = network
        self.learner = learner
        self.buffer_size = buffer_size
        self.batch_size = batch_size
        self.max_features = max_features
        self.standardise = standardise
        self.seed = seed
        self._columns: dict[Hashable, int] = {}
        self._rows: list[Floats] = []
        self._labels: list[Hashable] = []
        self._online = OnlineClassifier(
            max_features, network, learner, buffer_size, standardise, seed
        )

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: Row, y: Hashable) -> None:
        """Learn from a sample.

        Args:
            x: Features by name.
            y: Label.

        Raises:
            ValueError: If a feature is not a number, if the label is missing or a number with a
                fraction, or if the training step fails, which discards the samples of its batch
                and changes nothing else.
        """
        _check_label(y)
        row = self._row(x, add=True)
        if len(self._rows) + 1 < self.batch_size:  # `observe` announces the labels of its batch
            self._online.announce([y])
        self._rows.append(row)
        self._labels.append(y)
        if len(self._rows) >= self.batch_size:
            rows, labels = np.stack(self._rows), self._labels
            self._rows, self._labels = [], []
            self._online.observe(rows, labels)

    def learn_many(self, X: pd.DataFrame, y: pd.Series) -> None:
        """Learn from rows, one after the other.

        Args:
            X: A data frame of features.
            y: The labels.
        """
        for row, label in zip(X.to_dict("records"), y.tolist(), strict=True):
            self.learn_one(row, label)

    def predict_proba_one(self, x: Row, **kwargs: Any) -> dict[Any, float]:
        """Return the probability of each label so far; empty before the first sample.

        Args:
            x: Features by name.
            **kwargs: Ignored.
        """
        (probabilities,) = self._probabilities([x])
        return dict(zip(self._online.labels, probabilities.tolist(), strict=True))

    def predict_proba_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return the probability of each label so far for each row.

        Args:
            X: A data frame of features.
        """
        import pandas as pd

        probabilities = self._probabilities(X.to_dict("records"))
        return pd.DataFrame(probabilities, columns=self._online.labels, index=X.index)

    def _probabilities(self, rows: Sequence[Row]) -> Floats:
        if not self._online.labels or not rows:
            return np.zeros((len(rows), len(self._online.labels)))
        return self._online.probabilities(np.stack([self._row(row, add=False) for row in rows]))

    def _row(self, x: Row, *, add: bool) -> Floats:
        """Return the inputs of the network, [max_features]."""
        values = {name: _number(name, value) for name, value in x.items()}
        if add:
            for name in sorted(values.keys() - self._columns.keys(), key=repr):
                if len(self._columns) < self.max_features:
                    self._columns[name] = len(self._columns)
        row = np.zeros(self.max_features)
        for name, value in values.items():
            column = self._columns.get(name)
            if column is None and len(self._columns) == self.max_features:
                column = zlib.crc32(repr(name).encode()) % self.max_features
            if column is not None:
                row[column] += value
        return row


def _check_label(label: Hashable) -> None:
    """Raise ValueError if a label is missing or a number with a fraction."""
    if isinstance(label, str):  # any text is a name
        return
    if is_missing(label):
        raise ValueError(f"the label is {label!r}; leave out samples without a label")
    if isinstance(label, float | np.floating) and not float(label).is_integer():
        raise ValueError(f"the label is {label!r}; expected a name or a whole number for a class")


def _number(name: Hashable, value: Any) -> float:
    """Return a feature as a number, 0 if it is missing."""
    if value is None:
        return 0.0
    try:
        number = float(value) if not isinstance(value, str) else math.inf
    except (TypeError, ValueError, OverflowError):
        number = math.inf
    if abs(number) > MAX_VALUE:
        raise ValueError(
            f"feature {name!r} is {value!r}; expected a number of at most {MAX_VALUE:.3g} (river's "
            "OneHotEncoder turns texts into numbers)"
        )
    return 0.0 if math.isnan(number) else number
