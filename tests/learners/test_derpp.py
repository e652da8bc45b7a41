"""DER++ against a reference implementation of the paper's equation 6."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from perdure.learners.derpp import DERPP
from perdure.networks import MLP
from perdure.records import Samples

CLASSES, SEED = 3, 5


class Recording(nn.Module):
    """A network with BatchNorm that records its inputs, in double precision."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES)
        ).double()
        self.received: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.received.append(x.detach().clone())
        return self.layers(x)  # type: ignore[no-any-return]


def stream(steps: int, batch: int = 6) -> Iterator[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(2)
    for _ in range(steps):
        inputs = torch.rand(batch, 4, dtype=torch.float64, generator=random)
        yield inputs, torch.randint(CLASSES, (batch,), generator=random)


def jitter(inputs: Tensor, random: torch.Generator) -> Tensor:
    return inputs + 0.1 * torch.rand(inputs.shape, dtype=inputs.dtype, generator=random)


def record_draws(learner: DERPP) -> list[Samples | None]:
    """Return a list that collects every replay batch."""
    drawn: list[Samples | None] = []
    draw = learner.memory.draw

    def recorded(count: int) -> Samples | None:
        drawn.append(draw(count))
        return drawn[-1]

    learner.memory.draw = recorded  # type: ignore[method-assign]
    return drawn


def nll(row: Tensor, label: int) -> Tensor:
    return -(row[label] - row.exp().sum().log())


def test_100_steps_match_equation_6() -> None:
    alpha, beta, lr, memory_batch = 0.7, 0.4, 0.1, 5
    network, reference = Recording(), Recording()
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
    parameters = list(reference.parameters())
    for inputs, labels in stream(100):
        drawn.clear()
        network.received.clear()
        learner.step(inputs, labels)
        first, second = drawn
        x, *replayed = network.received
        loss = sum(
            nll(row, y) / len(labels) for row, y in zip(reference(x), labels.tolist(), strict=True)
        )
        if first is not None and second is not None and first.logits is not None:
            for row, z in zip(reference(replayed[0]), first.logits, strict=True):
                loss = loss + alpha * ((row - z) ** 2).sum() / (len(first.labels) * CLASSES)
            for row, y in zip(reference(replayed[1]), second.labels.tolist(), strict=True):
                loss = loss + beta * nll(row, y) / len(second.labels)
        assert isinstance(loss, Tensor)
        slopes = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, slope in zip(parameters, slopes, strict=True):
                parameter.sub_(lr * slope)
    theirs = reference.state_dict()
    for name, own in network.state_dict().items():
        torch.testing.assert_close(own, theirs[name], rtol=1e-9, atol=1e-11)
    assert int(learner.steps) == 100


def test_order_is_stream_then_logits_batch_then_labels_batch() -> None:
    network = Recording()
    learner = DERPP(network, buffer_size=40, memory_batch=5, seed=SEED)
    drawn = record_draws(learner)
    for inputs, labels in stream(8):
        network.received.clear()
        drawn.clear()
        learner.step(inputs, labels)
        expected = [inputs, *(past.inputs for past in drawn if past is not None)]
        assert len(network.received) == len(expected)
        for found, wanted in zip(network.received, expected, strict=True):
            assert torch.equal(found, wanted)
    assert drawn[0] is not None
    assert drawn[1] is not None
    assert not torch.equal(drawn[0].inputs, drawn[1].inputs)  # drawn independently


def test_single_pass_matches_separate_passes() -> None:
    torch.manual_seed(1)
    network = MLP(4, CLASSES, hidden=8).double()
    single = DERPP(network, buffer_size=20, seed=SEED)
    torch.manual_seed(1)
    separate = DERPP(MLP(4, CLASSES, hidden=8).double(), buffer_size=20, seed=SEED)
    separate.forward_batches.per_sample = False
    assert single.forward_batches.per_sample
    for inputs, labels in stream(50):
        single.step(inputs, labels)
        separate.step(inputs, labels)
    for one, other in zip(single.network.parameters(), separate.network.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("weight", [-0.1, math.nan, math.inf])
def test_invalid_weight_is_rejected(weight: float) -> None:
    with pytest.raises(ValueError, match="alpha is"):
        DERPP(nn.Linear(2, 2), buffer_size=5, alpha=weight)
    with pytest.raises(ValueError, match="beta is"):
        DERPP(nn.Linear(2, 2), buffer_size=5, beta=weight)
