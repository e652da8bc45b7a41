"""Triton kernels against the equivalent torch operations."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from perdure.memory import SemanticMemory
from perdure.networks import BatchNorm, ResNet18

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def images(n: int, channels: int, side: int, *, offset: float = 0) -> Tensor:
    draws = torch.Generator("cuda").manual_seed(n * channels)
    x = torch.randn(n, channels, side, side, generator=draws, device="cuda") * 2 + offset
    return x.contiguous(memory_format=torch.channels_last)


def plain(norm: BatchNorm, x: Tensor, shortcut: Tensor | None, parts: tuple[int, ...]) -> Tensor:
    parent = super(BatchNorm, norm).forward
    y = torch.cat([parent(part) for part in torch.split(x, list(parts))])
    y = y if shortcut is None else y + shortcut
    return y.relu() if norm.relu else y


@pytest.mark.parametrize(
    ("channels", "side", "parts", "relu", "add"),
    [
        (64, 32, (32, 64), True, False),
        (512, 4, (32, 64), True, True),
        (128, 16, (9,), False, False),
        (24, 5, (5, 7), False, True),
        (96, 3, (1, 2, 3), True, True),
    ],
)
def test_fused_norm_matches_separate_operations(
    channels: int, side: int, parts: tuple[int, ...], relu: bool, add: bool
) -> None:
    torch.manual_seed(0)
    ours = BatchNorm(channels, relu=relu).cuda()
    with torch.no_grad():
        ours.weight.uniform_(0.5, 2)
        ours.bias.normal_()
    theirs = copy.deepcopy(ours).double()
    x = images(sum(parts), channels, side, offset=20)
    shortcut = images(sum(parts), channels, side) if add else None
    direction = images(sum(parts), channels, side).flip(0)
    # Rounding decides on which side of zero values close to it fall: ignore their gradient.
    exact = copy.deepcopy(theirs)
    exact.relu = False
    before = plain(exact, x.double(), None if shortcut is None else shortcut.double(), parts)
    direction[before.abs() < 1e-3] = 0
    found: list[Tensor | None] = []
    expected: list[Tensor | None] = []
    for norm, results in ((ours, found), (theirs, expected)):
        dtype = norm.weight.dtype
        inputs = [t.detach().to(dtype).requires_grad_() for t in (x, shortcut) if t is not None]
        side_input = inputs[1] if add else None
        if norm is ours:
            norm.parts = parts
            y = norm(inputs[0], side_input)
        else:
            y = plain(norm, inputs[0], side_input, parts)
        gradients = torch.autograd.grad(y, [*inputs, norm.weight, norm.bias], direction.to(dtype))
        results += [y, *gradients, norm.running_mean, norm.running_var]
    for a, b in zip(found, expected, strict=True):
        assert a is not None
        assert b is not None
        sums = a.dim() == 1  # sums over 100,000 values
        torch.testing.assert_close(a.double(), b, rtol=2e-4, atol=2e-2 if sums else 2e-3)
    assert int(ours.num_batches_tracked) == len(parts)  # type: ignore[arg-type]


def test_kernels_are_used_in_training_and_are_deterministic() -> None:
    network = ResNet18(10).cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = images(12, 3, 32)
    outputs = [copy.deepcopy(network)(x) for _ in range(2)]
    assert torch.equal(*outputs)
    assert "_NormAddReluBackward" in _operations(outputs[0])


def _operations(output: Tensor) -> set[str]:
    """Return the names of all operations in the autograd graph of a tensor."""
    seen, ahead = set(), [output.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in seen:
            seen.add(node)
            ahead += [parent for parent, _ in node.next_functions]
    return {type(node).__name__ for node in seen}


def test_cumulative_statistics_match_torch() -> None:
    ours, theirs = BatchNorm(16, relu=False).cuda(), torch.nn.BatchNorm2d(16).cuda()
    ours.momentum = theirs.momentum = None  # set by torch.optim.swa_utils.update_bn
    for n in (4, 7):
        torch.testing.assert_close(ours(images(n, 16, 4)), theirs(images(n, 16, 4)))
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)


def test_padded_channels_give_the_same_convolution() -> None:
    network = ResNet18(10, width=16).cuda()
    x = images(6, 3, 8)
    stem = network.stem[0]
    assert isinstance(stem, torch.nn.Conv2d)
    padded = stem(x)
    # Products use TF32, whose rounding depends on the kernel.
    torch.testing.assert_close(padded, stem.eval()(x), rtol=1e-2, atol=1e-2)
    (gradient,) = torch.autograd.grad(padded.square().sum(), stem.weight)
    (expected,) = torch.autograd.grad(stem(x).square().sum(), stem.weight)
    torch.testing.assert_close(gradient, expected, rtol=1e-2, atol=1e-1)


def test_relu_propagates_nan() -> None:
    norm = BatchNorm(8, relu=True).cuda()
    x = images(4, 8, 4)
    x[0, 3] = torch.nan
    assert norm(x)[:, 3].isnan().all()


def test_semantic_memory_matches_lerp_and_ignores_a_weight_of_zero() -> None:
    network = ResNet18(10, width=8).cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    always = SemanticMemory(network, decay=0.9, rate=1, name="stable")
    with torch.no_grad():
        for p in network.parameters():
            p.add_(torch.randn_like(p))
    expected = [
        torch.lerp(a, b, 0.1)
        for a, b in zip(always.network.parameters(), network.parameters(), strict=True)
    ]
    always.update(torch.tensor(100, device="cuda"))
    assert always._kernel is not None
    for a, b in zip(always.network.parameters(), expected, strict=True):
        torch.testing.assert_close(a, b)
    rarely = SemanticMemory(network, decay=0.9, rate=1e-9, name="stable")
    before = [p.clone() for p in rarely.network.parameters()]
    with torch.no_grad():
        for p in network.parameters():
            p.fill_(torch.nan)
    rarely.update(torch.tensor(100, device="cuda"))
    assert all(torch.equal(a, b) for a, b in zip(before, rarely.network.parameters(), strict=True))
