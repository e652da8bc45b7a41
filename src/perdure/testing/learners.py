"""Conformance checks for learners."""

from __future__ import annotations

import itertools
import json
import math
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from perdure.learners import Learner, Predictor
from perdure.records import Samples
from perdure.state import State, write_file
from perdure.testing.rules import (
    equal,
    global_random_untouched,
    require,
    require_value_error,
    rule,
)
from perdure.training.engine import Eager, Recorded

MakeLearner = Callable[..., Learner]
"""Called as `make(network, seed=0)`, and in some checks with `optimizer` or `grow` as well: usually
a learner's class with its own arguments bound by `functools.partial`."""
LearnerCheck = Callable[[MakeLearner], None]

LEARNER_CHECKS: list[LearnerCheck] = []
"""Every check, in order: those of this module, then those of `inputs`."""

_ALL = (0, 1, 2, 3)
"""All classes."""


class _Event(NamedTuple):
    """A call of a learner's method."""

    call: Literal["observe", "end_task"]
    samples: Samples


class _Case(NamedTuple):
    """A kind of network with suitable inputs."""

    name: str
    build: Callable[[int], nn.Module]
    """Builds a network that is wider than usual by its argument; with 0 it has 4 outputs."""
    shape: tuple[int, ...]
    dtype: torch.dtype

    def network(self, *, extra: int = 0, init: int = 0) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(init)
            return self.build(extra)

    def samples(self, classes: Sequence[int], count: int, seed: int) -> Samples:
        """Generate noisy inputs; each class has large values in another quarter of the input."""
        draws = torch.Generator().manual_seed(seed)
        prototypes = torch.eye(4).repeat_interleave(math.prod(self.shape) // 4, dim=1)
        labels = torch.tensor(classes).repeat(count)[:count]
        labels = labels[torch.randperm(count, generator=draws)]
        noise = torch.rand(count, *self.shape, generator=draws)
        inputs = 0.7 * prototypes[labels].view_as(noise) + 0.3 * noise
        if self.dtype == torch.uint8:
            inputs = inputs * 255
        return Samples(inputs.to(self.dtype), labels)

    def test_inputs(self) -> Tensor:
        inputs: Tensor = self.samples(_ALL, 6, seed=7).inputs
        return inputs

    def script(self) -> list[_Event]:
        """Return the events of two tasks: batches of several sizes, then the end of the task."""
        events = []
        for task, classes in enumerate([(0, 1), (2, 3)]):
            samples = self.samples(classes, 22, seed=task)
            for start, stop in itertools.pairwise((0, 8, 13, 14, 22)):
                events.append(_Event("observe", samples.slice(start, stop).map(torch.clone)))
            events.append(_Event("end_task", samples))
        return events


def _linear(extra: int) -> nn.Module:
    return nn.Linear(64, 4 + extra)


def _dropout(extra: int) -> nn.Module:
    hidden = nn.Linear(36, 16 + extra), nn.ReLU(), nn.Dropout(0.3)
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(16 + extra, 4))


def _batchnorm(extra: int) -> nn.Module:
    width = 8 + extra
    convolution = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
    head = nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, 4)
    return nn.Sequential(*convolution, *head)


_LINEAR = _Case("linear network, floats", _linear, (64,), torch.float32)
_DROPOUT = _Case("network with dropout, bytes", _dropout, (1, 6, 6), torch.uint8)
_BATCHNORM = _Case("network with BatchNorm, bytes", _batchnorm, (3, 6, 6), torch.uint8)
_FLOATS = _Case("network with BatchNorm, floats", _batchnorm, (3, 6, 6), torch.float32)
_CASES = (_LINEAR, _DROPOUT, _BATCHNORM, _FLOATS)


def _play(learner: Learner, events: Iterable[_Event]) -> Learner:
    """Apply events to a learner; `end_task` only if it needs boundaries."""
    for call, samples in events:
        if call == "observe":
            learner.observe(samples.inputs, samples.labels)
        elif learner.needs_boundaries:
            learner.end_task(samples)
    return learner


def _trained(make: MakeLearner, case: _Case, seed: int = 0) -> Learner:
    return _play(make(case.network(), seed=seed), case.script())


def _predictions(learner: Learner) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return all ways to predict, by name."""
    predictors = {f"predictor {name!r}": p for name, p in learner.predictors().items()}
    return {"predict": learner.predict, "predict_proba": learner.predict_proba, **predictors}


# -- states ---------------------------------------------------------------------------------


def _leaves(state: State, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, leaf in state.items():
        if isinstance(leaf, Mapping):
            yield from _leaves(dict(leaf), f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", leaf


def _bytes(state: State) -> dict[str, bytes]:
    """Return every leaf of a state by its path, as bytes that identify its value."""
    return {
        path: f"{leaf.dtype} {tuple(leaf.shape)} ".encode()
        + leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        if isinstance(leaf, Tensor)
        else json.dumps(leaf, sort_keys=True).encode()
        for path, leaf in _leaves(state)
    }


def _snapshot(learner: Learner) -> dict[str, bytes]:
    """Return the learner's state and the training modes of its networks."""
    modes = {
        f"training mode of {name}": bytes(m.training for m in predictor.module.modules())
        for name, predictor in learner.predictors().items()
    }
    return _bytes(learner.state_dict()) | modes


def _require_same(what: str, *both: Learner | dict[str, bytes]) -> None:
    """Require that two learners or snapshots are equal."""
    one, other = (_snapshot(each) if isinstance(each, Learner) else each for each in both)
    paths = sorted(p for p in one.keys() | other.keys() if one.get(p) != other.get(p))
    require(not paths, f"{what}: difference in {', '.join(paths[:5])}")


def _require_rejected(what: str, learner: Learner, call: Callable[[], object]) -> None:
    """Require that a call raises ValueError and leaves the learner unchanged."""
    before = _snapshot(learner)
    require_value_error(what, call)
    _require_same(f"{what} was rejected", before, learner)


# -- checks ---------------------------------------------------------------------------------


@rule(LEARNER_CHECKS)
def inputs_are_not_modified(make: MakeLearner) -> None:
    """Neither learning nor predicting writes to the given tensors."""
    for case in _CASES:
        events = case.script()
        learner = _play(make(case.network(), seed=0), events)
        for event, original in zip(events, case.script(), strict=True):
            same = equal(event.samples, original.samples)
            require(same, f"{case.name}: {event.call} changed its input")
        inputs = case.test_inputs()
        for name, predict in _predictions(learner).items():
            predict(inputs)
            require(inputs.equal(case.test_inputs()), f"{case.name}: {name} changed its input")


@rule(LEARNER_CHECKS)
def inputs_are_copied(make: MakeLearner) -> None:
    """Changing a batch after it was observed does not affect the learner."""
    for case in (_LINEAR, _BATCHNORM):
        reused = make(case.network(), seed=0)
        for event in case.script():
            _play(reused, [event])
            event.samples.map(torch.zero_)
        what = f"{case.name}: inputs overwritten after use"
        _require_same(what, _trained(make, case), reused)


@rule(LEARNER_CHECKS)
def predicting_changes_nothing(make: MakeLearner) -> None:
    """Predictions affect neither the state and training modes nor later learning."""
    for case in _CASES:
        learner = make(case.network(), seed=0)
        _require_pure_predictions(f"{case.name}, untrained", learner, case)
        for event in case.script():
            _play(learner, [event])
            learner.predict(case.test_inputs())
        _require_pure_predictions(case.name, learner, case)
        what = f"{case.name}: learner that predicts between batches"
        _require_same(what, _trained(make, case), learner)


def _require_pure_predictions(when: str, learner: Learner, case: _Case) -> None:
    before = _snapshot(learner)
    for name, predict in _predictions(learner).items():
        predict(case.test_inputs())
        _require_same(f"{when}: after {name}", before, learner)


@rule(LEARNER_CHECKS)
def predictors_return_scores(make: MakeLearner) -> None:
    """Each predictor returns finite scores [n, classes]; the first one is used by `predict`."""
    for case in _CASES:
        learner = make(case.network(), seed=0)
        _require_scores(f"{case.name}, untrained", learner, case.test_inputs())
        _play(learner, case.script())
        _require_scores(case.name, learner, case.test_inputs())


def _require_scores(when: str, learner: Learner, inputs: Tensor) -> None:
    predictors = learner.predictors()
    require(bool(predictors), f"{when}: there are no predictors")
    for name, predictor in predictors.items():
        require(isinstance(predictor, Predictor), f"{when}: {name!r} is not a Predictor")
        scores = predictor(inputs)
        require(
            scores.shape == (len(inputs), 4) and scores.is_floating_point(),
            f"{when}: {name!r} returned {scores.dtype} {tuple(scores.shape)} for {len(inputs)} "
            f"inputs; expected floats [{len(inputs)}, 4]",
        )
        finite = scores.isfinite().all() and scores.double().softmax(1).isfinite().all()
        require(finite, f"{when}: {name!r} returned scores that are not finite")
        independent = torch.allclose(predictor(inputs[:2]), scores[:2], rtol=1e-3, atol=1e-4)
        require(independent, f"{when}: the scores of {name!r} depend on the rest of the batch")
    first, scores = next((name, predictor(inputs)) for name, predictor in predictors.items())
    classes, probabilities = learner.predict(inputs), learner.predict_proba(inputs)
    require(
        classes.dtype == torch.int64 and classes.equal(scores.argmax(1)),
        f"{when}: predict is not the argmax of the first predictor, {first!r}",
    )
    require(
        torch.allclose(probabilities.double(), scores.double().softmax(1), atol=1e-5),
        f"{when}: predict_proba is not the softmax of the first predictor, {first!r}",
    )


@rule(LEARNER_CHECKS)
def equal_seeds_give_equal_bytes(make: MakeLearner) -> None:
    """Learners with equal seeds have equal states and files, whatever the global generators do."""
    for case in _CASES:
        learners, files = [], []
        for noise in (1, 2):
            with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as folder:
                torch.manual_seed(noise)
                learners.append(_trained(make, case, seed=3))
                learners[-1].save(Path(folder) / "learner")
                files.append((Path(folder) / "learner").read_bytes())
        _require_same(f"{case.name}: two learners with seed 3", *learners)
        require(files[0] == files[1], f"{case.name}: equal learners give different files")


@rule(LEARNER_CHECKS)
def different_seeds_give_different_weights(make: MakeLearner) -> None:
    """With dropout, the weights depend on the seed."""
    one, other = (_bytes(_trained(make, _DROPOUT, s).network.state_dict()) for s in (0, 1))
    require(one != other, f"{_DROPOUT.name}: seeds 0 and 1 give the same weights")


@rule(LEARNER_CHECKS)
def global_generators_are_not_used(make: MakeLearner) -> None:
    """Learning, predicting and loading leave the generators of torch, NumPy and Python alone."""
    for case in (_DROPOUT, _BATCHNORM):
        learner, inputs = make(case.network(), seed=0), case.test_inputs()
        with global_random_untouched():
            _play(learner, case.script())
            for predict in _predictions(learner).values():
                predict(inputs)
            learner.load_state_dict(learner.state_dict())


@rule(LEARNER_CHECKS)
def saved_learners_resume_bit_for_bit(make: MakeLearner) -> None:
    """A new learner continues exactly from a file saved early, within a task or around its end."""
    for case in (_DROPOUT, _FLOATS):
        script = case.script()
        end = [event.call for event in script].index("end_task")
        with tempfile.TemporaryDirectory() as folder:
            learner = make(case.network(), seed=0)
            stops = (0, 2, end, end + 1, end + 3)
            for start, stop in itertools.pairwise((*stops, len(script))):
                learner.save(Path(folder) / str(start))
                _play(learner, script[start:stop])
            for start in stops:
                resumed = make(case.network(init=5), seed=9)
                resumed.load(Path(folder) / str(start))
                _play(resumed, script[start:])
                what = f"{case.name}: resumed after {start} of {len(script)} calls"
                _require_same(what, learner, resumed)


@rule(LEARNER_CHECKS)
def states_are_snapshots(make: MakeLearner) -> None:
    """Learning does not change a state taken or loaded before; loading it restores the learner."""
    for case in _CASES:
        script = case.script()
        half = len(script) // 2
        learner = _play(make(case.network(), seed=0), script[:half])
        state, before = learner.state_dict(), _snapshot(learner)
        original = _bytes(state)
        after = _snapshot(_play(learner, script[half:]))
        _require_same(f"{case.name}: state after further learning", original, _bytes(state))
        fresh = make(case.network(init=5), seed=9)
        for what, other in (("another learner", fresh), ("the same learner", learner)):
            other.load_state_dict(state)
            _require_same(f"{case.name}: state loaded into {what}", before, other)
            _play(other, script[half:])
            loaded = f"{case.name}: state after further learning of {what}"
            _require_same(loaded, original, _bytes(state))
            _require_same(f"{case.name}: {what} after resuming", after, other)


@rule(LEARNER_CHECKS)
def invalid_batches_are_rejected(make: MakeLearner) -> None:
    """Invalid batches raise ValueError and change nothing, before and after valid batches."""
    for case in (_LINEAR, _DROPOUT, _FLOATS):
        script = case.script()
        learner = make(case.network(), seed=0)
        for when, events in (("first batch", []), ("later batch", script[:3])):
            _play(learner, events)
            for what, inputs, labels in _invalid_batches(case, first=not events):
                name = f"{case.name}: {when} with {what}"
                _require_rejected(name, learner, partial(learner.observe, inputs, labels))
                if learner.needs_boundaries:
                    end = partial(learner.end_task, Samples(inputs, labels))
                    _require_rejected(f"{name} in end_task", learner, end)
        _play(learner, script[3:])
        what = f"{case.name}: after invalid batches were rejected"
        _require_same(what, _trained(make, case), learner)


def _invalid_batches(case: _Case, *, first: bool) -> Iterator[tuple[str, Any, Any]]:
    inputs, labels, _ = case.samples(_ALL, 8, seed=5)
    for label in (4, -1):
        yield f"a label of {label}", inputs, torch.where(labels == 0, label, labels)
    yield "labels of rank 2", inputs, labels[:, None]
    yield "a single label", inputs, labels[0]
    yield "float labels", inputs, labels.float()
    yield "boolean labels", inputs, labels > 1
    yield "a list of names as labels", inputs, [str(label) for label in labels.tolist()]
    yield "more inputs than labels", inputs, labels[:-1]
    yield "more labels than inputs", inputs[:-1], labels
    yield "no samples", inputs[:0], labels[:0]
    yield "inputs of rank 1", inputs.flatten()[: len(labels)], labels
    yield "a list of inputs", inputs.tolist(), labels
    yield "inputs of dtype int64", inputs.long(), labels
    if case is _LINEAR:
        yield from _exotic_batches(inputs, labels)
    yield "inputs of another shape", torch.cat([inputs, inputs], dim=1), labels
    if case.dtype.is_floating_point:
        for value in (float("nan"), float("inf")):
            bad = inputs.clone()
            bad.view(len(bad), -1)[-1, -1] = value
            yield f"an input value of {value}", bad, labels
    if not first:
        yield "inputs twice as wide", torch.cat([inputs, inputs], dim=-1), labels
        other = inputs.float() if case.dtype == torch.uint8 else inputs.to(torch.uint8)
        yield f"inputs of dtype {other.dtype} after {case.dtype}", other, labels


def _exotic_batches(inputs: Tensor, labels: Tensor) -> Iterator[tuple[str, Any, Any]]:
    for dtype in (torch.complex64, torch.uint16, torch.float8_e4m3fn):
        yield f"inputs of dtype {dtype}", inputs.to(dtype), labels
    for dtype in (torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64):
        yield f"labels of dtype {dtype}", inputs, labels.to(dtype)
    yield "sparse inputs", inputs.to_sparse(), labels
    yield "sparse labels", inputs, labels.to_sparse()
    yield "inputs without values", inputs.to("meta"), labels
    yield "labels without values", inputs, labels.to("meta")
    yield "an empty dict", {}, labels
    yield "a dict with another length", {"a": inputs, "b": inputs[:-1]}, labels
    yield "a dict with text", {"a": inputs, "b": ["text"] * len(inputs)}, labels


@rule(LEARNER_CHECKS)
def invalid_states_are_rejected(make: MakeLearner) -> None:
    """States of another network, incomplete states and damaged files change nothing."""
    for case in _CASES:
        script = case.script()
        half = len(script) // 2
        learner = _play(make(case.network(), seed=0), script[:half])
        own, other = learner.state_dict(), make(case.network(extra=2), seed=1)
        states = {
            "state of an untrained learner with another network": other.state_dict(),
            "state of a learner with another network": _play(other, script).state_dict(),
            "state without a network": {k: v for k, v in own.items() if k != "network"},
            "state with an additional part": {**own, "another part": torch.zeros(1)},
            "state with a number instead of a tensor": {**own, "steps": 1},
            "empty state": {},
        }
        for what, state in states.items():
            load = partial(learner.load_state_dict, state)
            _require_rejected(f"{case.name}: {what}", learner, load)
        with tempfile.TemporaryDirectory() as folder:
            for what, path in _invalid_files(Path(folder), learner):
                _require_rejected(f"{case.name}: {what}", learner, partial(learner.load, path))
        _play(learner, script[half:])
        what = f"{case.name}: after invalid states were rejected"
        _require_same(what, _trained(make, case), learner)


def _invalid_files(folder: Path, learner: Learner) -> Iterator[tuple[str, Path]]:
    yield "missing file", folder / "nothing"
    learner.save(folder / "complete")
    content = (folder / "complete").read_bytes()
    for size in (0, 7, len(content) // 2, len(content) - 1):
        (folder / "truncated").write_bytes(content[:size])
        yield f"file truncated to {size} bytes", folder / "truncated"
    write_file(folder / "other", learner.state_dict(), {"learner": "SomeOtherMethod"})
    yield "file of another method", folder / "other"


@rule(LEARNER_CHECKS)
def memory_is_bounded(make: MakeLearner) -> None:
    """Nothing that the learner holds grows with the number of batches."""
    learner = _trained(make, _LINEAR)

    def sizes_after(batches: int) -> dict[str, int]:
        for seed in range(batches):
            learner.observe(*_LINEAR.samples(_ALL, 8, seed=seed)[:2])
        return {"the state": _size(learner.state_dict()), "the learner": _size(learner)}

    few, many = sizes_after(16), sizes_after(32)
    for what in few:
        sizes = f"from {few[what]} to {many[what]} bytes"
        require(many[what] <= few[what], f"{what} grew {sizes} between 16 and 48 batches")


def _size(whole: object) -> int:
    """Bytes of all tensors and arrays that an object holds, and a byte for every other value."""
    found, total, todo = set[int](), 0, [whole]
    while todo:
        part = todo.pop()
        if id(part) in found or isinstance(part, type | ModuleType | FunctionType):
            continue
        found.add(id(part))
        if isinstance(part, Tensor | np.ndarray):
            total += part.nbytes
            continue
        total += 1
        if isinstance(part, Mapping):
            todo += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple | set | frozenset | deque):
            todo += part
        todo += vars(part).values() if hasattr(part, "__dict__") else ()
    return total


@rule(LEARNER_CHECKS)
def any_optimizer_works(make: MakeLearner) -> None:
    """Adam and SGD with momentum train all weights and resume bit for bit."""
    optimizers: dict[str, Callable[[Iterable[Tensor]], Optimizer]] = {
        "Adam": partial(torch.optim.Adam, lr=0.01),
        "SGD with momentum": partial(
            torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3
        ),
    }
    case, script = _DROPOUT, _DROPOUT.script()

    def learner(build: Callable[[Iterable[Tensor]], Optimizer], init: int) -> Learner:
        network = case.network(init=init)
        return make(network, seed=0, optimizer=build(network.parameters()))

    results = set()
    for name, build in optimizers.items():
        trained = _play(learner(build, 0), script)
        results.add(tuple(_bytes(trained.network.state_dict()).values()))
        for old, new in zip(case.network().parameters(), trained.network.parameters(), strict=True):
            require(not old.equal(new), f"{name}: some weights were not trained")
            require(new.isfinite().all(), f"{name}: diverged")
        resumed = learner(build, 5)
        resumed.load_state_dict(_play(learner(build, 0), script[:4]).state_dict())
        _require_same(f"{name}: resumed after 4 calls", trained, _play(resumed, script[4:]))
    require(len(results) == len(optimizers), "the optimizer has no effect on the weights")


@rule(LEARNER_CHECKS)
def unsuitable_optimizers_are_rejected(make: MakeLearner) -> None:
    """An optimizer that needs a closure, or of another network, raises ValueError."""
    network, other = _LINEAR.network(), _LINEAR.network()
    for what, optimizer in (
        ("an optimizer that needs a closure", torch.optim.LBFGS(network.parameters())),
        ("another network's optimizer", torch.optim.SGD(other.parameters(), lr=0.1)),
    ):
        require_value_error(what, partial(make, network, seed=0, optimizer=optimizer))


@rule(LEARNER_CHECKS)
def steps_count_batches(make: MakeLearner) -> None:
    """`steps` is the number of batches observed, however many optimizer steps each one takes."""
    learner = make(_LINEAR.network(), seed=0)
    observed = 0
    for event in _LINEAR.script():
        _play(learner, [event])
        observed += event.call == "observe"
        steps = int(learner.steps)
        require(steps == observed, f"steps is {steps} after {observed} batches")


@rule(LEARNER_CHECKS)
def metrics_are_means_since_the_last_call(make: MakeLearner) -> None:
    """`metrics` averages over the steps since its last call, also after a resume."""
    case, script = _LINEAR, _LINEAR.script()
    learner, resumed = make(case.network(), seed=0), make(case.network(), seed=1)
    require(learner.metrics() == {}, "metrics is not empty before the first step")
    _play(learner, script[:2])
    before = learner.totals()
    learner.metrics()
    _play(learner, script[2:4])
    resumed.load_state_dict(learner.state_dict())
    expected = {name: (sum_ - before.get(name, 0)) / 2 for name, sum_ in learner.totals().items()}
    require("loss" in expected, "totals do not contain the loss")
    for what, each in (("the learner", learner), ("a resumed learner", resumed)):
        found = each.metrics()
        require(found == expected, f"{what} reports {found}; expected {expected}")
        require(each.metrics() == {}, f"{what} reports metrics without a step since the last call")


@rule(LEARNER_CHECKS)
def nonfinite_step_is_the_first_nonfinite_loss(make: MakeLearner) -> None:
    """A loss that is not finite is refused or, if not checked, counted by `nonfinite_step`."""
    learner = _trained(make, _LINEAR)
    found = learner.nonfinite_step
    require(found == 0, f"nonfinite_step is {found} after finite losses")
    first = int(learner.steps) + 1
    with torch.no_grad():
        for p in learner.network.parameters():
            p.fill_(torch.nan)
    batch = _LINEAR.samples(_ALL, 8, seed=3)[:2]
    for _ in range(2):
        learner.observe(*batch, check=False)
        found = learner.nonfinite_step
        require(found == first, f"nonfinite_step is {found} after NaN weights in step {first}")
    _require_rejected("a loss that is not a number", learner, partial(learner.observe, *batch))


@rule(LEARNER_CHECKS)
def separable_classes_are_learned(make: MakeLearner) -> None:
    """After 100 batches of four well-separated classes, 90 % of new samples are correct."""
    for case in (_LINEAR, _BATCHNORM):
        learner = make(case.network(), seed=0)
        for seed in range(100):
            learner.observe(*case.samples(_ALL, 8, seed=seed)[:2])
        if learner.needs_boundaries:
            learner.end_task(case.samples(_ALL, 40, seed=0))
        inputs, labels, _ = case.samples(_ALL, 100, seed=1000)
        correct = int((learner.predict(inputs) == labels).sum())
        require(correct >= 90, f"{case.name}: {correct} of 100 samples are classified correctly")


@rule(LEARNER_CHECKS)
def recorded_steps_equal_eager_steps(make: MakeLearner) -> None:
    """A step that can be captured does the same operations again when they are replayed."""
    for case in (_LINEAR, _DROPOUT, _BATCHNORM):
        events = []
        for task, classes in enumerate([(0, 1), (2, 3)]):
            samples = case.samples(classes, 123, seed=task)
            events += [_Event("observe", samples.slice(i, i + 8)) for i in range(0, 123, 8)]
            events.append(_Event("end_task", samples))
        eager, recorded = (make(case.network(), seed=0) for _ in range(2))
        for engine, learner in ((Eager(), eager), (Recorded(), recorded)):
            for call, samples in events:
                if call == "observe":
                    engine.step(learner, samples)
                elif learner.needs_boundaries:
                    learner.end_task(samples)
        _require_same(f"{case.name}: replayed steps", eager, recorded)


# -- growth ---------------------------------------------------------------------------------


def _growing_script(case: _Case) -> list[_Event]:
    """Return the events of two tasks; the labels of the second, 4 and 5, need more outputs."""
    half = len(case.script()) // 2
    return [
        _Event(call, samples if number < half else samples._replace(labels=samples.labels + 2))
        for number, (call, samples) in enumerate(case.script())
    ]


def _all_outputs(learner: Learner, inputs: Tensor) -> list[Tensor]:
    networks = (Predictor(network, learner.normalise) for network in learner.networks())
    return [predict(inputs) for predict in networks]


@rule(LEARNER_CHECKS)
def growing_keeps_old_outputs(make: MakeLearner) -> None:
    """After `grow`, all networks have the new outputs, and the old ones are equal to 1e-6."""
    for case in (_LINEAR, _BATCHNORM):
        script, inputs = case.script(), case.test_inputs()
        for events in ([], script[: len(script) // 2]):
            learner, gradual = (_play(make(case.network(), seed=0), events) for _ in range(2))
            before = _all_outputs(learner, inputs)
            learner.grow(6)
            gradual.grow(5)
            gradual.grow(6)
            what = f"{case.name}, after {len(events)} calls"
            for old, new in zip(before, _all_outputs(learner, inputs), strict=True):
                require(new.shape == (len(inputs), 6), f"{what}: outputs {tuple(new.shape)}")
                same = torch.allclose(new[:, :4], old, rtol=1e-6, atol=1e-6)
                require(same, f"{what}: old outputs have changed")
            _require_same(f"{what}: grown in one step and in two", learner, gradual)
            for name, predictor in learner.predictors().items():
                shape = predictor(inputs).shape
                require(shape == (len(inputs), 6), f"{what}: {name!r} returns {tuple(shape)}")
            invalid: tuple[Any, ...] = (5, 0, -1, 6.5, "7", None)
            for classes in invalid:
                grow = partial(learner.grow, classes)
                _require_rejected(f"{what}: grow({classes!r})", learner, grow)


@rule(LEARNER_CHECKS)
def new_labels_grow_the_networks(make: MakeLearner) -> None:
    """With `grow=True`, a new label adds outputs, which equals calling `grow` before."""
    for case in (_LINEAR, _DROPOUT):
        script = _growing_script(case)
        half = len(script) // 2
        automatic = _play(make(case.network(), seed=0, grow=True), script)
        announced = _play(make(case.network(), seed=0), script[:half])
        announced.grow(6)
        _play(announced, script[half:])
        _require_same(f"{case.name}: grown automatically and by grow", automatic, announced)
        event = script[-1].samples
        for label in (-1, -7):
            labels = torch.where(event.labels == 4, label, event.labels)
            observe = partial(automatic.observe, event.inputs, labels)
            _require_rejected(f"{case.name}: a label of {label}", automatic, observe)


@rule(LEARNER_CHECKS)
def grown_learners_resume(make: MakeLearner) -> None:
    """A learner with the original network loads a grown state and continues bit for bit."""
    for case in (_LINEAR, _BATCHNORM):
        script = _growing_script(case)
        for stop in (len(script) // 2 - 1, len(script) // 2 + 2):
            what = f"{case.name}: resumed after {stop} calls"
            stopped = _play(make(case.network(), seed=0, grow=True), script[:stop])
            with tempfile.TemporaryDirectory() as folder:
                stopped.save(Path(folder) / "learner")
                resumed = make(case.network(init=5), seed=1, grow=True)
                resumed.load(Path(folder) / "learner")
            _require_same(what, stopped, resumed)
            _require_same(
                f"{what}, at the end", *(_play(x, script[stop:]) for x in (stopped, resumed))
            )
            incomplete = {**stopped.state_dict(), "steps": "many"}
            other = make(case.network(init=5), seed=1)
            _require_rejected(
                f"{what}: an unsuitable grown state",
                other,
                partial(other.load_state_dict, incomplete),
            )


@rule(LEARNER_CHECKS)
def optimizer_state_grows(make: MakeLearner) -> None:
    """Adam and SGD with momentum continue after growth, and resume bit for bit."""
    case, script = _DROPOUT, _growing_script(_DROPOUT)
    builds: tuple[Callable[..., Optimizer], ...] = (
        partial(torch.optim.Adam, lr=0.01, amsgrad=True),
        partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    )
    for build in builds:

        def learner(init: int, build: Callable[..., Optimizer] = build) -> Learner:
            network = case.network(init=init)
            return make(network, seed=0, optimizer=build(network.parameters()), grow=True)

        stopped, resumed = _play(learner(0), script[:7]), learner(5)
        for parameter, values in stopped.optimizer.state.items():
            for name, value in values.items():
                fits = not isinstance(value, Tensor) or value.shape in ((), parameter.shape)
                require(fits, f"{name} has another shape than its parameter after growth")
        resumed.load_state_dict(stopped.state_dict())
        _require_same("resumed", *(_play(x, script[7:]) for x in (stopped, resumed)))
