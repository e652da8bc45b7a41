"""The record of a run: accuracy matrices and the result computed from them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from perdure.evaluation import (
    Accuracies,
    PrequentialAccuracy,
    backward_transfer,
    forgetting,
    forward_transfer,
)
from perdure.learners import Learner
from perdure.state import State
from perdure.streams import Stream

Row = list[float | None]
"""Accuracy on each test of the stream, in percent; None where it was not evaluated."""


class _Content(msgspec.Struct):
    """What the state of a record contains."""

    moments: list[int]
    class_il: dict[str, list[Row]]
    task_il: dict[str, list[Row]]
    per_class: dict[str, Row]
    totals: dict[str, float]
    steps: int
    cut: bool
    prequential: PrequentialAccuracy | None


class Record:
    """Accuracies of every predictor, evaluated before training and after each task.

    Args:
        stream: The stream that the run trains on.
        predictors: Names of the learner's predictors, the main one first.
    """

    def __init__(self, stream: Stream, predictors: Sequence[str]) -> None:
        self.stream = stream
        self.moments: list[int] = []
        """When evaluations took place: -1 before training, else the number of the last task."""
        self.class_il: dict[str, list[Row]] = {name: [] for name in predictors}
        """One row per evaluation, by predictor; predictions among all classes."""
        self.task_il: dict[str, list[Row]] = {name: [] for name in predictors}
        """The same with predictions among the classes of the task, if tasks divide the classes."""
        self.per_class: dict[str, Row] = {}
        """Accuracy on each class at the last evaluation, by predictor."""
        self.totals: dict[str, float] = {}
        """Sums of the learner's metrics over all steps; empty until training ends."""
        self.steps = 0
        """Number of training steps; 0 until training ends."""
        self.cut = False
        """Whether training ended before the end of the stream."""
        self.prequential: PrequentialAccuracy | None = None
        """Accuracy of the predictions made before learning, if they were made."""

    def __repr__(self) -> str:
        parts = [f"{self.steps:,} steps" if self.steps else "unfinished"]
        if not self.stream.tests:
            parts.append("no tests")
        elif self.moments and self.moments[-1] >= 0:
            parts.append(f"after {self.moments[-1] + 1} of {len(self.stream.tasks)} tasks")
            parts += [f"{name} {self._mean(rows):.1f} %" for name, rows in self.class_il.items()]
        return f"Record({self.stream.name!r}: {', '.join(parts)})"

    def add(self, predictor: str, moment: int, tests: Sequence[int], found: Accuracies) -> None:
        """Record the accuracies of a predictor on the tests with these numbers."""
        if moment not in self.moments:
            self.moments.append(moment)
        self.class_il[predictor].append(self._row(tests, found.class_il))
        if found.task_il is not None and self._has_task_il:
            self.task_il[predictor].append(self._row(tests, found.task_il))
        self.per_class[predictor] = found.per_class

    def skip(self, moment: int) -> None:
        """Record that nothing was evaluated at this moment."""
        if not self.stream.tests:
            return
        self.moments.append(moment)
        for rows in self.class_il.values():
            rows.append([None] * len(self.stream.tests))
        if self._has_task_il:
            for rows in self.task_il.values():
                rows.append([None] * len(self.stream.tests))

    @property
    def _has_task_il(self) -> bool:
        """Whether tasks define their classes, and Task-IL is more than naming the only one."""
        known = [test.classes for test in self.stream.tests]
        return None not in known and any(len(classes or ()) > 1 for classes in known)

    def _row(self, tests: Sequence[int], values: Sequence[float]) -> Row:
        row: Row = [None] * len(self.stream.tests)
        for i, value in zip(tests, values, strict=True):
            row[i] = value
        return row

    def finish(self, learner: Learner, steps: int, *, cut: bool = False) -> None:
        """Record the learner's totals and the number of steps at the end of training."""
        self.totals = learner.totals()
        self.steps = steps
        self.cut = cut

    def state_dict(self) -> State:
        """The content as JSON text, which preserves the order of the predictors."""
        content = {name: value for name, value in vars(self).items() if name != "stream"}
        if self.prequential is not None:
            content["prequential"] = asdict(self.prequential)
        return {"content": json.dumps(content)}

    def load_state_dict(self, state: State) -> None:
        """Restore the content of another record of the same stream and predictors.

        Raises:
            ValueError: If the content is of another stream or other predictors, or damaged.
        """
        try:
            content = msgspec.convert(json.loads(state["content"]), _Content)
        except (msgspec.ValidationError, RecursionError) as error:
            raise ValueError(f"its record is damaged: {error}") from None
        tests, evaluations = len(self.stream.tests), len(content.moments)
        tables = [*content.class_il.values(), *filter(None, content.task_il.values())]
        rows = [row for table in tables for row in table]
        if (
            any(list(table) != list(self.class_il) for table in (content.class_il, content.task_il))
            or any(len(table) != evaluations for table in tables)
            or any(len(row) != tests for row in rows)
            or not all(value is None or 0 <= value <= 100 for row in rows for value in row)
            or content.moments != sorted(set(content.moments))
            or not all(-1 <= moment < len(self.stream.tasks) for moment in content.moments)
            or content.steps < 0
        ):
            raise ValueError("its record is not one of this stream and these predictors")
        vars(self).update(msgspec.structs.asdict(content))

    def latest(self) -> float | None:
        """Mean accuracy of the first predictor on the tasks seen, at the last evaluation.

        None if nothing has been evaluated since training started.
        """
        rows = next(iter(self.class_il.values()))
        return self._mean(rows) if rows and self.moments[-1] >= 0 else None

    def _mean(self, matrix: list[Row]) -> float:
        """Unweighted mean over the tests of the tasks seen, as in the paper's tables."""
        seen = [
            value
            for test, value in zip(self.stream.tests, matrix[-1], strict=True)
            if value is not None and test.since <= self.moments[-1]
        ]
        return math.fsum(seen) / len(seen)

    def result(self) -> dict[str, Any]:
        """The record as JSON-compatible values, with accuracies in percent.

        This is what a run writes to `result.json`.
        """
        evaluated = len(self.moments) == len(self.stream.tasks) + 1 or not self.stream.tests
        result = {
            "moments": ["start" if m < 0 else self.stream.tasks[m].name for m in self.moments],
            "tests": [test.name for test in self.stream.tests],
            "predictors": {
                name: {
                    "class_il": self._summary(self.class_il[name]),
                    "task_il": self._summary(self.task_il[name]),
                    "per_class": self.per_class.get(name),
                }
                for name in self.class_il
            },
            "complete": evaluated and not self.cut,
            "steps": self.steps,
            "totals": self.totals,
        }
        if self.prequential is not None:
            result["prequential"] = asdict(self.prequential)
        return result

    def _summary(self, matrix: list[Row]) -> dict[str, Any] | None:
        """The matrix and the figures computed from it; None if nothing was evaluated."""
        if not matrix:
            return None
        # Forgetting and transfer are undefined for overlapping tests and for incomplete runs.
        tasks = len(self.stream.tasks)
        complete = len(matrix) == tasks + 1
        evaluated_first = None not in matrix[0]
        disjoint = complete and not self.stream.cumulative and len(self.stream.tests) == tasks
        return {
            "matrix": matrix,
            "mean": self._mean(matrix) if self.moments[-1] >= 0 else None,
            "last_test": matrix[-1][-1] if complete else None,
            "forgetting": forgetting(matrix) if disjoint else None,
            "backward_transfer": backward_transfer(matrix) if disjoint else None,
            "forward_transfer": forward_transfer(matrix) if disjoint and evaluated_first else None,
        }
