"""Base class of the learners: input checks, preparation, optimizer step, metrics and state.

A method is a subclass whose `step` follows its paper. The same `step` runs eagerly and inside a
CUDA graph if it obeys two rules: it never reads a value from the device (no `.item()`, no branch on
a tensor), and everything that changes is stored in tensors with fixed addresses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from perdure.learners.arguments import Augment, check_optimizer
from perdure.learners.inputs import InputSpec, check_inputs, check_labels, describe
from perdure.learners.predictor import Normalise, Predictor, unit_range
from perdure.memory import EpisodicMemory
from perdure.randomness import generator
from perdure.records import Samples, join
from perdure.state import State, get_state, is_stateful, load_state, read_file, write_file

_STATE_ERRORS = (RuntimeError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""Errors that loading an unsuitable state may raise."""


class Learner(ABC):
    """A network that learns from a stream, batch by batch.

    Args:
        network: Network to train, in place. It maps inputs [n, ...] to logits [n, classes].
        lr: Learning rate of the default optimizer, plain SGD; `default_lr` by default.
        optimizer: Any torch optimizer over parameters of `network` whose `step` needs no closure,
            instead of `lr`.
        augment: Random augmentation `augment(inputs, generator)` of training batches, both new and
            replayed. Memories store inputs without augmentation.
        normalise: Maps raw inputs to network inputs; by default, scales uint8 to [0, 1].
        seed: Seed of all random draws.
    """

    needs_boundaries = False
    """Whether `end_task` must be called when a task ends."""
    capturable = True
    """Whether `step` can run inside a CUDA graph."""
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
        seed: int = 0,
    ) -> None:
        if not isinstance(network, nn.Module):
            raise ValueError(f"network is {network!r}; expected an nn.Module")
        parameters = list(network.parameters())
        if not parameters:
            raise ValueError("the network has no parameters to train")
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
            check_optimizer(optimizer, parameters)
        self.network = network.train()
        self._parameters = parameters
        self.optimizer = optimizer
        self.device = parameters[0].device
        self.augment = augment
        self.normalise = normalise or unit_range
        self.augmentation = generator(seed, "augmentation", self.device)
        self.steps = torch.zeros((), dtype=torch.int64, device=self.device)
        """Number of batches observed."""
        self.finite_steps = torch.zeros((), dtype=torch.int64, device=self.device)
        """Number of steps before the loss became infinite or NaN."""
        self._observed = 0
        """Number of calls of `observe`, known to the host."""
        self._totals: dict[str, Tensor] = {}
        self._last_read: tuple[int, dict[str, float]] = (0, {})
        """Steps and totals at the last call of `metrics`."""
        self._global_random = generator(seed, "global", self.device).get_state()
        self._input_spec: InputSpec | None = None

    def __repr__(self) -> str:
        memory = "" if self.memory is None else f"memory={self.memory!r}, "
        size = sum(p.numel() for p in self._parameters)
        name = type(self).__name__
        return f"{name}(network={size:,} parameters, {memory}steps={int(self.steps)})"

    # -- learning ---------------------------------------------------------------------------

    def observe(self, inputs: Tensor, labels: Tensor, *, check: bool = True) -> None:
        """Learn from one batch.

        Args:
            inputs: Raw inputs [n, ...], uint8 or floats.
            labels: Integer class labels [n].
            check: Whether to check the values (label range, NaN), which on a GPU waits for the
                device. Shapes and dtypes are always checked.

        Raises:
            ValueError: If the batch does not fit the network; the learner is left unchanged.
        """
        inputs, labels = self._check_batch(inputs, labels, values=check)
        with self.randomness():
            self.step(inputs, labels)
        self._observed += 1
        if self._observed >= 16 and self._observed.bit_count() == 1:
            self.check_progress()

    def check_progress(self) -> None:  # noqa: B027 (optional)
        """Warn about problems that the metrics do not show. No-op by default; may wait.

        `observe` calls this after 16, 32, 64 and so on batches, `fit` between steps.
        """

    @abstractmethod
    def step(self, inputs: Tensor, labels: Tensor) -> None:
        """Learn from one valid batch on the learner's device.

        Args:
            inputs: Raw inputs [n, ...].
            labels: Class labels [n], int64.
        """

    def end_task(self, samples: Samples) -> None:
        """Called when a task ends. No-op by default.

        Args:
            samples: Training samples of the task.

        Raises:
            ValueError: If the samples do not fit the network; the learner is left unchanged.
        """
        del samples

    def prepare(self, batch: Samples, past: Samples | None = None) -> tuple[Tensor, Tensor]:
        """Augment and normalise a batch, together with past samples if there are any.

        Args:
            batch: First samples.
            past: Samples to append.

        Returns:
            Network inputs and labels.
        """
        inputs, labels, _ = batch if past is None else join(batch, past)
        if self.augment is not None:
            inputs = self.augment(inputs, self.augmentation)
        return self.normalise(inputs), labels

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
        self._update_weights()
        self.tally(loss=loss)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of `loss`: the first half of `optimizer_step`."""
        for parameter in self._parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]

    def apply_gradients(self, loss: Tensor, **terms: Tensor) -> None:
        """Update the weights and count the batch: the second half of `optimizer_step`.

        Methods that change the gradients call `backward` and this separately.
        """
        self._update_weights()
        self.tally(loss=loss, **terms)
        self.steps += 1
        self.finite_steps += torch.isfinite(self._totals["loss"])

    def _update_weights(self) -> None:
        """Run the optimizer.

        For plain SGD this bypasses `optimizer.step`, whose overhead equals the forward pass of a
        small network.
        """
        if not _is_plain_sgd(self.optimizer):
            self.optimizer.step()
            return
        (group,) = self.optimizer.param_groups
        trained = [p for p in group["params"] if p.grad is not None]
        with torch.no_grad():
            torch._foreach_add_(trained, [p.grad for p in trained], alpha=-group["lr"])

    @contextmanager
    def randomness(self) -> Iterator[None]:
        """Replace torch's global generators, which dropout uses, with the learner's own."""
        outside = _global_state(self.device)
        _set_global_state(self._global_random, self.device)
        try:
            yield
        finally:
            self._global_random = _global_state(self.device)
            _set_global_state(outside, self.device)

    def host_state(self) -> Hashable:
        """Return the host values that `step` depends on: by default, the number of stored samples.

        While they are unchanged, every step runs the same kernels and a CUDA graph can be reused.
        """
        return None if self.memory is None else self.memory.filled

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

    def totals(self) -> dict[str, float]:
        """Return the sums of the losses and other values over all steps. Waits for the device."""
        return {name: float(total) for name, total in sorted(self._totals.items())}

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

    def has_finite_weights(self) -> bool:
        """Return whether all weights are finite. Waits for the device."""
        return all(bool(p.isfinite().all()) for p in self._parameters)

    # -- prediction -------------------------------------------------------------------------

    def predictors(self) -> dict[str, Predictor]:
        """Return every network that can predict, by name; `predict` uses the first."""
        return {"working": Predictor(self.network, self.normalise)}

    def predict(self, inputs: Tensor) -> Tensor:
        """Return the most probable class of each input, [n].

        Args:
            inputs: Raw inputs [n, ...].
        """
        return self._scores(inputs).argmax(dim=1)

    def predict_proba(self, inputs: Tensor) -> Tensor:
        """Return class probabilities [n, classes].

        Args:
            inputs: Raw inputs [n, ...].
        """
        return self._scores(inputs).float().softmax(dim=1)

    def _scores(self, inputs: Tensor) -> Tensor:
        check_inputs(inputs, self._input_spec, values=True)
        if self._input_spec is None:
            self._probe(inputs)
        return next(iter(self.predictors().values()))(inputs.to(self.device))

    # -- input checks -----------------------------------------------------------------------

    def _check_batch(
        self, inputs: Tensor, labels: Tensor, *, values: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Check a batch and move it to the device."""
        check_inputs(inputs, self._input_spec, values=values)
        spec = self._input_spec or self._probe(inputs)
        check_labels(labels, len(inputs), spec.classes, values=values)
        self._input_spec = spec
        return inputs.to(self.device), labels.to(self.device, torch.int64)

    def _probe(self, inputs: Tensor) -> InputSpec:
        """Find out what the network accepts and returns, with one sample in evaluation mode."""
        shape = tuple(inputs.shape[1:])
        try:
            logits = Predictor(self.network, self.normalise)(inputs[:1].to(self.device))
        except (RuntimeError, ValueError, TypeError) as error:
            raise ValueError(
                f"the network does not accept inputs of shape {shape} and dtype {inputs.dtype}: "
                f"{error}"
            ) from error
        if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != 1:
            raise ValueError(
                f"the network returned {describe(logits)} for one sample; expected logits "
                "[n, classes]"
            )
        return InputSpec(shape, str(inputs.dtype), logits.shape[1])

    # -- state ------------------------------------------------------------------------------

    def _parts(self) -> dict[str, object]:
        """Return the attributes that have a state, by name."""
        return {name: part for name, part in sorted(vars(self).items()) if is_stateful(part)}

    def state_dict(self) -> State:
        """Return everything needed to resume, including random state.

        Every attribute with a state is included: tensors, generators, modules, optimizers and
        objects with `state_dict`.
        """
        parts = {name: get_state(part) for name, part in self._parts().items()}
        return {
            **{name: state for name, state in parts.items() if state != {}},
            "totals": {name: total.clone() for name, total in self._totals.items()},
            "last_read": {"steps": self._last_read[0], "totals": dict(self._last_read[1])},
            "input_spec": self._input_spec._asdict() if self._input_spec else {},
        }

    def load_state_dict(self, state: State) -> None:
        """Restore a state.

        Args:
            state: Result of `state_dict` on a learner of the same method and network.

        Raises:
            ValueError: If the state does not fit; the learner is left unchanged.
        """
        before = self.state_dict()
        if state.keys() != before.keys():
            raise ValueError(
                f"the state has the parts {sorted(state)}; {type(self).__name__} has "
                f"{sorted(before)}"
            )
        try:
            self._load(state)
        except _STATE_ERRORS as error:
            self._load(before)
            raise ValueError(
                f"the state does not fit this {type(self).__name__} and its network: "
                f"{str(error).strip()}"
            ) from error

    def _load(self, state: State) -> None:
        for name, part in self._parts().items():
            try:
                load_state(part, state.get(name, {}))  # a module may have an empty state
            except _STATE_ERRORS as error:
                raise ValueError(f"{name}: {error}") from error
        totals, last, spec = (state[name] for name in ("totals", "last_read", "input_spec"))
        self._totals = {k: v.to(self.device, torch.float64, copy=True) for k, v in totals.items()}
        self._last_read = int(last["steps"]), {k: float(v) for k, v in last["totals"].items()}
        self._input_spec = InputSpec(**{**spec, "shape": tuple(spec["shape"])}) if spec else None

    def save(self, path: str | Path) -> None:
        """Write the state to a safetensors file, atomically.

        Args:
            path: File to write or replace.
        """
        write_file(Path(path), self.state_dict(), {"learner": type(self).__name__})

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


def _is_plain_sgd(optimizer: Optimizer) -> bool:
    """Return whether this is plain SGD without step hooks.

    Learning-rate schedulers wrap `step` in an attribute of the optimizer; it must then be called.
    """
    group = optimizer.param_groups[0]
    return (
        type(optimizer) is torch.optim.SGD
        and len(optimizer.param_groups) == 1
        and not (group["momentum"] or group["weight_decay"] or group["maximize"])
        and isinstance(group["lr"], float)
        and "step" not in vars(optimizer)
        and not optimizer._optimizer_step_pre_hooks
        and not optimizer._optimizer_step_post_hooks
    )


def _global_state(device: torch.device) -> Tensor:
    return torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state(device)


def _set_global_state(state: Tensor, device: torch.device) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.cuda.set_rng_state(state, device)
