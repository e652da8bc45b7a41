from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Iterator
from importlib import import_module

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perdure.evaluation import flatness, training_samples
from perdure.learners import Predictor
from perdure.randomness import generator
from perdure.records import Samples
from perdure.streams import ComposedTask, Task


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


def test_every_forward_pass_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.structures.MAX_CHUNK", 30)
    scored: list[int] = []
    flatness(
        predictor(network()),
        samples(40),
        sigmas=[0.0, 0.1, 0.5],
        draws=2,
        noise=generator(0, "noise"),
        on_scored=scored.append,
    )
    assert scored == [30, 10] * 3 * 2


def test_flatness_equals_a_simple_reference_implementation() -> None:
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


def test_the_network_is_restored_even_after_an_error() -> None:
    module = network()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    flatness(predictor(module), samples(), noise=generator(0, "noise"))
    assert all(value.equal(before[name]) for name, value in module.state_dict().items())
    assert module.training

    wrong = Samples(torch.zeros(2, 4, dtype=torch.float64), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(RuntimeError):
        flatness(predictor(module), wrong, noise=generator(0, "noise"))
    assert all(value.equal(before[name]) for name, value in module.state_dict().items())


def test_accuracy_drops_more_in_a_sharper_minimum() -> None:
    """Two networks with the same predictions, one with ten times smaller weights."""
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


def test_one_draw_has_no_deviation_and_an_infinite_loss_is_none() -> None:
    module = nn.Linear(5, 3)
    with torch.no_grad():
        module.weight.fill_(math.inf)
    data = Samples(torch.ones(2, 5), torch.tensor([0, 1]))
    found = flatness(predictor(module), data, sigmas=[0.0], draws=1, noise=generator(0, "noise"))
    assert (found.loss, found.accuracy_std, found.loss_std) == ([None], [None], [None])


def numbered(first: int, count: int) -> Samples:
    numbers = torch.arange(first, first + count)
    return Samples(numbers[:, None].float(), numbers)


def composed(first: int, count: int | None) -> ComposedTask:
    def compose(batch: int, order: torch.Generator) -> Iterator[Samples]:
        start = first
        while count is None or start < first + count:
            yield numbered(start, batch)
            start += batch

    return ComposedTask("composed", compose)


def test_training_samples_come_from_all_tasks_each_at_most_once() -> None:
    tasks = [
        Task("a", lambda: numbered(0, 30)),
        composed(30, 20),
        Task("c", lambda: numbered(50, 10)),
    ]
    found = training_samples(tasks, 40, batch=5, seed=0)
    labels = found.labels.tolist()
    assert len(set(labels)) == len(labels) == 40
    assert labels == sorted(labels)
    assert found.inputs[:, 0].long().equal(found.labels)
    assert min(labels) < 30 <= max(labels)
    again = training_samples(tasks, 40, batch=5, seed=0)
    assert again.labels.equal(found.labels)
    assert not training_samples(tasks, 40, batch=5, seed=1).labels.equal(found.labels)


def test_all_training_samples_are_returned_if_there_are_fewer() -> None:
    tasks = [Task("a", lambda: numbered(0, 3)), Task("b", lambda: numbered(3, 4))]
    assert training_samples(tasks, 100, batch=5, seed=0).labels.tolist() == list(range(7))


def test_samples_of_a_task_are_freed_when_they_have_been_drawn() -> None:
    def build() -> Samples:
        whole = numbered(0, 3)
        built.append(weakref.ref(whole.inputs))
        return whole

    built: list[weakref.ref[Tensor]] = []
    tasks = [Task("a", build)]
    training_samples(tasks, 2, batch=5, seed=0)
    assert built[-1]() is None


def test_all_training_samples_are_equally_likely() -> None:
    tasks = [Task("a", lambda: numbered(0, 6)), Task("b", lambda: numbered(6, 2))]
    counts = Counter[int]()
    for seed in range(800):
        counts.update(training_samples(tasks, 2, batch=1, seed=seed).labels.tolist())
    # The expected count is 200, its standard deviation 12.
    assert all(abs(counts[i] - 200) < 60 for i in range(8))


@pytest.mark.parametrize("limit", [50, 56])
def test_an_endless_task_is_read_up_to_a_limit(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("perdure.evaluation.flatness")  # the attribute is the function
    monkeypatch.setattr(module, "MAX_COLLECTED", limit)
    found = training_samples([composed(0, None)], 1000, batch=8, seed=0)
    assert found.labels.tolist() == list(range(56))
