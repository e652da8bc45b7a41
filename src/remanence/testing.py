"""What every learner and every stream keeps to, as checks for a method or stream of your own.

`check_learner` and `check_stream` run all of them. `LEARNER_CHECKS` and `STREAM_CHECKS` hold them
one by one, for a test framework to name and count:

    @pytest.mark.parametrize("check", LEARNER_CHECKS, ids=lambda check: check.__name__)
    def test_my_learner(check):
        check(partial(MyLearner, buffer_size=20))

A rule that is broken is an AssertionError that names the learner or stream, the rule, and what was
found. Nothing here needs a test framework.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, ParamSpec

import numpy as np
import torch
from torch import Tensor, nn

from remanence.learners import Learner, Predictor
from remanence.records import Samples
from remanence.state import State, write_file
from remanence.streams import ComposedTask, Stream, Task, Test

MakeLearner = Callable[..., Learner]
"""Called as make(network, seed=0), and once with an `optimizer` too: a learner's class, with its
own arguments bound by `functools.partial`."""
LearnerCheck = Callable[[MakeLearner], None]
StreamCheck = Callable[[Stream, int], None]


def check_learner(make: MakeLearner) -> None:
    """Run every check of `LEARNER_CHECKS`.

    Learners are made for small networks (linear; with dropout; with BatchNorm) and see two tasks
    with four classes. The memory, if there is one, should be small: at most 100 samples.

    >>> from functools import partial
    >>> from remanence import ER
    >>> check_learner(partial(ER, buffer_size=20))
    """
    for check in LEARNER_CHECKS:
        check(make)


def check_stream(stream: Stream, batch: int = 8) -> None:
    """Run every check of `STREAM_CHECKS`, reading the whole stream several times.

    A stream over an iterator can be read only once, and so cannot be checked.

    >>> from remanence import from_tensors
    >>> images, labels = torch.rand(40, 1, 8, 8), torch.arange(40) % 4
    >>> check_stream(from_tensors(images, labels, groups=[(0, 1), (2, 3)], test=(images, labels)))
    """
    for check in STREAM_CHECKS:
        check(stream, batch)


# -- rules ----------------------------------------------------------------------------------

_P = ParamSpec("_P")


class _Broken(Exception):
    """What was found in place of what the rule asks for."""


def _rule(check: Callable[_P, None]) -> Callable[_P, None]:
    """Whatever goes wrong in the check becomes an AssertionError with the name of the rule."""
    rule = check.__name__.replace("_", " ")

    @functools.wraps(check)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> None:
        subject = next(iter([*args, *kwargs.values()]))
        try:
            check(*args, **kwargs)
        except _Broken as error:
            raise AssertionError(f"{_called(subject)}: {rule}: {error}") from error.__cause__
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
            raise AssertionError(f"{_called(subject)}: {rule}: {found}") from error

    return checked


def _called(subject: object) -> str:
    if isinstance(subject, Stream):
        return f"stream {subject.name}"
    while isinstance(subject, functools.partial):
        subject = subject.func
    return str(getattr(subject, "__name__", subject))


def _require(condition: bool | Tensor, otherwise: str) -> None:
    if not condition:
        raise _Broken(otherwise)


def _refused(what: str, call: Callable[[], object]) -> None:
    try:
        call()
    except ValueError:
        return
    except Exception as error:
        raise _Broken(f"{what} raised {type(error).__name__}, not ValueError: {error}") from error
    raise _Broken(f"{what} was taken without a ValueError")


@contextmanager
def _global_random_untouched() -> Iterator[None]:
    """Inside, nothing may draw from the generators that all programs share."""

    def states() -> tuple[object, ...]:
        return torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())

    before = states()
    yield
    for name, old, new in zip(("torch", "random", "numpy.random"), before, states(), strict=True):
        _require(old == new, f"the global state of {name} has moved")


def _equal(one: Samples, other: Samples) -> bool:
    return one.images.equal(other.images) and one.labels.equal(other.labels)


# -- small problems for learners ------------------------------------------------------------

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
        images = 0.7 * prototypes[labels].view_as(noise) + 0.3 * noise
        if self.dtype == torch.uint8:
            images = images * 255
        return Samples(images.to(self.dtype), labels)


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
        images, labels, _ = samples = case.samples(classes, 22, seed=task)
        sizes = [8, 5, 1, 8]
        for part in zip(torch.split(images, sizes), torch.split(labels, sizes), strict=True):
            events.append(_Event("observe", Samples(*(tensor.clone() for tensor in part))))
        events.append(_Event("end_task", samples))
    return events


def _play(learner: Learner, events: Iterable[_Event]) -> Learner:
    """Take a learner through events; only one that needs it hears where tasks end."""
    for call, samples in events:
        if call == "observe":
            learner.observe(samples.images, samples.labels)
        elif learner.needs_boundaries:
            learner.end_task(samples)
    return learner


def _probe(case: _Case) -> Tensor:
    return case.samples((0, 1, 2, 3), 6, seed=7).images


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
    _require(not paths, f"{what}: not the same in {', '.join(paths[:5])}")


def _now(learner: Learner) -> dict[str, bytes]:
    """The learner's state, and whether its networks are in training mode."""
    modes = {
        f"training mode of {name}": bytes(m.training for m in predictor.module.modules())
        for name, predictor in learner.predictors().items()
    }
    return _bytes(learner.state_dict()) | modes


# -- checks of learners ---------------------------------------------------------------------


@_rule
def inputs_stay_unmodified(make: MakeLearner) -> None:
    """Neither learning nor predicting writes into the tensors that it is given."""
    for case in _CASES:
        events = _script(case)
        learner = _play(make(case.network(), seed=0), events)
        for event, original in zip(events, _script(case), strict=True):
            same = _equal(event.samples, original.samples)
            _require(same, f"{case.name}: {event.call} has changed its input")
        images = _probe(case)
        learner.predict(images)
        learner.predict_proba(images)
        for predictor in learner.predictors().values():
            predictor(images)
        _require(images.equal(_probe(case)), f"{case.name}: predicting has changed its input")


@_rule
def inputs_are_copied(make: MakeLearner) -> None:
    """What happens to a batch after it was observed does not reach the learner."""
    for case in (_LINEAR, _BATCHNORM):
        kept = _play(make(case.network(), seed=0), _script(case))
        reused = make(case.network(), seed=0)
        for event in _script(case):
            _play(reused, [event])
            event.samples.images.zero_()
            event.samples.labels.zero_()
        _same(f"{case.name}: inputs were overwritten after use", _now(kept), _now(reused))


@_rule
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
    before, images = _now(learner), _probe(case)
    learner.predict(images)
    _same(f"{when}: after predict", before, _now(learner))
    learner.predict_proba(images)
    _same(f"{when}: after predict_proba", before, _now(learner))
    for name, predictor in learner.predictors().items():
        predictor(images)
        _same(f"{when}: after predictor {name!r}", before, _now(learner))


@_rule
def predictors_answer(make: MakeLearner) -> None:
    """Each gives finite scores [n, classes], trained or not; the first is the learner's answer."""
    for case in _CASES:
        learner = make(case.network(), seed=0)
        _answers(f"{case.name}, untrained", learner, case)
        _play(learner, _script(case))
        _answers(case.name, learner, case)


def _answers(when: str, learner: Learner, case: _Case) -> None:
    images = _probe(case)
    n = len(images)
    predictors = learner.predictors()
    _require(bool(predictors), f"{when}: there are no predictors")
    for name, predictor in predictors.items():
        _require(isinstance(predictor, Predictor), f"{when}: {name!r} is not a Predictor")
        scores = predictor(images)
        _require(
            scores.shape == (n, _CLASSES) and scores.is_floating_point(),
            f"{when}: {name!r} gave {scores.dtype} {tuple(scores.shape)} for {n} images; expected "
            f"floats [{n}, {_CLASSES}]",
        )
        probabilities = scores.double().softmax(1)
        finite = scores.isfinite().all() and probabilities.isfinite().all()
        _require(finite, f"{when}: {name!r} gave scores that are not finite")
        some = predictor(images[:2])
        alone = torch.allclose(some, scores[:2], rtol=1e-3, atol=1e-4)
        _require(alone, f"{when}: what {name!r} says of an image depends on the others")
    first, scores = next((name, predictor(images)) for name, predictor in predictors.items())
    answer, probabilities = learner.predict(images), learner.predict_proba(images)
    _require(
        answer.dtype == torch.int64 and answer.equal(scores.argmax(1)),
        f"{when}: predict is not the argmax of the first predictor, {first!r}",
    )
    _require(
        torch.allclose(probabilities.double(), scores.double().softmax(1), atol=1e-5),
        f"{when}: predict_proba is not the softmax of the first predictor, {first!r}",
    )


@_rule
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
        _require(one_file == other_file, f"{case.name}: equal learners give unequal files")


@_rule
def another_seed_takes_another_course(make: MakeLearner) -> None:
    """With dropout the weights come out differently, since dropout draws from the seed."""
    one, other = (_play(make(_DROPOUT.network(), seed=s), _script(_DROPOUT)) for s in (0, 1))
    weights, others = (_bytes(learner.network.state_dict()) for learner in (one, other))
    _require(weights != others, f"{_DROPOUT.name}: seeds 0 and 1 give the same weights")


@_rule
def global_randomness_stays_alone(make: MakeLearner) -> None:
    """Learning, predicting and saving leave torch's, NumPy's and Python's generators alone."""
    for case in (_DROPOUT, _BATCHNORM):
        learner, images = make(case.network(), seed=0), _probe(case)
        with _global_random_untouched():
            _play(learner, _script(case))
            learner.predict(images)
            learner.predict_proba(images)
            learner.load_state_dict(learner.state_dict())


@_rule
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


@_rule
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


@_rule
def bad_batches_are_refused(make: MakeLearner) -> None:
    """With a ValueError, before the first good batch and after it, and nothing has changed."""
    for case in (_LINEAR, _DROPOUT, _FLOATS):
        script = _script(case)
        learner = make(case.network(), seed=0)
        for when, events in (("at first", []), ("later", script[:3])):
            _play(learner, events)
            before = _now(learner)
            for what, images, labels in _bad_batches(case, new=when == "at first"):
                name = f"{case.name}: {when}, {what}"
                _refused(name, functools.partial(learner.observe, images, labels))
                _same(f"{name} was refused", before, _now(learner))
                if learner.needs_boundaries:
                    task = Samples(images, labels)
                    end = functools.partial(learner.end_task, task)
                    _refused(f"{name} at the end of a task", end)
                    _same(f"{name} at the end of a task was refused", before, _now(learner))
        _play(learner, script[3:])
        untroubled = _play(make(case.network(), seed=0), script)
        _same(f"{case.name}: after bad batches were refused", _now(untroubled), _now(learner))


def _bad_batches(case: _Case, *, new: bool) -> Iterator[tuple[str, Any, Any]]:
    images, labels, _ = case.samples((0, 1, 2, 3), 8, seed=5)
    for label in (_CLASSES, -1):
        yield f"a label of {label}", images, torch.where(labels == 0, label, labels)
    yield "labels of rank 2", images, labels[:, None]
    yield "one label alone", images, labels[0]
    yield "labels that are floats", images, labels.float()
    yield "labels that are truth values", images, labels > 1
    yield "labels in a list", images, labels.tolist()
    yield "more images than labels", images, labels[:-1]
    yield "more labels than images", images[:-1], labels
    yield "an empty batch", images[:0], labels[:0]
    yield "images of rank 1", images.flatten()[: len(labels)], labels
    yield "images in a list", images.tolist(), labels
    yield "images of dtype int64", images.long(), labels
    yield "images of another shape", torch.cat([images, images], dim=1), labels
    if case.dtype.is_floating_point:
        for value in (float("nan"), float("inf")):
            bad = images.clone()
            bad.view(len(bad), -1)[-1, -1] = value
            yield f"a pixel of {value}", bad, labels
    if not new:
        yield "images twice as wide", torch.cat([images, images], dim=-1), labels
        other = images.float() if case.dtype == torch.uint8 else images.to(torch.uint8)
        yield f"images of dtype {other.dtype} after {case.dtype}", other, labels


@_rule
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
            _refused(name, functools.partial(learner.load_state_dict, state))
            _same(f"{name} was refused", before, _now(learner))
        with tempfile.TemporaryDirectory() as folder:
            for what, path in _bad_files(Path(folder), learner):
                _refused(f"{case.name}: {what}", functools.partial(learner.load, path))
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


@_rule
def memory_is_bounded(make: MakeLearner) -> None:
    """The state is no larger after three times as many batches."""
    learner = _play(make(_LINEAR.network(), seed=0), _script(_LINEAR))

    def learn(batches: int) -> int:
        for seed in range(batches):
            images, labels, _ = _LINEAR.samples((0, 1, 2, 3), 8, seed=seed)
            learner.observe(images, labels)
        return _size(learner.state_dict())

    few, many = learn(16), learn(32)
    _require(many <= few, f"the state grew from {few} to {many} bytes between 16 and 48 batches")


def _size(state: State) -> int:
    """Bytes of all tensors; what is no tensor counts by the number of values, not by digits."""
    return sum(
        leaf.numel() * leaf.element_size() if isinstance(leaf, Tensor) else len(str(leaf).split())
        for _, leaf in _leaves(state)
    )


@_rule
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
        _require(all(moved), f"{name}: some of the weights have not moved")
        _require(all(p.isfinite().all() for p in whole.network.parameters()), f"{name}: diverged")
        resumed = learner(build, 5)
        resumed.load_state_dict(_play(learner(build, 0), script[:4]).state_dict())
        _same(f"{name}: resumed after 4 calls", _now(whole), _now(_play(resumed, script[4:])))
    _require(len(courses) == len(optimizers), "the optimizer makes no difference to the weights")


@_rule
def unfit_optimizers_are_refused(make: MakeLearner) -> None:
    """One that needs a closure, and one over another network's weights."""
    network, other = _LINEAR.network(), _LINEAR.network()
    for what, optimizer in (
        ("an optimizer that needs a closure", torch.optim.LBFGS(network.parameters())),
        ("another network's optimizer", torch.optim.SGD(other.parameters(), lr=0.1)),
    ):
        _refused(what, functools.partial(make, network, seed=0, optimizer=optimizer))


@_rule
def steps_count_batches(make: MakeLearner) -> None:
    """`steps` is the number of batches observed, whatever was done with each."""
    learner = make(_LINEAR.network(), seed=0)
    observed = 0
    for event in _script(_LINEAR):
        _play(learner, [event])
        observed += event.call == "observe"
        steps = int(learner.steps)
        _require(steps == observed, f"after {observed} batches steps is {steps}")


@_rule
def the_first_loss_that_is_not_finite_is_known(make: MakeLearner) -> None:
    """`not_finite` is the number of the batch at which the weights had become not-a-number."""
    learner = _play(make(_LINEAR.network(), seed=0), _script(_LINEAR))
    _require(learner.not_finite == 0, f"after finite losses it is {learner.not_finite}")
    first = int(learner.steps) + 1
    with torch.no_grad():
        for p in learner.network.parameters():
            p.fill_(torch.nan)
    for _ in range(2):
        images, labels, _ = _LINEAR.samples((0, 1, 2, 3), 8, seed=3)
        learner.observe(images, labels)
        found = learner.not_finite
        _require(found == first, f"weights were not finite at batch {first}; it says {found}")


@_rule
def separable_classes_are_learned(make: MakeLearner) -> None:
    """Four classes far apart, 100 batches: nine of ten new samples are told apart."""
    for case in (_LINEAR, _BATCHNORM):
        learner = make(case.network(), seed=0)
        for seed in range(100):
            images, labels, _ = case.samples((0, 1, 2, 3), 8, seed=seed)
            learner.observe(images, labels)
        if learner.needs_boundaries:
            learner.end_task(case.samples((0, 1, 2, 3), 40, seed=0))
        images, labels, _ = case.samples((0, 1, 2, 3), 100, seed=1000)
        right = int((learner.predict(images) == labels).sum())
        _require(right >= 90, f"{case.name}: {right} of 100 samples are told apart")


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


# -- checks of streams ----------------------------------------------------------------------


def _order(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _fits(what: str, samples: Samples, stream: Stream) -> None:
    """Whether samples are what the stream announces."""
    images, labels = samples.images, samples.labels
    _require(
        tuple(images.shape[1:]) == stream.shape,
        f"{what}: images have shape {tuple(images.shape[1:])}; the stream's is {stream.shape}",
    )
    raw = images.dtype == torch.uint8 or images.is_floating_point()
    _require(raw, f"{what}: images are {images.dtype}; expected uint8 or floats")
    _require(
        not images.is_floating_point() or images.isfinite().all(),
        f"{what}: images hold values that are not finite",
    )
    _require(
        labels.dtype == torch.int64 and labels.shape == images.shape[:1] and len(labels) > 0,
        f"{what}: labels are {labels.dtype} {tuple(labels.shape)} for {len(images)} images; "
        "expected int64, one per image, of at least one",
    )
    low, high = (int(label) for label in labels.aminmax())
    _require(
        low >= 0 and high < stream.classes,
        f"{what}: labels range from {low} to {high}; there are {stream.classes} classes",
    )


def _all_equal(one: Sequence[Samples], other: Sequence[Samples]) -> bool:
    return len(one) == len(other) and all(map(_equal, one, other))


def _rows(samples: Samples) -> Counter[tuple[bytes, int]]:
    """How often each image with its label occurs."""
    images = samples.images.cpu().numpy()
    return Counter(
        (image.tobytes(), label)
        for image, label in zip(images, samples.labels.tolist(), strict=True)
    )


def _held(task: Task) -> Samples | None:
    """A task's samples, or None where it composes batches and has no set of them."""
    return None if isinstance(task, ComposedTask) else task.samples()


@_rule
def batches_fit_the_stream(stream: Stream, batch: int) -> None:
    """Shapes, dtypes and labels are those announced; no batch is larger than asked for."""
    _require(len(stream.tasks) > 0, "there are no tasks")
    for task in stream.tasks:
        count = 0
        for samples in task.epoch(batch, _order()):
            _fits(f"task {task.name!r}, batch {count}", samples, stream)
            size = len(samples.labels)
            small = size <= batch or isinstance(task, ComposedTask)
            _require(small, f"task {task.name!r}: {size} samples in a batch of {batch}")
            count += 1
        _require(count > 0, f"task {task.name!r} has no batches of {batch}")
        task.release()


@_rule
def images_are_prepared(stream: Stream, batch: int) -> None:
    """`augment` keeps shape and dtype, draws from its generator, and leaves its input."""
    images = next(iter(stream.tasks[0].epoch(batch, _order()))).images
    original = images.clone()
    if stream.augment is not None:
        one, other = (stream.augment(images, _order(1)) for _ in range(2))
        kept = one.shape == images.shape and one.dtype == images.dtype
        _require(kept, f"augment made {one.dtype} {tuple(one.shape)} of {tuple(images.shape)}")
        _require(one.equal(other), "augment does not follow its generator")
    ready = stream.normalise(images)
    _require(images.equal(original), "augment or normalise has changed its input")
    floats = ready.is_floating_point() and len(ready) == len(images) and ready.isfinite().all()
    _require(floats, "normalise did not give one finite float image for each")


@_rule
def equal_generators_give_equal_orders(stream: Stream, batch: int) -> None:
    """The order of an epoch comes from its generator; shuffled tasks differ with another one."""
    for task in stream.tasks:
        one, same = (list(task.epoch(batch, _order())) for _ in range(2))
        _require(_all_equal(one, same), f"task {task.name!r}: equal generators, unequal batches")
        samples = _held(task)
        if samples is not None and len(_rows(samples)) > 20:
            other = list(task.epoch(batch, _order(1)))
            _require(not _all_equal(one, other), f"task {task.name!r} is not shuffled")
        task.release()


@_rule
def epochs_go_on_from_any_batch(stream: Stream, batch: int) -> None:
    """epoch(start=k) is the same epoch without its first k batches, for batches and generator."""
    for task in stream.tasks:
        order = _order()
        whole = list(task.epoch(batch, order))
        for start in sorted({0, 1, len(whole) // 2, len(whole) - 1, len(whole)}):
            again = _order()
            rest = list(task.epoch(batch, again, start))
            name = f"task {task.name!r} from batch {start} of {len(whole)}"
            _require(_all_equal(rest, whole[start:]), f"{name}: other batches")
            moved = order.get_state().equal(again.get_state())
            _require(moved, f"{name}: the generator ends elsewhere")
        task.release()


@_rule
def steps_count_the_batches(stream: Stream, batch: int) -> None:
    """steps(batch) is the length of an epoch, or None where that is not known beforehand."""
    for task in stream.tasks:
        for size in (batch, batch + 1):
            steps, count = task.steps(size), sum(1 for _ in task.epoch(size, _order()))
            _require(
                steps is None or steps == count,
                f"task {task.name!r}: {count} batches of {size}; steps says {steps}",
            )
        task.release()


@_rule
def epochs_show_samples_once(stream: Stream, batch: int) -> None:
    """An epoch of a task with a set of samples shows each once, less at most a short batch."""
    for task in stream.tasks:
        samples = _held(task)
        if samples is None:
            continue
        shown: Counter[tuple[bytes, int]] = Counter()
        for part in task.epoch(batch, _order()):
            shown += _rows(part)
        left = _rows(samples)
        left.subtract(shown)
        _require(min(left.values()) >= 0, f"task {task.name!r}: a sample came once too often")
        missing = left.total()
        most = batch - 1 if task.drop_last else 0
        _require(missing <= most, f"task {task.name!r}: {missing} samples were not shown")
        task.release()


@_rule
def released_samples_come_again(stream: Stream, batch: int) -> None:
    """What a task builds after `release` is what it had before."""
    for task in stream.tasks:
        samples = _held(task)
        if samples is None:
            continue
        _fits(f"task {task.name!r}", samples, stream)
        task.release()
        _require(_equal(samples, task.samples()), f"task {task.name!r}: other samples")
        task.release()


@_rule
def held_out_samples_fit_the_stream(stream: Stream, batch: int) -> None:
    """Samples as announced, rows and classes in range, each test belonging to a task."""
    whole: dict[int, Samples] = {}
    for test in stream.tests:
        _require(isinstance(test, Test), f"{test!r} is not a Test")
        name = f"test {test.name!r}"
        task = 0 <= test.since < len(stream.tasks)
        _require(task, f"{name}: since is {test.since}; there are {len(stream.tasks)} tasks")
        if id(test.samples) not in whole:
            samples = whole[id(test.samples)] = test.samples()
            _fits(name, samples, stream)
            _require(_equal(samples, test.samples()), f"{name}: other samples the second time")
        labels = _test_labels(name, test, whole[id(test.samples)])
        if test.classes is not None:
            known = set(test.classes)
            _require(known <= set(range(stream.classes)), f"{name}: classes {sorted(known)}")
            strange = set(labels.tolist()) - known
            _require(not strange, f"{name}: labels {sorted(strange)} are not of its classes")


def _test_labels(name: str, test: Test, samples: Samples) -> Tensor:
    """The labels of a test's rows, which must be there, each at most once."""
    if test.rows is None:
        return samples.labels
    rows, n = test.rows, len(samples.labels)
    vector = rows.dtype == torch.int64 and rows.ndim == 1 and len(rows) > 0
    _require(vector, f"{name}: rows are {rows.dtype} {tuple(rows.shape)}; expected int64 [n]")
    inside = int(rows.min()) >= 0 and int(rows.max()) < n
    _require(inside, f"{name}: rows range from {int(rows.min())} to {int(rows.max())} of {n}")
    _require(len(set(rows.tolist())) == len(rows), f"{name}: a row comes twice")
    return samples.labels[rows]


@_rule
def joined_streams_hold_every_sample_once(stream: Stream, batch: int) -> None:
    """`joined` is one task with all samples, whose short batch is kept; tests count from it."""
    order = _order(2)
    joined = stream.joined(batch, order)
    _require(order.get_state().equal(_order(2).get_state()), "joined moved its generator")
    _require(len(joined.tasks) == 1, f"the joined stream has {len(joined.tasks)} tasks")
    samples = joined.tasks[0].samples()
    _fits("the joined task", samples, stream)
    expected: Counter[tuple[bytes, int]] = Counter()
    for task in stream.tasks:
        held = _held(task)
        for part in task.epoch(batch, order) if held is None else [held]:
            expected += _rows(part)
        task.release()
    _require(_rows(samples) == expected, "the joined samples are not those of the tasks")
    shown = sum(len(part.labels) for part in joined.tasks[0].epoch(batch, _order()))
    _require(shown == len(samples.labels), f"{shown} of {len(samples.labels)} samples come")
    _require(
        [test.name for test in joined.tests] == [test.name for test in stream.tests]
        and all(test.since == 0 for test in joined.tests),
        "the tests of the joined stream are not those of the stream, all since its one task",
    )


@_rule
def global_randomness_is_not_used(stream: Stream, batch: int) -> None:
    """Batches, tests, preparation and joining leave the global generators alone."""
    with _global_random_untouched():
        for task in stream.tasks:
            for part in task.epoch(batch, _order()):
                if stream.augment is not None:
                    stream.augment(part.images, _order())
                stream.normalise(part.images)
            task.release()
        for test in stream.tests:
            test.samples()
        stream.joined(batch, _order()).tasks[0].samples()


@_rule
def checksums_are_stable(stream: Stream, batch: int) -> None:
    """A string that use does not change; joined, the stream is another, always the same."""
    before = stream.checksum
    _require(isinstance(before, str), f"the checksum is {before!r}; expected text")
    one, other = (stream.joined(batch, _order(seed)).checksum for seed in (0, 0))
    for task in stream.tasks:
        next(iter(task.epoch(batch, _order())))
        task.release()
    _require(stream.checksum == before, "using the stream has changed its checksum")
    _require(one == other, "the joined stream has another checksum each time")
    _require((one != before) == bool(before), f"the joined stream's checksum is {one!r}")


STREAM_CHECKS: tuple[StreamCheck, ...] = (
    batches_fit_the_stream,
    images_are_prepared,
    equal_generators_give_equal_orders,
    epochs_go_on_from_any_batch,
    steps_count_the_batches,
    epochs_show_samples_once,
    released_samples_come_again,
    held_out_samples_fit_the_stream,
    joined_streams_hold_every_sample_once,
    global_randomness_is_not_used,
    checksums_are_stable,
)
