"""The training loop: trains and evaluates a group of runs, one batch of each in turn."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import torch
from torch import Tensor

from perdure.evaluation import accuracies
from perdure.learners import Learner
from perdure.randomness import generator
from perdure.state import State
from perdure.streams import Stream, Task, from_batches
from perdure.streams.from_data import Pair, as_pair
from perdure.structures import Inputs, leaves, map_leaves, select, shapes
from perdure.training.callbacks import Callback, ProgressCheck
from perdure.training.engine import Eager
from perdure.training.record import Record

METRICS_EVERY = 100
"""Steps between two readings of a learner's metrics. Each reading waits for the device."""
PROGRESS_SECONDS = 0.25
"""Shortest time between two progress reports within a task."""
DEFAULT_BATCH = 32


class TrainingError(RuntimeError):
    """Training cannot continue. The message names the step and suggests a remedy."""


class Interrupted(KeyboardInterrupt):
    """Training stopped between two steps because a signal requested it; its state is saved."""

    def __init__(self, signum: int = signal.SIGINT) -> None:
        super().__init__()
        self.signum = signum


class Position(NamedTuple):
    """Position of a run in its stream: the next batch to train on."""

    task: int = -1
    """Number of the task; -1 before the untrained network has been evaluated."""
    epoch: int = 0
    batch: int = 0


def total_steps(stream: Stream, batch: int, epochs: int, max_steps: int | None) -> int | None:
    """Number of steps of a run on a stream; None if the length of the stream is unknown."""
    total = 0
    for task in stream.tasks:
        count = task.steps(batch)
        if count is None:
            return max_steps
        total += epochs * count
    return total if max_steps is None else min(total, max_steps)


@dataclass(eq=False)
class Run:
    """One learner on one stream with one seed.

    `state_dict` contains everything needed to continue between two steps, bit for bit.

    Args:
        learner: The learner to train, in place.
        stream: The stream to train and evaluate on.
        batch: Samples per batch, for tasks that do not supply batches of their own.
        epochs: Passes over each task.
        seed: Seed of the order of the data; the learner has its own.

    Raises:
        ValueError: If `batch` or `epochs` is below 1, if the method needs task boundaries and the
            stream has none, if the number of classes is unknown and the learner does not grow, or
            if frozen parameters of the learner have been unfrozen.
    """

    learner: Learner
    stream: Stream
    batch: int = DEFAULT_BATCH
    epochs: int = 1
    seed: int = 0
    step: int = field(default=0, init=False)
    """Number of steps taken."""
    position: Position = field(default=Position(), init=False)
    metrics_step: int = field(default=0, init=False)
    """Step at which the learner's metrics were last read."""

    def __post_init__(self) -> None:
        for name, value in (("batch", self.batch), ("epochs", self.epochs)):
            if value < 1:
                raise ValueError(f"{name} is {value}; expected 1 or more")
        if self.learner.needs_boundaries and not self.stream.boundaries:
            raise ValueError(
                f"{type(self.learner).__name__} needs task boundaries, and {self.stream.name} has "
                "none; choose another method"
            )
        if not (self.stream.classes or self.learner.grows):
            raise ValueError(
                f"{self.stream.name} does not state its number of classes; give it, or create the "
                "learner with grow=True"
            )
        self.learner.check_frozen()
        self.order = generator(self.seed, "order")
        self.epoch_order = self.order.get_state()
        """State of `order` at the start of the epoch, from which its permutation is redrawn."""
        self.record = Record(self.stream, list(self.learner.predictors()))

    def state_dict(self) -> State:
        """State of the learner, its record so far, and the position in the stream."""
        return {
            "learner": self.learner.state_dict(),
            "record": self.record.state_dict(),
            "order": self.epoch_order.clone(),
            "step": self.step,
            "metrics_step": self.metrics_step,
            "position": list(self.position),
            "source": {} if (task := self._task()) is None else task.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore a state; `train` then continues from its position.

        Raises:
            ValueError: If the state belongs to another method, network or stream.
        """
        position = Position(*(int(n) for n in state["position"]))
        if not -1 <= position.task <= len(self.stream.tasks):
            raise ValueError(
                f"the state is in task {position.task + 1}, but {self.stream.name} has "
                f"{len(self.stream.tasks)} tasks"
            )
        self.learner.load_state_dict(state["learner"])
        self.record.load_state_dict(state["record"])
        self.epoch_order = state["order"].clone()
        self.order.set_state(self.epoch_order)
        self.step, self.metrics_step = int(state["step"]), int(state["metrics_step"])
        self.position = position
        if (task := self._task()) is not None:
            task.load_state_dict(state.get("source", {}))

    def _task(self) -> Task | None:
        """The current task; None before the first and after the last."""
        number = self.position.task
        return self.stream.tasks[number] if 0 <= number < len(self.stream.tasks) else None

    def total_steps(self, max_steps: int | None = None) -> int | None:
        """Number of steps of the whole run, at most `max_steps`; None if unknown."""
        return total_steps(self.stream, self.batch, self.epochs, max_steps)


@dataclass(frozen=True)
class Progress:
    """Progress of a group of runs."""

    step: int
    total_steps: int | None
    task: int
    tasks: int
    epoch: int
    epochs: int
    seconds: float
    """Time since training started or resumed in this process."""
    accuracy: float | None
    """Mean over the runs of the first predictor's mean accuracy on the tasks seen; percent."""
    since: int = 0
    """Step at which training started or resumed in this process."""


def train(
    runs: Sequence[Run],
    *,
    callbacks: Sequence[Callback] = (),
    max_steps: int | None = None,
    engine: Eager | None = None,
    stop: Callable[[], int] | None = None,
) -> list[Record]:
    """Train and evaluate runs together, one batch of each in turn.

    All runs continue from their current position, which must be the same for all. Their streams
    must have equally many tasks and batches.

    Args:
        runs: The runs to train, in place.
        callbacks: Called in the given order as training advances.
        max_steps: Number of steps after which to leave the stream; the task reached by then is
            evaluated as if it had ended.
        engine: How steps are executed; eagerly by default.
        stop: Asked after every step. When it returns a signal number other than 0, a checkpoint
            is requested from the callbacks and training stops.

    Returns:
        The record of each run.

    Raises:
        TrainingError: If a loss becomes infinite or NaN.
        Interrupted: If `stop` returned a signal number.
        ValueError: If the runs are at different positions, or a batch is invalid.
    """
    if len({(run.position, run.step) for run in runs}) > 1:
        raise ValueError("the runs are at different positions; train them separately")
    return _Group(runs, callbacks, max_steps, engine or Eager(), stop).train()


def fit(
    learner: Learner,
    data: Stream | Iterable[Pair],
    *,
    batch: int | None = None,
    epochs: int = 1,
    seed: int = 0,
    callbacks: Sequence[Callback] = (),
) -> Record:
    """Train one learner and, if the data includes tests, evaluate it after each task.

    Args:
        learner: The learner to train, in place.
        data: A stream, or any iterable of batches such as a `torch.utils.data.DataLoader`. A batch
            is a pair (inputs, labels), or a dict in which the key "labels" holds the labels and
            the others the inputs. An iterable is read once per epoch and used as a single task
            without tests; for tasks or tests, use `from_batches`.
        batch: Samples per batch of a stream, 32 by default. Batches from an iterable are used as
            they are.
        epochs: Passes over each task.
        seed: Seed of the order in which a stream presents its samples. The order of an iterable is
            its own.
        callbacks: Called in the given order as training advances.

    Returns:
        Accuracies of every predictor, number of steps, and totals of the learner's metrics.

    Raises:
        ValueError: If the data does not fit the learner, or `batch` is given for an iterable.
        TrainingError: If the loss becomes infinite or NaN.

    >>> import torch
    >>> from perdure import CLSER, from_tensors
    >>> inputs, labels = torch.rand(64, 8), torch.arange(64) % 4
    >>> stream = from_tensors(inputs, labels, groups=[(0, 1), (2, 3)], test=(inputs, labels))
    >>> record = fit(CLSER(torch.nn.Linear(8, 4), buffer_size=20), stream, batch=8)
    >>> record.steps, len(record.class_il["stable"])
    (8, 3)

    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> loader = DataLoader(TensorDataset(inputs, labels), batch_size=16, shuffle=True)
    >>> fit(CLSER(torch.nn.Linear(8, 4), buffer_size=20), loader, epochs=2).steps
    8
    """
    if isinstance(data, Stream):
        check_network(learner, data)
        run = Run(learner, data, DEFAULT_BATCH if batch is None else batch, epochs, seed)
    elif batch is not None:
        raise ValueError("batch applies to streams only; this data comes in batches already")
    elif epochs > 1 and isinstance(data, Iterator):
        raise ValueError(f"data is an iterator, which can be read only once; epochs is {epochs}")
    else:
        batches = _Batches(data)
        outputs = learner.predict_proba(select(batches.inputs, slice(0, 1))).shape[1]
        known = None if learner.grows else outputs
        shape = shapes(batches.inputs)
        stream = from_batches(batches, classes=known, shape=shape, name="data")
        run = Run(learner, stream, epochs=epochs, seed=seed)
    return train([run], callbacks=[*callbacks, ProgressCheck()])[0]


def check_network(learner: Learner, stream: Stream, sample: Inputs | None = None) -> None:
    """Raise ValueError unless the network accepts the stream's inputs and has enough outputs.

    Args:
        learner: The learner with the network.
        stream: The stream to learn from.
        sample: Inputs to try; by default one of a test. Without tests nothing is checked, because
            reading a sample of a task could consume the stream.
    """
    if sample is None:
        if not stream.tests:
            return
        sample = select(stream.tests[0].samples().inputs, slice(0, 1))
    try:
        outputs = learner.predict_proba(sample).shape[1]
    except ValueError:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ValueError(
            f"the network does not accept inputs of shape {stream.shape}: "
            f"{type(error).__name__}: {reason}"
        ) from error
    if outputs < stream.classes and not learner.grows:
        raise ValueError(
            f"the network has {outputs} outputs; {stream.name} has {stream.classes} classes"
        )


class _Batches:
    """An iterable of batches whose first inputs are known, without reading them twice."""

    def __init__(self, data: Iterable[Pair]) -> None:
        try:
            iterator = iter(data)
        except TypeError:
            kind = type(data).__name__
            raise ValueError(
                f"data is of type {kind}; expected a Stream or an iterable of batches"
            ) from None
        try:
            first = next(iterator)
        except StopIteration:
            raise ValueError("data contains no batches") from None
        try:
            self.inputs, labels = as_pair(first)
            if labels.ndim != 1:
                raise ValueError(f"its labels have {labels.ndim} dimensions")
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(
                "data must yield batches (inputs, labels [n]), or dicts with labels, but its first "
                f"item is something else ({error}); wrap a Dataset in a DataLoader or use "
                "from_dataset"
            ) from None
        self.data = data
        self.started: Iterator[Pair] | None = itertools.chain([first], iterator)

    def __iter__(self) -> Iterator[Pair]:
        started, self.started = self.started, None
        return iter(self.data) if started is None else started

    def __len__(self) -> int:
        return len(cast(Sized, self.data))


@dataclass
class _Group:
    """Runs that are trained together."""

    runs: Sequence[Run]
    callbacks: Sequence[Callback]
    max_steps: int | None
    engine: Eager
    stop: Callable[[], int] | None

    def __post_init__(self) -> None:
        self.first = self.runs[0]
        self.first_step = self.first.step
        self.total_steps = self.first.total_steps(self.max_steps)
        self.started = self.last_progress = time.monotonic()

    def train(self) -> list[Record]:
        tasks = len(self.first.stream.tasks)
        if self.first.position.task < 0:
            self._evaluate(-1)
            self._set_position(Position(task=0))
        elif self.first_step:
            self._report_progress(min(self.first.position.task, tasks - 1), 0)
        for task in range(self.first.position.task, tasks):
            start = self.first.position
            if self._limit_reached() and start == Position(task):  # not inside the task
                break
            for epoch in range(start.epoch, self.first.epochs):
                if not self._limit_reached():
                    self._train_epoch(task, epoch, start.batch if epoch == start.epoch else 0)
            self._end_task(task)
        for run in self.runs:
            run.record.finish(run.learner, run.step)
        return [run.record for run in self.runs]

    def _limit_reached(self) -> bool:
        return self.max_steps is not None and self.first.step >= self.max_steps

    def _train_epoch(self, task: int, epoch: int, start: int) -> None:
        for run in self.runs:
            run.epoch_order = run.order.get_state()
        sources = [run.stream.tasks[task].epoch(run.batch, run.order, start) for run in self.runs]
        for number, batches in enumerate(zip(*sources, strict=True), start + 1):
            for run, batch in zip(self.runs, batches, strict=True):
                if (classes := run.learner.growth_for(batch.labels)) is not None:
                    self.engine.synchronize()
                    run.learner.grow(classes)
                self.engine.step(run.learner, batch.to(run.learner.device))
                run.step += 1
                for callback in self.callbacks:
                    callback.on_step(run)
            self._set_position(Position(task, epoch, number))
            if self.first.step % METRICS_EVERY == 0:
                self._report_metrics(task, epoch)
            self._save_or_stop(due=any(c.checkpoint_due() for c in self.callbacks))
            if self._limit_reached():  # before requesting a batch for which a live stream may wait
                return

    def _end_task(self, number: int) -> None:
        self._report_metrics(number, self.first.epochs - 1)
        for run in self.runs:
            task = run.stream.tasks[number]
            if run.learner.needs_boundaries:
                run.learner.end_task(task.samples())
            task.release()
        self._evaluate(number)
        for run in self.runs:
            run.epoch_order = run.order.get_state()
        self._set_position(Position(number + 1))
        self._save_or_stop(due=True)
        self._report_progress(number, self.first.epochs - 1)

    def _set_position(self, position: Position) -> None:
        for run in self.runs:
            run.position = position

    def _save_or_stop(self, *, due: bool) -> None:
        """Between two steps: save a checkpoint if one is due, and stop if requested."""
        signum = 0 if self.stop is None else self.stop()
        if signum or due:
            self.engine.synchronize()
            for run in self.runs:
                _check_finite(run)
            # Weights that just became infinite or NaN show in the next loss, which is reported.
            if all(run.learner.has_finite_weights() for run in self.runs):
                for callback in self.callbacks:
                    callback.on_checkpoint(self.runs)
        if signum:
            raise Interrupted(signum)

    def _evaluate(self, number: int) -> None:
        """Evaluate every predictor on the tests of the tasks seen and of the next one."""
        for run in self.runs:
            known = {
                i: test
                for i, test in enumerate(run.stream.tests)
                if number < 0 or test.since <= number + 1
            }
            for name, predict in run.learner.predictors().items() if known else ():
                score = _on_device(predict, run.learner.device)
                with self.engine.autocast():
                    found = accuracies(score, list(known.values()))
                run.record.add(name, number, list(known), found)
            for callback in self.callbacks:
                callback.on_task(run, number)

    def _report_metrics(self, task: int, epoch: int) -> None:
        self.engine.synchronize()
        for run in self.runs:
            _check_finite(run)
            if run.step > run.metrics_step:
                run.metrics_step = run.step
                metrics = run.learner.metrics()
                for callback in self.callbacks:
                    callback.on_metrics(run, metrics)
        if time.monotonic() - self.last_progress > PROGRESS_SECONDS:
            self._report_progress(task, epoch)

    def _report_progress(self, task: int, epoch: int) -> None:
        self.last_progress = time.monotonic()
        latest = [a for a in (run.record.latest() for run in self.runs) if a is not None]
        progress = Progress(
            step=self.first.step,
            total_steps=self.total_steps,
            task=task,
            tasks=len(self.first.stream.tasks),
            epoch=epoch,
            epochs=self.first.epochs,
            seconds=self.last_progress - self.started,
            accuracy=sum(latest) / len(latest) if latest else None,
            since=self.first_step,
        )
        for callback in self.callbacks:
            callback.on_progress(progress)


def _on_device(
    predict: Callable[[Inputs], Tensor], device: torch.device
) -> Callable[[Inputs], Tensor]:
    """Scores on the device of the inputs, which may differ from that of the learner."""

    def score(inputs: Inputs) -> Tensor:
        moved = map_leaves(lambda leaf: leaf.to(device), inputs)
        return predict(moved).to(next(leaves(inputs)).device)

    return score


def _check_finite(run: Run) -> None:
    step = run.learner.nonfinite_step
    if step:
        rates = {f"{float(group['lr']):g}" for group in run.learner.optimizer.param_groups}
        raise TrainingError(
            f"seed {run.seed}: the loss was infinite or not a number at step {step}; the learning "
            f"rate ({', '.join(sorted(rates))}) is probably too high"
        )
