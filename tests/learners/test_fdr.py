"""FDR: its distance, the shares of its memory, what it stores, and a slow transcription."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from perdure.learners.fdr import FDR, function_distance
from perdure.learners.sgd import SGD
from perdure.memory import BalancedTaskBuffer
from perdure.networks import MLP
from perdure.randomness import generator
from perdure.records import Samples

CLASSES, SEED = 4, 6


class Recording(nn.Module):
    """A network with BatchNorm and dropout that keeps what it was asked, in double precision."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(
            *(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout)),
            nn.Linear(8, CLASSES),
        ).double()
        self.asked: list[Tensor] = []
        self.modes: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.asked.append(x.detach().clone())
        self.modes.append(self.training)
        return self.layers(x)  # type: ignore[no-any-return]


def task(number: int, size: int = 40) -> Samples:
    random = torch.Generator().manual_seed(number)
    inputs = torch.rand(size, 4, dtype=torch.float64, generator=random)
    return Samples(inputs + number, 2 * (number % 2) + torch.randint(2, (size,), generator=random))


def jitter(inputs: Tensor, random: torch.Generator) -> Tensor:
    return inputs + 0.1 * torch.rand(inputs.shape, dtype=inputs.dtype, generator=random)


def test_the_distance_by_definition() -> None:
    logits, old = torch.randn(2, 7, CLASSES, generator=torch.Generator().manual_seed(0)).double()
    total = 0.0
    for a, b in zip(logits.tolist(), old.tolist(), strict=True):
        p = [math.exp(v) / sum(map(math.exp, a)) for v in a]
        q = [math.exp(v) / sum(map(math.exp, b)) for v in b]
        total += math.sqrt(sum((u - v) ** 2 for u, v in zip(p, q, strict=True)))
    assert float(function_distance(logits, old)) == pytest.approx(total / 7, rel=1e-12)


def test_equal_outputs_pull_nowhere() -> None:
    logits = torch.randn(3, CLASSES, requires_grad=True)
    (slope,) = torch.autograd.grad(function_distance(logits, logits.detach()), logits)
    assert torch.equal(slope, torch.zeros_like(slope))


@given(
    buffer_size=st.integers(1, 30),
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=40),
)
def test_shares_are_equal_and_bounded(buffer_size: int, sizes: list[int]) -> None:
    memory = BalancedTaskBuffer(buffer_size)
    for number, size in enumerate(sizes):
        before = list(memory.counts)
        memory.add(Samples(torch.full((size, 1), float(number)), torch.arange(size)))
        assert all(now <= then for now, then in zip(memory.counts, before, strict=False))
    contents = memory.contents()
    assert contents is not None
    tasks = len(sizes)
    quotas = [buffer_size // tasks + (k < buffer_size % tasks) for k in range(tasks)]
    assert sum(quotas) == buffer_size
    assert all(n <= quota for n, quota in zip(memory.counts, quotas, strict=True))
    if all(size >= buffer_size for size in sizes):
        assert memory.counts == quotas
    assert memory.filled == sum(memory.counts) == len(contents.labels) <= buffer_size
    rows = [(k, i) for k, n in enumerate(memory.counts) for i in range(n)]
    stored = zip(contents.inputs[:, 0].tolist(), contents.labels.tolist(), strict=True)
    assert list(stored) == rows  # the front of each task, in the order of the tasks


def test_what_is_stored_at_the_end_of_a_task() -> None:
    network = Recording()
    learner = FDR(network, buffer_size=14, memory_batch=6, augment=jitter, seed=SEED)
    statistics = network.state_dict()["layers.1.running_mean"].clone()
    samples = task(0)
    learner.end_task(samples)
    contents = learner.memory.contents()
    assert contents is not None
    assert contents.logits is not None
    asked = zip(network.asked, network.modes, strict=True)
    sizes = [(len(x), training) for x, training in asked]
    # One look at the network's shape; then whole batches, of 18 samples for 14 rows.
    assert sizes == [(1, False), (6, True), (6, True), (6, True)]
    assert not torch.equal(network.state_dict()["layers.1.running_mean"], statistics)
    picked = torch.randperm(40, generator=generator(SEED, "task samples"))[:18]
    assert torch.equal(contents.inputs, samples.inputs[picked[:14]])
    assert torch.equal(contents.labels, samples.labels[picked[:14]])
    augmentation, again = generator(SEED, "augmentation"), Recording()
    said = [again(jitter(samples.inputs[rows], augmentation)) for rows in picked.split(6)]  # type: ignore[no-untyped-call]
    torch.testing.assert_close(contents.logits, torch.cat(said)[:14].detach())
    assert int(learner.steps) == 0
    assert not contents.logits.requires_grad


def test_no_batch_of_one_is_made_at_the_end_of_a_task() -> None:
    network = Recording()
    learner = FDR(network, buffer_size=50, memory_batch=6)
    learner.end_task(task(0, size=13))
    assert [len(x) for x in network.asked[1:]] == [5, 4, 4]


def test_three_tasks_equal_the_slow_transcription() -> None:
    lr, memory_batch = 0.1, 5
    network, slow = Recording(), Recording()
    learner = FDR(
        network, buffer_size=12, memory_batch=memory_batch, lr=lr, augment=jitter, seed=SEED
    )
    picks, choice = generator(SEED, "replay"), generator(SEED, "task samples")
    augmentation = generator(SEED, "augmentation")
    memory: list[list[tuple[Tensor, Tensor]]] = []  # by task: image and logits

    def move(loss: Tensor) -> None:
        parameters = list(slow.parameters())
        slopes = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, slope in zip(parameters, slopes, strict=True):
                parameter.sub_(lr * slope)

    def slow_task(samples: Samples) -> None:
        for start in range(0, 40, 8):
            x, y = samples.inputs[start : start + 8], samples.labels[start : start + 8]
            probabilities = slow(jitter(x, augmentation)).softmax(1)
            move(torch.stack([-p[c].log() for p, c in zip(probabilities, y, strict=True)]).mean())
            stored = [pair for share in memory for pair in share]
            if stored:
                rows = torch.randperm(len(stored), generator=picks)[:memory_batch].tolist()
                inputs = torch.stack([stored[i][0] for i in rows])
                now = slow(jitter(inputs, augmentation)).softmax(1)
                then = [stored[i][1].softmax(0) for i in rows]
                pairs = zip(now, then, strict=True)
                move(torch.stack([((p - q) ** 2).sum().sqrt() for p, q in pairs]).mean())
        share = 12 // (len(memory) + 1)
        size = math.ceil(share / memory_batch) * memory_batch
        order = torch.randperm(40, generator=choice)[:size]
        new: list[tuple[Tensor, Tensor]] = []
        for start in range(0, size, memory_batch):
            inputs = samples.inputs[order[start : start + memory_batch]]
            new += zip(inputs, slow(jitter(inputs, augmentation)).detach(), strict=True)
        memory[:] = [old[:share] for old in memory] + [new[:share]]

    for number in range(3):
        samples = task(number)
        slow_task(samples)
        for start in range(0, 40, 8):
            learner.observe(samples.inputs[start : start + 8], samples.labels[start : start + 8])
        learner.end_task(samples)
    theirs = slow.state_dict()
    for name, own in network.state_dict().items():
        torch.testing.assert_close(own, theirs[name], rtol=1e-8, atol=1e-10)
    contents = learner.memory.contents()
    assert contents is not None
    assert contents.logits is not None
    stored = [pair for share in memory for pair in share]
    torch.testing.assert_close(contents.inputs, torch.stack([x for x, _ in stored]))
    torch.testing.assert_close(contents.logits, torch.stack([z for _, z in stored]))
    assert int(learner.steps) == 15  # batches observed, though the optimizer stepped 25 times


def test_a_loss_of_the_second_step_that_is_not_finite_is_noticed() -> None:
    learner = FDR(nn.Linear(4, CLASSES).double(), buffer_size=5, lr=0.1)
    learner.observe(*task(0)[:2])
    samples = task(0)._replace(logits=torch.full((40, CLASSES), math.nan, dtype=torch.float64))
    learner.memory.add(samples)
    learner.observe(*task(0)[:2])
    assert int(learner.nonfinite_step) == int(learner.steps) == 2


def test_dropout_at_the_end_of_a_task_draws_from_the_learner() -> None:
    stored = []
    for outside in (0, 1):
        torch.manual_seed(outside)
        before = torch.get_rng_state()
        learner = FDR(Recording(dropout=0.5), buffer_size=5, seed=SEED)
        torch.set_rng_state(before)
        learner.end_task(task(0))
        assert torch.equal(torch.get_rng_state(), before)
        contents = learner.memory.contents()
        assert contents is not None
        assert contents.logits is not None
        stored.append(contents.logits)
    assert torch.equal(*stored)


def test_samples_at_the_end_of_a_task_are_checked_and_left_alone() -> None:
    learner = FDR(Recording(), buffer_size=5)
    samples = task(0)
    copies = samples.inputs.clone(), samples.labels.clone()
    learner.end_task(samples)
    assert torch.equal(samples.inputs, copies[0])
    assert torch.equal(samples.labels, copies[1])
    with pytest.raises(ValueError, match="the batch is empty"):
        learner.end_task(Samples(samples.inputs[:0], samples.labels[:0]))
    with pytest.raises(ValueError, match="labels range"):
        learner.end_task(Samples(samples.inputs, samples.labels + CLASSES))
    assert learner.memory.counts == [5]


def test_more_tasks_than_rows_leave_the_oldest_theirs() -> None:
    learner = FDR(Recording(), buffer_size=2, memory_batch=3)
    for number in range(4):
        learner.end_task(task(number))
    contents = learner.memory.contents()
    assert contents is not None
    assert contents.inputs.floor()[:, 0].tolist() == [0, 1]
    learner.observe(*task(0)[:2])


def test_resuming_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    def fresh() -> FDR:
        network = Recording(dropout=0.2)
        return FDR(network, buffer_size=15, memory_batch=4, augment=jitter, seed=SEED)

    def go(learner: FDR, numbers: range) -> None:
        for number in numbers:
            samples = task(number)
            for start in range(0, 40, 8):
                learner.observe(*(t[start : start + 8] for t in samples[:2] if t is not None))
            learner.end_task(samples)

    straight, first, second = fresh(), fresh(), fresh()
    go(straight, range(4))
    go(first, range(2))
    first.save(tmp_path / "first")
    second.load(tmp_path / "first")
    assert second.memory.counts == [8, 7]
    go(second, range(2, 4))
    straight.save(tmp_path / "straight")
    second.save(tmp_path / "second")
    assert (tmp_path / "straight").read_bytes() == (tmp_path / "second").read_bytes()
    other = FDR(Recording(), buffer_size=16)
    with pytest.raises(ValueError, match="buffer_size 15"):
        other.load(tmp_path / "first")
    assert other.memory.filled == 0


def test_bytes_are_stored_as_bytes() -> None:
    learner = FDR(MLP(25, CLASSES), buffer_size=10)
    inputs = torch.randint(256, (20, 1, 5, 5), dtype=torch.uint8)
    learner.observe(inputs, torch.arange(20) % CLASSES)
    learner.end_task(Samples(inputs, torch.arange(20) % CLASSES))
    learner.observe(inputs, torch.arange(20) % CLASSES)
    contents = learner.memory.contents()
    assert contents is not None
    assert contents.inputs.dtype == torch.uint8


def test_it_remembers_what_sgd_forgets() -> None:
    random = torch.Generator().manual_seed(0)
    centres = torch.rand(4, 8, generator=random)  # all in one corner, as images are

    def batch(task: int, n: int) -> tuple[Tensor, Tensor]:
        y = 2 * task + torch.randint(2, (n,), generator=random)
        return centres[y] + 0.1 * torch.randn(n, 8, generator=random), y

    torch.manual_seed(0)
    forgetful = SGD(MLP(8, 4, hidden=32), lr=0.1)
    torch.manual_seed(0)
    learner = FDR(MLP(8, 4, hidden=32), buffer_size=50, lr=0.1)
    for number in range(2):
        for _ in range(200):
            inputs, labels = batch(number, 10)
            forgetful.observe(inputs, labels)
            learner.observe(inputs, labels)
        learner.end_task(Samples(*batch(number, 200)))
    inputs, labels = batch(0, 200)
    assert (forgetful.predict(inputs) == labels).double().mean() < 0.1
    assert (learner.predict(inputs) == labels).double().mean() > 0.8


def test_a_memory_batch_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="memory_batch is 0"):
        FDR(nn.Linear(2, 2), buffer_size=5, memory_batch=0)
    with pytest.raises(ValueError, match="buffer_size is 0"):
        FDR(nn.Linear(2, 2), buffer_size=0)
