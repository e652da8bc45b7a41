"""BatchNorm in training mode, the sum with a shortcut, and ReLU: three kernels each way.

Images lie in memory as rows of channels (channels-last). The rows of one or several batches
("parts", each with statistics of its own) are cut into blocks that no two parts share. One kernel
reduces every block, a small one combines the blocks of each part, and a third works on the rows.
The order of every sum is fixed, so equal inputs give equal bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_PARTS = 3
_BLOCKS = 256
"""Blocks that the rows are cut into where there are 64 channels: enough to fill a card, few enough
to be combined at one go. With more channels there are fewer, as each has several programs."""
_WIDTH = 64
"""Channels of a program."""
_TILE = 32
"""Rows in registers at a time."""
_COLUMNS = 16
"""Channels of a program that combines blocks: all blocks of a part are in registers at once."""


@triton.jit
def _part_of(block, blocks_0, blocks_1, rows_0, rows_1, rows_2):
    """The part a block belongs to, that part's first block and first row, and its rows."""
    second = block >= blocks_0
    third = block >= blocks_0 + blocks_1
    part = second.to(tl.int32) + third.to(tl.int32)
    first_block = tl.where(third, blocks_0 + blocks_1, tl.where(second, blocks_0, 0))
    first_row = tl.where(third, rows_0 + rows_1, tl.where(second, rows_0, 0))
    rows = tl.where(third, rows_2, tl.where(second, rows_1, rows_0))
    return part, first_block, first_row, rows


@triton.jit
def _moments(
    x, means, squares, channels, blocks_0, blocks_1, rows_0, rows_1, rows_2, block_rows,
    WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Mean and sum of squared deviations of each channel in each block."""
    block = tl.program_id(0)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    exists = column < channels
    _, first_block, first_row, rows = _part_of(block, blocks_0, blocks_1, rows_0, rows_1, rows_2)
    begin = (block - first_block) * block_rows
    end = tl.minimum(begin + block_rows, rows)
    # Sums of differences to one of the values: a mean far from zero takes no digits from them.
    pivot = tl.load(x + (first_row + begin) * channels + column, mask=exists, other=0)
    pivot = pivot.to(tl.float32)
    total = tl.zeros([TILE, WIDTH], tl.float32)
    square = tl.zeros([TILE, WIDTH], tl.float32)
    for start in range(begin, end, TILE):
        row = start + tl.arange(0, TILE)
        here = (row < end)[:, None] & exists[None, :]
        place = (first_row + row)[:, None] * channels + column[None, :]
        value = tl.load(x + place, mask=here, other=0).to(tl.float32)
        apart = tl.where(here, value - pivot[None, :], 0.0)
        total += apart
        square += apart * apart
    n = (end - begin).to(tl.float32)
    sums = tl.sum(total, 0)
    tl.store(means + block * channels + column, pivot + sums / n, mask=exists)
    spread = tl.sum(square, 0) - sums * sums / n
    tl.store(squares + block * channels + column, spread, mask=exists)


@triton.jit
def _statistics(
    means, squares, saved_mean, saved_scale, running_mean, running_var, tracked, momentum, epsilon,
    channels, blocks_0, blocks_1, rows_0, rows_1, rows_2, block_rows,
    PARTS: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Mean and 1/deviation of each part; parts move the running statistics in their order."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    exists = column < channels
    i = tl.arange(0, BLOCKS)
    running = tl.load(running_mean + column, mask=exists)
    running_v = tl.load(running_var + column, mask=exists)
    for p in tl.static_range(PARTS):
        first_block = 0 if p == 0 else (blocks_0 if p == 1 else blocks_0 + blocks_1)
        rows = rows_0 if p == 0 else (rows_1 if p == 1 else rows_2)
        n = tl.maximum(tl.minimum(block_rows, rows - i * block_rows), 0).to(tl.float32)[:, None]
        here = (n > 0) & exists[None, :]
        place = (first_block + i)[:, None] * channels + column[None, :]
        each_mean = tl.load(means + place, mask=here, other=0)
        each_square = tl.load(squares + place, mask=here, other=0)
        mean = tl.sum(each_mean * n, 0) / rows
        apart = each_mean - mean[None, :]
        square = tl.sum(each_square + n * apart * apart, 0)
        tl.store(saved_mean + p * channels + column, mean, mask=exists)
        scale = tl.rsqrt(square / rows + epsilon)
        tl.store(saved_scale + p * channels + column, scale, mask=exists)
        running += momentum * (mean - running)
        running_v += momentum * (square / (rows - 1) - running_v)
    tl.store(running_mean + column, running, mask=exists)
    tl.store(running_var + column, running_v, mask=exists)
    if tl.program_id(0) == 0:
        tl.store(tracked, tl.load(tracked) + PARTS)


@triton.jit
def _normalise(
    x, shortcut, y, weight, bias, saved_mean, saved_scale, channels, blocks_0, blocks_1, rows_0,
    rows_1, rows_2, block_rows, ADD: tl.constexpr, RELU: tl.constexpr, WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """From rows to normalised rows."""
    block = tl.program_id(0)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    exists = column < channels
    part, first_block, first_row, rows = _part_of(block, blocks_0, blocks_1, rows_0, rows_1, rows_2)
    mean = tl.load(saved_mean + part * channels + column, mask=exists, other=0)
    scale = tl.load(saved_scale + part * channels + column, mask=exists, other=0)
    factor = scale * tl.load(weight + column, mask=exists, other=0).to(tl.float32)
    offset = tl.load(bias + column, mask=exists, other=0).to(tl.float32) - mean * factor
    begin = (block - first_block) * block_rows
    end = tl.minimum(begin + block_rows, rows)
    for start in range(begin, end, TILE):
        row = start + tl.arange(0, TILE)
        here = (row < end)[:, None] & exists[None, :]
        place = (first_row + row)[:, None] * channels + column[None, :]
        value = tl.load(x + place, mask=here, other=0).to(tl.float32)
        z = value * factor[None, :] + offset[None, :]
        if ADD:
            z += tl.load(shortcut + place, mask=here, other=0).to(tl.float32)
        if RELU:
            z = tl.where(z < 0, 0.0, z)  # lets a value that is not a number through
        tl.store(y + place, z.to(y.dtype.element_ty), mask=here)


@triton.jit
def _through_relu(dz, value, y, place, here, factor, offset, ADD: tl.constexpr, RELU: tl.constexpr):
    """The gradient where ReLU let the value pass. Without a sum, x alone tells where."""
    if RELU:
        if ADD:
            passed = tl.load(y + place, mask=here, other=0).to(tl.float32)
        else:
            passed = value * factor[None, :] + offset[None, :]
        dz = tl.where(passed <= 0, 0.0, dz)
    return dz


@triton.jit
def _gradient_sums(
    x, y, dy, weight, bias, saved_mean, saved_scale, sums, products, channels, blocks_0, blocks_1,
    rows_0, rows_1, rows_2, block_rows, ADD: tl.constexpr, RELU: tl.constexpr,
    WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Sums over each block of the gradient, and of its product with the normalised input."""
    block = tl.program_id(0)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    exists = column < channels
    part, first_block, first_row, rows = _part_of(block, blocks_0, blocks_1, rows_0, rows_1, rows_2)
    mean = tl.load(saved_mean + part * channels + column, mask=exists, other=0)
    scale = tl.load(saved_scale + part * channels + column, mask=exists, other=0)
    factor = scale * tl.load(weight + column, mask=exists, other=0).to(tl.float32)
    offset = tl.load(bias + column, mask=exists, other=0).to(tl.float32) - mean * factor
    begin = (block - first_block) * block_rows
    end = tl.minimum(begin + block_rows, rows)
    total = tl.zeros([TILE, WIDTH], tl.float32)
    product = tl.zeros([TILE, WIDTH], tl.float32)
    for start in range(begin, end, TILE):
        row = start + tl.arange(0, TILE)
        here = (row < end)[:, None] & exists[None, :]
        place = (first_row + row)[:, None] * channels + column[None, :]
        value = tl.load(x + place, mask=here, other=0).to(tl.float32)
        dz = tl.load(dy + place, mask=here, other=0).to(tl.float32)
        dz = _through_relu(dz, value, y, place, here, factor, offset, ADD, RELU)
        total += dz
        product += dz * (value - mean[None, :])
    tl.store(sums + block * channels + column, tl.sum(total, 0), mask=exists)
    tl.store(products + block * channels + column, tl.sum(product, 0) * scale, mask=exists)


@triton.jit
def _gradient_means(
    sums, products, averages, slopes, d_weight, d_bias, channels, blocks_0, blocks_1, rows_0,
    rows_1, rows_2, block_rows, PARTS: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Those sums over each part, divided by its rows; over all parts, the parameters' gradients."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    exists = column < channels
    i = tl.arange(0, BLOCKS)
    all_sums = tl.zeros([COLUMNS], tl.float32)
    all_products = tl.zeros([COLUMNS], tl.float32)
    for p in tl.static_range(PARTS):
        first_block = 0 if p == 0 else (blocks_0 if p == 1 else blocks_0 + blocks_1)
        rows = rows_0 if p == 0 else (rows_1 if p == 1 else rows_2)
        here = (i * block_rows < rows)[:, None] & exists[None, :]
        place = (first_block + i)[:, None] * channels + column[None, :]
        total = tl.sum(tl.load(sums + place, mask=here, other=0), 0)
        product = tl.sum(tl.load(products + place, mask=here, other=0), 0)
        tl.store(averages + p * channels + column, total / rows, mask=exists)
        tl.store(slopes + p * channels + column, product / rows, mask=exists)
        all_sums += total
        all_products += product
    tl.store(d_bias + column, all_sums, mask=exists)
    tl.store(d_weight + column, all_products, mask=exists)


@triton.jit
def _gradient(
    x, y, dy, dx, d_shortcut, weight, bias, saved_mean, saved_scale, averages, slopes, channels,
    blocks_0, blocks_1, rows_0, rows_1, rows_2, block_rows, ADD: tl.constexpr, RELU: tl.constexpr,
    WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The gradients of input and shortcut."""
    block = tl.program_id(0)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    exists = column < channels
    part, first_block, first_row, rows = _part_of(block, blocks_0, blocks_1, rows_0, rows_1, rows_2)
    mean = tl.load(saved_mean + part * channels + column, mask=exists, other=0)
    scale = tl.load(saved_scale + part * channels + column, mask=exists, other=0)
    average = tl.load(averages + part * channels + column, mask=exists, other=0)
    slope = tl.load(slopes + part * channels + column, mask=exists, other=0)
    factor = scale * tl.load(weight + column, mask=exists, other=0).to(tl.float32)
    offset = tl.load(bias + column, mask=exists, other=0).to(tl.float32) - mean * factor
    begin = (block - first_block) * block_rows
    end = tl.minimum(begin + block_rows, rows)
    for start in range(begin, end, TILE):
        row = start + tl.arange(0, TILE)
        here = (row < end)[:, None] & exists[None, :]
        place = (first_row + row)[:, None] * channels + column[None, :]
        value = tl.load(x + place, mask=here, other=0).to(tl.float32)
        dz = tl.load(dy + place, mask=here, other=0).to(tl.float32)
        dz = _through_relu(dz, value, y, place, here, factor, offset, ADD, RELU)
        if ADD:
            tl.store(d_shortcut + place, dz.to(d_shortcut.dtype.element_ty), mask=here)
        normal = (value - mean[None, :]) * scale[None, :]
        change = factor[None, :] * (dz - average[None, :] - normal * slope[None, :])
        tl.store(dx + place, change.to(dx.dtype.element_ty), mask=here)


class _Layout:
    """How the rows of a tensor [n, C, H, W] are cut, and the arguments that say so to a kernel."""

    def __init__(self, x: Tensor, parts: Sequence[int]) -> None:
        self.channels = x.shape[1]
        pixels = x.shape[2] * x.shape[3]
        rows = [n * pixels for n in parts]
        width = min(_WIDTH, triton.next_power_of_2(self.channels))
        programs = triton.cdiv(self.channels, width)
        block_rows = _TILE * triton.cdiv(sum(rows), _TILE * max(1, _BLOCKS // programs))
        blocks = [triton.cdiv(n, block_rows) for n in rows]
        self.partial = (2, sum(blocks), self.channels)
        """Two numbers of each channel in each block."""
        self.whole = (2, len(parts), self.channels)
        self.where = (self.channels, *[*blocks, 0][:2], *[*rows, 0, 0][:3], block_rows)
        self.grid = (sum(blocks), programs)
        self.tile = {"WIDTH": width, "TILE": _TILE}
        self.combine_grid = (triton.cdiv(self.channels, _COLUMNS),)
        self.combine = {
            "PARTS": len(parts),
            "BLOCKS": triton.next_power_of_2(max(blocks)),
            "COLUMNS": _COLUMNS,
        }


class _NormAddRelu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        shortcut: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        tracked: Tensor,
        parts: Sequence[int],
        momentum: float,
        epsilon: float,
        relu: bool,
    ) -> Tensor:
        cut = _Layout(x, parts)
        means, squares = x.new_empty(cut.partial, dtype=torch.float32)
        mean, scale = x.new_empty(cut.whole, dtype=torch.float32)
        y = torch.empty_like(x)
        ctx.does = {"ADD": shortcut is not None, "RELU": relu}
        _moments[cut.grid](x, means, squares, *cut.where, **cut.tile)
        _statistics[cut.combine_grid](
            *(means, squares, mean, scale, running_mean, running_var, tracked, momentum, epsilon),
            *cut.where,
            **cut.combine,
        )
        beside = x if shortcut is None else shortcut
        _normalise[cut.grid](
            x, beside, y, weight, bias, mean, scale, *cut.where, **ctx.does, **cut.tile
        )
        ctx.cut = cut
        ctx.save_for_backward(x, x if shortcut is None else y, weight, bias, mean, scale)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, y, weight, bias, mean, scale = ctx.saved_tensors
        cut = ctx.cut
        dy = dy.contiguous(memory_format=torch.channels_last)
        sums, products = x.new_empty(cut.partial, dtype=torch.float32)
        averages, slopes = x.new_empty(cut.whole, dtype=torch.float32)
        d_weight, d_bias = torch.empty_like(weight), torch.empty_like(bias)
        dx = torch.empty_like(x)
        d_shortcut = torch.empty_like(x) if ctx.does["ADD"] else None
        _gradient_sums[cut.grid](
            *(x, y, dy, weight, bias, mean, scale, sums, products, *cut.where),
            **ctx.does,
            **cut.tile,
        )
        _gradient_means[cut.combine_grid](
            sums, products, averages, slopes, d_weight, d_bias, *cut.where, **cut.combine
        )
        _gradient[cut.grid](
            *(x, y, dy, dx, dx if d_shortcut is None else d_shortcut),
            *(weight, bias, mean, scale, averages, slopes, *cut.where),
            **ctx.does,
            **cut.tile,
        )
        return dx, d_shortcut, d_weight, d_bias, *[None] * 7


def norm_add_relu(
    x: Tensor,
    shortcut: Tensor | None,
    norm: torch.nn.BatchNorm2d,
    parts: Sequence[int],
    *,
    relu: bool,
) -> Tensor:
    """relu(norm(x) + shortcut) in training mode, each part of the batch by its own statistics.

    x [n, C, H, W] and the shortcut are channels-last; the parts' sizes add up to n.
    """
    return _NormAddRelu.apply(  # type: ignore[no-any-return]
        *(x, shortcut, norm.weight, norm.bias),
        *(norm.running_mean, norm.running_var, norm.num_batches_tracked),
        *(parts, norm.momentum, norm.eps, relu),
    )
