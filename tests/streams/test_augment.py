from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor

from perdure.streams import CIFAR10, TINY_IMAGENET, CropFlip, Normalise, Scale


def images(n: int, *, channels: int = 3, height: int = 6, width: int = 5) -> Tensor:
    draws = torch.Generator().manual_seed(1)
    shape = n, channels, height, width
    return torch.randint(1, 256, shape, generator=draws, dtype=torch.uint8)


def crops(image: Tensor, padding: int) -> dict[bytes, tuple[int, int, bool]]:
    """Every crop of an image: its bytes, and the top, left and flip it was made with."""
    _, height, width = image.shape
    padded = F.pad(image, [padding] * 4)
    found = {}
    for top in range(2 * padding + 1):
        for left in range(2 * padding + 1):
            crop = padded[:, top : top + height, left : left + width]
            for flip in (False, True):
                result = crop.flip(2) if flip else crop
                found[result.numpy().tobytes()] = top, left, flip
    return found


@pytest.mark.parametrize("padding", [0, 1, 4])
def test_all_crops_of_an_image_are_equally_likely(padding: int) -> None:
    image = images(1)
    possible = crops(image[0], padding)
    draws = torch.Generator().manual_seed(padding)
    out = CropFlip(padding)(image.expand(8000, -1, -1, -1), draws)
    assert (out.dtype, out.shape) == (torch.uint8, (8000, 3, 6, 5))
    drawn = Counter(possible[each.numpy().tobytes()] for each in out)
    assert stats.chisquare([drawn[crop] for crop in possible.values()]).pvalue > 0.01


def test_images_of_a_batch_get_different_crops() -> None:
    inputs = images(64)
    out = CropFlip(2)(inputs, torch.Generator().manual_seed(0))
    drawn = [
        crops(image, 2)[each.numpy().tobytes()] for image, each in zip(inputs, out, strict=True)
    ]
    assert len(set(drawn)) > 20


def test_crops_of_neighbouring_images_are_independent() -> None:
    inputs = images(1).expand(6000, -1, -1, -1)
    possible = crops(inputs[0], 1)
    out = CropFlip(1)(inputs, torch.Generator().manual_seed(3))
    drawn = [possible[each.numpy().tobytes()] for each in out]
    for part in range(3):
        pairs = Counter((a[part], b[part]) for a, b in zip(drawn[::2], drawn[1::2], strict=True))
        values = sorted({a for a, _ in pairs})
        table = [[pairs[a, b] for b in values] for a in values]
        assert stats.chi2_contingency(table).pvalue > 0.01


def test_crops_depend_only_on_the_generator_and_do_not_modify_the_images() -> None:
    inputs = images(32)
    before = inputs.clone()
    one, same, other = (CropFlip()(inputs, torch.Generator().manual_seed(s)) for s in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(inputs, before)


def test_floats_are_cropped_like_bytes() -> None:
    inputs = images(8)
    bytes_, floats = (
        CropFlip()(x, torch.Generator().manual_seed(0)) for x in (inputs, inputs.float())
    )
    assert floats.dtype == torch.float32
    assert torch.equal(bytes_.float(), floats)


@pytest.mark.parametrize("normalise", [CIFAR10, TINY_IMAGENET], ids=["cifar", "tiny"])
def test_normalise_subtracts_the_mean_and_divides_by_the_deviation(normalise: Normalise) -> None:
    inputs = torch.arange(256, dtype=torch.uint8).repeat(3).view(1, 3, 16, 16)
    mean = torch.tensor(normalise.mean, dtype=torch.float64)[:, None, None]
    std = torch.tensor(normalise.std, dtype=torch.float64)[:, None, None]
    expected = ((inputs / 255).double() - mean) / std
    for raw in (inputs, inputs / 255, inputs.double() / 255):
        out = normalise(raw)
        assert out.dtype == torch.float32
        torch.testing.assert_close(out.double(), expected, atol=1e-6, rtol=1e-6)


def test_scale_is_exact_at_every_byte() -> None:
    values = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(Scale()(values), values / 255)
    floats = torch.rand(3)
    assert torch.equal(Scale()(floats), floats)


def test_normalise_can_be_used_in_training_after_inference_mode() -> None:
    normalise = Normalise(mean=(0.3,), std=(0.2,))
    with torch.inference_mode():
        normalise(torch.zeros(1, 1, 2, 2))
    inputs = torch.zeros(1, 1, 2, 2, requires_grad=True)
    normalise(inputs).sum().backward()  # type: ignore[no-untyped-call]
    assert inputs.grad is not None
    torch.testing.assert_close(inputs.grad, torch.full((1, 1, 2, 2), 5.0))


def test_repr_shows_the_arguments() -> None:
    for each in (CropFlip(), CropFlip(2), Scale(), CIFAR10, TINY_IMAGENET):
        assert eval(repr(each)) == each


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_both_can_be_captured_in_a_cuda_graph() -> None:
    inputs = images(64).cuda()
    draws = torch.Generator("cuda").manual_seed(0)
    augment, normalise = CropFlip(), CIFAR10
    expected = normalise(augment(inputs, draws))  # fills the cache of constants
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(draws)
    with torch.cuda.graph(graph):  # raises on any synchronisation
        out = normalise(augment(inputs, draws))
    draws.manual_seed(0)
    graph.replay()
    assert torch.equal(out, expected)
    first = out.clone()
    graph.replay()
    assert not torch.equal(out, first)
