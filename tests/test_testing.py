"""The conformance suites detect faults."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perdure import testing
from perdure.learners import ER, SGD, Learner, Predictor
from perdure.records import Samples
from perdure.state import State
from perdure.streams import Stream, Task, Test, from_tensors
from perdure.testing import (
    LEARNER_CHECKS,
    STREAM_CHECKS,
    LearnerCheck,
    StreamCheck,
    check_learner,
    check_stream,
    inputs,
    learners,
    rules,
    streams,
)

# -- learners, each with one fault ----------------------------------------------------------


class ModifiesItsInput(SGD):
    def step(self, inputs: Tensor, labels: Tensor) -> None:
        super().step(inputs, labels)
        inputs.zero_()


class KeepsTheLastBatch(SGD):
    last: tuple[Tensor, Tensor] | None = None

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        if self.last is not None:
            inputs, labels = (
                torch.cat(pair) for pair in zip(self.last, (inputs, labels), strict=True)
            )
        super().step(inputs, labels)
        self.last = inputs[-2:], labels[-2:]


class CountsPredictions(SGD):
    def __init__(self, network: nn.Module, **common: Any) -> None:
        super().__init__(network, **common)
        self.predictions = torch.zeros(())

    def predictors(self) -> dict[str, Predictor]:
        self.predictions += 1
        return super().predictors()


class StaysInEvaluationMode(SGD):
    def predict(self, inputs: Tensor) -> Tensor:
        classes = super().predict(inputs)
        self.network.eval()
        return classes


class HasNoPredictors(SGD):
    def predictors(self) -> dict[str, Predictor]:
        return {}


class PredictsAnotherClass(SGD):
    def predict(self, inputs: Tensor) -> Tensor:
        return (super().predict(inputs) + 1) % 4


class ReturnsInfiniteScores(SGD):
    class Infinite(Predictor):
        def __call__(self, inputs: Tensor) -> Tensor:
            return super().__call__(inputs) / 0

    def predictors(self) -> dict[str, Predictor]:
        return {"working": self.Infinite(self.network, self.normalise)}


class PredictsInTrainingMode(SGD):
    class Training(Predictor):
        def __call__(self, inputs: Tensor) -> Tensor:
            with torch.no_grad():
                return self.module(self.normalise(inputs))  # type: ignore[no-any-return]

    def predictors(self) -> dict[str, Predictor]:
        return {"working": self.Training(self.network, self.normalise)}


class UsesGlobalGenerator(SGD):
    def observe(self, inputs: Any, labels: Any, *, check: bool = True) -> None:
        super().observe(inputs, labels[torch.randperm(len(labels))], check=check)


class IgnoresItsSeed(SGD):
    def __init__(self, network: nn.Module, *, seed: int = 0, **common: Any) -> None:
        super().__init__(network, seed=7, **common)


class UsesNumpyGenerator(SGD):
    def step(self, inputs: Tensor, labels: Tensor) -> None:
        np.random.rand()
        super().step(inputs, labels)


class SkipsEveryThirdBatch(SGD):
    batches = 0

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        self.batches += 1
        if self.batches % 3:
            super().step(inputs, labels)
        else:
            self.optimizer_step(0 * self.network(self.normalise(inputs)).sum())


class ReturnsItsTensors(ER):
    def state_dict(self) -> State:
        return {**super().state_dict(), "network": self.network.state_dict()}


class ChecksNothing(SGD):
    def observe(self, inputs: Tensor, labels: Any, *, check: bool = True) -> None:
        with self.randomness():
            self.step(inputs, labels)


class ChecksTooLate(SGD):
    def observe(self, inputs: Tensor, labels: Any, *, check: bool = True) -> None:
        self.steps += 1
        super().observe(inputs, labels, check=check)
        self.steps -= 1


class ChangesWhenLoadingFails(ER):
    def load_state_dict(self, state: State) -> None:
        try:
            super().load_state_dict(state)
        except ValueError:
            self.steps.zero_()
            raise


class IgnoresInvalidFiles(ER):
    def load(self, path: str | Path) -> None:
        try:
            super().load(path)
        except ValueError:
            return


class KeepsInputsInAList(SGD):
    def __init__(self, network: nn.Module, **common: Any) -> None:
        super().__init__(network, **common)
        self.log: list[Tensor] = []

    def step(self, inputs: Any, labels: Tensor) -> None:
        super().step(inputs, labels)
        self.log.append(inputs)


class KeepsEverything(SGD):
    def __init__(self, network: nn.Module, **common: Any) -> None:
        super().__init__(network, **common)
        self.seen = torch.zeros(0)

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        super().step(inputs, labels)
        self.seen = torch.cat([self.seen, inputs.flatten()])


class IgnoresTheOptimizer(SGD):
    def __init__(self, network: nn.Module, *, optimizer: Any = None, **common: Any) -> None:
        super().__init__(network, **common)


class AcceptsAnyOptimizer(SGD):
    def __init__(self, network: nn.Module, *, optimizer: Any = None, **common: Any) -> None:
        super().__init__(network, **common)
        self.optimizer = optimizer or self.optimizer


class CountsTwice(SGD):
    def step(self, inputs: Tensor, labels: Tensor) -> None:
        super().step(inputs, labels)
        super().step(inputs, labels)


class ReportsSums(SGD):
    def metrics(self) -> dict[str, float]:
        return self.totals()


class ForgetsItsLastReading(SGD):
    def state_dict(self) -> State:
        return {**super().state_dict(), "last_read": {"steps": 0, "totals": {}}}


class NeverReportsDivergence(SGD):
    nonfinite_step = 0


class LearnsNothing(SGD):
    def step(self, inputs: Tensor, labels: Tensor) -> None:
        x, y = self.prepare(Samples(inputs, labels))
        self.optimizer_step(0 * F.cross_entropy(self.network(x), y))


class RaisesInStep(SGD):
    def step(self, inputs: Tensor, labels: Tensor) -> None:
        raise KeyError("no such part")


class GrowsFromScratch(SGD):
    def grow(self, classes: int) -> None:
        super().grow(classes)
        with torch.no_grad():
            for parameter in self.network.parameters():
                parameter.zero_()


class GrowsTooFar(SGD):
    def growth_for(self, labels: Tensor) -> int | None:
        classes = super().growth_for(labels)
        return None if classes is None else classes + 1


class ForgetsItsGrowth(SGD):
    def state_dict(self) -> State:
        return {**super().state_dict(), "growth": {"added": 0, "seed": 0}}


class ForgetsItsMomentum(SGD):
    def state_dict(self) -> State:
        state = super().state_dict()
        return {**state, "optimizer": {**state["optimizer"], "state": {}}}


class TakesOnlyTensors(SGD):
    def logits(self, x: Any) -> Tensor:
        return self.network(x)  # type: ignore[no-any-return]


class LearnsOnlyFloats(SGD):
    def step(self, inputs: Any, labels: Tensor) -> None:
        floats = isinstance(inputs, Tensor) and inputs.is_floating_point()
        super().step(inputs, labels if floats else labels * 0)


class ReadsMemoryInOrder(SGD):
    def observe(self, inputs: Any, labels: Any, *, check: bool = True) -> None:
        if isinstance(inputs, Tensor):
            inputs = torch.as_strided(inputs, inputs.shape, torch.empty_like(inputs).stride())
        super().observe(inputs, labels, check=check)


class BackPropagatesIntoItsInput(SGD):
    def observe(self, inputs: Any, labels: Any, *, check: bool = True) -> None:
        super().observe(inputs, labels, check=check)
        if isinstance(inputs, Tensor) and inputs.requires_grad:
            inputs.sum().backward()  # type: ignore[no-untyped-call]


class IgnoresSingleSamples(SGD):
    def observe(self, inputs: Any, labels: Any, *, check: bool = True) -> None:
        if len(labels) > 1:
            super().observe(inputs, labels, check=check)


BROKEN: list[tuple[type[Learner], LearnerCheck, str]] = [
    (ModifiesItsInput, learners.inputs_are_not_modified, "observe changed its input"),
    (KeepsTheLastBatch, learners.inputs_are_copied, "overwritten after use"),
    (CountsPredictions, learners.predicting_changes_nothing, "predict: difference in predictions"),
    (StaysInEvaluationMode, learners.predicting_changes_nothing, "training mode of working"),
    (HasNoPredictors, learners.predictors_return_scores, "there are no predictors"),
    (PredictsAnotherClass, learners.predictors_return_scores, "predict is not the argmax"),
    (ReturnsInfiniteScores, learners.predictors_return_scores, "scores that are not finite"),
    (PredictsInTrainingMode, learners.predictors_return_scores, "depend on the rest of the batch"),
    (UsesGlobalGenerator, learners.equal_seeds_give_equal_bytes, "two learners with seed 3"),
    (IgnoresItsSeed, learners.different_seeds_give_different_weights, "give the same weights"),
    (UsesGlobalGenerator, learners.global_generators_are_not_used, "state of torch has changed"),
    (UsesNumpyGenerator, learners.global_generators_are_not_used, "numpy.random has changed"),
    (SkipsEveryThirdBatch, learners.saved_learners_resume_bit_for_bit, "resumed after 2 of 10"),
    (KeepsTheLastBatch, learners.saved_learners_resume_bit_for_bit, "difference in"),
    (ReturnsItsTensors, learners.states_are_snapshots, "state after further learning"),
    (ChecksNothing, learners.invalid_batches_are_rejected, "a label of 4"),
    (ChecksTooLate, learners.invalid_batches_are_rejected, "difference in steps"),
    (ChangesWhenLoadingFails, learners.invalid_states_are_rejected, "difference in steps"),
    (IgnoresInvalidFiles, learners.invalid_states_are_rejected, "did not raise ValueError"),
    (KeepsEverything, learners.memory_is_bounded, "the state grew from"),
    (KeepsInputsInAList, learners.memory_is_bounded, "the learner grew from"),
    (IgnoresTheOptimizer, learners.any_optimizer_works, "has no effect"),
    (AcceptsAnyOptimizer, learners.unsuitable_optimizers_are_rejected, "needs a closure did not"),
    (CountsTwice, learners.steps_count_batches, "steps is 2 after 1 batches"),
    (ReportsSums, learners.metrics_are_means_since_the_last_call, "the learner reports"),
    (ForgetsItsLastReading, learners.metrics_are_means_since_the_last_call, "a resumed learner"),
    (NeverReportsDivergence, learners.nonfinite_step_is_the_first_nonfinite_loss, "is 0 after NaN"),
    (LearnsNothing, learners.separable_classes_are_learned, "of 100 samples"),
    (SkipsEveryThirdBatch, learners.recorded_steps_equal_eager_steps, "replayed steps"),
    (GrowsFromScratch, learners.growing_keeps_old_outputs, "old outputs have changed"),
    (GrowsTooFar, learners.new_labels_grow_the_networks, "grown automatically and by grow"),
    (ForgetsItsGrowth, learners.grown_learners_resume, "does not fit"),
    (ForgetsItsMomentum, learners.optimizer_state_grows, "resumed: difference in"),
    (RaisesInStep, learners.steps_count_batches, "KeyError: 'no such part'"),
    (
        TakesOnlyTensors,
        inputs.structures_of_tensors_are_learned_like_one_tensor,
        "positional argument",
    ),
    (LearnsOnlyFloats, inputs.token_ids_are_learned, "classified correctly"),
    (
        ReadsMemoryInOrder,
        inputs.strided_inputs_are_learned_like_contiguous_ones,
        "other predictions",
    ),
    (BackPropagatesIntoItsInput, inputs.gradients_stay_in_the_learner, "a gradient arrived"),
    (IgnoresSingleSamples, inputs.single_samples_work_or_are_rejected, "was ignored"),
]


def rule_name(check: Any) -> str:
    return str(check.__name__).replace("_", " ")


def bound(learner: type[Learner]) -> Callable[..., Learner]:
    return partial(learner, buffer_size=20) if issubclass(learner, ER) else learner


@pytest.mark.parametrize(
    ("learner", "check", "found"),
    BROKEN,
    ids=[f"{learner.__name__}-{rule_name(check)}" for learner, check, _ in BROKEN],
)
def test_fault_of_a_learner_is_detected(
    learner: type[Learner], check: LearnerCheck, found: str
) -> None:
    with pytest.raises(AssertionError) as error:
        check(bound(learner))
    rule = rule_name(check)
    assert str(error.value).startswith(f"{learner.__name__}: {rule}: ")
    assert found in str(error.value)


def test_every_check_of_learners_is_tested() -> None:
    assert {check for _, check, _ in BROKEN} == set(LEARNER_CHECKS)


def test_check_learner_runs_all_checks() -> None:
    with pytest.raises(AssertionError, match="LearnsNothing: "):
        check_learner(LearnsNothing)


# -- streams, each with one fault -----------------------------------------------------------

IMAGES = torch.rand(60, 2, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(60) % 4
GROUPS = [(0, 1), (2, 3)]


def good() -> Stream:
    return from_tensors(IMAGES, LABELS, groups=GROUPS, test=(IMAGES, LABELS))


def with_tasks(task: type[Task]) -> Stream:
    """The stream with its tasks' samples presented by tasks of another class."""
    tasks = [task(t.name, partial(Samples, *t.samples()), drop_last=False) for t in good().tasks]
    return replace(good(), tasks=tasks)


class Reusing(Task):
    """Goes through its samples in an order of its own."""

    def __init__(self, name: str, make: Callable[[], Samples], **rest: Any) -> None:
        super().__init__(name, make, **rest)
        self.epochs = itertools.count()

    def epoch(self, batch: int, order: torch.Generator, start: int = 0) -> Iterator[Samples]:
        return super().epoch(batch, torch.Generator().manual_seed(next(self.epochs)), start)


class Unshuffled(Task):
    def epoch(self, batch: int, order: torch.Generator, start: int = 0) -> Iterator[Samples]:
        return super().epoch(batch, torch.Generator().manual_seed(0), start)


class Restarting(Task):
    def epoch(self, batch: int, order: torch.Generator, start: int = 0) -> Iterator[Samples]:
        return super().epoch(batch, order)


class Skipping(Task):
    """Continues rightly, but draws anew for every batch that it leaves out."""

    def epoch(self, batch: int, order: torch.Generator, start: int = 0) -> Iterator[Samples]:
        yield from super().epoch(batch, order, start)
        torch.rand(start, generator=order)


class Miscounting(Task):
    def steps(self, batch: int) -> int:
        return 1 + (super().steps(batch) or 0)


class Repeating(Task):
    def epoch(self, batch: int, order: torch.Generator, start: int = 0) -> Iterator[Samples]:
        for part in super().epoch(batch, order, start):
            yield part.rows(torch.zeros(len(part.labels), dtype=torch.int64))


class Rebuilding(Task):
    def __init__(self, name: str, make: Callable[[], Samples], **rest: Any) -> None:
        built = itertools.count()
        first = make()
        super().__init__(name, lambda: Samples(first.inputs + next(built), first.labels), **rest)


class Oversized(Task):
    def epoch(self, batch: int, order: torch.Generator, start: int = 0) -> Iterator[Samples]:
        return super().epoch(batch + 1, order, start)


class Infinite(Task):
    def epoch(self, batch: int, order: torch.Generator, start: int = 0) -> Iterator[Samples]:
        batches = super().epoch(batch, order, start)
        return (Samples(samples.inputs / 0, samples.labels) for samples in batches)


class Global(Task):
    def epoch(self, batch: int, order: torch.Generator, start: int = 0) -> Iterator[Samples]:
        torch.rand(1)
        return super().epoch(batch, order, start)


class Losing(Stream):
    def joined(self, batch: int, order: torch.Generator) -> Stream:
        return replace(super().joined(batch, order), tasks=[self.tasks[0]])


class Nameless(Stream):
    def joined(self, batch: int, order: torch.Generator) -> Stream:
        return replace(super().joined(batch, order), checksum=self.checksum)


def half(images: Tensor, draws: torch.Generator) -> Tensor:
    return images[..., :1]


def unruly(images: Tensor, draws: torch.Generator) -> Tensor:
    return images + torch.rand(1)


def changed(**changes: Any) -> Callable[[], Stream]:
    return lambda: replace(good(), **changes)


def changed_test(**changes: Any) -> Callable[[], Stream]:
    return lambda: replace(good(), tests=[good().tests[0], replace(good().tests[1], **changes)])


def tasks(kind: type[Task]) -> Callable[[], Stream]:
    return lambda: with_tasks(kind)


def as_class(kind: type[Stream]) -> Callable[[], Stream]:
    return lambda: kind(**vars(good()))


def fresh_samples() -> Samples:
    return Samples(torch.rand(60, 2, 3), LABELS)


BROKEN_STREAMS: list[tuple[Callable[[], Stream], StreamCheck, str]] = [
    (changed(classes=3), streams.batches_fit_the_stream, "from 2 to 3"),
    (changed(shape=(6,)), streams.batches_fit_the_stream, "shape (2, 3)"),
    (changed(tasks=[]), streams.batches_fit_the_stream, "no tasks"),
    (tasks(Oversized), streams.batches_fit_the_stream, "batch of 8"),
    (tasks(Infinite), streams.batches_fit_the_stream, "not finite"),
    (changed(augment=half), streams.inputs_are_prepared, "augment returned"),
    (changed(augment=unruly), streams.inputs_are_prepared, "does not draw from its generator"),
    (changed(augment=lambda x, _: x.mul_(0)), streams.inputs_are_prepared, "modified its input"),
    (changed(normalise=lambda x: x / 0), streams.inputs_are_prepared, "normalise did not"),
    (tasks(Reusing), streams.equal_generators_give_equal_orders, "different batches"),
    (tasks(Unshuffled), streams.equal_generators_give_equal_orders, "is not shuffled"),
    (tasks(Restarting), streams.epochs_resume_from_any_batch, "from batch 1 of 4: different"),
    (tasks(Skipping), streams.epochs_resume_from_any_batch, "ends in a different state"),
    (tasks(Miscounting), streams.steps_count_the_batches, "4 batches of 8; steps returned 5"),
    (tasks(Repeating), streams.epochs_show_samples_once, "too often"),
    (tasks(Rebuilding), streams.released_samples_can_be_rebuilt, "different samples"),
    (changed_test(since=2), streams.tests_fit_the_stream, "since is 2; there are 2 tasks"),
    (changed_test(rows=torch.tensor([2, 60])), streams.tests_fit_the_stream, "from 2 to 60 of 60"),
    (changed_test(rows=torch.tensor([2, 2])), streams.tests_fit_the_stream, "a row occurs twice"),
    (changed_test(rows=torch.rand(2)), streams.tests_fit_the_stream, "rows are torch.float32"),
    (changed_test(classes=(1, 2)), streams.tests_fit_the_stream, "labels [3] are not in"),
    (changed_test(classes=(2, 3, 4)), streams.tests_fit_the_stream, "classes [2, 3, 4]"),
    (changed_test(source=fresh_samples), streams.tests_fit_the_stream, "the second time"),
    (as_class(Losing), streams.joined_streams_contain_every_sample_once, "not those of the tasks"),
    (tasks(Global), streams.global_randomness_is_not_used, "state of torch has changed"),
    (changed(checksum=None), streams.checksums_are_stable, "expected a string"),
    (as_class(Nameless), streams.checksums_are_stable, "joined stream's"),
]


@pytest.mark.parametrize(
    ("build", "check", "found"), BROKEN_STREAMS, ids=[found for *_, found in BROKEN_STREAMS]
)
def test_fault_of_a_stream_is_detected(
    build: Callable[[], Stream], check: StreamCheck, found: str
) -> None:
    with pytest.raises(AssertionError) as error:
        check(build(), 8)
    rule = rule_name(check)
    assert str(error.value).startswith(f"stream own: {rule}: ")
    assert found in str(error.value)


def test_every_check_of_streams_is_tested() -> None:
    assert {check for _, check, _ in BROKEN_STREAMS} == set(STREAM_CHECKS)


def test_valid_stream_passes_with_any_batch_size() -> None:
    for batch in (1, 7, 30):
        check_stream(good(), batch)


def test_test_of_another_class_is_detected() -> None:
    broken = replace(good(), tests=[object()])  # type: ignore[list-item]
    with pytest.raises(AssertionError, match="is not a Test"):
        check_stream(broken)
    assert isinstance(good().tests[0], Test)


def test_suites_do_not_depend_on_a_test_framework() -> None:
    for module in (testing, learners, streams, rules):
        source = Path(str(module.__file__)).read_text()
        assert "import pytest" not in source
        assert "    assert " not in source, "asserts vanish under python -O; raise instead"
