"""What every learner keeps to."""

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
    refused,
    require,
    rule,
)

MakeLearner = Callable[..., Learner]
"""Called as make(network, seed=0), and once with an `optimizer` too: a learner's class, with its
own arguments bound by `functools.partial`."""
LearnerCheck = Callable[[MakeLearner], None]

_CLASSES = 4


class _Case(NamedTuple):
    """A kind of network and the images that it is shown."""

    name: str
    build: Callable[[int], nn.Module]
    """A network that is this much wider than usual: with 0 it has `_CLASSES` outputs."""
    shape: tuple[int, ...]
    dtype: torch.dtype

    def network(self, *, extra: int = 0, init: int = 0) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(init)
            return self.build(extra)

    def samples(self, classes: Sequence[int], count: int, seed: int) -> Samples:
        """Noisy images; a quarter of the pixels is bright, another quarter for each class."""
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


_LINEAR = _Case("a linear network, floats", _linear, (64,), torch.float32)
_DROPOUT = _Case("a network with dropout, bytes", _dropout, (1, 6, 6), torch.uint8)
_BATCHNORM = _Case("a network with BatchNorm, bytes", _batchnorm, (3, 6, 6), torch.uint8)
_FLOATS = _Case("a network with BatchNorm, floats", _batchnorm, (3, 6, 6), torch.float32)
_CASES = (_LINEAR, _DROPOUT, _BATCHNORM, _FLOATS)


class _Event(NamedTuple):
    """Something that is done to a learner."""

    call: Literal["observe", "end_task"]
    samples: Samples


def _script(case: _Case) -> list[_Event]:
    """Two tasks: batches of several sizes and, after each task's, its end. Fresh tensors."""
    events = []
    for task, classes in enumerate([(0, 1), (2, 3)]):
        inputs, labels, _ = samples = case.samples(classes, 22, seed=task)
        sizes = [8, 5, 1, 8]
        for part in zip(torch.split(inputs, sizes), torch.split(labels, sizes), strict=True):
            events.append(_Event("observe", Samples(*(tensor.clone() for tensor in part))))
        events.append(_Event("end_task", samples))
    return events


def _play(learner: Learner, events: Iterable[_Event]) -> Learner:
    """Take a learner through events; only one that needs it hears where tasks end."""
    for call, samples in events:
        if call == "observe":
            learner.observe(samples.inputs, samples.labels)
        elif learner.needs_boundaries:
            learner.end_task(samples)
    return learner


def _probe(case: _Case) -> Tensor:
    return case.samples((0, 1, 2, 3), 6, seed=7).inputs


# -- states ---------------------------------------------------------------------------------


def _leaves(state: State, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, leaf in state.items():
        if isinstance(leaf, Mapping):
            yield from _leaves(dict(leaf), f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", leaf


def _bytes(state: State) -> dict[str, bytes]:
    """Every leaf of a state by its path, as bytes that are equal only for equal values."""
    return {
        path: f"{leaf.dtype} {tuple(leaf.shape)} ".encode()
        + leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        if isinstance(leaf, Tensor)
        else json.dumps(leaf, sort_keys=True).encode()
        for path, leaf in _leaves(state)
    }


def _same(what: str, one: dict[str, bytes], other: dict[str, bytes]) -> None:
    paths = sorted(p for p in one.keys() | other.keys() if one.get(p) != other.get(p))
    require(not paths, f"{what}: not the same in {', '.join(paths[:5])}")


def _now(learner: Learner) -> dict[str, bytes]:
    """The learner's state, and whether its networks are in training mode."""
    modes = {
        f"training mode of {name}": bytes(m.training for m in predictor.module.modules())
        for name, predictor in learner.predictors().items()
    }
    return _bytes(learner.state_dict()) | modes


# -- checks of learners ---------------------------------------------------------------------


@rule
def inputs_stay_unmodified(make: MakeLearner) -> None:
    """Neither learning nor predicting writes into the tensors that it is given."""
    for case in _CASES:
        events = _script(case)
        learner = _play(make(case.network(), seed=0), events)
        for event, original in zip(events, _script(case), strict=True):
            same = equal(event.samples, original.samples)
            require(same, f"{case.name}: {event.call} has changed its input")
        inputs = _probe(case)
        learner.predict(inputs)
        learner.predict_proba(inputs)
        for predictor in learner.predictors().values():
            predictor(inputs)
        require(inputs.equal(_probe(case)), f"{case.name}: predicting has changed its input")


@rule
def inputs_are_copied(make: MakeLearner) -> None:
    """What happens to a batch after it was observed does not reach the learner."""
    for case in (_LINEAR, _BATCHNORM):
        kept = _play(make(case.network(), seed=0), _script(case))
        reused = make(case.network(), seed=0)
        for event in _script(case):
            _play(reused, [event])
            event.samples.inputs.zero_()
            event.samples.labels.zero_()
        _same(f"{case.name}: inputs were overwritten after use", _now(kept), _now(reused))


@rule
def predicting_changes_nothing(make: MakeLearner) -> None:
    """The state, the networks' modes and all that follows are as if nobody had asked."""
    for case in _CASES:
        quiet, asked = make(case.network(), seed=0), make(case.network(), seed=0)
        _same_after_asking(f"{case.name}, untrained", asked, case)
        for event in _script(case):
            _play(quiet, [event])
            _play(asked, [event])
            asked.predict(_probe(case))
        _same_after_asking(case.name, asked, case)
        _same(f"{case.name}: a learner that was asked now and then", _now(quiet), _now(asked))


def _same_after_asking(when: str, learner: Learner, case: _Case) -> None:
    before, inputs = _now(learner), _probe(case)
    learner.predict(inputs)
    _same(f"{when}: after predict", before, _now(learner))
    learner.predict_proba(inputs)
    _same(f"{when}: after predict_proba", before, _now(learner))
    for name, predictor in learner.predictors().items():
        predictor(inputs)
        _same(f"{when}: after predictor {name!r}", before, _now(learner))


@rule
def predictors_answer(make: MakeLearner) -> None:
    """Each gives finite scores [n, classes], trained or not; the first is the learner's answer."""
    for case in _CASES:
        learner = make(case.network(), seed=0)
        _answers(f"{case.name}, untrained", learner, case)
        _play(learner, _script(case))
        _answers(case.name, learner, case)


def _answers(when: str, learner: Learner, case: _Case) -> None:
    inputs = _probe(case)
    n = len(inputs)
    predictors = learner.predictors()
    require(bool(predictors), f"{when}: there are no predictors")
    for name, predictor in predictors.items():
        require(isinstance(predictor, Predictor), f"{when}: {name!r} is not a Predictor")
        scores = predictor(inputs)
        require(
            scores.shape == (n, _CLASSES) and scores.is_floating_point(),
            f"{when}: {name!r} gave {scores.dtype} {tuple(scores.shape)} for {n} images; expected "
            f"floats [{n}, {_CLASSES}]",
        )
        probabilities = scores.double().softmax(1)
        finite = scores.isfinite().all() and probabilities.isfinite().all()
        require(finite, f"{when}: {name!r} gave scores that are not finite")
        some = predictor(inputs[:2])
        alone = torch.allclose(some, scores[:2], rtol=1e-3, atol=1e-4)
        require(alone, f"{when}: what {name!r} says of an image depends on the others")
    first, scores = next((name, predictor(inputs)) for name, predictor in predictors.items())
    answer, probabilities = learner.predict(inputs), learner.predict_proba(inputs)
    require(
        answer.dtype == torch.int64 and answer.equal(scores.argmax(1)),
        f"{when}: predict is not the argmax of the first predictor, {first!r}",
    )
    require(
        torch.allclose(probabilities.double(), scores.double().softmax(1), atol=1e-5),
        f"{when}: predict_proba is not the softmax of the first predictor, {first!r}",
    )


@rule
def equal_seeds_give_equal_bytes(make: MakeLearner) -> None:
    """In memory and on disk, whatever state the global generators are in."""
    for case in _CASES:
        found = []
        for noise in (1, 2):
            with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as folder:
                torch.manual_seed(noise)
                learner = _play(make(case.network(), seed=3), _script(case))
                learner.save(Path(folder) / "learner")
                found.append((_now(learner), (Path(folder) / "learner").read_bytes()))
        (one, one_file), (other, other_file) = found
        _same(f"{case.name}: two learners with seed 3", one, other)
        require(one_file == other_file, f"{case.name}: equal learners give unequal files")


@rule
def another_seed_takes_another_course(make: MakeLearner) -> None:
    """With dropout the weights come out differently, since dropout draws from the seed."""
    one, other = (_play(make(_DROPOUT.network(), seed=s), _script(_DROPOUT)) for s in (0, 1))
    weights, others = (_bytes(learner.network.state_dict()) for learner in (one, other))
    require(weights != others, f"{_DROPOUT.name}: seeds 0 and 1 give the same weights")


@rule
def global_randomness_stays_alone(make: MakeLearner) -> None:
    """Learning, predicting and saving leave torch's, NumPy's and Python's generators alone."""
    for case in (_DROPOUT, _BATCHNORM):
        learner, inputs = make(case.network(), seed=0), _probe(case)
        with global_random_untouched():
            _play(learner, _script(case))
            learner.predict(inputs)
            learner.predict_proba(inputs)
            learner.load_state_dict(learner.state_dict())


@rule
def saved_learners_go_on_bit_for_bit(make: MakeLearner) -> None:
    """From a file written early, in mid-task, or about the end of a task, in a fresh learner."""
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
                when = f"{case.name}: resumed after {start} of {len(script)} calls"
                _same(when, _now(learner), _now(resumed))


@rule
def states_are_snapshots(make: MakeLearner) -> None:
    """Learning on does not change a state that was taken or loaded; loading it goes back."""
    for case in _CASES:
        script = _script(case)
        half = len(script) // 2
        learner = _play(make(case.network(), seed=0), script[:half])
        state, before = learner.state_dict(), _now(learner)
        taken = _bytes(state)
        _play(learner, script[half:])
        after = _now(learner)
        _same(f"{case.name}: the state taken before learning on", taken, _bytes(state))
        fresh = make(case.network(init=5), seed=9)
        for what, other in (("another learner", fresh), ("the learner itself", learner)):
            other.load_state_dict(state)
            _same(f"{case.name}: {what} after loading the state", before, _now(other))
            _play(other, script[half:])
            _same(f"{case.name}: the state that {what} has loaded", taken, _bytes(state))
            _same(f"{case.name}: {what} went on from the state", after, _now(other))


@rule
def bad_batches_are_refused(make: MakeLearner) -> None:
    """With a ValueError, before the first good batch and after it, and nothing has changed."""
    for case in (_LINEAR, _DROPOUT, _FLOATS):
        script = _script(case)
        learner = make(case.network(), seed=0)
        for when, events in (("at first", []), ("later", script[:3])):
            _play(learner, events)
            before = _now(learner)
            for what, inputs, labels in _bad_batches(case, new=when == "at first"):
                name = f"{case.name}: {when}, {what}"
                refused(name, functools.partial(learner.observe, inputs, labels))
                _same(f"{name} was refused", before, _now(learner))
                if learner.needs_boundaries:
                    task = Samples(inputs, labels)
                    end = functools.partial(learner.end_task, task)
                    refused(f"{name} at the end of a task", end)
                    _same(f"{name} at the end of a task was refused", before, _now(learner))
        _play(learner, script[3:])
        untroubled = _play(make(case.network(), seed=0), script)
        _same(f"{case.name}: after bad batches were refused", _now(untroubled), _now(learner))


def _bad_batches(case: _Case, *, new: bool) -> Iterator[tuple[str, Any, Any]]:
    inputs, labels, _ = case.samples((0, 1, 2, 3), 8, seed=5)
    for label in (_CLASSES, -1):
        yield f"a label of {label}", inputs, torch.where(labels == 0, label, labels)
    yield "labels of rank 2", inputs, labels[:, None]
    yield "one label alone", inputs, labels[0]
    yield "labels that are floats", inputs, labels.float()
    yield "labels that are truth values", inputs, labels > 1
    yield "labels in a list", inputs, labels.tolist()
    yield "more images than labels", inputs, labels[:-1]
    yield "more labels than images", inputs[:-1], labels
    yield "an empty batch", inputs[:0], labels[:0]
    yield "images of rank 1", inputs.flatten()[: len(labels)], labels
    yield "images in a list", inputs.tolist(), labels
    yield "images of dtype int64", inputs.long(), labels
    yield "images of another shape", torch.cat([inputs, inputs], dim=1), labels
    if case.dtype.is_floating_point:
        for value in (float("nan"), float("inf")):
            bad = inputs.clone()
            bad.view(len(bad), -1)[-1, -1] = value
            yield f"a pixel of {value}", bad, labels
    if not new:
        yield "images twice as wide", torch.cat([inputs, inputs], dim=-1), labels
        other = inputs.float() if case.dtype == torch.uint8 else inputs.to(torch.uint8)
        yield f"images of dtype {other.dtype} after {case.dtype}", other, labels


@rule
def foreign_states_are_refused(make: MakeLearner) -> None:
    """States of another network, states with parts missing, damaged files: nothing changes."""
    for case in _CASES:
        script = _script(case)
        half = len(script) // 2
        learner = _play(make(case.network(), seed=0), script[:half])
        before, own = _now(learner), learner.state_dict()
        foreign = make(case.network(extra=2), seed=1)
        states = {"an untrained learner's with another network": foreign.state_dict()}
        states["a learner's with another network"] = _play(foreign, script).state_dict()
        states["one without its network"] = {k: v for k, v in own.items() if k != "network"}
        states["one with a part more"] = {**own, "another part": torch.zeros(1)}
        states["one with a number for a tensor"] = {**own, "steps": 1}
        states["an empty one"] = {}
        for what, state in states.items():
            name = f"{case.name}: the state, {what},"
            refused(name, functools.partial(learner.load_state_dict, state))
            _same(f"{name} was refused", before, _now(learner))
        with tempfile.TemporaryDirectory() as folder:
            for what, path in _bad_files(Path(folder), learner):
                refused(f"{case.name}: {what}", functools.partial(learner.load, path))
                _same(f"{case.name}: {what} was refused", before, _now(learner))
        _play(learner, script[half:])
        untroubled = _play(make(case.network(), seed=0), script)
        _same(f"{case.name}: after states were refused", _now(untroubled), _now(learner))


def _bad_files(folder: Path, learner: Learner) -> Iterator[tuple[str, Path]]:
    yield "a file that is not there", folder / "nothing"
    whole = folder / "whole"
    learner.save(whole)
    for keep in (0, 7, whole.stat().st_size // 2, whole.stat().st_size - 1):
        (folder / "part").write_bytes(whole.read_bytes()[:keep])
        yield f"the first {keep} bytes of a file", folder / "part"
    write_file(folder / "other", learner.state_dict(), {"learner": "SomeOtherMethod"})
    yield "the file of another method", folder / "other"


@rule
def memory_is_bounded(make: MakeLearner) -> None:
    """The state is no larger after three times as many batches."""
    learner = _play(make(_LINEAR.network(), seed=0), _script(_LINEAR))

    def learn(batches: int) -> int:
        for seed in range(batches):
            inputs, labels, _ = _LINEAR.samples((0, 1, 2, 3), 8, seed=seed)
            learner.observe(inputs, labels)
        return _size(learner.state_dict())

    few, many = learn(16), learn(32)
    require(many <= few, f"the state grew from {few} to {many} bytes between 16 and 48 batches")


def _size(state: State) -> int:
    """Bytes of all tensors; what is no tensor counts by the number of values, not by digits."""
    return sum(
        leaf.numel() * leaf.element_size() if isinstance(leaf, Tensor) else len(str(leaf).split())
        for _, leaf in _leaves(state)
    )


@rule
def any_optimizer_serves(make: MakeLearner) -> None:
    """Adam and SGD with momentum move the weights, and resume bit for bit."""
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

    courses = set()
    for name, build in optimizers.items():
        whole = _play(learner(build, 0), script)
        courses.add(tuple(_bytes(whole.network.state_dict()).values()))
        before, after = case.network().parameters(), whole.network.parameters()
        moved = [not old.equal(new) for old, new in zip(before, after, strict=True)]
        require(all(moved), f"{name}: some of the weights have not moved")
        require(all(p.isfinite().all() for p in whole.network.parameters()), f"{name}: diverged")
        resumed = learner(build, 5)
        resumed.load_state_dict(_play(learner(build, 0), script[:4]).state_dict())
        _same(f"{name}: resumed after 4 calls", _now(whole), _now(_play(resumed, script[4:])))
    require(len(courses) == len(optimizers), "the optimizer makes no difference to the weights")


@rule
def unfit_optimizers_are_refused(make: MakeLearner) -> None:
    """One that needs a closure, and one over another network's weights."""
    network, other = _LINEAR.network(), _LINEAR.network()
    for what, optimizer in (
        ("an optimizer that needs a closure", torch.optim.LBFGS(network.parameters())),
        ("another network's optimizer", torch.optim.SGD(other.parameters(), lr=0.1)),
    ):
        refused(what, functools.partial(make, network, seed=0, optimizer=optimizer))


@rule
def steps_count_batches(make: MakeLearner) -> None:
    """`steps` is the number of batches observed, whatever was done with each."""
    learner = make(_LINEAR.network(), seed=0)
    observed = 0
    for event in _script(_LINEAR):
        _play(learner, [event])
        observed += event.call == "observe"
        steps = int(learner.steps)
        require(steps == observed, f"after {observed} batches steps is {steps}")


@rule
def the_first_loss_that_is_not_finite_is_known(make: MakeLearner) -> None:
    """`nonfinite_step` is the number of the batch at which the weights had become not-a-number."""
    learner = _play(make(_LINEAR.network(), seed=0), _script(_LINEAR))
    require(learner.nonfinite_step == 0, f"after finite losses it is {learner.nonfinite_step}")
    first = int(learner.steps) + 1
    with torch.no_grad():
        for p in learner.network.parameters():
            p.fill_(torch.nan)
    for _ in range(2):
        inputs, labels, _ = _LINEAR.samples((0, 1, 2, 3), 8, seed=3)
        learner.observe(inputs, labels)
        found = learner.nonfinite_step
        require(found == first, f"weights were not finite at batch {first}; it says {found}")


@rule
def separable_classes_are_learned(make: MakeLearner) -> None:
    """Four classes far apart, 100 batches: nine of ten new samples are told apart."""
    for case in (_LINEAR, _BATCHNORM):
        learner = make(case.network(), seed=0)
        for seed in range(100):
            inputs, labels, _ = case.samples((0, 1, 2, 3), 8, seed=seed)
            learner.observe(inputs, labels)
        if learner.needs_boundaries:
            learner.end_task(case.samples((0, 1, 2, 3), 40, seed=0))
        inputs, labels, _ = case.samples((0, 1, 2, 3), 100, seed=1000)
        right = int((learner.predict(inputs) == labels).sum())
        require(right >= 90, f"{case.name}: {right} of 100 samples are told apart")


LEARNER_CHECKS: tuple[LearnerCheck, ...] = (
    inputs_stay_unmodified,
    inputs_are_copied,
    predicting_changes_nothing,
    predictors_answer,
    equal_seeds_give_equal_bytes,
    another_seed_takes_another_course,
    global_randomness_stays_alone,
    saved_learners_go_on_bit_for_bit,
    states_are_snapshots,
    bad_batches_are_refused,
    foreign_states_are_refused,
    memory_is_bounded,
    any_optimizer_serves,
    unfit_optimizers_are_refused,
    steps_count_batches,
    the_first_loss_that_is_not_finite_is_known,
    separable_classes_are_learned,
)
