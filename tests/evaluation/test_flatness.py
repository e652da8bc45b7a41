from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from perdure.evaluation import flatness
from perdure.learners import Predictor
from perdure.randomness import generator
from perdure.records import Samples


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3)
        ).double()


def samples(count: int = 40) -> Samples:
    draws = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 5, generator=draws, dtype=torch.float64)
    return Samples(inputs, torch.randint(3, (count,), generator=draws))


def predictor(module: nn.Module) -> Predictor:
    return Predictor(module, lambda inputs: inputs)


def test_moves_every_parameter_by_sigma_times_a_normal_draw() -> None:
    module, data = network(), samples()
    sigmas = [0.0, 0.1, 0.5]
    found = flatness(predictor(module), data, sigmas=sigmas, draws=3, noise=generator(0, "noise"))
    noise = generator(0, "noise")
    accuracy: dict[float, list[float]] = {sigma: [] for sigma in sigmas}
    loss: dict[float, list[float]] = {sigma: [] for sigma in sigmas}
    for _ in range(3):
        epsilon = [torch.randn(p.shape, generator=noise) for p in module.parameters()]
        for sigma in sigmas:
            moved = network().eval()
            with torch.no_grad():
                for p, e in zip(moved.parameters(), epsilon, strict=True):
                    p.add_(e, alpha=sigma)
                scores = moved(data.inputs)
            accuracy[sigma].append(100 * float((scores.argmax(1) == data.labels).double().mean()))
            loss[sigma].append(float(F.cross_entropy(scores, data.labels)))
    assert found.accuracy == pytest.approx([sum(a) / 3 for a in accuracy.values()])
    assert found.loss == pytest.approx([sum(values) / 3 for values in loss.values()], rel=1e-5)
    spread = [torch.tensor(values).double().std().item() for values in accuracy.values()]
    assert found.accuracy_std == pytest.approx(spread)
    assert found.accuracy_std[0] == 0
    assert found.loss_std[2] == pytest.approx(
        torch.tensor(loss[0.5]).double().std().item(), rel=1e-4
    )
    assert (found.sigmas, found.draws, found.samples) == (sigmas, 3, 40)


def test_leaves_the_network_as_it_was_even_if_it_fails() -> None:
    module = network()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    flatness(predictor(module), samples(), noise=generator(0, "noise"))
    assert all(value.equal(before[name]) for name, value in module.state_dict().items())
    assert module.training

    wrong = Samples(torch.zeros(2, 4, dtype=torch.float64), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(RuntimeError):
        flatness(predictor(module), wrong, noise=generator(0, "noise"))
    assert all(value.equal(before[name]) for name, value in module.state_dict().items())


def test_a_sharper_minimum_loses_more() -> None:
    """Two networks with the same answers, of which one has ten times smaller weights."""
    data = samples(200)
    wide, narrow = (nn.Linear(5, 3, bias=False).double() for _ in range(2))
    with torch.no_grad():
        wide.weight.copy_(torch.randn(3, 5, generator=torch.Generator().manual_seed(2)) * 10)
        narrow.weight.copy_(wide.weight / 10)
    data = Samples(data.inputs, wide(data.inputs).argmax(1))
    curves = [
        flatness(predictor(module), data, sigmas=[0.0, 0.5], noise=generator(0, "noise"))
        for module in (wide, narrow)
    ]
    assert [curve.accuracy[0] for curve in curves] == [100, 100]
    assert curves[0].accuracy[1] > curves[1].accuracy[1] + 5


def test_one_draw_has_no_spread_and_an_infinite_loss_is_none() -> None:
    module = nn.Linear(5, 3)
    with torch.no_grad():
        module.weight.fill_(math.inf)
    data = Samples(torch.ones(2, 5), torch.tensor([0, 1]))
    found = flatness(predictor(module), data, sigmas=[0.0], draws=1, noise=generator(0, "noise"))
    assert (found.loss, found.accuracy_std, found.loss_std) == ([None], [None], [None])
