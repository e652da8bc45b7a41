"""Mean-ER against a reference implementation: CLS-ER with a single semantic memory."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perdure.learners import ER, MeanER
from perdure.randomness import generator

LR, WEIGHT, DECAY, RATE, BUFFER, REPLAY, SEED = 0.1, 0.4, 0.9, 0.5, 10, 6, 3


class Reference:
    """Processes one sample at a time; `wrong` names a rule to violate."""

    def __init__(self, network: nn.Module, wrong: str = "") -> None:
        self.wrong = wrong
        self.working = network.train()
        self.mean = copy.deepcopy(network)
        names = ("reservoir", "replay", "mean update")
        self.draws = {name: generator(SEED, name) for name in names}
        self.memory: list[tuple[Tensor, int]] = []
        self.seen = self.steps = 0

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        self.steps += 1
        batch = list(zip(inputs, labels.tolist(), strict=True))
        replay = []
        if self.memory:
            order = torch.randperm(len(self.memory), generator=self.draws["replay"]).tolist()
            replay = [self.memory[row] for row in order[:REPLAY]]
        union = batch + replay
        loss = torch.zeros((), dtype=torch.float64)
        if replay:
            x_m = torch.stack([image for image, _ in replay])
            with torch.no_grad():
                z = self.mean(x_m).tolist()
            replayed = self.working(x_m)
            outputs = len(z[0])
            for i in range(len(replay)):
                for c in range(outputs):
                    loss = loss + WEIGHT * (replayed[i, c] - z[i][c]) ** 2 / (len(z) * outputs)
        logits = self.working(torch.stack([image for image, _ in union]))
        for i, (_, label) in enumerate(union):
            loss = loss + (torch.logsumexp(logits[i], 0) - logits[i, label]) / len(union)
        parameters = list(self.working.parameters())
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for p, gradient in zip(parameters, gradients, strict=True):
                p.sub_(LR * gradient)
        chances = torch.rand(len(batch), dtype=torch.float64, generator=self.draws["reservoir"])
        for sample, chance in zip(batch, chances.tolist(), strict=True):
            if self.seen < BUFFER:
                self.memory.append(sample)
            elif (v := math.floor(chance * (self.seen + 1))) < BUFFER:
                self.memory[v] = sample
            self.seen += 1
        if float(torch.rand((), generator=self.draws["mean update"])) < RATE:
            decay = DECAY if self.wrong == "no warm-up" else min(1 - 1 / (self.steps + 1), DECAY)
            pairs: list[tuple[Tensor, Tensor]] = []
            pairs += zip(self.mean.parameters(), parameters, strict=True)
            if self.wrong == "running statistics are averaged":
                pairs += zip(self.mean.buffers(), self.working.buffers(), strict=True)
            with torch.no_grad():
                for own, other in pairs:
                    own.copy_(decay * own + (1 - decay) * other)


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def batchnorm() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def pair(build: Callable[[], nn.Module], wrong: str = "") -> tuple[MeanER, Reference]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = build().double()
    reference = Reference(copy.deepcopy(network), wrong)
    learner = MeanER(
        network,
        lr=LR,
        consistency_weight=WEIGHT,
        window=None,
        decay=DECAY,
        rate=RATE,
        buffer_size=BUFFER,
        memory_batch=REPLAY,
        seed=SEED,
    )
    return learner, reference


def learn(learner: MeanER, reference: Reference, steps: int) -> float:
    """Train both on the same stream; return the largest difference of weights and statistics."""
    draws = torch.Generator().manual_seed(1)
    for _ in range(steps):
        inputs = torch.randn(4, 6, dtype=torch.float64, generator=draws)
        labels = torch.randint(3, (4,), generator=draws)
        learner.observe(inputs, labels)
        reference.step(inputs, labels)
    networks = ((learner.network, reference.working), (learner.mean.network, reference.mean))
    return max(
        float((own - other).detach().abs().max())
        for one, two in networks
        for own, other in zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("build", [plain, batchnorm])
def test_matches_reference_implementation(build: Callable[[], nn.Module]) -> None:
    learner, reference = pair(build)
    assert learn(learner, reference, 200) < 1e-11
    contents = learner.memory.contents()
    assert contents is not None
    assert contents.inputs.equal(torch.stack([image for image, _ in reference.memory]))
    assert contents.labels.tolist() == [label for _, label in reference.memory]


@pytest.mark.parametrize("wrong", ["no warm-up", "running statistics are averaged"])
def test_comparison_detects_a_wrong_rule(wrong: str) -> None:
    assert learn(*pair(batchnorm, wrong), 40) > 1e-3


def test_mean_predicts() -> None:
    learner, reference = pair(plain)
    learn(learner, reference, 30)
    inputs = torch.randn(5, 6, dtype=torch.float64)
    assert list(learner.predictors()) == ["mean", "working"]
    expected = learner.mean.network(inputs).softmax(1)
    torch.testing.assert_close(learner.predict_proba(inputs).double(), expected, atol=1e-6, rtol=0)
    assert not torch.allclose(expected, learner.network(inputs).softmax(1), atol=1e-3)


@pytest.mark.parametrize(
    ("name", "value"),
    [("decay", 1.0), ("rate", 0.0), ("rate", 2.0), ("window", 0.0), ("consistency_weight", -1.0)],
)
def test_invalid_arguments_are_rejected(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value}"):
        MeanER(nn.Linear(3, 2), buffer_size=4, **{name: value})  # type: ignore[arg-type]


def test_a_weight_of_zero_trains_like_er() -> None:
    networks = [nn.Linear(6, 3) for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    options: dict[str, Any] = {"buffer_size": BUFFER, "memory_batch": REPLAY, "lr": LR}
    learners = MeanER(networks[0], consistency_weight=0, **options), ER(networks[1], **options)
    for _ in range(5):
        inputs, labels = torch.randn(4, 6), torch.randint(3, (4,))
        for learner in learners:
            learner.observe(inputs, labels)
    torch.testing.assert_close(networks[0].weight, networks[1].weight)
