"""Learners used by several threads at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from perdure import ER, Learner, fit, from_tensors
from perdure.catalog import METHODS
from perdure.state import as_bytes

from .conftest import Count, share

LONG = share(600)
"""Seconds of the long test."""


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3)
        )


class OnlyTraining(nn.Module):
    """Notes if it runs in evaluation mode while its owner trains."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network()
        self.disturbed = False

    def forward(self, x: Tensor) -> Tensor:
        before = self.training
        logits: Tensor = self.body(x)
        time.sleep(0)  # lets other threads run
        self.disturbed |= any(part.training != before for part in self.modules())
        return logits


def batch(number: int, classes: int = 3) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(number)
    return torch.rand(5, 6, generator=draws), torch.arange(5) % classes


def run(*functions: Callable[[], None]) -> None:
    """Run functions at the same time; the first exception is raised here."""
    errors: list[BaseException] = []

    def guarded(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def make(method: str, seed: int) -> Learner:
    kind: Callable[..., Learner] = METHODS[method].learner
    return kind(network(), buffer_size=20, memory_batch=5, seed=seed)


def two_learners(steps: int) -> None:
    """Two learners train at the same time as each would alone."""
    methods = ("clser", "derpp")
    alone, together = ([make(method, i) for i, method in enumerate(methods)] for _ in range(2))

    def train(learner: Learner) -> None:
        for number in range(steps):
            learner.observe(*batch(number))
            learner.predict(batch(number)[0])
            if number % 5 == 0:
                learner.load_state_dict(learner.state_dict())

    for learner in alone:
        train(learner)
    outside = torch.get_rng_state()
    run(*(lambda learner=learner: train(learner) for learner in together))
    assert torch.equal(torch.get_rng_state(), outside)
    for one, other in zip(alone, together, strict=True):
        assert as_bytes(one.state_dict(), {}) == as_bytes(other.state_dict(), {})


def one_learner(seconds: float, folder: Path) -> int:
    """All methods of one learner at the same time; returns the number of steps."""
    module = OnlyTraining()
    learner = ER(module, buffer_size=20, memory_batch=5, grow=True)
    learner.observe(*batch(0))
    end = time.monotonic() + seconds
    observed = [1, 0, 0]

    def going() -> bool:
        return time.monotonic() < end or sum(observed) <= 10  # on a busy machine

    def train(thread: int) -> None:
        while going():
            learner.observe(*batch(observed[thread]))
            observed[thread] += 1

    def predict() -> None:
        while going():
            assert learner.predict(batch(1)[0]).shape == (5,)
            assert torch.isfinite(learner.predict_proba(batch(2)[0])).all()
            learner.metrics()

    def save() -> None:
        path = folder / "learner.safetensors"
        other = ER(OnlyTraining(), buffer_size=20, memory_batch=5, grow=True)
        while going():
            learner.save(path)
            other.load(path)
            # One consistent moment: samples seen, steps and generators agree.
            assert 5 * int(other.steps) == int(other.memory.seen)

    def grow() -> None:
        for classes in range(4, 8):
            time.sleep(seconds / 8)
            learner.grow(classes)

    run(lambda: train(0), lambda: train(1), lambda: train(2), predict, save, grow)
    assert not module.disturbed
    assert int(learner.steps) == sum(observed)
    assert int(learner.memory.seen) == 5 * sum(observed)
    return sum(observed)


def test_learners_in_threads_do_not_disturb_each_other() -> None:
    two_learners(20)


def test_a_learner_may_ask_another_that_trains() -> None:
    teacher = make("er", 0)
    teacher.observe(*batch(0))

    def ask(inputs: Tensor) -> Tensor:
        return inputs + teacher.predict(inputs)[:, None]

    pupil = ER(network(), buffer_size=20, normalise=ask)
    learners = (teacher, pupil)
    threads = [threading.Thread(target=_train, args=(each,), daemon=True) for each in learners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [int(learner.steps) for learner in (teacher, pupil)] == [301, 300]


def _train(learner: Learner) -> None:
    for number in range(300):
        learner.observe(*batch(number))


def test_threads_share_a_learner(tmp_path: Path) -> None:
    assert one_learner(1.5, tmp_path) > 10


@pytest.mark.slow
@pytest.mark.faults
def test_threads_for_minutes(tmp_path: Path, count: Count) -> None:
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        steps = one_learner(min(20, LONG), tmp_path)
        two_learners(300)
        count("steps of several threads", steps + 600)
    count("seconds of several threads", LONG)


@pytest.mark.parametrize("prequential", [False, True])
def test_predictions_do_not_disturb_fit(prequential: bool) -> None:
    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network()

        def forward(self, x: Tensor) -> Tensor:
            if not torch.is_grad_enabled():
                time.sleep(0.002)  # lets other threads run while this one predicts
            logits: Tensor = self.body(x)
            return logits

    inputs, labels = torch.rand(120, 6), torch.arange(120) % 3
    test = None if prequential else (inputs, labels)
    stream = from_tensors(inputs, labels, test=test)
    states = []
    for serving in (False, True):
        learner = ER(Slow(), buffer_size=20)
        learner.predict(inputs[:7])
        ended = threading.Event()

        def train(learner: Learner = learner, ended: threading.Event = ended) -> None:
            try:
                fit(learner, stream, batch=8, prequential=prequential)
            finally:
                ended.set()

        def serve(learner: Learner = learner, ended: threading.Event = ended) -> None:
            while not ended.is_set():
                learner.predict(inputs[:7])

        run(train, *([serve] if serving else []))
        states.append(as_bytes(learner.state_dict(), {}))
    assert states[0] == states[1]
