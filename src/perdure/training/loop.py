"""The training loop: trains and evaluates a group of runs, one batch of each in turn."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from perdure.arguments import as_count, as_whole
from perdure.evaluation import Accuracies, Prequential, accuracies
from perdure.evaluation.accuracy import ScoreFunction, count_rows
from perdure.evaluation.prequential import WINDOW
from perdure.learners import Learner
from perdure.learners.checks import describe
from perdure.randomness import generator
from perdure.state import State
from perdure.streams import Stream, Task, Test, from_batches
from perdure.streams.from_batches import IterableTask, read_checksum, supplies_batches
from perdure.streams.pairs import Pair, as_pair
from perdure.streams.stream import ComposedTask
from perdure.structures import Inputs, leaves, length, map_leaves, select, shapes
from perdure.training.callbacks import Callback, ProgressCheck
from perdure.training.engine import Eager
from perdure.training.record import Record

METRICS_EVERY = 100
"""Steps between two readings of a learner's metrics. Each reading waits for the device."""
PREQUENTIAL_EVERY = 10
"""Steps between two readings of the prequential accuracy in the first `DENSE_STEPS` steps."""
DENSE_STEPS = 1000
"""Steps after which the prequential accuracy is read together with the metrics."""
PROGRESS_SECONDS = 0.25
"""Shortest time between two progress reports within a task."""
SLOW_SECONDS = 2.0
"""Time after which progress is reported although no metrics are due."""
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
    """Equals the number of epochs while the task, which has ended, is evaluated."""
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

    `record` has the accuracies so far. `state_dict` contains everything needed to continue between
    two steps, bit for bit.

    Args:
        learner: The learner to train, in place.
        stream: The stream to train and evaluate on.
        batch: Samples per batch, for tasks that do not supply batches of their own.
        epochs: Passes over each task.
        seed: Seed of the order of the data; the learner has its own.
        prequential: Whether to predict each batch before learning from it: True, or the number of
            samples of the sliding window.
        sources: The tasks that supply the data, if those of the stream were joined from them.

    Raises:
        ValueError: If `learner` is no learner, if `batch`, `epochs` or the window is not a whole
            number or below 1, if the method needs task boundaries and the stream has none, if the
            number of classes is unknown and the learner does not grow, or if frozen parameters of
            the learner have been unfrozen.
    """

    learner: Learner
    stream: Stream
    batch: int = DEFAULT_BATCH
    epochs: int = 1
    seed: int = 0
    prequential: bool | int = False
    sources: Sequence[Task] = ()
    step: int = field(default=0, init=False)
    """Number of steps taken."""
    position: Position = field(default=Position(), init=False)
    metrics_step: int = field(default=0, init=False)
    """Step at which the learner's metrics were last read."""
    failure: TrainingError | None = field(default=None, init=False)
    """Why training ended early, if it did."""

    def __post_init__(self) -> None:
        _check_learner(self.learner)
        self.batch = as_count("batch", self.batch)
        self.epochs = as_count("epochs", self.epochs)
        self.seed = as_whole("seed", self.seed)
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
        self.predicted: Prequential | None = None
        """Outcomes of the predictions made before learning, if `prequential` is set."""
        if self.prequential is not False:
            given = WINDOW if self.prequential is True else self.prequential
            window = as_whole("prequential", given)
            self.predicted = Prequential(window, self.learner.device)
        self.sources = self.sources or self.stream.tasks

    def state_dict(self) -> State:
        """State of the learner, its record so far, and the position in the stream."""
        return {
            "learner": self.learner.state_dict(),
            "record": self.record.state_dict(),
            "order": self.epoch_order.clone(),
            "step": self.step,
            "metrics_step": self.metrics_step,
            "position": list(self.position),
            "prequential": {} if self.predicted is None else self.predicted.state_dict(),
            "source": {} if (task := self._task()) is None else task.state_dict(),
            "epochs_read": [list(task.epochs_read) for task in self._iterables()],
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
        step, metrics_step = int(state["step"]), int(state["metrics_step"])
        if not 0 <= metrics_step <= step:
            raise ValueError(f"the state is at step {step}, its metrics at {metrics_step}")
        if position.epoch < 0 or position.batch < 0:
            raise ValueError(f"the state is at epoch {position.epoch}, batch {position.batch}")
        if bool(state.get("prequential")) != (self.predicted is not None):
            raise ValueError("only one of the run and its state has prequential evaluation")
        if self.predicted is not None:
            self.predicted.load_state_dict(state["prequential"])
        self.learner.load_state_dict(state["learner"])
        self.record.load_state_dict(state["record"])
        self.epoch_order = state["order"].clone()
        self.order.set_state(self.epoch_order)
        self.step, self.metrics_step = step, metrics_step
        self.position = position
        if (task := self._task()) is not None:
            task.load_state_dict(state.get("source", {}))
        for source, read in zip(self._iterables(), state.get("epochs_read", []), strict=False):
            source.epochs_read = [int(checksum) for checksum in read]

    def _iterables(self) -> list[IterableTask]:
        """The tasks that read iterables of batches."""
        return [task for task in self.sources if isinstance(task, IterableTask)]

    def data_checksum(self) -> str:
        """Checksum of the batches of a stream from iterables, and of its tests, after training.

        Empty for other streams, and if the batches were not read to the end or are not the same
        when they are read again, as in a random order.
        """
        found = read_checksum(self.sources, self.stream.tests)
        return found if found and all(task.repeats() for task in self._iterables()) else ""

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
    """Number of steps taken."""
    total_steps: int | None
    """Number of steps of the whole run; None if it is not known."""
    task: int
    """Number of the current task, from 0."""
    tasks: int
    """Number of tasks."""
    epoch: int
    """Number of the current epoch, from 0."""
    epochs: int
    """Number of epochs of each task."""
    seconds: float
    """Time since training started or resumed in this process."""
    accuracy: float | None
    """Mean over the runs of the first predictor's mean accuracy on the tasks seen; percent."""
    since: int = 0
    """Step at which training started or resumed in this process."""
    prequential: float | None = None
    """Mean over the runs of the prequential accuracy in the sliding window; percent."""
    task_ended: bool = False
    """Whether the task just ended."""
    evaluation: tuple[int, int | None] | None = None
    """Samples evaluated so far and their number, if known; None while training."""


def train(
    runs: Sequence[Run],
    *,
    callbacks: Sequence[Callback] = (),
    max_steps: int | None = None,
    engine: Eager | None = None,
    stop: Callable[[], int] | None = None,
    initial_evaluation: bool = False,
) -> list[Record]:
    """Train and evaluate runs together, one batch of each in turn.

    All runs continue from their current position, which must be the same for all. Their streams
    must have equally many tasks and batches. A run whose loss or weights become infinite or NaN
    ends; the others are trained to the end before the error is raised.

    Args:
        runs: The runs to train, in place.
        callbacks: Called in the given order as training advances.
        max_steps: Number of steps after which to leave the stream; the task reached by then is
            evaluated as if it had ended.
        engine: How steps are executed; eagerly by default.
        stop: Called after every step and during evaluations. When it returns a signal number other
            than 0, a checkpoint is requested from the callbacks and training stops.
        initial_evaluation: Whether to evaluate the untrained networks, which forward transfer
            requires. This is always done on a GPU; on a CPU it may take longer than the training.

    Returns:
        The record of each run.

    Raises:
        TrainingError: If a loss or a weight of a run became infinite or NaN; `Run.failure` is set.
        Interrupted: If `stop` returned a signal number.
        ValueError: If the runs are at different positions, or a batch is invalid.
    """
    if not runs:
        raise ValueError("there are no runs to train")
    if len({(run.position, run.step) for run in runs}) > 1:
        raise ValueError("the runs are at different positions; train them separately")
    group = _Group(runs, callbacks, max_steps, engine or Eager(), stop, initial_evaluation)
    return group.train()


def fit(
    learner: Learner,
    data: Stream | Iterable[Pair],
    *,
    batch: int | None = None,
    epochs: int = 1,
    seed: int = 0,
    callbacks: Sequence[Callback] = (),
    max_steps: int | None = None,
    prequential: bool | int = False,
    initial_evaluation: bool = False,
) -> Record:
    """Train one learner and, if the data includes tests, evaluate it after each task.

    Data without tests can be evaluated prequentially: the learner predicts each batch before it
    learns from it. This does not change what it learns.

    Args:
        learner: The learner to train, in place. With `grow=True` its network grows when labels
            arrive for which it has no output.
        data: A stream, or any iterable of batches such as a `torch.utils.data.DataLoader`. A batch
            is a pair (inputs, labels), or a dict in which the key "labels" holds the labels and
            the others the inputs. An iterable is read once per epoch and used as a single task
            without tests; for tasks or tests, use `from_batches`.
        batch: Samples per batch of a stream, 32 by default. Batches from an iterable, also those
            of `from_batches`, are used as they are.
        epochs: Passes over each task.
        seed: Seed of the order in which a stream presents its samples. The order of an iterable is
            its own.
        callbacks: Called in the given order as training advances.
        max_steps: Number of steps after which to stop, for example on an endless iterable.
        prequential: Whether to predict each batch before learning from it: True, or the number of
            samples of the sliding window, 1,000 by default.
        initial_evaluation: Whether to evaluate the untrained networks on a CPU, too, for forward
            transfer. On a GPU this is always done.

    Returns:
        Accuracies of every predictor, number of steps, and totals of the learner's metrics; in
        `prequential`, the accuracy of the predictions made before learning.

    Raises:
        ValueError: If the data does not fit the learner, `batch` is given for data that comes in
            batches, or a number is not whole or below 1.
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

    >>> record = fit(CLSER(torch.nn.Linear(8, 4), buffer_size=20), loader, prequential=50)
    >>> record.prequential.samples, 0 <= record.prequential.accuracy <= 100
    (64, True)
    """
    _check_learner(learner)
    epochs = as_count("epochs", epochs)
    if max_steps is not None:
        max_steps = as_count("max_steps", max_steps)
    if isinstance(data, Stream):
        if batch is not None and supplies_batches(data):
            raise ValueError(f"batch does not apply to {data.name}, which comes in batches already")
        check_network(learner, data)
        batch = DEFAULT_BATCH if batch is None else batch
        run = Run(learner, data, batch, epochs, seed, prequential)
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
        run = Run(learner, stream, epochs=epochs, seed=seed, prequential=prequential)
    check_last_batches(run, max_steps)
    return train(
        [run],
        callbacks=[*callbacks, ProgressCheck()],
        max_steps=max_steps,
        initial_evaluation=initial_evaluation,
    )[0]


def _check_learner(learner: object) -> None:
    if not isinstance(learner, Learner):
        raise ValueError(
            f"learner is {describe(learner)}; expected a learner, such as "
            "perdure.CLSER(network, buffer_size=500)"
        )


def check_network(learner: Learner, stream: Stream, sample: Inputs | None = None) -> None:
    """Raise ValueError unless the network accepts the stream's inputs and has enough outputs.

    Args:
        learner: The learner with the network.
        stream: The stream to learn from.
        sample: Inputs to try; by default one of a test or, without tests, of the first task.
            Nothing is checked if that task supplies batches, because reading one could consume
            the stream.
    """
    if sample is None:
        task = stream.tasks[0]
        if not stream.tests and isinstance(task, ComposedTask):
            return
        samples = stream.tests[0].source() if stream.tests else task.samples()
        sample = select(samples.inputs, slice(0, 1))
    outputs = learner.predict_proba(sample).shape[1]
    if outputs < stream.classes and not learner.grows:
        raise ValueError(
            f"the network has {outputs} outputs; {stream.name} has {stream.classes} classes"
        )


def check_last_batches(run: Run, max_steps: int | None) -> None:
    """Raise ValueError if a task ends with a single sample, too few for the network's BatchNorm.

    Batches that are not known in advance are checked when they arrive.
    """
    learner = run.learner
    if not any(isinstance(m, _BatchNorm) and m.training for m in learner.network.modules()):
        return
    replays = learner.replays_with_batch and learner.memory is not None
    step = 0
    for task in run.stream.tasks:
        last = task.last_batch(run.batch)
        steps = None if last is None else task.steps(run.batch)
        if steps is None or (max_steps is not None and step + steps > max_steps):
            return
        if last == 1 and not (replays and step + steps > 1):
            sample = select(task.samples().inputs, slice(0, 1))
            task.release()
            learner.check_batch_size(sample, f"the last batch of task {task.name!r}")
        step += run.epochs * steps


def _current_epoch(run: Run) -> int:
    """Number of the epoch of a run; while a task is evaluated, of the last step on it."""
    number, epoch, _ = run.position
    if epoch == run.epochs:
        earlier = replace(run.stream, tasks=run.stream.tasks[:number])
        before = total_steps(earlier, run.batch, run.epochs, None)
        steps = run.stream.tasks[number].steps(run.batch)
        if before is not None and steps:
            return (run.step - before - 1) // steps
    return min(epoch, run.epochs - 1)


class _Batches:
    """An iterable of batches whose first inputs are known, without reading them twice."""

    def __init__(self, data: Iterable[Pair]) -> None:
        try:
            iterator = iter(data)
        except TypeError:
            raise ValueError(
                f"data is {describe(data)}; expected a Stream or an iterable of batches"
            ) from None
        try:
            first = next(iterator)
        except StopIteration:
            raise ValueError("data contains no batches") from None
        try:
            self.inputs, labels = as_pair(first, "the first")
            if labels.ndim != 1:
                raise ValueError(f"the labels of the first have {labels.ndim} dimensions")
        except (TypeError, ValueError, RuntimeError) as error:
            # What has items may be a Dataset, whose items are samples.
            remedy = "; wrap a Dataset in a DataLoader or use from_dataset"
            raise ValueError(
                "data must yield batches (inputs, labels [n]), or dicts with labels, but "
                f"{error}{remedy if hasattr(data, '__getitem__') else ''}"
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
    initial_evaluation: bool

    def __post_init__(self) -> None:
        self.first_step = self.first.step
        self.whole = self.first.total_steps()
        self.total_steps = self.first.total_steps(self.max_steps)
        self.epoch = _current_epoch(self.first)
        """The last one that was trained; earlier than the last of the task with `max_steps`."""
        self.checked: set[Run] = set()
        """The runs whose networks are known to accept batches of one sample."""
        self.started = self.last_progress = time.monotonic()

    @property
    def active(self) -> list[Run]:
        """The runs that have not failed."""
        return [run for run in self.runs if run.failure is None]

    @property
    def first(self) -> Run:
        """One of the active runs, which are all at the same position."""
        return next(run for run in self.runs if run.failure is None)

    def train(self) -> list[Record]:
        tasks = len(self.first.stream.tasks)
        if self.first.position.task < 0:
            if self.initial_evaluation or self.first.learner.device.type != "cpu":
                self._evaluate(-1)
            else:
                for run in self.runs:
                    run.record.skip(-1)
                    for callback in self.callbacks:
                        callback.on_task(run, -1)
            self._set_position(Position(task=0))
        elif self.first_step:
            self._report_progress(min(self.first.position.task, tasks - 1))
        for task in range(self.first.position.task, tasks):
            start = self.first.position
            if self._limit_reached() and start == Position(task):  # not inside the task
                break
            for epoch in range(start.epoch, self.first.epochs):
                if self._limit_reached():
                    break
                self._train_epoch(task, epoch, start.batch if epoch == start.epoch else 0)
            if start != Position(task, self.first.epochs):
                self._end_task(task)
            self._evaluate_task(task)
        cut = self._limit_reached() and (self.whole is None or self.first.step < self.whole)
        for run in self.active:
            if not run.learner.has_finite_weights():
                self._fail(run, f"the weights are infinite or not a number at step {run.step}")
        for run in self.active:
            run.record.finish(run.learner, run.step, cut=cut)
        if failures := [str(run.failure) for run in self.runs if run.failure is not None]:
            raise TrainingError("; ".join(failures))
        return [run.record for run in self.runs]

    def _limit_reached(self) -> bool:
        return self.max_steps is not None and self.first.step >= self.max_steps

    def _train_epoch(self, task: int, epoch: int, start: int) -> None:
        self.epoch = epoch
        for run in self.runs:
            run.epoch_order = run.order.get_state()
        sources = [run.stream.tasks[task].epoch(run.batch, run.order, start) for run in self.runs]
        for number, batches in enumerate(zip(*sources, strict=True), start + 1):
            for run, batch in zip(self.runs, batches, strict=True):
                if run.failure is not None:
                    continue
                classes = run.learner.growth_for(batch.labels)
                batch = batch.to(run.learner.device)
                if len(batch.labels) == 1 and run not in self.checked:
                    self.engine.synchronize()
                    run.learner.check_batch_size(batch.inputs)
                    self.checked.add(run)
                if run.predicted is not None:
                    self.engine.predict(run.learner, batch, run.predicted)
                if classes is not None:
                    self.engine.synchronize()
                    run.learner.grow(classes)
                self.engine.step(run.learner, batch)
                run.step += 1
                for callback in self.callbacks:
                    callback.on_step(run)
            self._set_position(Position(task, epoch, number))
            if self.first.step % METRICS_EVERY == 0:
                self._report_metrics(task)
            elif self.first.step % PREQUENTIAL_EVERY == 0 and self.first.step < DENSE_STEPS:
                self._report_prequential()
            if time.monotonic() - self.last_progress > SLOW_SECONDS:
                self._report_progress(task)
            self._save_or_stop(due=any(c.checkpoint_due() for c in self.callbacks))
            if self._limit_reached():  # before requesting a batch for which a live stream may wait
                return

    def _end_task(self, number: int) -> None:
        self._report_metrics(number)
        for run in self.active:
            task = run.stream.tasks[number]
            if run.learner.needs_boundaries:
                run.learner.end_task(task.samples())
            task.release()
            run.epoch_order = run.order.get_state()
        self._set_position(Position(number, self.first.epochs))

    def _evaluate_task(self, number: int) -> None:
        self._evaluate(number)
        self._set_position(Position(number + 1))
        self._save_or_stop(due=True)
        self._report_progress(number, task_ended=True)

    def _set_position(self, position: Position) -> None:
        for run in self.runs:
            run.position = position

    def _save_or_stop(self, *, due: bool) -> None:
        """Between two steps: save a checkpoint if one is due, and stop if requested."""
        signum = 0 if self.stop is None else self.stop()
        if signum or due:
            self.engine.synchronize()
            self._check_finite()
            # Weights that just became infinite or NaN show in the next loss, which is reported.
            if all(run.learner.has_finite_weights() for run in self.active):
                for callback in self.callbacks:
                    callback.on_checkpoint(self.runs)
        if signum:
            raise Interrupted(signum)

    def _evaluate(self, number: int) -> None:
        """Evaluate every predictor on the tests of the tasks seen and of the next one.

        The records change when all runs have been evaluated, so that a checkpoint written in the
        meantime is one from before the evaluation.
        """
        due: dict[Run, dict[int, Test]] = {}
        done = 0
        total: int | None = 0
        for run in self.active:
            every = enumerate(run.stream.tests)
            due[run] = {i: test for i, test in every if number < 0 or test.since <= number + 1}
            count = count_rows([*due[run].values()])
            if total is not None:
                total = None if count is None else total + count * len(run.learner.predictors())

        def watched(predict: ScoreFunction, learner: Learner) -> ScoreFunction:
            """Scores on the device of the inputs, which may differ from that of the learner."""

            def score(inputs: Inputs) -> Tensor:
                nonlocal done
                self._save_or_stop(due=False)
                if time.monotonic() - self.last_progress > PROGRESS_SECONDS:
                    self._report_progress(max(number, 0), (done, total))
                done += length(inputs)
                moved = map_leaves(lambda leaf: leaf.to(learner.device), inputs)
                with learner.randomness(swap=False):  # other threads wait
                    return predict(moved).to(next(leaves(inputs)).device)

            return score

        found: dict[Run, dict[str, Accuracies]] = {}
        for run, tests in due.items():
            with self.engine.autocast():
                found[run] = {
                    name: accuracies(watched(predict, run.learner), [*tests.values()])
                    for name, predict in run.learner.predictors().items()
                    if tests
                }
        for run, by_name in found.items():
            for name, result in by_name.items():
                run.record.add(name, number, list(due[run]), result)
            for callback in self.callbacks:
                callback.on_task(run, number)

    def _report_prequential(self) -> None:
        """Read the prequential accuracies, unless they have been read since the last step."""
        if self.first.predicted is None:
            return
        self.engine.synchronize()
        for run in self.active:
            last = run.record.prequential
            if run.predicted is None or (last and last.samples == run.predicted.samples):
                continue
            run.record.prequential = run.predicted.read()
            if run.record.prequential is not None:
                for callback in self.callbacks:
                    callback.on_prequential(run, run.record.prequential)

    def _report_metrics(self, task: int) -> None:
        self._report_prequential()
        self.engine.synchronize()
        self._check_finite()
        for run in self.active:
            if run.step > run.metrics_step:
                run.metrics_step = run.step
                metrics = run.learner.metrics()
                for callback in self.callbacks:
                    callback.on_metrics(run, metrics)
        if time.monotonic() - self.last_progress > PROGRESS_SECONDS:
            self._report_progress(task)

    def _check_finite(self) -> None:
        for run in self.active:
            if step := run.learner.nonfinite_step:
                self._fail(run, f"the loss was infinite or not a number at step {step}")

    def _fail(self, run: Run, reason: str) -> None:
        """End a run. Raise its TrainingError if no other is left."""
        run.failure = TrainingError(
            f"seed {run.seed}: {reason}; the learning rate ({run.learner.rates()}) is probably too "
            "high"
        )
        if not self.active:
            failures = (str(run.failure) for run in self.runs)
            raise TrainingError("; ".join(failures))

    def _report_progress(
        self,
        task: int,
        evaluation: tuple[int, int | None] | None = None,
        *,
        task_ended: bool = False,
    ) -> None:
        self.last_progress = time.monotonic()
        latest = [a for a in (run.record.latest() for run in self.active) if a is not None]
        windows = [p.accuracy for p in (run.record.prequential for run in self.active) if p]
        progress = Progress(
            step=self.first.step,
            total_steps=self.total_steps,
            task=task,
            tasks=len(self.first.stream.tasks),
            epoch=self.epoch,
            epochs=self.first.epochs,
            seconds=self.last_progress - self.started,
            accuracy=sum(latest) / len(latest) if latest else None,
            since=self.first_step,
            prequential=sum(windows) / len(windows) if windows else None,
            task_ended=task_ended,
            evaluation=evaluation,
        )
        for callback in self.callbacks:
            callback.on_progress(progress)
