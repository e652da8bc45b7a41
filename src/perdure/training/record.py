"""What a run has shown so far: accuracy matrices, and the result made from them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from perdure.evaluation import (
    Accuracies,
    backward_transfer,
    forgetting,
    forward_transfer,
)
from perdure.learners import Learner
from perdure.state import State
from perdure.streams import Stream

Row = list[float | None]


class Record:
    """Accuracies of every predictor at every moment (before training, then after each task)."""

    def __init__(self, stream: Stream, predictors: Sequence[str]) -> None:
        self.stream = stream
        self.moments: list[int] = []
        """-1 before training, then the number of the task just ended."""
        self.class_il: dict[str, list[Row]] = {name: [] for name in predictors}
        self.task_il: dict[str, list[Row]] = {name: [] for name in predictors}
        self.per_class: dict[str, Row] = {}
        self.totals: dict[str, float] = {}
        self.steps = 0

    def add(self, predictor: str, moment: int, tests: Sequence[int], found: Accuracies) -> None:
        """Note what a predictor scored on these tests."""
        if moment not in self.moments:
            self.moments.append(moment)
        self.class_il[predictor].append(self._row(tests, found.class_il))
        if found.task_il is not None:
            self.task_il[predictor].append(self._row(tests, found.task_il))
        self.per_class[predictor] = found.per_class

    def _row(self, tests: Sequence[int], values: Sequence[float]) -> Row:
        row: Row = [None] * len(self.stream.tests)
        for i, value in zip(tests, values, strict=True):
            row[i] = value
        return row

    def finish(self, learner: Learner, steps: int) -> None:
        """Note the learner's counters at the end."""
        self.totals = learner.totals()
        self.steps = steps

    def state_dict(self) -> State:
        """All that was noted, as text: the order of the predictors counts."""
        noted = {name: value for name, value in vars(self).items() if name != "stream"}
        return {"noted": json.dumps(noted)}

    def load_state_dict(self, state: State) -> None:
        """Become the record that the state describes."""
        vars(self).update(json.loads(state["noted"]))

    def latest(self) -> float | None:
        """The first predictor's mean accuracy on the tasks seen, at the last evaluation."""
        rows = next(iter(self.class_il.values()))
        return self._mean(rows) if rows and self.moments[-1] >= 0 else None

    def _mean(self, matrix: list[Row]) -> float:
        """Unweighted, over the tests of the tasks seen: the figure of the paper's tables."""
        seen = [
            value
            for test, value in zip(self.stream.tests, matrix[-1], strict=True)
            if value is not None and test.since <= self.moments[-1]
        ]
        return math.fsum(seen) / len(seen)

    def result(self) -> dict[str, Any]:
        """All of it as plain values, accuracies in percent; the schema of `result.json`."""
        return {
            "moments": ["start" if m < 0 else self.stream.tasks[m].name for m in self.moments],
            "tests": [test.name for test in self.stream.tests],
            "predictors": {name: self._of(name) for name in self.class_il},
            "complete": len(self.moments) == len(self.stream.tasks) + 1 or not self.stream.tests,
            "steps": self.steps,
            "totals": self.totals,
        }

    def _of(self, predictor: str) -> dict[str, Any]:
        return {
            "class_il": self._numbers(self.class_il[predictor]),
            "task_il": self._numbers(self.task_il[predictor]),
            "per_class": self.per_class.get(predictor),
        }

    def _numbers(self, matrix: list[Row]) -> dict[str, Any] | None:
        """The matrix and the numbers made from it; None where nothing was evaluated."""
        if not matrix:
            return None
        # Overlapping tests, or a run cut short, leave forgetting and transfer without meaning.
        tasks = len(self.stream.tasks)
        whole = len(matrix) == tasks + 1
        apart = whole and not self.stream.cumulative and len(self.stream.tests) == tasks
        return {
            "matrix": matrix,
            "mean": self._mean(matrix) if self.moments[-1] >= 0 else None,
            "last_test": matrix[-1][-1] if whole else None,
            "forgetting": forgetting(matrix) if apart else None,
            "backward_transfer": backward_transfer(matrix) if apart else None,
            "forward_transfer": forward_transfer(matrix) if apart else None,
        }
