"""Conformance checks for learners."""

from __future__ import annotations

import functools
import itertools
import json
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

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

MakeLearner = Callable[..., Learner]
"""Called as `make(network, seed=0)`, and in some checks with an `optimizer` as well: usually a
learner's class with its own arguments bound by `functools.partial`."""
LearnerCheck = Callable[[MakeLearner], None]

_CLASSES = 4


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
        prototypes = torch.eye(_CLASSES).repeat_interleave(math.prod(self.shape) // _CLASSES, dim=1)
        labels = torch.tensor(classes).repeat(count)[:count]
        labels = labels[torch.randperm(count, generator=draws)]
        noise = torch.rand(count, *self.shape, generator=draws)
        inputs = 0.7 * prototypes[labels].view_as(noise) + 0.3 * noise
        if self.dtype == torch.uint8:
            inputs = inputs * 255
        return Samples(inputs.to(self.dtype), labels)


def _linear(extra: int) -> nn.Module:
    return nn.Linear(64, _CLASSES + extra)


def _dropout(extra: int) -> nn.Module:
    width = 16 + extra
    hidden = nn.Linear(36, width), nn.ReLU(), nn.Dropout(0.3)
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, _CLASSES))


def _batchnorm(extra: int) -> nn.Module:
    width = 8 + extra
    convolution = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
    head = nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, _CLASSES)
    return nn.Sequential(*convolution, *head)


_LINEAR = _Case("linear network, floats", _linear, (64,), torch.float32)
_DROPOUT = _Case("network with dropout, bytes", _dropout, (1, 6, 6), torch.uint8)
_BATCHNORM = _Case("network with BatchNorm, bytes", _batchnorm, (3, 6, 6), torch.uint8)
_FLOATS = _Case("network with BatchNorm, floats", _batchnorm, (3, 6, 6), torch.float32)
_CASES = (_LINEAR, _DROPOUT, _BATCHNORM, _FLOATS)


class _Event(NamedTuple):
    """A call of a learner's method."""

    call: Literal["observe", "end_task"]
    samples: Samples


def _script(case: _Case) -> list[_Event]:
    """Return the events of two tasks: batches of several sizes, then the end of the task."""
    events = []
    for task, classes in enumerate([(0, 1), (2, 3)]):
        inputs, labels, _ = samples = case.samples(classes, 22, seed=task)
        sizes = [8, 5, 1, 8]
        for part in zip(torch.split(inputs, sizes), torch.split(labels, sizes), strict=True):
            events.append(_Event("observe", Samples(*(tensor.clone() for tensor in part))))
        events.append(_Event("end_task", samples))
    return events


def _play(learner: Learner, events: Iterable[_Event]) -> Learner:
    """Apply events to a learner; `end_task` only if it needs boundaries."""
    for call, samples in events:
        if call == "observe":
            learner.observe(samples.inputs, samples.labels)
        elif learner.needs_boundaries:
            learner.end_task(samples)
    return learner


def _test_inputs(case: _Case) -> Tensor:
    return case.samples((0, 1, 2, 3), 6, seed=7).inputs


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


def _require_same(what: str, one: dict[str, bytes], other: dict[str, bytes]) -> None:
    paths = sorted(p for p in one.keys() | other.keys() if one.get(p) != other.get(p))
    require(not paths, f"{what}: difference in {', '.join(paths[:5])}")


def _snapshot(learner: Learner) -> dict[str, bytes]:
    """Return the learner's state and the training modes of its networks."""
    modes = {
        f"training mode of {name}": bytes(m.training for m in predictor.module.modules())
        for name, predictor in learner.predictors().items()
    }
    return _bytes(learner.state_dict()) | modes


# -- checks ---------------------------------------------------------------------------------


@rule
def inputs_are_not_modified(make: MakeLearner) -> None:
    """Neither learning nor predicting writes to the given tensors."""
    for case in _CASES:
        events = _script(case)
        learner = _play(make(case.network(), seed=0), events)
        for event, original in zip(events, _script(case), strict=True):
            same = equal(event.samples, original.samples)
            require(same, f"{case.name}: {event.call} changed its input")
        inputs = _test_inputs(case)
        learner.predict(inputs)
        learner.predict_proba(inputs)
        for predictor in learner.predictors().values():
            predictor(inputs)
        require(inputs.equal(_test_inputs(case)), f"{case.name}: predicting changed its input")


@rule
def inputs_are_copied(make: MakeLearner) -> None:
    """Changing a batch after it was observed does not affect the learner."""
    for case in (_LINEAR, _BATCHNORM):
        kept = _play(make(case.network(), seed=0), _script(case))
        reused = make(case.network(), seed=0)
        for event in _script(case):
            _play(reused, [event])
            event.samples.inputs.zero_()
            event.samples.labels.zero_()
        what = f"{case.name}: inputs overwritten after use"
        _require_same(what, _snapshot(kept), _snapshot(reused))


@rule
def predicting_changes_nothing(make: MakeLearner) -> None:
    """Predictions affect neither the state and training modes nor later learning."""
    for case in _CASES:
        silent, predicting = make(case.network(), seed=0), make(case.network(), seed=0)
        _require_pure_predictions(f"{case.name}, untrained", predicting, case)
        for event in _script(case):
            _play(silent, [event])
            _play(predicting, [event])
            predicting.predict(_test_inputs(case))
        _require_pure_predictions(case.name, predicting, case)
        what = f"{case.name}: learner that predicts between batches"
        _require_same(what, _snapshot(silent), _snapshot(predicting))


def _require_pure_predictions(when: str, learner: Learner, case: _Case) -> None:
    before, inputs = _snapshot(learner), _test_inputs(case)
    learner.predict(inputs)
    _require_same(f"{when}: after predict", before, _snapshot(learner))
    learner.predict_proba(inputs)
    _require_same(f"{when}: after predict_proba", before, _snapshot(learner))
    for name, predictor in learner.predictors().items():
        predictor(inputs)
        _require_same(f"{when}: after predictor {name!r}", before, _snapshot(learner))


@rule
def predictors_return_scores(make: MakeLearner) -> None:
    """Each predictor returns finite scores [n, classes]; the first one is used by `predict`."""
    for case in _CASES:
        learner = make(case.network(), seed=0)
        _require_scores(f"{case.name}, untrained", learner, case)
        _play(learner, _script(case))
        _require_scores(case.name, learner, case)


def _require_scores(when: str, learner: Learner, case: _Case) -> None:
    inputs = _test_inputs(case)
    n = len(inputs)
    predictors = learner.predictors()
    require(bool(predictors), f"{when}: there are no predictors")
    for name, predictor in predictors.items():
        require(isinstance(predictor, Predictor), f"{when}: {name!r} is not a Predictor")
        scores = predictor(inputs)
        require(
            scores.shape == (n, _CLASSES) and scores.is_floating_point(),
            f"{when}: {name!r} returned {scores.dtype} {tuple(scores.shape)} for {n} inputs; "
            f"expected floats [{n}, {_CLASSES}]",
        )
        probabilities = scores.double().softmax(1)
        finite = scores.isfinite().all() and probabilities.isfinite().all()
        require(finite, f"{when}: {name!r} returned scores that are not finite")
        some = predictor(inputs[:2])
        independent = torch.allclose(some, scores[:2], rtol=1e-3, atol=1e-4)
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


@rule
def equal_seeds_give_equal_bytes(make: MakeLearner) -> None:
    """Learners with equal seeds have equal states and files, whatever the global generators do."""
    for case in _CASES:
        found = []
        for noise in (1, 2):
            with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as folder:
                torch.manual_seed(noise)
                learner = _play(make(case.network(), seed=3), _script(case))
                learner.save(Path(folder) / "learner")
                found.append((_snapshot(learner), (Path(folder) / "learner").read_bytes()))
        (one, one_file), (other, other_file) = found
        _require_same(f"{case.name}: two learners with seed 3", one, other)
        require(one_file == other_file, f"{case.name}: equal learners give different files")


@rule
def different_seeds_give_different_weights(make: MakeLearner) -> None:
    """With dropout, the weights depend on the seed."""
    one, other = (_play(make(_DROPOUT.network(), seed=s), _script(_DROPOUT)) for s in (0, 1))
    weights, others = (_bytes(learner.network.state_dict()) for learner in (one, other))
    require(weights != others, f"{_DROPOUT.name}: seeds 0 and 1 give the same weights")


@rule
def global_generators_are_not_used(make: MakeLearner) -> None:
    """Learning, predicting and loading leave the generators of torch, NumPy and Python alone."""
    for case in (_DROPOUT, _BATCHNORM):
        learner, inputs = make(case.network(), seed=0), _test_inputs(case)
        with global_random_untouched():
            _play(learner, _script(case))
            learner.predict(inputs)
            learner.predict_proba(inputs)
            learner.load_state_dict(learner.state_dict())


@rule
def saved_learners_resume_bit_for_bit(make: MakeLearner) -> None:
    """A new learner continues exactly from a file saved early, within a task or around its end."""
    for case in (_DROPOUT, _FLOATS):
        script = _script(case)
        end = next(i for i, event in enumerate(script) if event.call == "end_task")
        with tempfile.TemporaryDirectory() as folder:
            learner = make(case.network(), seed=0)
            stops = (0, 2, end, end + 1, end + 3)
            for start, stop in itertools.pairwise((0, *stops, len(script))):
                learner.save(Path(folder) / str(start))
                _play(learner, script[start:stop])
            for start in stops:
                resumed = make(case.network(init=5), seed=9)
                resumed.load(Path(folder) / str(start))
                _play(resumed, script[start:])
                what = f"{case.name}: resumed after {start} of {len(script)} calls"
                _require_same(what, _snapshot(learner), _snapshot(resumed))


@rule
def states_are_snapshots(make: MakeLearner) -> None:
    """Learning does not change a state taken or loaded before; loading it restores the learner."""
    for case in _CASES:
        script = _script(case)
        half = len(script) // 2
        learner = _play(make(case.network(), seed=0), script[:half])
        state, before = learner.state_dict(), _snapshot(learner)
        original = _bytes(state)
        _play(learner, script[half:])
        after = _snapshot(learner)
        _require_same(f"{case.name}: state after further learning", original, _bytes(state))
        fresh = make(case.network(init=5), seed=9)
        for what, other in (("another learner", fresh), ("the same learner", learner)):
            other.load_state_dict(state)
            _require_same(f"{case.name}: state loaded into {what}", before, _snapshot(other))
            _play(other, script[half:])
            loaded = f"{case.name}: state after further learning of {what}"
            _require_same(loaded, original, _bytes(state))
            _require_same(f"{case.name}: {what} after resuming", after, _snapshot(other))


@rule
def invalid_batches_are_rejected(make: MakeLearner) -> None:
    """Invalid batches raise ValueError and change nothing, before and after valid batches."""
    for case in (_LINEAR, _DROPOUT, _FLOATS):
        script = _script(case)
        learner = make(case.network(), seed=0)
        for when, events in (("first batch", []), ("later batch", script[:3])):
            _play(learner, events)
            before = _snapshot(learner)
            for what, inputs, labels in _invalid_batches(case, first=not events):
                name = f"{case.name}: {when} with {what}"
                require_value_error(name, functools.partial(learner.observe, inputs, labels))
                _require_same(f"{name} was rejected", before, _snapshot(learner))
                if learner.needs_boundaries:
                    end = functools.partial(learner.end_task, Samples(inputs, labels))
                    require_value_error(f"{name} in end_task", end)
                    _require_same(f"{name} in end_task was rejected", before, _snapshot(learner))
        _play(learner, script[3:])
        expected = _play(make(case.network(), seed=0), script)
        what = f"{case.name}: after invalid batches were rejected"
        _require_same(what, _snapshot(expected), _snapshot(learner))


def _invalid_batches(case: _Case, *, first: bool) -> Iterator[tuple[str, Any, Any]]:
    inputs, labels, _ = case.samples((0, 1, 2, 3), 8, seed=5)
    for label in (_CLASSES, -1):
        yield f"a label of {label}", inputs, torch.where(labels == 0, label, labels)
    yield "labels of rank 2", inputs, labels[:, None]
    yield "a single label", inputs, labels[0]
    yield "float labels", inputs, labels.float()
    yield "boolean labels", inputs, labels > 1
    yield "a list of labels", inputs, labels.tolist()
    yield "more inputs than labels", inputs, labels[:-1]
    yield "more labels than inputs", inputs[:-1], labels
    yield "no samples", inputs[:0], labels[:0]
    yield "inputs of rank 1", inputs.flatten()[: len(labels)], labels
    yield "a list of inputs", inputs.tolist(), labels
    yield "inputs of dtype int64", inputs.long(), labels
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


@rule
def invalid_states_are_rejected(make: MakeLearner) -> None:
    """States of another network, incomplete states and damaged files change nothing."""
    for case in _CASES:
        script = _script(case)
        half = len(script) // 2
        learner = _play(make(case.network(), seed=0), script[:half])
        before, own = _snapshot(learner), learner.state_dict()
        other = make(case.network(extra=2), seed=1)
        states = {"state of an untrained learner with another network": other.state_dict()}
        states["state of a learner with another network"] = _play(other, script).state_dict()
        states["state without a network"] = {k: v for k, v in own.items() if k != "network"}
        states["state with an additional part"] = {**own, "another part": torch.zeros(1)}
        states["state with a number instead of a tensor"] = {**own, "steps": 1}
        states["empty state"] = {}
        for what, state in states.items():
            name = f"{case.name}: {what}"
            require_value_error(name, functools.partial(learner.load_state_dict, state))
            _require_same(f"{name} was rejected", before, _snapshot(learner))
        with tempfile.TemporaryDirectory() as folder:
            for what, path in _invalid_files(Path(folder), learner):
                require_value_error(f"{case.name}: {what}", functools.partial(learner.load, path))
                _require_same(f"{case.name}: {what} was rejected", before, _snapshot(learner))
        _play(learner, script[half:])
        expected = _play(make(case.network(), seed=0), script)
        what = f"{case.name}: after invalid states were rejected"
        _require_same(what, _snapshot(expected), _snapshot(learner))


def _invalid_files(folder: Path, learner: Learner) -> Iterator[tuple[str, Path]]:
    yield "missing file", folder / "nothing"
    complete = folder / "complete"
    learner.save(complete)
    for size in (0, 7, complete.stat().st_size // 2, complete.stat().st_size - 1):
        (folder / "truncated").write_bytes(complete.read_bytes()[:size])
        yield f"file truncated to {size} bytes", folder / "truncated"
    write_file(folder / "other", learner.state_dict(), {"learner": "SomeOtherMethod"})
    yield "file of another method", folder / "other"


@rule
def memory_is_bounded(make: MakeLearner) -> None:
    """The state does not grow with the number of batches."""
    learner = _play(make(_LINEAR.network(), seed=0), _script(_LINEAR))

    def learn(batches: int) -> int:
        for seed in range(batches):
            inputs, labels, _ = _LINEAR.samples((0, 1, 2, 3), 8, seed=seed)
            learner.observe(inputs, labels)
        return _size(learner.state_dict())

    few, many = learn(16), learn(32)
    require(many <= few, f"the state grew from {few} to {many} bytes between 16 and 48 batches")


def _size(state: State) -> int:
    """Return the bytes of all tensors plus the number of other values."""
    return sum(
        leaf.numel() * leaf.element_size() if isinstance(leaf, Tensor) else len(str(leaf).split())
        for _, leaf in _leaves(state)
    )


@rule
def any_optimizer_works(make: MakeLearner) -> None:
    """Adam and SGD with momentum train all weights and resume bit for bit."""
    optimizers: dict[str, Callable[[Iterable[Tensor]], torch.optim.Optimizer]] = {
        "Adam": functools.partial(torch.optim.Adam, lr=0.01),
        "SGD with momentum": functools.partial(
            torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3
        ),
    }
    case, script = _DROPOUT, _script(_DROPOUT)

    def learner(build: Callable[[Iterable[Tensor]], torch.optim.Optimizer], init: int) -> Learner:
        network = case.network(init=init)
        return make(network, seed=0, optimizer=build(network.parameters()))

    results = set()
    for name, build in optimizers.items():
        trained = _play(learner(build, 0), script)
        results.add(tuple(_bytes(trained.network.state_dict()).values()))
        before, after = case.network().parameters(), trained.network.parameters()
        changed = [not old.equal(new) for old, new in zip(before, after, strict=True)]
        require(all(changed), f"{name}: some weights were not trained")
        require(all(p.isfinite().all() for p in trained.network.parameters()), f"{name}: diverged")
        resumed = learner(build, 5)
        resumed.load_state_dict(_play(learner(build, 0), script[:4]).state_dict())
        _play(resumed, script[4:])
        _require_same(f"{name}: resumed after 4 calls", _snapshot(trained), _snapshot(resumed))
    require(len(results) == len(optimizers), "the optimizer has no effect on the weights")


@rule
def unsuitable_optimizers_are_rejected(make: MakeLearner) -> None:
    """An optimizer that needs a closure, or of another network, raises ValueError."""
    network, other = _LINEAR.network(), _LINEAR.network()
    for what, optimizer in (
        ("an optimizer that needs a closure", torch.optim.LBFGS(network.parameters())),
        ("another network's optimizer", torch.optim.SGD(other.parameters(), lr=0.1)),
    ):
        require_value_error(what, functools.partial(make, network, seed=0, optimizer=optimizer))


@rule
def steps_count_batches(make: MakeLearner) -> None:
    """`steps` is the number of batches observed, however many optimizer steps each one takes."""
    learner = make(_LINEAR.network(), seed=0)
    observed = 0
    for event in _script(_LINEAR):
        _play(learner, [event])
        observed += event.call == "observe"
        steps = int(learner.steps)
        require(steps == observed, f"steps is {steps} after {observed} batches")


@rule
def metrics_are_means_since_the_last_call(make: MakeLearner) -> None:
    """`metrics` averages over the steps since its last call, also after a resume."""
    case, script = _LINEAR, _script(_LINEAR)
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


@rule
def nonfinite_step_is_the_first_nonfinite_loss(make: MakeLearner) -> None:
    """`nonfinite_step` is the first batch whose loss is not finite, and 0 before that."""
    learner = _play(make(_LINEAR.network(), seed=0), _script(_LINEAR))
    found = learner.nonfinite_step
    require(found == 0, f"nonfinite_step is {found} after finite losses")
    first = int(learner.steps) + 1
    with torch.no_grad():
        for p in learner.network.parameters():
            p.fill_(torch.nan)
    for _ in range(2):
        inputs, labels, _ = _LINEAR.samples((0, 1, 2, 3), 8, seed=3)
        learner.observe(inputs, labels)
        found = learner.nonfinite_step
        require(found == first, f"nonfinite_step is {found} after NaN weights in step {first}")


@rule
def separable_classes_are_learned(make: MakeLearner) -> None:
    """After 100 batches of four well-separated classes, 90 % of new samples are correct."""
    for case in (_LINEAR, _BATCHNORM):
        learner = make(case.network(), seed=0)
        for seed in range(100):
            inputs, labels, _ = case.samples((0, 1, 2, 3), 8, seed=seed)
            learner.observe(inputs, labels)
        if learner.needs_boundaries:
            learner.end_task(case.samples((0, 1, 2, 3), 40, seed=0))
        inputs, labels, _ = case.samples((0, 1, 2, 3), 100, seed=1000)
        correct = int((learner.predict(inputs) == labels).sum())
        require(correct >= 90, f"{case.name}: {correct} of 100 samples are classified correctly")


LEARNER_CHECKS: tuple[LearnerCheck, ...] = (
    inputs_are_not_modified,
    inputs_are_copied,
    predicting_changes_nothing,
    predictors_return_scores,
    equal_seeds_give_equal_bytes,
    different_seeds_give_different_weights,
    global_generators_are_not_used,
    saved_learners_resume_bit_for_bit,
    states_are_snapshots,
    invalid_batches_are_rejected,
    invalid_states_are_rejected,
    memory_is_bounded,
    any_optimizer_works,
    unsuitable_optimizers_are_rejected,
    steps_count_batches,
    metrics_are_means_since_the_last_call,
    nonfinite_step_is_the_first_nonfinite_loss,
    separable_classes_are_learned,
)
