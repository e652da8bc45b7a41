"""FDR: function distance, memory shares, stored logits, and a reference implementation."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from perdure.learners.fdr import FDR, function_distance
from perdure.memory import BalancedTaskBuffer
from perdure.networks import MLP
from perdure.randomness import generator
from perdure.records import Samples

CLASSES, SEED = 4, 6


class Recording(nn.Module):
    """A network with BatchNorm and dropout that records its inputs, in double precision."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(
            *(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout)),
            nn.Linear(8, CLASSES),
        ).double()
        self.received: list[Tensor] = []
        self.modes: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.received.append(x.detach().clone())
        self.modes.append(self.training)
        return self.layers(x)  # type: ignore[no-any-return]

    def trained(self) -> list[int]:
        """Sizes of the batches in training mode."""
        calls = zip(self.received, self.modes, strict=True)
        return [len(x) for x, training in calls if training]


def task(number: int, size: int = 40) -> Samples:
    random = torch.Generator().manual_seed(number)
    inputs = torch.rand(size, 4, dtype=torch.float64, generator=random)
    return Samples(inputs + number, 2 * (number % 2) + torch.randint(2, (size,), generator=random))


def jitter(inputs: Tensor, random: torch.Generator) -> Tensor:
    return inputs + 0.1 * torch.rand(inputs.shape, dtype=inputs.dtype, generator=random)


def test_distance_matches_its_definition() -> None:
    logits, old = torch.randn(2, 7, CLASSES, generator=torch.Generator().manual_seed(0)).double()
    total = 0.0
    for a, b in zip(logits.tolist(), old.tolist(), strict=True):
        p = [math.exp(v) / sum(map(math.exp, a)) for v in a]
        q = [math.exp(v) / sum(map(math.exp, b)) for v in b]
        total += math.sqrt(sum((u - v) ** 2 for u, v in zip(p, q, strict=True)))
    assert float(function_distance(logits, old)) == pytest.approx(total / 7, rel=1e-12)


def test_equal_outputs_have_zero_gradient() -> None:
    logits = torch.randn(3, CLASSES, requires_grad=True)
    (slope,) = torch.autograd.grad(function_distance(logits, logits.detach()), logits)
    assert torch.equal(slope, torch.zeros_like(slope))


@given(
    buffer_size=st.integers(1, 30),
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=40),
)
def test_task_shares_are_equal_and_bounded(buffer_size: int, sizes: list[int]) -> None:
    memory = BalancedTaskBuffer(buffer_size)
    for number, size in enumerate(sizes):
        before = memory.counts
        memory.add(Samples(torch.full((size, 1), float(number)), torch.arange(size)))
        assert all(memory.counts[k] <= then for k, then in before.items())
    contents = memory.contents()
    assert contents is not None
    tasks = len(sizes)
    quotas = {k: buffer_size // tasks + (k < buffer_size % tasks) for k in range(tasks)}
    assert sum(quotas.values()) == buffer_size
    assert all(n <= quotas[k] for k, n in memory.counts.items())
    if all(size >= buffer_size for size in sizes):
        assert memory.counts == quotas
    assert memory.filled == sum(memory.counts.values()) == len(contents.labels) <= buffer_size
    rows = [(k, i) for k, n in memory.counts.items() for i in range(n)]
    stored = zip(contents.inputs[:, 0].tolist(), contents.labels.tolist(), strict=True)
    assert list(stored) == rows  # the first samples of each task, ordered by task


def test_end_task_stores_random_samples_with_current_logits() -> None:
    network = Recording()
    learner = FDR(network, buffer_size=14, memory_batch=6, augment=jitter, seed=SEED)
    statistics = network.state_dict()["layers.1.running_mean"].clone()
    samples = task(0)
    learner.end_task(samples)
    contents = learner.memory.contents()
    assert contents is not None
    assert contents.logits is not None
    assert network.trained() == [6, 6, 6]  # full batches, 18 samples for 14 rows
    assert not torch.equal(network.state_dict()["layers.1.running_mean"], statistics)
    picked = torch.randperm(40, generator=generator(SEED, "task samples"))[:18]
    assert torch.equal(contents.inputs, samples.inputs[picked[:14]])
    assert torch.equal(contents.labels, samples.labels[picked[:14]])
    augmentation, again = generator(SEED, "augmentation"), Recording()
    said = [again(jitter(samples.inputs[rows], augmentation)) for rows in picked.split(6)]  # type: ignore[no-untyped-call]
    torch.testing.assert_close(contents.logits, torch.cat(said)[:14].detach())
    assert int(learner.steps) == 0
    assert not contents.logits.requires_grad


def test_end_task_avoids_batches_of_one() -> None:
    network = Recording()
    learner = FDR(network, buffer_size=50, memory_batch=6)
    learner.end_task(task(0, size=13))
    assert network.trained() == [5, 4, 4]


def test_three_tasks_match_reference_implementation() -> None:
    lr, memory_batch = 0.1, 5
    network, reference = Recording(), Recording()
    learner = FDR(
        network, buffer_size=12, memory_batch=memory_batch, lr=lr, augment=jitter, seed=SEED
    )
    selection, choice = generator(SEED, "replay"), generator(SEED, "task samples")
    augmentation = generator(SEED, "augmentation")
    memory: list[list[tuple[Tensor, Tensor]]] = []  # per task: inputs and logits

    def sgd_step(loss: Tensor) -> None:
        parameters = list(reference.parameters())
        slopes = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, slope in zip(parameters, slopes, strict=True):
                parameter.sub_(lr * slope)

    def reference_task(samples: Samples) -> None:
        for start in range(0, 40, 8):
            x, y = samples.inputs[start : start + 8], samples.labels[start : start + 8]
            probabilities = reference(jitter(x, augmentation)).softmax(1)
            sgd_step(
                torch.stack([-p[c].log() for p, c in zip(probabilities, y, strict=True)]).mean()
            )
            stored = [pair for share in memory for pair in share]
            if stored:
                rows = torch.randperm(len(stored), generator=selection)[:memory_batch].tolist()
                inputs = torch.stack([stored[i][0] for i in rows])
                now = reference(jitter(inputs, augmentation)).softmax(1)
                then = [stored[i][1].softmax(0) for i in rows]
                pairs = zip(now, then, strict=True)
                sgd_step(torch.stack([((p - q) ** 2).sum().sqrt() for p, q in pairs]).mean())
        share = 12 // (len(memory) + 1)
        size = math.ceil(share / memory_batch) * memory_batch
        order = torch.randperm(40, generator=choice)[:size]
        new: list[tuple[Tensor, Tensor]] = []
        for start in range(0, size, memory_batch):
            inputs = samples.inputs[order[start : start + memory_batch]]
            new += zip(inputs, reference(jitter(inputs, augmentation)).detach(), strict=True)
        memory[:] = [old[:share] for old in memory] + [new[:share]]

    for number in range(3):
        samples = task(number)
        reference_task(samples)
        for start in range(0, 40, 8):
            learner.observe(samples.inputs[start : start + 8], samples.labels[start : start + 8])
        learner.end_task(samples)
    theirs = reference.state_dict()
    for name, own in network.state_dict().items():
        torch.testing.assert_close(own, theirs[name], rtol=1e-8, atol=1e-10)
    contents = learner.memory.contents()
    assert contents is not None
    assert contents.logits is not None
    stored = [pair for share in memory for pair in share]
    torch.testing.assert_close(contents.inputs, torch.stack([x for x, _ in stored]))
    torch.testing.assert_close(contents.logits, torch.stack([z for _, z in stored]))
    assert int(learner.steps) == 15  # batches, not optimizer steps, of which there are 25


def test_nonfinite_loss_of_the_second_step_is_detected() -> None:
    learner = FDR(nn.Linear(4, CLASSES).double(), buffer_size=5, lr=0.1)
    learner.observe(*task(0)[:2])
    samples = task(0)._replace(logits=torch.full((40, CLASSES), math.nan, dtype=torch.float64))
    learner.memory.add(samples)
    with pytest.raises(ValueError, match="infinite"):
        learner.observe(*task(0)[:2])
    learner.observe(*task(0)[:2], check=False)
    assert int(learner.nonfinite_step) == int(learner.steps) == 2


def test_losses_of_both_optimizer_steps_are_counted() -> None:
    learner = FDR(nn.Linear(4, CLASSES).double(), buffer_size=5, lr=1e-9)
    learner.observe(*task(0)[:2])
    first = learner.metrics()["loss"]
    learner.end_task(task(0))
    learner.observe(*task(0)[:2])  # the network still has the outputs that are stored
    assert learner.metrics()["loss"] == pytest.approx(first, rel=1e-3)


def test_end_task_does_not_use_global_randomness() -> None:
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


def test_end_task_checks_samples_and_does_not_modify_them() -> None:
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
    assert learner.memory.counts == {0: 5}


def test_oldest_tasks_keep_their_samples_if_there_are_more_tasks_than_rows() -> None:
    learner = FDR(Recording(), buffer_size=2, memory_batch=3)
    for number in range(4):
        learner.end_task(task(number))
    contents = learner.memory.contents()
    assert contents is not None
    assert contents.inputs.floor()[:, 0].tolist() == [0, 1]
    learner.observe(*task(0)[:2])


def test_memory_stores_bytes() -> None:
    learner = FDR(MLP(25, CLASSES), buffer_size=10)
    inputs = torch.randint(256, (20, 1, 5, 5), dtype=torch.uint8)
    learner.observe(inputs, torch.arange(20) % CLASSES)
    learner.end_task(Samples(inputs, torch.arange(20) % CLASSES))
    learner.observe(inputs, torch.arange(20) % CLASSES)
    contents = learner.memory.contents()
    assert contents is not None
    assert contents.inputs.dtype == torch.uint8


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(ValueError, match="memory_batch is 0"):
        FDR(nn.Linear(2, 2), buffer_size=5, memory_batch=0)
    with pytest.raises(ValueError, match="buffer_size is 0"):
        FDR(nn.Linear(2, 2), buffer_size=0)
