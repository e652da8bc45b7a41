"""MER: ER where its Reptile steps are identities, and a slow transcription where they are not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perdure.learners.er import ER
from perdure.learners.mer import MER
from perdure.learners.sgd import SGD
from perdure.memory import Reservoir
from perdure.records import Samples


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def with_batch_statistics(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4)
    )


def task(classes: tuple[int, int], seed: int, count: int = 200) -> Samples:
    """Noisy points about two of four centres."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes)[torch.randint(2, (count,), generator=draws)]
    noise = torch.randn(count, 8, generator=draws)
    return Samples(0.5 + torch.eye(4).repeat(1, 2)[labels] + 0.3 * noise, labels)


def batches(samples: Samples, size: int) -> list[tuple[Tensor, Tensor]]:
    inputs, labels, _ = samples
    return list(zip(torch.split(inputs, size), torch.split(labels, size), strict=True))


def jitter(inputs: Tensor, draws: torch.Generator) -> Tensor:
    return inputs + 0.1 * torch.rand(inputs.shape, generator=draws)


@pytest.mark.parametrize("size", [1, 7])
@pytest.mark.parametrize("make", [network, with_batch_statistics])
def test_without_reptile_it_is_er_bit_for_bit(make: Callable[[], nn.Module], size: int) -> None:
    samples = task((0, 1), seed=0)
    mer = MER(make(), buffer_size=30, memory_batch=12, augment=jitter, seed=3)
    er = ER(make(), buffer_size=30, memory_batch=12, augment=jitter, seed=3)
    for learner in (mer, er):
        # First several samples at once: BatchNorm has no statistics of a single one.
        for x, y in [(samples.inputs[:5], samples.labels[:5]), *batches(samples, size)]:
            learner.observe(x, y)
    ours, theirs = mer.state_dict(), er.state_dict()
    assert ours.keys() == theirs.keys()
    assert flat(ours) == flat(theirs)


def flat(state: dict[str, object], prefix: str = "") -> dict[str, object]:
    leaves: dict[str, object] = {}
    for name, leaf in state.items():
        if isinstance(leaf, dict):
            leaves |= flat(leaf, f"{prefix}{name}/")
        else:
            leaves[prefix + name] = leaf.tolist() if isinstance(leaf, Tensor) else leaf
    return leaves


@pytest.mark.parametrize(
    ("beta", "gamma", "inner_steps"), [(0.3, 1, 1), (1, 0.4, 3), (0.5, 0.2, 2)]
)
def test_step_is_the_plain_transcription(beta: float, gamma: float, inner_steps: int) -> None:
    learner = MER(
        network(),
        buffer_size=20,
        memory_batch=6,
        beta=beta,
        gamma=gamma,
        inner_steps=inner_steps,
        lr=0.1,
        seed=2,
    )
    slow, memory = copy.deepcopy(learner.network).double(), Reservoir(20, seed=2)
    for x, y in batches(task((0, 1), seed=0, count=40), 1):
        learner.observe(x, y)
        across = weights(slow)
        for _ in range(inner_steps):
            within = weights(slow)
            past = memory.draw(6)
            inputs = x if past is None else torch.cat([x, past.inputs])
            labels = y if past is None else torch.cat([y, past.labels])
            slow.zero_grad()
            F.cross_entropy(slow(inputs.double()), labels).backward()  # type: ignore[no-untyped-call]
            for p, start in zip(slow.parameters(), within, strict=True):
                assert p.grad is not None
                p.data = start + beta * (p.data - 0.1 * p.grad - start)
        for p, start in zip(slow.parameters(), across, strict=True):
            p.data = start + gamma * (p.data - start)
        memory.add(Samples(x, y))
    for found, expected in zip(learner.network.parameters(), slow.parameters(), strict=True):
        assert torch.allclose(found.double(), expected, atol=1e-5)
    assert int(learner.steps) == 40


def weights(module: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in module.parameters()]


@pytest.mark.parametrize(
    "arguments",
    [{"beta": 0.0}, {"beta": 1.5}, {"gamma": 0.0}, {"gamma": float("nan")}, {"inner_steps": 0}],
)
def test_settings_out_of_range_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(arguments))} is"):
        MER(network(), buffer_size=20, **arguments)  # type: ignore[arg-type]


def test_saved_in_mid_stream_it_goes_on_bit_for_bit(tmp_path: Path) -> None:
    learner = MER(with_batch_statistics(), buffer_size=20, beta=0.5, gamma=0.5, inner_steps=2)
    rest = batches(task((2, 3), seed=1), 10)
    for x, y in rest[:5]:
        learner.observe(x, y)
    learner.save(tmp_path / "learner")
    resumed = MER(
        with_batch_statistics(seed=7), buffer_size=20, beta=0.5, gamma=0.5, inner_steps=2, seed=7
    )
    resumed.load(tmp_path / "learner")
    for each in (learner, resumed):
        for x, y in rest[5:]:
            each.observe(x, y)
        each.save(tmp_path / f"{each is learner}")
    assert learner.memory.filled == 20
    assert (tmp_path / "True").read_bytes() == (tmp_path / "False").read_bytes()


def test_remembers_better_than_sgd() -> None:
    tasks = [task((0, 1), seed=0, count=400), task((2, 3), seed=1, count=400)]
    right = {}
    for learner in (
        MER(network(), buffer_size=40, memory_batch=20, beta=0.5, gamma=0.5, inner_steps=2),
        SGD(network()),
    ):
        for samples in tasks:
            for x, y in batches(samples, 1):
                learner.observe(x, y)
        answers = [learner.predict(samples.inputs) == samples.labels for samples in tasks]
        right[type(learner)] = [float(answer.float().mean()) for answer in answers]
    assert min(right[MER]) > 0.8
    assert right[SGD][0] < 0.3
