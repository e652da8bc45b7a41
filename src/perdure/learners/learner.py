"""What every learner shares: checked input, prepared batches, one descent step, and its state.

A method is a subclass whose `step` reads in the order of its paper. Two rules make one step serve
on a CPU and inside a CUDA graph: it asks nothing of the device (no `.item()`, no branch on a
tensor's value), and what changes lives in tensors that stay where they are.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from perdure.learners.predictor import Predictor
from perdure.randomness import derive, generator
from perdure.records import Samples
from perdure.state import State, give, holds_state, read_file, take, write_file

Augment = Callable[[Tensor, torch.Generator], Tensor]
Normalise = Callable[[Tensor], Tensor]
_UNFIT = (RuntimeError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""What the state of something else may run into."""


def unit_range(inputs: Tensor) -> Tensor:
    """Bytes to floats from 0 to 1; floats as they are. The default normalisation."""
    return inputs.to(torch.float32).div_(255) if inputs.dtype == torch.uint8 else inputs


class Learner(ABC):
    """A network that learns from a stream, batch by batch.

    The network is trained in place. `optimizer` is any torch optimizer over its parameters whose
    step needs no closure; without one, SGD with rate `lr`. `augment` and `normalise` are applied
    to stream and replay alike; memories keep the raw images.
    """

    needs_boundaries = False
    """Whether the method must be told where tasks end, through `end_task`."""
    capturable = True
    """Whether `step` keeps the rules above, so that a CUDA graph may replay it."""

    def __init__(
        self,
        network: nn.Module,
        *,
        optimizer: Optimizer | None = None,
        lr: float = 0.1,
        augment: Augment | None = None,
        normalise: Normalise | None = None,
        seed: int = 0,
    ) -> None:
        parameters = list(network.parameters())
        if not parameters:
            raise ValueError("the network has no parameters: there is nothing to learn")
        if optimizer is None:
            _positive("lr", lr)
            optimizer = torch.optim.SGD(parameters, lr=lr)
        else:
            _check_optimizer(optimizer, parameters)
        self.network = network.train()
        self._parameters = parameters
        self.optimizer = optimizer
        self.device = parameters[0].device
        self.augment = augment
        self.normalise = normalise or unit_range
        self.augmentation = generator(seed, "augmentation", self.device)
        self.steps = torch.zeros((), dtype=torch.int64, device=self.device)
        self.finite_steps = torch.zeros((), dtype=torch.int64, device=self.device)
        """Steps until the sum of the losses became infinite or not a number: all, if it has not."""
        self._sums: dict[str, Tensor] = {}
        """Sums over all steps of what `tally` was given, by name."""
        self._reported: dict[str, float] = {}
        """Steps and totals at the last call of `metrics`."""
        self._global_random = _global_generator(derive(seed, "global"), self.device)
        self._expects: dict[str, Any] = {}

    # -- learning ---------------------------------------------------------------------------

    def observe(self, inputs: Tensor, labels: Tensor, *, check: bool = True) -> None:
        """Learn from one batch: images [n, ...] and their labels [n].

        ValueError, and nothing changed, if the batch is not what the network takes. `check=False`
        leaves out the checks that read values (label range, not-a-number), which on a GPU wait
        for the device.
        """
        inputs, labels = self._checked(inputs, labels, values=check)
        with self.randomness():
            self.step(inputs, labels)

    @abstractmethod
    def step(self, inputs: Tensor, labels: Tensor) -> None:
        """Learn from one batch that is known to be right and on the learner's device."""

    def end_task(self, samples: Samples) -> None:
        """Hear that a task with these training samples has ended. Most methods do not listen."""
        del samples

    def prepare(self, *parts: Samples) -> tuple[Tensor, Tensor]:
        """The parts' images joined, augmented and normalised, and their labels joined."""
        inputs = parts[0].inputs if len(parts) == 1 else torch.cat([p.inputs for p in parts])
        labels = parts[0].labels if len(parts) == 1 else torch.cat([p.labels for p in parts])
        if self.augment is not None:
            inputs = self.augment(inputs, self.augmentation)
        return self.normalise(inputs), labels

    def descend(self, loss: Tensor, **terms: Tensor) -> None:
        """The optimizer step of a batch: counted, and the terms added to the totals."""
        self.move(loss)
        self.steps += 1
        self.tally(**terms)
        self.finite_steps += torch.isfinite(self._sums["loss"])

    optimizer_step = descend

    def move(self, loss: Tensor) -> None:
        """An optimizer step down the gradient of `loss`.

        For methods that take several on one batch: all but the last, which is to `descend`.
        """
        for parameter in self._parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimize()
        self.tally(loss=loss)

    def _optimize(self) -> None:
        """The optimizer's step.

        That of plain SGD is written out: around one addition per parameter, torch's optimizer
        spends as long as a small network's forward pass.
        """
        if not _is_plain_sgd(self.optimizer):
            self.optimizer.step()
            return
        (group,) = self.optimizer.param_groups
        trained = [p for p in group["params"] if p.grad is not None]
        with torch.no_grad():
            torch._foreach_add_(trained, [p.grad for p in trained], alpha=-group["lr"])

    @property
    def nonfinite_step(self) -> int:
        """The first step whose loss was infinite or not a number; 0 if there was none."""
        finite = int(self.finite_steps)
        return finite + 1 if finite < int(self.steps) else 0

    def has_finite_weights(self) -> bool:
        """Whether every weight is a finite number; waits for the device."""
        return all(bool(p.isfinite().all()) for p in self._parameters)

    def tally(self, **values: Tensor | float) -> None:
        """Add to the totals that the training loop reads now and then."""
        for name, value in values.items():
            if name not in self._sums:
                self._sums[name] = torch.zeros((), dtype=torch.float64, device=self.device)
            self._sums[name] += value.detach() if isinstance(value, Tensor) else value

    def metrics(self) -> dict[str, float]:
        """Means per step since the last call; waits for the device."""
        before, steps, totals = self._reported, int(self.steps), self.totals()
        self._reported = {"steps": steps, **totals}
        taken = steps - before.get("steps", 0)
        return {name: (total - before.get(name, 0.0)) / taken for name, total in totals.items()}

    def totals(self) -> dict[str, float]:
        """Sums over all steps; waits for the device."""
        return {name: float(total) for name, total in sorted(self._sums.items())}

    def histograms(self) -> dict[str, dict[str, list[int]]]:
        """What was counted in bins, by name: noted once, at the end of a run."""
        return {}

    @contextmanager
    def randomness(self) -> Iterator[None]:
        """Inside, torch's global generators (dropout draws from them) are this learner's own."""
        outside = _global_state(self.device)
        _set_global_state(self._global_random, self.device)
        try:
            yield
        finally:
            self._global_random = _global_state(self.device)
            _set_global_state(outside, self.device)

    def host_state(self) -> Hashable:
        """What `step` reads on the host: while it stays equal, every step runs the same kernels."""
        return None

    def generators(self) -> list[torch.Generator]:
        """Every generator that a step draws from, those of the memories included."""
        holders = [self, *(part for part in self._parts().values() if not isinstance(part, Tensor))]
        values = (value for holder in holders for value in getattr(holder, "__dict__", {}).values())
        return [value for value in values if isinstance(value, torch.Generator)]

    def networks(self) -> list[nn.Module]:
        """The working network and those that the memories keep."""
        kept = (getattr(part, "network", None) for part in self._parts().values())
        return [self.network, *(network for network in kept if isinstance(network, nn.Module))]

    # -- answering --------------------------------------------------------------------------

    def predictors(self) -> dict[str, Predictor]:
        """Every network that can answer, by name; the first is the one that `predict` uses."""
        return {"working": Predictor(self.network, self.normalise)}

    def predict(self, inputs: Tensor) -> Tensor:
        """The most probable class of each image, [n]."""
        return self._scores(inputs).argmax(dim=1)

    def predict_proba(self, inputs: Tensor) -> Tensor:
        """The probability of each class, [n, classes]."""
        return self._scores(inputs).float().softmax(dim=1)

    def _scores(self, inputs: Tensor) -> Tensor:
        self._check_images(inputs)
        if not self._expects:
            self._probe(inputs)
        return next(iter(self.predictors().values()))(inputs.to(self.device))

    # -- input ------------------------------------------------------------------------------

    def _checked(self, inputs: Tensor, labels: Tensor, *, values: bool) -> tuple[Tensor, Tensor]:
        self._check_images(inputs, values=values)
        if not isinstance(labels, Tensor) or labels.ndim != 1:
            raise ValueError(f"labels are {_describe(labels)}; expected a tensor of rank 1")
        if labels.dtype.is_floating_point or labels.dtype in (torch.bool, torch.complex64):
            raise ValueError(f"labels are of dtype {labels.dtype}; expected integers")
        if len(labels) != len(inputs):
            raise ValueError(f"{len(inputs)} images came with {len(labels)} labels")
        expects = self._expects or self._probe(inputs)
        if values:
            low, high = labels.aminmax()
            if low < 0 or high >= expects["classes"]:
                raise ValueError(
                    f"labels range from {int(low)} to {int(high)}; the network has "
                    f"{expects['classes']} outputs, so expected 0 to {expects['classes'] - 1}"
                )
        self._expects = expects
        return inputs.to(self.device), labels.to(self.device, torch.int64)

    def _check_images(self, inputs: Tensor, *, values: bool = True) -> None:
        if not isinstance(inputs, Tensor) or inputs.ndim < 2:
            raise ValueError(f"images are {_describe(inputs)}; expected a tensor [n, ...]")
        if inputs.dtype != torch.uint8 and not inputs.dtype.is_floating_point:
            raise ValueError(f"images are of dtype {inputs.dtype}; expected uint8 or floats")
        if len(inputs) == 0:
            raise ValueError("the batch is empty; expected at least one image")
        seen = self._expects
        if seen and list(inputs.shape[1:]) != seen["shape"]:
            raise ValueError(
                f"images have shape {tuple(inputs.shape[1:])}; those before had "
                f"{tuple(seen['shape'])}"
            )
        if seen and str(inputs.dtype) != seen["dtype"]:
            raise ValueError(f"images are of dtype {inputs.dtype}; those before {seen['dtype']}")
        if values and inputs.dtype.is_floating_point and not inputs.isfinite().all():
            raise ValueError("images hold values that are infinite or not a number")

    def _probe(self, inputs: Tensor) -> dict[str, Any]:
        """What the network takes and gives, found by asking it once in evaluation mode."""
        try:
            logits = Predictor(self.network, self.normalise)(inputs[:1].to(self.device))
        except (RuntimeError, ValueError, TypeError) as error:
            raise ValueError(
                f"the network does not take images of shape {tuple(inputs.shape[1:])} and dtype "
                f"{inputs.dtype}: {error}"
            ) from error
        if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != 1:
            raise ValueError(
                f"the network returned {_describe(logits)} for one image; expected logits "
                "[n, classes]"
            )
        return {
            "shape": list(inputs.shape[1:]),
            "dtype": str(inputs.dtype),
            "classes": logits.shape[1],
        }

    # -- state ------------------------------------------------------------------------------

    def _parts(self) -> dict[str, object]:
        return {name: part for name, part in sorted(vars(self).items()) if holds_state(part)}

    def state_dict(self) -> State:
        """All that a resume needs, random state included: whatever the attributes hold."""
        parts = {name: take(part) for name, part in self._parts().items()}
        return {
            **parts,
            "totals": {name: total.clone() for name, total in self._sums.items()},
            "reported": dict(self._reported),
            "expects": dict(self._expects),
        }

    def load_state_dict(self, state: State) -> None:
        """Become the learner that the state describes.

        ValueError, and nothing changed, if it is the state of another method or network.
        """
        before = self.state_dict()
        expected, found = (
            sorted(name for name, part in s.items() if name in self._parts() and part != {})
            for s in (before, state)
        )
        strange = sorted(set(state) - set(before))
        if expected != found or strange:
            raise ValueError(
                f"the state has the parts {[*found, *strange]}; {type(self).__name__} has "
                f"{expected}"
            )
        try:
            self._become(state)
        except _UNFIT as error:
            self._become(before)
            raise ValueError(
                f"the state does not fit this {type(self).__name__} and its network: "
                f"{str(error).strip()}"
            ) from error

    def _become(self, state: State) -> None:
        for name, part in self._parts().items():
            try:
                give(part, state.get(name, {}))  # a file keeps no empty part
            except _UNFIT as error:
                raise ValueError(f"{name}: {error}") from error
        self._reported = dict(state.get("reported", {}))
        self._sums.clear()
        for name, total in state.get("totals", {}).items():
            self._sums[name] = total.to(self.device, torch.float64, copy=True)
        expects = dict(state.get("expects", {}))
        if expects and not (
            isinstance(expects.get("shape"), list)
            and isinstance(expects.get("dtype"), str)
            and isinstance(expects.get("classes"), int)
        ):
            raise ValueError(f"expects: {expects} does not describe images")
        self._expects = expects

    def save(self, path: str | Path) -> None:
        """Write the state to a safetensors file, whole or not at all."""
        write_file(Path(path), self.state_dict(), {"learner": type(self).__name__})

    def load(self, path: str | Path) -> None:
        """Become what `save` wrote, on a learner of the same method and network."""
        state, about = read_file(Path(path))
        if about.get("learner") != type(self).__name__:
            raise ValueError(
                f"{path} holds a {about.get('learner')}; this learner is a {type(self).__name__}"
            )
        try:
            self.load_state_dict(state)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _positive(name: str, value: float) -> None:
    if not (isinstance(value, int | float) and 0 < value < float("inf")):
        raise ValueError(f"{name} is {value!r}; expected a number above 0")


def _is_plain_sgd(optimizer: Optimizer) -> bool:
    """Whether the optimizer's step is θ ← θ − η∇ for all its parameters and nobody listens."""
    group = optimizer.param_groups[0]
    return (
        type(optimizer) is torch.optim.SGD
        and len(optimizer.param_groups) == 1
        and not (group["momentum"] or group["weight_decay"] or group["maximize"])
        and isinstance(group["lr"], float)
        and not optimizer._optimizer_step_pre_hooks
        and not optimizer._optimizer_step_post_hooks
    )


def _check_optimizer(optimizer: Optimizer, parameters: list[nn.Parameter]) -> None:
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"{type(optimizer).__name__} needs a closure at each step; expected an optimizer "
            "whose step needs none"
        )
    given = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not given <= {id(p) for p in parameters}:
        raise ValueError(
            "the optimizer holds parameters that are not the network's; build it from "
            "network.parameters()"
        )


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"of type {type(value).__name__}"


def _global_generator(seed: int, device: torch.device) -> Tensor:
    return torch.Generator(device=device).manual_seed(seed).get_state()


def _global_state(device: torch.device) -> Tensor:
    return torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state(device)


def _set_global_state(state: Tensor, device: torch.device) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.cuda.set_rng_state(state, device)
