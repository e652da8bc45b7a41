"""A scikit-learn classifier that learns from a stream without forgetting."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perdure.arguments import as_count
from perdure.integrations import missing
from perdure.integrations.online import MAX_VALUE, MakeLearner, MakeNetwork, OnlineClassifier

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise missing("scikit-learn", "scikit-learn") from None

_UNSORTABLE = "the labels cannot be sorted; expected labels of one kind"


class ContinualClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that learns continually, with CLS-ER by default.

    `partial_fit` makes one pass over the rows in the given order and can be called as often as new
    data arrives. Labels need not be announced: the network grows when a new one appears. `fit`
    starts over and makes `epochs` passes over shuffled rows.

    Args:
        network: Function `network(features, classes)` that builds an `nn.Module` from float32 rows
            to logits; None for an MLP with two hidden layers of 100 units.
        learner: A learner class, or a function that builds a learner from a network, for example
            `functools.partial(perdure.ER, lr=0.05)`; None for `perdure.CLSER`. It is called with
            the keyword arguments `normalise`, `seed` and, if it has it, `buffer_size`.
        buffer_size: Maximum number of rows that the learner stores.
        batch_size: Rows per training step.
        epochs: Passes over the data in `fit`.
        standardise: Whether to standardise the features by the mean and variance of all rows so
            far.
        random_state: Seed, `numpy.random.RandomState` or None, as usual in scikit-learn.

    Attributes:
        classes_: The labels so far, sorted.
        learner_: The learner, for example for `learner_.export`. Its outputs are in the order in
            which the labels arrived, `labels_`.
        labels_: The labels so far, in the order of their arrival.
        n_features_in_: Number of features.

    Examples:
        >>> import numpy as np
        >>> rows = np.random.default_rng(0).normal(size=(320, 2))
        >>> labels = np.where(rows[:, 0] > 0, "right", "left")
        >>> classifier = ContinualClassifier().partial_fit(rows, labels)
        >>> classifier.predict([[3.0, 0.0], [-3.0, 0.0]]).tolist()
        ['right', 'left']
    """

    def __init__(
        self,
        network: MakeNetwork | None = None,
        *,
        learner: MakeLearner | None = None,
        buffer_size: int = 1000,
        batch_size: int = 32,
        epochs: int = 10,
        standardise: bool = True,
        random_state: Any = 0,
    ) -> None:
        self.network = network
        self.learner = learner
        self.buffer_size = buffer_size
        self.batch_size = batch_size
        self.epochs = epochs
        self.standardise = standardise
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> ContinualClassifier:
        """Learn from scratch.

        Args:
            X: Rows [n, features].
            y: Labels [n].
        """
        rows, labels = self._check(X, y, reset=True)
        random = check_random_state(self.random_state)
        online, classes = self._start(random), np.unique(labels)
        online.announce(classes.tolist())
        for _ in range(self.epochs):
            order = random.permutation(len(rows))
            self._learn(online, rows[order], labels[order])
        self._online, self.classes_ = online, classes
        return self

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None
    ) -> ContinualClassifier:
        """Learn from the next rows of the stream, in one pass and in their order.

        If a training step fails, the rows of earlier steps have been learned and no others.

        Args:
            X: Rows [n, features].
            y: Labels [n]; new ones may appear at any call.
            classes: Labels to expect, optional: outputs for them are created now.
        """
        online: OnlineClassifier | None = getattr(self, "_online", None)
        rows, labels = self._check(X, y, reset=online is None)
        announced = labels[:0] if classes is None else np.unique(np.asarray(classes))
        known = labels[:0] if online is None else self.classes_
        merged = _merge(known, announced, labels)
        online = online or self._start(check_random_state(self.random_state))
        try:
            online.announce(announced.tolist())
            self._learn(online, rows, labels)
        finally:
            if online.learner is not None:
                seen = set(online.labels)
                self.classes_ = merged[[label in seen for label in merged.tolist()]]
                self._online = online
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the most probable label of each row, [n].

        Args:
            X: Rows [n, features].
        """
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]  # type: ignore[no-any-return]

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the probability of each label [n, labels], in the order of `classes_`.

        Args:
            X: Rows [n, features].
        """
        check_is_fitted(self, "classes_")
        rows = validate_data(self, X, dtype=np.float64, reset=False)
        order = [self._online.labels.index(label) for label in self.classes_.tolist()]
        return self._online.probabilities(rows)[:, order]

    @property
    def learner_(self) -> Any:
        """The learner; its outputs are in the order of `labels_`."""
        check_is_fitted(self, "classes_")
        return self._online.learner

    @property
    def labels_(self) -> list[Hashable]:
        """The labels so far, in the order of their arrival."""
        check_is_fitted(self, "classes_")
        return list(self._online.labels)

    def _check(self, X: ArrayLike, y: ArrayLike, *, reset: bool) -> tuple[Any, Any]:
        for name in ("buffer_size", "batch_size", "epochs"):
            as_count(name, getattr(self, name))
        rows, labels = validate_data(self, X, y, dtype=np.float64, reset=reset)
        if np.abs(rows).max() > MAX_VALUE:
            raise ValueError(f"X has values beyond ±{MAX_VALUE:.3g}, the limit of single precision")
        try:
            check_classification_targets(labels)
        except TypeError:
            raise ValueError(_UNSORTABLE) from None
        return rows, labels

    def _start(self, random: np.random.RandomState) -> OnlineClassifier:
        how = self.network, self.learner, self.buffer_size, self.standardise
        return OnlineClassifier(self.n_features_in_, *how, seed=int(random.randint(2**31)))

    def _learn(self, online: OnlineClassifier, X: NDArray[np.float64], y: NDArray[Any]) -> None:
        for start in range(0, len(X), self.batch_size):
            end = start + self.batch_size
            online.observe(X[start:end], y[start:end].tolist())


def _merge(*labels: NDArray[Any]) -> NDArray[Any]:
    """Return all labels, sorted. Numbers and texts are not mixed: numpy would convert them."""
    kinds = {"text" if part.dtype.kind in "US" else part.dtype.kind for part in labels if len(part)}
    if "text" in kinds and kinds - {"text", "O"}:
        raise ValueError("some labels are numbers and others are texts; expected one kind")
    try:
        return np.unique(np.concatenate([part for part in labels if len(part)]))
    except TypeError:
        raise ValueError(_UNSORTABLE) from None
