from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from perdure.learners import CLSER, DERPP, Learner, MultiBatchNetwork
from perdure.learners.multi_batch import MultiBatchForward, is_per_sample
from perdure.networks import MLP, ResNet18

BATCHES = [torch.rand(n, 4, generator=torch.Generator().manual_seed(n)) for n in (3, 5)]


def batchnorm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))


class Counting(nn.Module):
    """A network with BatchNorm that counts calls of `forward_batches`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = batchnorm()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]

    def forward_batches(self, *batches: Tensor) -> Sequence[Tensor]:
        self.calls += 1
        return [self(batch) for batch in batches]


def test_which_networks_are_per_sample() -> None:
    assert is_per_sample(MLP(4, 3))
    assert not is_per_sample(batchnorm())
    assert not is_per_sample(nn.Sequential(nn.Linear(4, 3), nn.Dropout()))
    assert not is_per_sample(Counting())
    own_forward = type("Own", (nn.Sequential,), {"forward": lambda self, x: x - x.mean(0)})
    assert not is_per_sample(own_forward(nn.Linear(4, 3)))


def test_which_networks_are_multi_batch_networks() -> None:
    assert isinstance(ResNet18(3, width=4), MultiBatchNetwork)
    assert isinstance(Counting(), MultiBatchNetwork)
    assert not isinstance(MLP(4, 3), MultiBatchNetwork)


@pytest.mark.parametrize("build", [lambda: MLP(4, 3), batchnorm, Counting])
def test_results_equal_one_pass_per_batch(build: type[nn.Module]) -> None:
    network = build()
    separate = copy.deepcopy(network)
    found = MultiBatchForward(network)(*BATCHES)
    for logits, batch in zip(found, BATCHES, strict=True):
        torch.testing.assert_close(logits, separate(batch))
    for name, value in separate.state_dict().items():
        torch.testing.assert_close(network.state_dict()[name], value)


def test_samples_that_do_not_interact_pass_at_once() -> None:
    network, sizes = MLP(4, 3), list[int]()
    network.register_forward_hook(lambda _module, inputs, _: sizes.append(len(inputs[0])))
    MultiBatchForward(network)(*BATCHES)
    assert sizes == [8]


@pytest.mark.parametrize("method", [CLSER, DERPP])
def test_learners_use_forward_batches(method: type[Learner]) -> None:
    network = Counting()
    learner = method(network, buffer_size=10)  # type: ignore[call-arg]
    for batch in BATCHES:
        learner.observe(batch, torch.arange(len(batch)) % 3)
    assert network.calls == 1  # there is nothing to replay in the first step
