"""Dropout in CLS-ER and Mean-ER: all networks have the same masks for the replayed samples."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from perdure import CLSER, ER, Learner, MeanER
from perdure.data import load
from perdure.learners.consistency import ReplayLogits
from perdure.state import as_bytes
from perdure.structures import Inputs

NETWORKS = {MeanER: 2, CLSER: 3}
"""Networks of a learner that process the replayed samples."""


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("normalised", [False, True])
def test_all_networks_have_the_same_masks_for_replayed_samples(
    kind: type[MeanER] | type[CLSER], normalised: bool
) -> None:
    masks: list[Tensor] = []
    dropout = nn.Dropout(0.5)
    dropout.register_forward_hook(lambda module, inputs, output: masks.append(output == 0))
    norm = nn.BatchNorm1d(50) if normalised else nn.Identity()
    network = nn.Sequential(nn.Linear(4, 50), norm, dropout, nn.Linear(50, 3))
    learner = kind(network, buffer_size=20, memory_batch=6, seed=1)
    draws = torch.Generator().manual_seed(0)
    replayed = []
    for _ in range(4):
        masks.clear()
        learner.observe(torch.rand(5, 4, generator=draws), torch.randint(3, (5,), generator=draws))
        replayed.append(masks[: NETWORKS[kind]])
    for step in replayed[1:]:  # nothing is replayed in the first step
        assert all(mask.equal(step[0]) for mask in step)
        assert not masks[-1][-len(step[0]) :].equal(step[0])  # the joined batch has its own
    assert not replayed[2][0].equal(replayed[3][0])
    assert not learner.capturable


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_network_that_draws_nothing_stays_capturable(
    kind: type[MeanER] | type[CLSER],
) -> None:
    network = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.0), nn.Linear(5, 3))
    learner = kind(network, buffer_size=20)
    for _ in range(3):
        learner.observe(torch.rand(5, 4), torch.randint(3, (5,)))
    assert learner.capturable


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_other_draws_of_replay_logits_are_not_shared(p: float) -> None:
    class Noisy(MeanER):
        def replay_logits(self, x: Inputs, y: Tensor) -> ReplayLogits:
            noise.append(torch.randn(3))
            return super().replay_logits(x, y)

    noise: list[Tensor] = []
    masks: list[Tensor] = []
    dropout = nn.Dropout(p)
    dropout.register_forward_hook(lambda module, inputs, output: masks.append(output == 0))
    network = nn.Sequential(nn.Linear(4, 50), nn.BatchNorm1d(50), dropout, nn.Linear(50, 3))
    learner = Noisy(network, buffer_size=20, memory_batch=5)
    for _ in range(4):
        masks.clear()
        learner.observe(torch.rand(5, 4), torch.randint(3, (5,)))
    assert not noise[0].equal(noise[1])
    assert not noise[1].equal(noise[2])
    assert masks[0].equal(masks[1])
    assert learner.capturable == (p == 0)


def test_logits_outside_of_a_step_leave_the_global_generator_alone() -> None:
    network = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    learner = CLSER(network, buffer_size=20)
    for _ in range(3):
        learner.observe(torch.rand(5, 4), torch.randint(3, (5,)))
    torch.rand(3)
    state = torch.get_rng_state()
    learner.replay_logits(torch.ones(5, 4), torch.zeros(5, dtype=torch.int64))
    assert torch.get_rng_state().equal(state)
    assert learner.capturable


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("undone", [False, True])
def test_a_step_that_failed_has_no_effect_on_later_draws(
    kind: type[MeanER] | type[CLSER], undone: bool
) -> None:
    class Failing(nn.Dropout):
        def forward(self, input: Tensor) -> Tensor:
            passes.append(1)
            if len(passes) == fails_at:
                raise KeyboardInterrupt
            return super().forward(input)

    passes: list[int] = []
    fails_at = 0
    x, y = torch.rand(5, 4), torch.zeros(5, dtype=torch.int64)
    learner = kind(nn.Sequential(Failing(0.5), nn.Linear(4, 3)), buffer_size=20)
    learner.observe(x, y)
    step = learner.observe if undone else learner.step
    for number in range(1, NETWORKS[kind] + 1):
        passes.clear()
        fails_at = number
        with pytest.raises(KeyboardInterrupt):
            step(x, y)
        torch.manual_seed(number)
        learner.replay_logits(x, y)
        after = torch.get_rng_state()
        torch.manual_seed(number)
        for _ in range(NETWORKS[kind] - 1):
            torch.nn.functional.dropout(x)
        assert torch.get_rng_state().equal(after)


@pytest.mark.parametrize("kind", NETWORKS)
def test_networks_that_draw_in_some_passes_resume_exactly(
    kind: type[MeanER] | type[CLSER],
) -> None:
    class Sometimes(nn.Dropout):
        passes: Tensor

        def __init__(self) -> None:
            super().__init__(0.5)
            self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

        def forward(self, input: Tensor) -> Tensor:
            self.passes += self.training
            return super().forward(input) if int(self.passes) % 4 == 0 else input

    network = nn.Sequential(nn.Linear(4, 9), Sometimes(), nn.Linear(9, 3))
    learner = kind(copy.deepcopy(network), buffer_size=20)
    batches = [(torch.rand(5, 4), torch.randint(3, (5,))) for _ in range(10)]
    states = []
    for batch in batches:
        states.append(learner.state_dict())
        learner.observe(*batch)
    for steps, state in enumerate(states):
        resumed = kind(copy.deepcopy(network), buffer_size=20)
        resumed.load_state_dict(state)
        for batch in batches[steps:]:
            resumed.observe(*batch)
        assert as_bytes(resumed.state_dict(), {}) == as_bytes(learner.state_dict(), {})


def test_networks_that_join_batches_share_masks_too() -> None:
    class Joined(nn.Sequential):
        def forward_batches(self, *batches: Tensor) -> tuple[Tensor, ...]:
            sizes = [len(batch) for batch in batches]
            return torch.split(self(torch.cat(batches)), sizes)

    learner = CLSER(
        Joined(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3)), buffer_size=20, lr=1e-12
    )
    for _ in range(6):
        learner.observe(torch.rand(5, 4), torch.randint(3, (5,)))
    assert learner.totals()["consistency"] < 1e-9  # all networks are equal, and so are masks


def test_clser_learns_with_dropout_and_batchnorm() -> None:
    """With separate masks, logits grow and CLS-ER is 50 points below ER."""
    digits = load("mnist5k")

    def accuracy(kind: type[ER] | type[CLSER]) -> float:
        torch.manual_seed(0)
        hidden = nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.5)
        network = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), *hidden, nn.Linear(64, 10))
        learner: Learner = kind(network, buffer_size=200)
        by_class = digits.train.labels.argsort(stable=True)
        for rows in torch.split(by_class, 8):
            learner.observe(digits.train.inputs[rows], digits.train.labels[rows])
        correct = learner.predict(digits.test.inputs) == digits.test.labels
        return float(correct.float().mean())

    assert accuracy(CLSER) > accuracy(ER) - 0.1
