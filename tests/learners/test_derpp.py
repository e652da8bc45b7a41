"""DER++ against a slow transcription of its paper's equation 6."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from perdure.learners.derpp import DERPP
from perdure.learners.sgd import SGD
from perdure.networks import MLP
from perdure.records import Samples

CLASSES, SEED = 3, 5


class Recording(nn.Module):
    """A network with BatchNorm that keeps what it was asked, in double precision."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES)
        ).double()
        self.asked: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.asked.append(x.detach().clone())
        return self.layers(x)  # type: ignore[no-any-return]


def stream(steps: int, batch: int = 6) -> Iterator[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(2)
    for _ in range(steps):
        inputs = torch.rand(batch, 4, dtype=torch.float64, generator=random)
        yield inputs, torch.randint(CLASSES, (batch,), generator=random)


def jitter(inputs: Tensor, random: torch.Generator) -> Tensor:
    return inputs + 0.1 * torch.rand(inputs.shape, dtype=inputs.dtype, generator=random)


def record_draws(learner: DERPP) -> list[Samples | None]:
    """From now on, every replay batch in the order of drawing."""
    drawn: list[Samples | None] = []
    draw = learner.memory.draw

    def recorded(count: int) -> Samples | None:
        drawn.append(draw(count))
        return drawn[-1]

    learner.memory.draw = recorded  # type: ignore[method-assign]
    return drawn


def nll(row: Tensor, label: int) -> Tensor:
    return -(row[label] - row.exp().sum().log())


def test_a_hundred_steps_follow_equation_6() -> None:
    alpha, beta, lr, memory_batch = 0.7, 0.4, 0.1, 5
    network, slow = Recording(), Recording()
    learner = DERPP(
        network,
        buffer_size=20,
        memory_batch=memory_batch,
        alpha=alpha,
        beta=beta,
        lr=lr,
        augment=jitter,
        seed=SEED,
    )
    drawn = record_draws(learner)
    parameters = list(slow.parameters())
    for inputs, labels in stream(100):
        drawn.clear()
        network.asked.clear()
        learner.step(inputs, labels)
        first, second = drawn
        x, *replayed = network.asked
        loss = sum(
            nll(row, y) / len(labels) for row, y in zip(slow(x), labels.tolist(), strict=True)
        )
        if first is not None and second is not None and first.logits is not None:
            for row, z in zip(slow(replayed[0]), first.logits, strict=True):
                loss = loss + alpha * ((row - z) ** 2).sum() / (len(first.labels) * CLASSES)
            for row, y in zip(slow(replayed[1]), second.labels.tolist(), strict=True):
                loss = loss + beta * nll(row, y) / len(second.labels)
        assert isinstance(loss, Tensor)
        slopes = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, slope in zip(parameters, slopes, strict=True):
                parameter.sub_(lr * slope)
    theirs = slow.state_dict()
    for name, own in network.state_dict().items():
        torch.testing.assert_close(own, theirs[name], rtol=1e-9, atol=1e-11)
    assert int(learner.steps) == 100


def test_stream_then_logits_batch_then_labels_batch() -> None:
    network = Recording()
    learner = DERPP(network, buffer_size=40, memory_batch=5, seed=SEED)
    drawn = record_draws(learner)
    for inputs, labels in stream(8):
        network.asked.clear()
        drawn.clear()
        learner.step(inputs, labels)
        expected = [inputs, *(past.inputs for past in drawn if past is not None)]
        assert len(network.asked) == len(expected)
        for asked, wanted in zip(network.asked, expected, strict=True):
            assert torch.equal(asked, wanted)
    assert drawn[0] is not None
    assert drawn[1] is not None
    assert not torch.equal(drawn[0].inputs, drawn[1].inputs)  # drawn independently


def test_one_pass_gives_the_numbers_of_three() -> None:
    torch.manual_seed(1)
    network = MLP(4, CLASSES, hidden=8).double()
    joined = DERPP(network, buffer_size=20, seed=SEED)
    torch.manual_seed(1)
    apart = DERPP(MLP(4, CLASSES, hidden=8).double(), buffer_size=20, seed=SEED)
    apart.forward_batches.per_sample = False
    assert joined.forward_batches.per_sample
    for inputs, labels in stream(50):
        joined.step(inputs, labels)
        apart.step(inputs, labels)
    for one, other in zip(joined.network.parameters(), apart.network.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_a_state_taken_in_the_middle_goes_on_as_if_nothing_had_happened() -> None:
    def fresh() -> DERPP:
        return DERPP(Recording(), buffer_size=15, memory_batch=4, augment=jitter, seed=SEED)

    straight, first, second = fresh(), fresh(), fresh()
    batches = list(stream(12))
    for inputs, labels in batches:
        straight.observe(inputs, labels)
    for inputs, labels in batches[:5]:
        first.observe(inputs, labels)
    second.load_state_dict(first.state_dict())
    for inputs, labels in batches[5:]:
        second.observe(inputs, labels)
    theirs = straight.network.state_dict()
    for name, own in second.network.state_dict().items():
        assert torch.equal(own, theirs[name])
    one, other = straight.memory.contents(), second.memory.contents()
    assert one is not None
    assert other is not None
    assert one.logits is not None
    assert other.logits is not None
    assert torch.equal(one.inputs, other.inputs)
    assert torch.equal(one.logits, other.logits)
    assert len(one.labels) == 15


def test_it_remembers_what_sgd_forgets() -> None:
    random = torch.Generator().manual_seed(0)
    centres = torch.rand(4, 8, generator=random)  # all in one corner, as images are

    def batch(task: int, n: int) -> tuple[Tensor, Tensor]:
        y = 2 * task + torch.randint(2, (n,), generator=random)
        return centres[y] + 0.1 * torch.randn(n, 8, generator=random), y

    torch.manual_seed(0)
    forgetful = SGD(MLP(8, 4, hidden=32), lr=0.1)
    torch.manual_seed(0)
    learner = DERPP(MLP(8, 4, hidden=32), buffer_size=50, lr=0.1)
    for task in range(2):
        for _ in range(200):
            inputs, labels = batch(task, 10)
            forgetful.observe(inputs, labels)
            learner.observe(inputs, labels)
    inputs, labels = batch(0, 200)
    assert (forgetful.predict(inputs) == labels).double().mean() < 0.1
    assert (learner.predict(inputs) == labels).double().mean() > 0.8


@pytest.mark.parametrize("weight", [-0.1, math.nan, math.inf])
def test_a_weight_out_of_range_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="alpha is"):
        DERPP(nn.Linear(2, 2), buffer_size=5, alpha=weight)
    with pytest.raises(ValueError, match="beta is"):
        DERPP(nn.Linear(2, 2), buffer_size=5, beta=weight)
