"""Base class of the learners: input checks, preparation, optimizer step, metrics and state.

A method is a subclass whose `step` follows its paper. The same `step` runs eagerly and inside a
CUDA graph if it obeys two rules: it never reads a value from the device (no `.item()`, no branch on
a tensor), and everything that changes is stored in tensors with fixed addresses.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from traceback import walk_tb
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from perdure.arguments import as_whole, check_callable, plain_int
from perdure.learners.checks import (
    Augment,
    Labels,
    check_device,
    check_file,
    check_labels,
    check_optimizer,
    check_parameters,
    count_outputs,
    describe,
    find_unscaled_column,
    has_unscaled_images,
    read_inputs,
    read_labels,
)
from perdure.learners.export import export
from perdure.learners.growth import MAX_ADDED, check_outputs, find_head, grow_heads, grow_to_fit
from perdure.learners.input_spec import InputSpec, check_inputs, check_size, find_spec
from perdure.learners.loaded import check_finite, check_loaded, check_optimizer_state
from perdure.learners.multi_batch import MultiBatchForward
from perdure.learners.optimizers import in_place_step
from perdure.learners.predictor import Normalise, Predictor, unit_range
from perdure.memory import EpisodicMemory
from perdure.memory.frozen import training_mode
from perdure.randomness import generator, global_generators, global_state, set_global_state
from perdure.records import Samples, join
from perdure.state import State, get_state, is_stateful, load_state, read_file, write_file
from perdure.structures import Inputs, call, length, map_leaves, select, to_device
from perdure.undo import Snapshot, Undoable, on_failure, postpone, save_generator, save_optimizer
from perdure.user_code import describe_error, warn_caller

_STATE_ERRORS = (RuntimeError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""Errors that loading an unsuitable state may raise."""

_INPUT_ERRORS = (LookupError, IndexError, KeyError, RuntimeError, AssertionError)
"""Errors that a network may raise about its inputs. Subclasses, such as those of a full memory or
a failed device, have other causes."""
_OTHER_CAUSES = ("memory", "alloc", "CUDA error", "_STATUS_")
"""Words in the text of a RuntimeError that is not about inputs."""

_BATCHES_WITHOUT_END = 200
"""Batches of a first task after which a prediction warns that no task has ended."""

P = ParamSpec("P")
T = TypeVar("T")
L = TypeVar("L", bound="Learner")


def serialised(method: Callable[Concatenate[L, P], T]) -> Callable[Concatenate[L, P], T]:
    """Decorate a method of a learner that only one thread may execute at a time."""

    @wraps(method)
    def execute(self: L, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._lock:
            return method(self, *args, **kwargs)

    return execute


def exclusive(method: Callable[Concatenate[L, P], T]) -> Callable[Concatenate[L, P], T]:
    """Decorate a method that also uses torch's global generators, of which a process has one set.

    The generators come first: a network may call another learner, which waits for its lock.
    """

    @wraps(method)
    def execute(self: L, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with global_generators, self._lock:
            return method(self, *args, **kwargs)

    return execute


def _guarded(method: Callable[[L, Samples], None]) -> Callable[[L, Samples], None]:
    """Decorate `end_task`: checked, all or nothing, in one thread at a time."""

    @wraps(method)
    def execute(self: L, samples: Samples) -> None:
        Learner.end_task(self, samples)

        def change() -> None:
            method(self, Samples(*self._check_batch(samples.inputs, samples.labels)))

        self.undo_on_failure(change)
        self._task_ended = True

    return execute


def _load_part(name: str, part: object, state: State) -> None:
    try:
        load_state(part, state.get(name, {}))  # a module may have an empty state
    except _STATE_ERRORS as error:
        raise ValueError(f"{name}: {error}") from error


class Learner(Undoable, ABC):
    """A network that learns from a stream, batch by batch.

    Methods may be called from several threads; one is executed at a time. An exception in
    `observe` or `end_task`, also Ctrl-C, leaves the learner as it was before.

    Args:
        network: Network to train, in place. It maps inputs [n, ...] to logits [n, classes].
        lr: Learning rate of the default optimizer, plain SGD; `default_lr` by default.
        optimizer: Any torch optimizer over parameters of `network` whose `step` needs no closure,
            instead of `lr`.
        augment: Random augmentation `augment(inputs, generator)` of training batches, both new and
            replayed. Memories store inputs without augmentation.
        normalise: Maps raw inputs to network inputs; by default, scales uint8 to [0, 1].
        grow: Whether the networks grow when a label arrives for which they have no output.
        head: Name of the layer that grows, an `nn.Linear`; by default the last one.
        seed: Seed of all random draws.
    """

    saved_by_itself: tuple[str, ...] = ("_global_random", "augmentation")
    needs_boundaries = False
    """Whether `end_task` must be called when a task ends. If it never was, a prediction after 200
    batches produces a warning."""
    changes_weights_last = False
    """Whether `step` reads neither weights nor stored samples after it has changed them, so that a
    failed step is undone without copies. Not inherited: the step of a subclass may read them."""
    replays_with_batch = False
    """Whether new and replayed samples pass through the network as one batch."""
    stores_logits = False
    """Whether the memory stores every sample with the logits of the network."""
    capturable = True
    """Whether `step` can run inside a CUDA graph. A step may set it to False for its learner."""
    memory: EpisodicMemory | None = None
    """Stored samples, for methods that keep any."""
    default_lr = 0.1
    """Learning rate if neither `lr` nor `optimizer` is given."""

    def __init__(
        self,
        network: nn.Module,
        *,
        lr: float | None = None,
        optimizer: Optimizer | None = None,
        augment: Augment | None = None,
        normalise: Normalise | None = None,
        grow: bool = False,
        head: str | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(network, nn.Module):
            raise ValueError(f"network is {describe(network)}; expected an nn.Module")
        parameters = check_parameters(network)
        device = check_device(parameters[0].device)
        if optimizer is None:
            lr = self.default_lr if lr is None else lr
            if not (isinstance(lr, int | float) and 0 < lr < float("inf")):
                raise ValueError(f"lr is {lr!r}; expected a number above 0")
            optimizer = torch.optim.SGD(parameters, lr=lr)
        else:
            if lr is not None:
                raise ValueError(
                    f"lr is {lr!r} and optimizer is given; set the learning rate in the optimizer "
                    "and omit lr"
                )
            check_optimizer(optimizer, list(network.parameters()))
        check_callable("augment", augment)
        check_callable("normalise", normalise)
        seed = as_whole("seed", seed)
        self.network = training_mode(network)
        """The working network, which is trained in place."""
        self._parameters = parameters
        self._frozen = [p for p in network.parameters() if not p.requires_grad]
        self.optimizer = optimizer
        """Its optimizer, for example for a learning-rate scheduler."""
        self._first_settings = get_state(optimizer)["groups"]
        """Its settings at the start, which a schedule may change."""
        self.device = device
        self.augment = augment
        self.normalise = normalise or unit_range
        self.grows = grow
        self.head = head
        self._head = find_head(network, head) if grow or head is not None else None
        self.grown = 0
        """Number of classes that `grow` has added."""
        self._seed = seed
        self.augmentation = generator(seed, "augmentation", self.device)
        self.steps = torch.zeros((), dtype=torch.int64, device=self.device)
        """Number of batches observed."""
        self.finite_steps = torch.zeros((), dtype=torch.int64, device=self.device)
        """Number of steps before the loss became infinite or NaN."""
        self._observed = 0
        """Number of calls of `observe`, known to the host."""
        self._warned_of_boundaries = False
        self._task_ended = False
        """Whether a task has ended or may have, in a state that was loaded."""
        self._totals: dict[str, Tensor] = {}
        self._last_read: tuple[int, dict[str, float]] = (0, {})
        """Steps and totals at the last call of `metrics`."""
        self._global_random = generator(seed, "global", self.device).get_state()
        self._input_spec: InputSpec | None = None
        self._examples: list[Inputs] = []
        """The first input, in a list because it is not part of the state."""
        floats = (p.dtype for p in parameters if p.is_floating_point())
        self._dtype = next(floats, torch.float32)
        self._checked_scale = False
        self._create_guards()

    def __repr__(self) -> str:
        memory = "" if self.memory is None else f"memory={self.memory!r}, "
        size = sum(p.numel() for p in self.network.parameters())
        name = type(self).__name__
        return f"{name}(network={size:,} parameters, {memory}steps={int(self.steps)})"

    def _create_guards(self) -> None:
        self._lock = threading.RLock()
        self._snapshot = Snapshot(self)

    def __getstate__(self) -> dict[str, Any]:
        guards = ("_lock", "_snapshot")
        return {name: value for name, value in vars(self).items() if name not in guards}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._create_guards()

    # -- learning ---------------------------------------------------------------------------

    def observe(self, inputs: Inputs, labels: Labels, *, check: bool = True) -> None:
        """Learn from one batch, entirely or not at all.

        After any exception, the learner is as it was before.

        Args:
            inputs: Raw inputs: a tensor or array [n, ...], or a dict or tuple, also nested, of
                them. float64 is converted to the network's precision. Nothing is back-propagated
                into inputs that require a gradient.
            labels: Integer class labels [n], a tensor, array or list.
            check: Whether to check the values (label range, NaN) and the loss, which on a GPU waits
                for the device. Shapes and dtypes are always checked, and labels if the learner
                grows.

        Raises:
            ValueError: If the batch does not fit the network, or its loss is infinite or NaN.
        """
        if not torch.is_grad_enabled():
            raise ValueError(
                "gradients are disabled; call observe outside of torch.no_grad and "
                "torch.inference_mode"
            )
        with global_generators, self._lock:
            number = self._observed + 1
            checks = number >= 16 and number.bit_count() == 1
            last = vars(type(self)).get("changes_weights_last") and self.device.type == "cpu"
            learn = partial(self._learn, inputs, labels, check, number, checks)
            self._execute(learn, may_postpone=bool(last) and not checks)

    def _learn(
        self, inputs: Inputs, labels: Labels, check: bool, number: int, progress: bool
    ) -> None:
        if torch.is_autocast_enabled(self.device.type):
            torch.clear_autocast_cache()  # of weights before the last step
        self.step(*self._check_batch(inputs, labels, values=check))
        if check and (step := self.nonfinite_step):
            raise ValueError(
                f"the loss is infinite or not a number at step {step}; the learning rate "
                f"({self.rates()}) is probably too high, or the inputs are not normalised"
            )
        self._observed = number
        if progress:
            self.check_progress()

    @exclusive
    def undo_on_failure(self, change: Callable[[], object]) -> None:
        """Execute a function that changes this learner, entirely or not at all.

        For code that does more than a single call of `observe`, such as updating the statistics
        of `normalise` first. After any exception, the learner is as it was before. This covers what
        its methods change, and tensors, buffers of modules, generators and objects with a
        `state_dict` that are attributes of the learner; not weights that the function itself
        changes.

        Args:
            change: Called without arguments, with the learner's own random state.
        """
        self._execute(change)

    def _execute(self, change: Callable[[], object], *, may_postpone: bool = False) -> None:
        """Change the learner as in `undo_on_failure`, in a thread that holds the locks."""
        if self._snapshot.taken:  # inside another change
            change()
            return
        try:
            self._snapshot.take(may_postpone=may_postpone)
            # Not `with self.randomness()`: a generator that is interrupted as it ends is
            # continued when it is collected, after the change has been undone.
            outside = global_state(self.device)
            on_failure(set_global_state, outside, self.device)
            set_global_state(self._global_random, self.device)
            change()
            self._global_random = global_state(self.device)
            set_global_state(outside, self.device)
            self._snapshot.commit()
        except BaseException as error:
            self._snapshot.restore()
            _explain(error)
            raise

    def check_progress(self) -> None:
        """Warn about problems that the metrics do not show. No-op by default; may wait.

        `observe` calls this after 16, 32, 64 and so on batches, `fit` between steps.
        """

    @abstractmethod
    def step(self, inputs: Inputs, labels: Tensor) -> None:
        """Learn from one valid batch on the learner's device.

        Args:
            inputs: Raw inputs: a tensor [n, ...], or a dict or tuple, also nested, of tensors.
            labels: Class labels [n], int64.
        """

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "end_task" in vars(cls):
            cls.end_task = _guarded(cls.end_task)  # type: ignore[assignment, method-assign]

    def end_task(self, samples: Samples) -> None:
        """Called when a task ends. By default, only checks that its argument is `Samples`.

        As with `observe`, the learner is as it was before after any exception. A method that
        overrides this receives samples that have been checked and are on the learner's device.

        Args:
            samples: Training samples of the task: `Samples(inputs, labels)` with inputs and labels
                as for `observe`.

        Raises:
            ValueError: If `samples` is something else, or the samples do not fit the network.
        """
        if not isinstance(samples, Samples):
            raise ValueError(
                f"end_task was called with a {type(samples).__name__}; expected the training "
                "samples of the task as perdure.Samples(inputs, labels)"
            )

    @exclusive
    def grow(self, classes: int) -> None:
        """Enlarge the head of all networks to `classes` outputs, for labels up to `classes` - 1.

        Old outputs stay the same. The weights of new ones are drawn with the standard deviation of
        the old ones, equally in all networks; their biases are zero. Optimizer state gets zeros,
        stored logits get the lowest one of each sample.

        Args:
            classes: Number of outputs, at least as many as now.

        Raises:
            ValueError: If the networks cannot grow; the learner is left unchanged.
        """
        now = find_head(self.network, self.head).classes
        number = plain_int(classes)
        if not isinstance(number, int) or number < now:
            raise ValueError(f"classes is {classes!r}; expected a whole number, {now} or more")
        if number > now:
            outputs = None if self._input_spec is None else self._input_spec.classes
            grow = partial(grow_heads, self, number, outputs, *self._examples)
            self._execute(grow)

    def growth_for(self, labels: Tensor) -> int | None:
        """Return the number of outputs that a batch requires, if the learner must grow for it.

        Always None unless the learner was created with `grow=True`. Waits for the device that
        holds the labels.

        Args:
            labels: Integer class labels [n].

        Raises:
            ValueError: If the labels would add more than 10,000 outputs at once.
        """
        if not self.grows or self._head is None or not len(labels):
            return None
        needed = int(labels.max()) + 1
        if needed - self._head.classes > MAX_ADDED:
            raise ValueError(
                f"a label is {needed - 1} and the network has {count_outputs(self._head.classes)}; "
                "labels must be consecutive class numbers from 0 (call grow first if there are so "
                "many classes)"
            )
        return needed if needed > self._head.classes else None

    def per_class(self) -> list[Tensor]:
        """Return the tensors with one row per class, to which `grow` appends zeros.

        Methods with such tensors, other than networks and stored logits, override this.
        """
        return []

    def prepare(self, batch: Samples, past: Samples | None = None) -> tuple[Inputs, Tensor]:
        """Augment and normalise a batch, together with past samples if there are any.

        Args:
            batch: First samples.
            past: Samples to append.

        Returns:
            Network inputs and labels.
        """
        inputs, labels, _ = batch if past is None else join(batch, past)
        if self.augment is not None:
            save_generator(self.augmentation)
            inputs = self.augment(inputs, self.augmentation)
        inputs = self.normalise(inputs)
        if not self._checked_scale:  # once, because it waits for the device
            self._checked_scale = True
            if has_unscaled_images(inputs):
                warn_caller(
                    "the network receives floating-point images with values up to 255; pass uint8 "
                    "images, divide by 255, or pass normalise"
                )
            elif (column := find_unscaled_column(inputs, self.network)) is not None:
                warn_caller(
                    f"the network receives a table with large values in inputs[:, {column}], from "
                    "which it learns poorly; standardise the columns, or pass normalise"
                )
        return inputs, labels

    def logits(self, x: Inputs) -> Tensor:
        """Return the working network's logits [n, classes] for network inputs.

        A dict is passed as keyword arguments, a tuple as positional ones. The network returns
        logits, or an object with an attribute or key `logits`.

        Args:
            x: Network inputs, from `prepare`.
        """
        return call(self.network, x)

    def optimizer_step(self, loss: Tensor, **terms: Tensor) -> None:
        """Take the optimizer step for a batch. Every `step` calls this exactly once.

        Args:
            loss: Loss to minimise.
            **terms: Further values to add to the totals, by name.
        """
        self.backward(loss)
        self.apply_gradients(loss, **terms)

    def inner_step(self, loss: Tensor) -> None:
        """Take an additional optimizer step that is not counted as a batch.

        Methods with several optimizer steps per batch call this for all but the last.

        Args:
            loss: Loss to minimise.
        """
        self.backward(loss)
        self._update_weights(last=False)
        self.tally(loss=loss)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of `loss`: the first half of `optimizer_step`."""
        for parameter in self._parameters:
            parameter.grad = None
        if not loss.requires_grad:
            raise ValueError(
                "the network's output has no gradient; its forward must use a parameter that is "
                "trained, without detach(), torch.no_grad() or NumPy"
            )
        loss.backward()  # type: ignore[no-untyped-call]

    def apply_gradients(self, loss: Tensor, **terms: Tensor) -> None:
        """Update the weights and count the batch: the second half of `optimizer_step`.

        Methods that change the gradients call `backward` and this separately.
        """
        self._update_weights()
        self.tally(loss=loss, **terms)
        self.steps += 1
        loss_sum = self._totals["loss"]
        self.finite_steps += loss_sum - loss_sum == 0  # isfinite takes twice as many operations

    def _update_weights(self, *, last: bool = True) -> None:
        """Run the optimizer: for the last time in a step, at its end if that is possible."""
        operations = in_place_step(self.optimizer)
        if last and operations is not None and postpone(*operations):
            return
        with torch.no_grad():
            save_optimizer(self.optimizer, in_place=operations is not None)
            for operation in operations or ():
                operation()
        if operations is None:
            self.optimizer.step()
        if torch.is_autocast_enabled(self.device.type):
            torch.clear_autocast_cache()  # of weights before this update

    @contextmanager
    def randomness(self, *, swap: bool = True) -> Iterator[None]:
        """Replace torch's global generators, which dropout uses, with the learner's own.

        Other threads wait, if they use this learner or the global generators of any.

        Args:
            swap: Whether to replace the generators: not necessary if nothing draws from them.
        """
        with global_generators, self._lock:
            if not swap:
                yield
                return
            outside = global_state(self.device)
            set_global_state(self._global_random, self.device)
            try:
                yield
            finally:
                self._global_random = global_state(self.device)
                set_global_state(outside, self.device)

    def host_state(self) -> Hashable:
        """Return the host values that `step` depends on.

        While they are unchanged, every step runs the same kernels and a CUDA graph can be reused.
        """
        return None if self.memory is None else self.memory.host_state()

    def generators(self) -> list[torch.Generator]:
        """Return every random generator that a step uses, including those of the memories."""
        holders = [self, *(part for part in self._parts().values() if not isinstance(part, Tensor))]
        values = (value for holder in holders for value in getattr(holder, "__dict__", {}).values())
        return [value for value in values if isinstance(value, torch.Generator)]

    def networks(self) -> list[nn.Module]:
        """Return the working network and the networks of the memories."""
        kept = (getattr(part, "network", None) for part in self._parts().values())
        return [self.network, *(network for network in kept if isinstance(network, nn.Module))]

    # -- metrics ----------------------------------------------------------------------------

    def tally(self, **values: Tensor | float) -> None:
        """Add values to the totals without waiting for the device.

        Args:
            **values: Scalars, by name.
        """
        for name, value in values.items():
            if name not in self._totals:
                self._totals[name] = torch.zeros((), dtype=torch.float64, device=self.device)
            self._totals[name] += value.detach() if isinstance(value, Tensor) else value

    @serialised
    def totals(self) -> dict[str, float]:
        """Return the sums of the losses and other values over all steps. Waits for the device."""
        return {name: float(total) for name, total in sorted(self._totals.items())}

    @serialised
    def metrics(self) -> dict[str, float]:
        """Return means per step since the last call. Waits for the device.

        Returns:
            Mean of each entry of `totals`; empty if no step was taken since the last call.
        """
        last_steps, last_totals = self._last_read
        steps, totals = self._last_read = int(self.steps), self.totals()
        if steps == last_steps:
            return {}
        return {
            name: (total - last_totals.get(name, 0.0)) / (steps - last_steps)
            for name, total in totals.items()
        }

    def histograms(self) -> dict[str, dict[str, list[int]]]:
        """Return histograms collected over all steps, by name. Empty by default."""
        return {}

    @property
    def nonfinite_step(self) -> int:
        """First step whose loss was infinite or NaN; 0 if there was none."""
        finite = int(self.finite_steps)
        return finite + 1 if finite < int(self.steps) else 0

    def rates(self) -> str:
        """Return the learning rates of the optimizer's groups, as text."""
        groups = self.optimizer.param_groups
        return ", ".join(sorted({f"{float(group['lr']):g}" for group in groups}))

    def has_finite_weights(self) -> bool:
        """Return whether all weights are finite. Waits for the device."""
        return all(bool(p.isfinite().all()) for p in self._parameters)

    # -- prediction -------------------------------------------------------------------------

    def predictors(self) -> dict[str, Predictor]:
        """Return every network that can predict, by name; `predict` uses the first."""
        return {"working": Predictor(self.network, self.normalise)}

    def predict(self, inputs: Inputs) -> Tensor:
        """Return the most probable class of each input, [n].

        Args:
            inputs: Raw inputs as for `observe`.
        """
        return self._scores(inputs).argmax(dim=1)

    def predict_proba(self, inputs: Inputs) -> Tensor:
        """Return class probabilities [n, classes].

        Args:
            inputs: Raw inputs as for `observe`.
        """
        return self._scores(inputs).float().softmax(dim=1)

    @exclusive
    def _scores(self, inputs: Inputs) -> Tensor:
        inputs = read_inputs(inputs, self._dtype)
        check_inputs(inputs, self._input_spec, values=True)
        if self._input_spec is None:
            self._find_spec(inputs)
        self.check_prediction()
        try:
            return next(iter(self.predictors().values()))(to_device(inputs, self.device))
        except Exception as error:
            _explain(error)
            raise

    def check_prediction(self) -> None:
        """Warn of problems that matter when predictions are made; `predict` calls this.

        By default, warns once if the method needs task boundaries and many batches came without.

        Whether the first task has ended is not known here. Training may be in it for long, so
        `observe` does not warn; predictions are usually made when tasks have ended. Those that
        monitor the first task are made without a warning for 200 batches.
        """
        if not self.needs_boundaries or self._task_ended or self._warned_of_boundaries:
            return
        if self._observed >= _BATCHES_WITHOUT_END:
            self._warned_of_boundaries = True
            warn_caller(
                f"{type(self).__name__} remembers nothing before a task ends, and none has ended "
                f"in {self._observed} batches; when one ends, call "
                "end_task(perdure.Samples(inputs, labels)) with its training samples, or use a "
                "method without task boundaries, such as ER"
            )

    @exclusive
    def export(self, path: str | Path, example: Inputs) -> None:
        """Write the network that `predict` uses, with its normalisation, for serving.

        The file contains no stored samples. The exported model takes raw inputs of any batch size
        and returns logits.

        Args:
            path: File to write or replace; `.onnx` for ONNX, `.pt2` for `torch.export`.
            example: Raw inputs as for `observe`, of any batch size; the values do not matter.

        Raises:
            ValueError: If the file has another suffix, a package is missing, or the network does
                not accept the example or cannot be traced.
        """
        example = read_inputs(example, self._dtype)
        check_inputs(example, self._input_spec, values=False)
        if self._input_spec is None:
            self._find_spec(example)
        default = next(iter(self.predictors().values()))
        export(Path(path), default.module, default.normalise, example)

    # -- input checks -----------------------------------------------------------------------

    def _check_batch(
        self, inputs: Inputs, labels: Labels, *, values: bool = True
    ) -> tuple[Inputs, Tensor]:
        """Check a batch and move it to the device."""
        self.check_frozen()
        inputs = read_inputs(inputs, self._dtype)
        targets = read_labels(labels, inputs)
        check_inputs(inputs, self._input_spec, values=values)
        spec = self._input_spec or self._find_spec(inputs)
        if not self._replays:
            check_size(inputs, spec)
        if values or self.grows:
            check_labels(targets, None if self.grows else spec.classes)
        inputs = to_device(inputs, self.device)
        if (classes := self.growth_for(targets)) is not None:
            grow_heads(self, classes, spec.classes, select(inputs, slice(0, 1)))
            spec = spec._replace(classes=classes)
        if not self._examples:
            self._examples = [map_leaves(torch.clone, select(inputs, slice(0, 1)))]
        self._input_spec = spec
        return inputs, targets.to(self.device, torch.int64)

    @property
    def _replays(self) -> bool:
        """Whether stored samples are added to the next batch."""
        return self.replays_with_batch and self.memory is not None and self.memory.filled > 0

    @exclusive
    def check_batch_size(self, inputs: Inputs, what: str = "the batch") -> None:
        """Raise ValueError if a batch is too small for the network's BatchNorm layers.

        Args:
            inputs: Raw inputs of the batch.
            what: Name of the batch for the message.
        """
        if length(inputs) == 1 and not self._replays:
            inputs = read_inputs(inputs, self._dtype)
            check_size(inputs, self._input_spec or self._find_spec(inputs), what)

    def check_frozen(self) -> None:
        """Raise ValueError if a parameter that was frozen at construction requires gradients now.

        Memories share frozen parameters with the network, so training them would change the
        memories too.
        """
        if any(p.requires_grad for p in self._frozen):
            raise ValueError(
                "a parameter that was frozen when the learner was created now requires gradients; "
                "create a new learner to train it"
            )

    def _find_spec(self, inputs: Inputs) -> InputSpec:
        """Find out what the network accepts and returns, with the first of these inputs."""
        spec = find_spec(Predictor(self.network, self.normalise), inputs, self.device)
        if self._head is not None:
            check_outputs(self._head, spec.classes)
        return spec

    # -- state ------------------------------------------------------------------------------

    def _parts(self) -> dict[str, object]:
        """Return the attributes that have a state, by name."""
        return {name: part for name, part in sorted(vars(self).items()) if is_stateful(part)}

    @serialised
    def state_dict(self) -> State:
        """Return everything needed to resume, including random state.

        Every attribute with a state is included: tensors, generators, modules, optimizers and
        objects with `state_dict`.
        """
        parts = {name: get_state(part) for name, part in self._parts().items()}
        parts["optimizer"]["initial"] = self._first_settings
        return {
            **{name: state for name, state in parts.items() if state != {}},
            "totals": {name: total.clone() for name, total in self._totals.items()},
            "last_read": {"steps": self._last_read[0], "totals": dict(self._last_read[1])},
            "input_spec": self._input_spec._asdict() if self._input_spec else {},
            "growth": {"added": self.grown, "seed": self._seed},
        }

    @exclusive
    def load_state_dict(self, state: State) -> None:
        """Restore a state.

        Args:
            state: Result of `state_dict` on a learner of the same method and network. If that
                network had grown, this one grows to its size first.

        Raises:
            ValueError: If the state does not fit; the learner is left unchanged.
        """
        before = self.state_dict()
        if state.keys() != before.keys():
            raise ValueError(
                f"the state has the parts {sorted(state)}; {type(self).__name__} has "
                f"{sorted(before)}"
            )
        undo, gradients = None, torch.is_grad_enabled()
        try:
            check_optimizer_state(self.optimizer, self._first_settings, state["optimizer"])
            undo = grow_to_fit(self, state)
            self._load(state, check=True)
            self._task_ended = True
        except BaseException as error:
            torch.set_grad_enabled(gradients)  # an interrupted `no_grad` leaves them disabled
            if undo is not None:
                undo()
            self._load(before)
            if not isinstance(error, _STATE_ERRORS):
                raise
            raise ValueError(
                f"the state does not fit this {type(self).__name__} and its network: "
                f"{str(error).strip()}"
            ) from error

    def _load(self, state: State, *, check: bool = False) -> None:
        """Restore a state; check it before memories allocate storage for what it contains."""
        parts = self._parts()
        memories = {name: part for name, part in parts.items() if isinstance(part, EpisodicMemory)}
        for name, part in parts.items():
            if name not in memories:
                _load_part(name, part, state)
        totals, last, spec = (state[name] for name in ("totals", "last_read", "input_spec"))
        growth = state["growth"]
        self.grown, self._seed = int(growth["added"]), int(growth["seed"])
        # In place where possible, since a recorded step has the addresses.
        kept = {k: self._totals[k] for k in totals.keys() & self._totals.keys()}
        fresh = {k: v.to(self.device, torch.float64, copy=True) for k, v in totals.items()}
        self._totals = {k: kept[k].copy_(v) if k in kept else v for k, v in fresh.items()}
        self._last_read = int(last["steps"]), {k: float(v) for k, v in last["totals"].items()}
        self._input_spec = InputSpec(**spec) if spec else None
        if check:
            check_loaded(self, state)
        for name, memory in memories.items():
            _load_part(name, memory, state)

    def save(self, path: str | Path) -> None:
        """Write the state to a safetensors file, atomically.

        Args:
            path: File to write or replace.

        Raises:
            ValueError: If the learner has diverged, or the folder does not exist; the file is left
                as it is.
        """
        path = Path(path)
        check_file(path)
        state = self.state_dict()
        try:
            check_finite(state)
        except ValueError as error:
            raise ValueError(f"{path} is not written, because training diverged: {error}") from None
        write_file(path, state, {"learner": type(self).__name__})

    def load(self, path: str | Path) -> None:
        """Restore a state that `save` wrote.

        Args:
            path: File saved by a learner of the same method and network.

        Raises:
            ValueError: If the file cannot be read or does not fit; the learner is left unchanged.
        """
        state, about = read_file(Path(path))
        if about.get("learner") != type(self).__name__:
            raise ValueError(
                f"{path} contains the state of {about.get('learner')}; this learner is "
                f"{type(self).__name__}"
            )
        try:
            self.load_state_dict(state)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _explain(error: BaseException) -> None:
    """Raise ValueError if a network raised this error about its inputs.

    Reads the traceback, so that a step without an error costs nothing.
    """
    if type(error) not in _INPUT_ERRORS or any(word in str(error) for word in _OTHER_CAUSES):
        return
    for frame, _ in walk_tb(error.__traceback__):
        if frame.f_code is Learner.prepare.__code__:  # an error of `augment` or `normalise`
            return
        if frame.f_code in (call.__code__, MultiBatchForward.__call__.__code__):
            text = describe_error(error)
            raise ValueError(f"the network does not accept these inputs: {text}") from error
