"""Callbacks: what `train` and `fit` call as the runs advance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from perdure.memory.episodic import EpisodicMemory
from perdure.results import RunFolder

if TYPE_CHECKING:
    from perdure.training.loop import Progress, Run


class Callback:
    """Base class of all callbacks. Every method does nothing by default; override what you need.

    When several runs are trained together, a callback receives the events of all of them.

    >>> class Losses(Callback):
    ...     def on_metrics(self, run, metrics):
    ...         print(f"step {run.step}: mean loss {metrics['loss']:.2f}")
    """

    def on_step(self, run: Run) -> None:
        """Called after every training step.

        Args:
            run: The run that took the step; `run.step` counts its steps so far.
        """

    def on_metrics(self, run: Run, metrics: Mapping[str, float]) -> None:
        """Called every `METRICS_EVERY` steps and at the end of a task.

        Args:
            run: The run that the metrics describe.
            metrics: The result of `Learner.metrics`: means per step since the last call.
        """

    def on_task(self, run: Run, task: int) -> None:
        """Called after each evaluation.

        Args:
            run: The run that was evaluated; `run.record` contains the accuracies.
            task: Number of the task that just ended, or -1 before training.
        """

    def on_progress(self, progress: Progress) -> None:
        """Called at the end of every task and, in between, at most four times a second.

        Args:
            progress: The current position of the runs.
        """

    def checkpoint_due(self) -> bool:
        """Called after every step of all runs. Return True to request a checkpoint now."""
        return False

    def on_checkpoint(self, runs: Sequence[Run]) -> None:
        """Called between two steps when the state of the runs should be saved.

        This happens when any callback requests it, at the end of every task, and before training
        stops on a signal. All losses and weights are finite.

        Args:
            runs: All runs being trained, at the same position.
        """


class ProgressCheck(Callback):
    """Lets learners warn about their progress, at intervals that grow with the steps."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}

    def on_metrics(self, run: Run, metrics: Mapping[str, float]) -> None:
        """Call `Learner.check_progress` if the run has taken a fifth more steps since."""
        if run.step >= self._next.get(id(run), 16):
            self._next[id(run)] = run.step * 6 // 5
            run.learner.check_progress()


class EventLog(Callback):
    """Writes metrics, class counts of the memory, and accuracies to a folder's `events.jsonl`.

    Args:
        folder: The run folder; it must exist.
        run: The run to log. Required when several runs are trained together.
    """

    def __init__(self, folder: RunFolder, run: Run | None = None) -> None:
        self.folder = folder
        self.run = run

    def on_metrics(self, run: Run, metrics: Mapping[str, float]) -> None:
        """Write a `metrics` event and, for methods with an episodic memory, a `memory` event."""
        if self.run not in (None, run):
            return
        self.folder.event("metrics", step=run.step, values=dict(metrics))
        memory = getattr(run.learner, "memory", None)
        if isinstance(memory, EpisodicMemory):
            counts = memory.class_counts(run.stream.classes)
            self.folder.event("memory", step=run.step, classes=counts)

    def on_task(self, run: Run, task: int) -> None:
        """Write an `evaluation` event: the latest accuracies of every predictor."""
        if self.run not in (None, run):
            return
        latest = {name: rows[-1] for name, rows in run.record.class_il.items() if rows}
        self.folder.event("evaluation", step=run.step, task=task, class_il=latest)
