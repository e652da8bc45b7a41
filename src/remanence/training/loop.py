"""The training loop: a group of runs goes through its streams side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from remanence.evaluation import accuracies
from remanence.learners import Learner
from remanence.randomness import generator
from remanence.streams import Stream
from remanence.training.engine import Eager, Engine
from remanence.training.record import Record

READ_EVERY = 100
"""Steps between looks at a learner's counters; each look waits for the device."""


class TrainingError(RuntimeError):
    """Training cannot go on; the message says at which step and what to try."""


@dataclass(eq=False)
class Run:
    """One learner on one stream with one seed."""

    learner: Learner
    stream: Stream
    batch: int = 32
    epochs: int = 1
    """Passes over each task."""
    seed: int = 0
    """Decides the order of the data; the learner has a seed of its own."""
    step: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        for name in ("batch", "epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 1 or more")
        if self.learner.needs_boundaries and not self.stream.boundaries:
            raise ValueError(
                f"{type(self.learner).__name__} must be told where tasks end, and "
                f"{self.stream.name} has no task boundaries; choose a method that needs none"
            )
        self.order = generator(self.seed, "order")
        self.record = Record(self.stream, list(self.learner.predictors()))

    def total_steps(self, max_steps: int | None = None) -> int | None:
        """Steps of the whole run; None where the stream does not know its length."""
        counts = [task.steps(self.batch) for task in self.stream.tasks]
        if any(count is None for count in counts):
            return max_steps
        total = self.epochs * sum(count for count in counts if count is not None)
        return total if max_steps is None else min(total, max_steps)


@dataclass(frozen=True)
class Progress:
    """Where a group of runs stands."""

    step: int
    total_steps: int | None
    task: int
    tasks: int
    epoch: int
    epochs: int
    seconds: float
    accuracy: float | None
    """Mean over the runs of the first predictor's mean accuracy on the tasks seen; percent."""


@dataclass(frozen=True)
class Hooks:
    """What to call as the runs go on."""

    on_step: Callable[[Run], None] | None = None
    """After every step of a run."""
    on_read: Callable[[Run], None] | None = None
    """Every `READ_EVERY` steps of a run: the time to read a learner's totals."""
    on_task: Callable[[Run, int], None] | None = None
    """After each evaluation: with -1 before training, then with the number of the task."""
    on_progress: Callable[[Progress], None] | None = None
    """A few times a second at most."""


def train(
    runs: Sequence[Run],
    *,
    max_steps: int | None = None,
    engine: Engine | None = None,
    hooks: Hooks | None = None,
) -> list[Record]:
    """Train and evaluate the runs, one batch of each in turn; their streams must be alike.

    With `max_steps` the stream is left after that many steps, and evaluated where it stands.
    """
    return _Group(runs, max_steps, engine or Eager(), hooks or Hooks()).train()


def fit(
    learner: Learner,
    stream: Stream,
    *,
    batch: int = 32,
    epochs: int = 1,
    seed: int = 0,
    on_step: Callable[[Run], None] | None = None,
    on_task: Callable[[Run, int], None] | None = None,
) -> Record:
    """Train one learner on one stream and evaluate it.

    >>> import torch
    >>> from remanence import CLSER, from_tensors
    >>> images, labels = torch.rand(64, 8), torch.arange(64) % 4
    >>> stream = from_tensors(images, labels, groups=[(0, 1), (2, 3)], test=(images, labels))
    >>> record = fit(CLSER(torch.nn.Linear(8, 4), buffer_size=20), stream, batch=8)
    >>> record.steps, len(record.class_il["stable"])
    (8, 3)
    """
    hooks = Hooks(on_step=on_step, on_task=on_task)
    return train([Run(learner, stream, batch, epochs, seed)], hooks=hooks)[0]


class _Group:
    """Runs that go through their streams side by side."""

    def __init__(
        self, runs: Sequence[Run], max_steps: int | None, engine: Engine, hooks: Hooks
    ) -> None:
        self.runs = runs
        self.first = runs[0]
        self.max_steps = max_steps
        self.engine = engine
        self.hooks = hooks
        self.total = self.first.total_steps(max_steps)
        self.began = self.told = time.monotonic()

    def train(self) -> list[Record]:
        self._evaluate(-1)
        for task in range(len(self.first.stream.tasks)):
            for epoch in range(self.first.epochs):
                if not self._enough():
                    self._epoch(task, epoch)
            self._end(task)
            if self._enough():
                break
        for run in self.runs:
            run.record.finish(run.learner, run.step)
        return [run.record for run in self.runs]

    def _enough(self) -> bool:
        return self.max_steps is not None and self.first.step >= self.max_steps

    def _epoch(self, task: int, epoch: int) -> None:
        supplies = [run.stream.tasks[task].epoch(run.batch, run.order) for run in self.runs]
        for batches in zip(*supplies, strict=True):
            for run, batch in zip(self.runs, batches, strict=True):
                self.engine.step(run.learner, batch)
                run.step += 1
                if self.hooks.on_step is not None:
                    self.hooks.on_step(run)
            if self.first.step % READ_EVERY == 0:
                self._read(task, epoch)
            if self._enough():  # asked before the next batch is drawn: a live stream may wait
                return

    def _end(self, number: int) -> None:
        self._read(number, self.first.epochs - 1)
        for run in self.runs:
            task = run.stream.tasks[number]
            if run.learner.needs_boundaries:
                run.learner.end_task(task.samples())
            task.release()
        self._evaluate(number)
        self._tell(number, self.first.epochs - 1)

    def _read(self, task: int, epoch: int) -> None:
        self.engine.wait()
        for run in self.runs:
            _check_finite(run)
            if self.hooks.on_read is not None:
                self.hooks.on_read(run)
        if time.monotonic() - self.told > 0.25:
            self._tell(task, epoch)

    def _evaluate(self, number: int) -> None:
        """Every predictor, on the tests of every task seen and of the next one."""
        for run in self.runs:
            tests = [
                i
                for i, test in enumerate(run.stream.tests)
                if number < 0 or test.since <= number + 1
            ]
            if tests:
                chosen = [run.stream.tests[i] for i in tests]
                for name, predict in run.learner.predictors().items():
                    with self.engine.arithmetic():
                        run.record.add(name, number, tests, accuracies(predict, chosen))
            if self.hooks.on_task is not None:
                self.hooks.on_task(run, number)

    def _tell(self, task: int, epoch: int) -> None:
        self.told = time.monotonic()
        if self.hooks.on_progress is None:
            return
        latest = [a for a in (run.record.latest() for run in self.runs) if a is not None]
        self.hooks.on_progress(
            Progress(
                step=self.first.step,
                total_steps=self.total,
                task=task,
                tasks=len(self.first.stream.tasks),
                epoch=epoch,
                epochs=self.first.epochs,
                seconds=self.told - self.began,
                accuracy=sum(latest) / len(latest) if latest else None,
            )
        )


def _check_finite(run: Run) -> None:
    step = run.learner.not_finite
    if step:
        rates = {f"{float(group['lr']):g}" for group in run.learner.optimizer.param_groups}
        raise TrainingError(
            f"seed {run.seed}: the loss was infinite or not a number at step {step}; most often "
            f"the learning rate ({', '.join(sorted(rates))}) is too high"
        )
