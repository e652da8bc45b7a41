"""The training loop: a group of runs goes through its streams side by side."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from perdure.evaluation import accuracies
from perdure.learners import Learner
from perdure.randomness import generator
from perdure.state import State
from perdure.streams import Stream, Task
from perdure.training.engine import Eager, Engine
from perdure.training.record import Record

READ_EVERY = 100
"""Steps between looks at a learner's counters; each look waits for the device."""


def total_steps(stream: Stream, batch: int, epochs: int, max_steps: int | None) -> int | None:
    """Steps of a run on a stream; None where it does not know its length."""
    counts = [task.steps(batch) for task in stream.tasks]
    if any(count is None for count in counts):
        return max_steps
    total = epochs * sum(count for count in counts if count is not None)
    return total if max_steps is None else min(total, max_steps)


class TrainingError(RuntimeError):
    """Training cannot go on; the message says at which step and what to try."""


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop, and has: between two steps, with its state kept."""

    def __init__(self, signum: int = signal.SIGINT) -> None:
        super().__init__()
        self.signum = signum


class Position(NamedTuple):
    """How far a run has come: every batch before this one has been learned."""

    task: int = -1
    """-1 before the untrained network has been evaluated."""
    epoch: int = 0
    batch: int = 0


@dataclass(eq=False)
class Run:
    """One learner on one stream with one seed.

    Its state is all that `train` needs to go on from between two steps, bit for bit.
    """

    learner: Learner
    stream: Stream
    batch: int = 32
    epochs: int = 1
    """Passes over each task."""
    seed: int = 0
    """Decides the order of the data; the learner has a seed of its own."""
    step: int = field(default=0, init=False)
    position: Position = field(default=Position(), init=False)

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
        self.epoch_order = self.order.get_state()
        """The order's state when the epoch began: drawn from again, it gives the epoch again."""
        self.record = Record(self.stream, list(self.learner.predictors()))

    def state_dict(self) -> State:
        """The learner's state, the record so far, and where in the stream the run stands."""
        return {
            "learner": self.learner.state_dict(),
            "record": self.record.state_dict(),
            "order": self.epoch_order.clone(),
            "step": self.step,
            "position": list(self.position),
            "source": {} if (task := self._task()) is None else task.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Become the run that the state describes; `train` goes on from there.

        ValueError if it is the state of a run of another method, network or stream.
        """
        position = Position(*(int(n) for n in state["position"]))
        if not -1 <= position.task <= len(self.stream.tasks):
            raise ValueError(
                f"the state is of task {position.task + 1}; {self.stream.name} has "
                f"{len(self.stream.tasks)}"
            )
        self.learner.load_state_dict(state["learner"])
        self.record.load_state_dict(state["record"])
        self.epoch_order = state["order"].clone()
        self.order.set_state(self.epoch_order)
        self.step, self.position = int(state["step"]), position
        if (task := self._task()) is not None:
            task.load_state_dict(state.get("source", {}))

    def _task(self) -> Task | None:
        """The task in which the run stands, if it is not before the first or after the last."""
        number = self.position.task
        return self.stream.tasks[number] if 0 <= number < len(self.stream.tasks) else None

    def total_steps(self, max_steps: int | None = None) -> int | None:
        """Steps of the whole run; None where the stream does not know its length."""
        return total_steps(self.stream, self.batch, self.epochs, max_steps)


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
    since: int = 0
    """The step from which this process went on; the seconds count from there."""


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


class Keeper(Protocol):
    """Keeps the states of a group of runs, so that others can go on from them."""

    def due(self) -> bool:
        """Whether it is time to; asked after every step."""

    def keep(self, runs: Sequence[Run]) -> None:
        """Keep the runs as they are now, between two steps and with finite losses."""


def train(
    runs: Sequence[Run],
    *,
    max_steps: int | None = None,
    engine: Engine | None = None,
    hooks: Hooks | None = None,
    keeper: Keeper | None = None,
    stop: Callable[[], int] | None = None,
) -> list[Record]:
    """Train and evaluate the runs, one batch of each in turn; their streams must be alike.

    They go on from where they stand, which must be the same position for all. With `max_steps`
    the stream is left after that many steps, and evaluated where it stands. `stop` is asked after
    every step; when it gives the number of a signal, the runs are kept and `Interrupted` raised.
    """
    if len({(run.position, run.step) for run in runs}) > 1:
        raise ValueError("the runs stand at different positions; train them one by one")
    return _Group(runs, max_steps, engine or Eager(), hooks or Hooks(), keeper, stop).train()


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
    >>> from perdure import CLSER, from_tensors
    >>> inputs, labels = torch.rand(64, 8), torch.arange(64) % 4
    >>> stream = from_tensors(inputs, labels, groups=[(0, 1), (2, 3)], test=(inputs, labels))
    >>> record = fit(CLSER(torch.nn.Linear(8, 4), buffer_size=20), stream, batch=8)
    >>> record.steps, len(record.class_il["stable"])
    (8, 3)
    """
    hooks = Hooks(on_step=on_step, on_task=on_task)
    return train([Run(learner, stream, batch, epochs, seed)], hooks=hooks)[0]


class _Group:
    """Runs that go through their streams side by side."""

    def __init__(
        self,
        runs: Sequence[Run],
        max_steps: int | None,
        engine: Engine,
        hooks: Hooks,
        keeper: Keeper | None,
        stop: Callable[[], int] | None,
    ) -> None:
        self.runs = runs
        self.first = runs[0]
        self.max_steps = max_steps
        self.engine = engine
        self.hooks = hooks
        self.keeper = keeper
        self.stop = stop
        self.since = self.first.step
        self.total = self.first.total_steps(max_steps)
        self.began = self.told = time.monotonic()

    def train(self) -> list[Record]:
        if self.first.position.task < 0:
            self._evaluate(-1)
            self._moved(Position(task=0))
        elif self.since:
            self._tell(min(self.first.position.task, len(self.first.stream.tasks) - 1), 0)
        start = self.first.position
        for task in range(start.task, len(self.first.stream.tasks)):
            if self._enough() and self.first.position == Position(task):  # and not inside it
                break
            began = start if task == start.task else Position(task)
            for epoch in range(began.epoch, self.first.epochs):
                if not self._enough():
                    self._epoch(task, epoch, began.batch if epoch == began.epoch else 0)
            self._end(task)
        for run in self.runs:
            run.record.finish(run.learner, run.step)
        return [run.record for run in self.runs]

    def _enough(self) -> bool:
        return self.max_steps is not None and self.first.step >= self.max_steps

    def _epoch(self, task: int, epoch: int, start: int) -> None:
        for run in self.runs:
            run.epoch_order = run.order.get_state()
        supplies = [run.stream.tasks[task].epoch(run.batch, run.order, start) for run in self.runs]
        for number, batches in enumerate(zip(*supplies, strict=True), start + 1):
            for run, batch in zip(self.runs, batches, strict=True):
                self.engine.step(run.learner, batch)
                run.step += 1
                if self.hooks.on_step is not None:
                    self.hooks.on_step(run)
            self._moved(Position(task, epoch, number))
            if self.first.step % READ_EVERY == 0:
                self._read(task, epoch)
            self._pause(keep=self.keeper is not None and self.keeper.due())
            if self._enough():  # asked before the next batch is drawn: a live stream may wait
                return

    def _moved(self, position: Position) -> None:
        for run in self.runs:
            run.position = position

    def _pause(self, *, keep: bool) -> None:
        """Between two steps: keep the runs, if it is time to, and stop if asked to."""
        signum = 0 if self.stop is None else self.stop()
        if signum or keep:
            self._keep()
        if signum:
            raise Interrupted(signum)

    def _keep(self) -> None:
        if self.keeper is None:
            return
        self.engine.wait()
        for run in self.runs:
            _check_finite(run)
        if all(run.learner.has_finite_weights() for run in self.runs):  # else the next loss says it
            self.keeper.keep(self.runs)

    def _end(self, number: int) -> None:
        self._read(number, self.first.epochs - 1)
        for run in self.runs:
            task = run.stream.tasks[number]
            if run.learner.needs_boundaries:
                run.learner.end_task(task.samples())
            task.release()
        self._evaluate(number)
        for run in self.runs:
            run.epoch_order = run.order.get_state()
        self._moved(Position(number + 1))
        self._pause(keep=True)
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
                since=self.since,
            )
        )


def _check_finite(run: Run) -> None:
    step = run.learner.nonfinite_step
    if step:
        rates = {f"{float(group['lr']):g}" for group in run.learner.optimizer.param_groups}
        raise TrainingError(
            f"seed {run.seed}: the loss was infinite or not a number at step {step}; most often "
            f"the learning rate ({', '.join(sorted(rates))}) is too high"
        )
