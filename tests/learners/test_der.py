"""DER against a reference implementation of the paper's algorithm."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from perdure.learners.der import DER
from perdure.networks import MLP
from perdure.randomness import generator

CLASSES, SEED = 3, 4


def conv_network() -> nn.Module:
    """A small network with BatchNorm, in double precision."""
    torch.manual_seed(1)
    layers = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(4 * 9, CLASSES)).double()


def mlp_network() -> nn.Module:
    torch.manual_seed(1)
    return MLP(25, CLASSES, hidden=8).double()


def stream(steps: int, batch: int = 6) -> Iterator[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(2)
    for _ in range(steps):
        inputs = torch.rand(batch, 1, 5, 5, dtype=torch.float64, generator=random)
        yield inputs, torch.randint(CLASSES, (batch,), generator=random)


def jitter(inputs: Tensor, random: torch.Generator) -> Tensor:
    return inputs + 0.1 * torch.rand(inputs.shape, dtype=inputs.dtype, generator=random)


def reference_der(
    network: nn.Module, steps: int, *, alpha: float, buffer_size: int, memory_batch: int, lr: float
) -> list[tuple[Tensor, int, Tensor]]:
    """Algorithm 1, sample by sample; returns M as (input, label, logits)."""
    insertion, selection = generator(SEED, "reservoir"), generator(SEED, "replay")
    augmentation = generator(SEED, "augmentation")
    memory: list[tuple[Tensor, int, Tensor]] = []
    seen = 0
    for inputs, labels in stream(steps):
        replay = (
            [
                memory[i]
                for i in torch.randperm(len(memory), generator=selection)[:memory_batch].tolist()
            ]
            if memory
            else []
        )
        z = network(jitter(inputs, augmentation))
        loss = torch.zeros((), dtype=torch.float64)
        for row, label in zip(z, labels.tolist(), strict=True):
            loss = loss - row.log_softmax(0)[label] / len(labels)
        if replay:
            replayed = network(jitter(torch.stack([x for x, _, _ in replay]), augmentation))
            for row, (_, _, stored) in zip(replayed, replay, strict=True):
                loss = loss + alpha * ((row - stored) ** 2).sum() / (len(replay) * CLASSES)
        parameters = list(network.parameters())
        slopes = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, slope in zip(parameters, slopes, strict=True):
                parameter.sub_(lr * slope)
        chances = torch.rand(len(labels), dtype=torch.float64, generator=insertion).tolist()
        for x, label, row, chance in zip(inputs, labels, z.detach(), chances, strict=True):
            slot = len(memory) if len(memory) < buffer_size else math.floor(chance * (seen + 1))
            if slot < buffer_size:
                memory[slot : slot + 1] = [(x, int(label), row)]
            seen += 1
    return memory


@pytest.mark.parametrize("build", [conv_network, mlp_network])
def test_100_steps_match_reference_implementation(build: type[nn.Module]) -> None:
    reference = build()
    memory = reference_der(reference, 100, alpha=0.7, buffer_size=20, memory_batch=5, lr=0.1)
    learner = DER(
        build(), buffer_size=20, memory_batch=5, alpha=0.7, lr=0.1, augment=jitter, seed=SEED
    )
    for inputs, labels in stream(100):
        learner.observe(inputs, labels)
    for own, expected in zip(
        learner.network.state_dict().values(), reference.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(own, expected, rtol=1e-9, atol=1e-11)
    contents = learner.memory.contents()
    assert contents is not None
    assert contents.logits is not None
    assert contents.labels.tolist() == [label for _, label, _ in memory]
    torch.testing.assert_close(contents.inputs, torch.stack([x for x, _, _ in memory]))
    torch.testing.assert_close(contents.logits, torch.stack([z for _, _, z in memory]))
    assert int(learner.steps) == 100


def test_stored_logits_precede_the_update() -> None:
    learner = DER(conv_network(), buffer_size=50, seed=SEED)
    inputs, labels = next(stream(1))
    expected = conv_network()(inputs)  # training mode, fresh weights
    learner.observe(inputs, labels)
    for later in stream(4):
        learner.observe(*later)
    contents = learner.memory.contents()
    assert contents is not None
    assert contents.logits is not None
    torch.testing.assert_close(contents.logits[:6], expected.detach())
    assert not torch.allclose(learner.network(inputs), expected)


def test_batchnorm_processes_stream_and_replay_separately() -> None:
    network = conv_network()
    sizes: list[int] = []
    network.register_forward_hook(lambda _module, inputs, _output: sizes.append(len(inputs[0])))
    learner = DER(network, buffer_size=50, memory_batch=4)
    for batch in stream(3):
        learner.step(*batch)
    assert sizes == [6, 6, 4, 6, 4]


def test_memory_stores_bytes_and_is_bounded() -> None:
    learner = DER(MLP(25, CLASSES), buffer_size=10, memory_batch=4)
    for step in range(4):
        inputs = torch.full((6, 1, 5, 5), step, dtype=torch.uint8)
        before = inputs.clone()
        learner.observe(inputs, torch.arange(6) % CLASSES)
        assert torch.equal(inputs, before)
    contents = learner.memory.contents()
    assert contents is not None
    assert contents.inputs.dtype == torch.uint8
    assert len(contents.labels) == 10


@pytest.mark.parametrize("alpha", [-0.1, math.nan, math.inf])
def test_invalid_weight_is_rejected(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha is"):
        DER(nn.Linear(2, 2), buffer_size=5, alpha=alpha)
