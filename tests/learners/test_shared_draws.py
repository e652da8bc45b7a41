"""Dropout in CLS-ER and Mean-ER: all networks have the same masks for the replayed samples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from perdure import CLSER, ER, Learner, MeanER
from perdure.data import load

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


def test_clser_learns_with_dropout_and_batchnorm() -> None:
    """With masks of its own for each network, logits grow and CLS-ER is 30 points below ER."""
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
