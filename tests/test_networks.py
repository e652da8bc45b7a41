from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perdure.networks import CNN, MLP, ResNet18, cnn, mlp, resnet18


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def test_parameter_counts_match_the_paper() -> None:
    assert count(mlp((1, 28, 28), 10)) == 89_610
    assert count(resnet18((3, 32, 32), 10)) == 11_173_962
    assert count(resnet18((3, 64, 64), 200)) == 11_173_962 + 190 * 513
    assert count(ResNet18(10, channels=1)) == 11_173_962 - 2 * 64 * 9


@pytest.mark.parametrize(("size", "stages"), [(32, [32, 16, 8, 4]), (64, [64, 32, 16, 8])])
def test_resnet_halves_the_image_three_times_without_pooling(size: int, stages: list[int]) -> None:
    network = ResNet18(7, width=8)
    sizes: list[tuple[int, ...]] = []
    for block in list(network.blocks)[1::2]:
        block.register_forward_hook(lambda _, __, out: sizes.append(tuple(out.shape)))
    network.stem.register_forward_hook(lambda _, __, out: sizes.append(tuple(out.shape)))
    assert network(torch.rand(2, 3, size, size)).shape == (2, 7)
    assert sizes[0] == (2, 8, size, size)
    assert sizes[1:] == [(2, 8 * 2**i, stage, stage) for i, stage in enumerate(stages)]


def test_resnet_has_eight_residual_blocks() -> None:
    network = ResNet18(5, width=4).double().eval()
    with torch.no_grad():
        for buffer in network.buffers():
            if buffer.is_floating_point():
                buffer.uniform_(0.5, 1.5)
    x = torch.rand(3, 3, 16, 16, dtype=torch.float64)
    layers: dict[str, Any] = dict(network.named_modules())

    def norm(name: str, x: Tensor) -> Tensor:
        layer = layers[name]
        mean, var = layer.running_mean, layer.running_var
        return F.batch_norm(x, mean, var, layer.weight, layer.bias)

    assert sum(isinstance(layer, nn.Conv2d) for layer in layers.values()) == 1 + 16 + 3
    out = F.relu(norm("stem.1", F.conv2d(x, layers["stem.0"].weight, padding=1)))
    for i in range(8):
        stride = 2 if i in (2, 4, 6) else 1
        block = f"blocks.{i}"
        inner = F.conv2d(out, layers[f"{block}.conv1"].weight, stride=stride, padding=1)
        inner = F.relu(norm(f"{block}.bn1", inner))
        inner = norm(f"{block}.bn2", F.conv2d(inner, layers[f"{block}.conv2"].weight, padding=1))
        if stride == 2:
            side = F.conv2d(out, layers[f"{block}.shortcut.0"].weight, stride=2)
            out = norm(f"{block}.shortcut.1", side)
        out = F.relu(inner + out)
    expected = F.linear(out.flatten(2).mean(2), network.head.weight, network.head.bias)
    torch.testing.assert_close(network(x), expected)


def test_mlp_has_two_hidden_relu_layers_of_100_units() -> None:
    network = mlp((1, 28, 28), 10)
    x = torch.rand(4, 1, 28, 28)
    layers = [m for m in network if isinstance(m, nn.Linear)]
    assert [tuple(m.weight.shape) for m in layers] == [(100, 784), (100, 100), (10, 100)]
    first = F.relu(F.linear(x.view(4, 784), layers[0].weight, layers[0].bias))
    second = F.relu(F.linear(first, layers[1].weight, layers[1].bias))
    assert network(x).equal(F.linear(second, layers[2].weight, layers[2].bias))


def test_mlp_initialisation_is_xavier_uniform_with_zero_biases() -> None:
    for layer in MLP(784, 10):
        if isinstance(layer, nn.Linear):
            outputs, inputs = layer.weight.shape
            bound = math.sqrt(6 / (inputs + outputs))
            weights = layer.weight.detach()
            assert 0.95 * bound < float(weights.abs().max()) <= bound
            assert float(weights.std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)
            assert not layer.bias.any()


def test_resnet_uses_pytorch_initialisation() -> None:
    for module in ResNet18(10).modules():
        if isinstance(module, nn.Conv2d):
            bound = 1 / math.sqrt(module.weight[0].numel())
            largest = float(module.weight.detach().abs().max())
            assert 0.9 * bound < largest <= bound * 1.000001
            assert module.bias is None
        elif isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert not module.bias.any()
            assert module.momentum == 0.1


@pytest.mark.parametrize("shape", [(12,), (3, 2, 2), (1, 3, 4)])
def test_mlp_accepts_inputs_of_any_shape(shape: tuple[int, ...]) -> None:
    assert mlp(shape, 3)(torch.rand(5, *shape)).shape == (5, 3)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 9), (2, 64, 64)])
def test_cnn_accepts_images_of_any_size(shape: tuple[int, int, int]) -> None:
    assert cnn(shape, 7)(torch.rand(2, *shape)).shape == (2, 7)


def test_networks_for_images_refuse_other_inputs() -> None:
    for make in (cnn, resnet18):
        with pytest.raises(ValueError, match="is for images"):
            make((12,), 3)


@pytest.mark.parametrize("kind", [ResNet18, CNN])
def test_forward_batches_matches_one_pass_per_batch(kind: type[ResNet18] | type[CNN]) -> None:
    joint, separate = kind(5, width=4).double(), kind(5, width=4).double()
    separate.load_state_dict(joint.state_dict())
    batches = [torch.rand(n, 3, 8, 8, dtype=torch.float64) for n in (3, 5)]
    ours = joint.forward_batches(*batches)
    theirs = [separate(batch) for batch in batches]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    torch.cat(list(ours)).square().sum().backward()  # type: ignore[no-untyped-call]
    torch.cat(theirs).square().sum().backward()  # type: ignore[no-untyped-call]
    for p, q in zip(joint.parameters(), separate.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    for name, value in separate.state_dict().items():  # including running statistics
        torch.testing.assert_close(joint.state_dict()[name], value)


def test_forward_batches_can_fail_without_side_effects() -> None:
    network = ResNet18(5, width=4)
    with pytest.raises(RuntimeError):
        network.forward_batches(torch.rand(2, 1, 8, 8), torch.rand(2, 1, 8, 8))
    assert network(torch.rand(3, 3, 8, 8)).shape == (3, 5)
