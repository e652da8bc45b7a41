"""BatchNorm in training mode, the sum with a shortcut, and ReLU: two kernels each way.

Images lie in memory as rows of channels (channels-last). The rows of one or several batches
("parts", each with statistics of its own) are cut into blocks that no two parts share. A first
kernel reduces every block, a second one combines the blocks of its part and works on the rows. The
order of every sum is fixed, so equal inputs give equal bits.
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
"""Blocks that all rows together are cut into, for every 64 channels fewer: enough to fill a card,
few enough to be combined by everyone who needs their sums."""
_TILE = 32
"""Rows in registers at a time."""
_CHUNK = 32
"""Blocks combined at a time."""


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
def _merge(count, mean, square, other_count, other_mean, other_square):
    """Count, mean and sum of squared deviations of two samples together (Chan et al., 1979)."""
    total = count + other_count
    delta = other_mean - mean
    share = other_count / total
    return total, mean + delta * share, square + other_square + delta * delta * count * share


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
    count = 0.0
    mean = tl.zeros([WIDTH], tl.float32)
    square = tl.zeros([WIDTH], tl.float32)
    for start in range(begin, end, TILE):
        row = start + tl.arange(0, TILE)
        here = (row < end)[:, None] & exists[None, :]
        place = (first_row + row)[:, None] * channels + column[None, :]
        tile = tl.load(x + place, mask=here, other=0).to(tl.float32)
        n = tl.minimum(end - start, TILE).to(tl.float32)
        tile_mean = tl.sum(tile, 0) / n
        apart = tl.where(here, tile - tile_mean[None, :], 0.0)
        tile_square = tl.sum(apart * apart, 0)
        count, mean, square = _merge(count, mean, square, n, tile_mean, tile_square)
    tl.store(means + block * channels + column, mean, mask=exists)
    tl.store(squares + block * channels + column, square, mask=exists)


@triton.jit
def _combined(
    means, squares, first_block, rows, block_rows, column, exists, channels,
    WIDTH: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Mean and sum of squared deviations of a part, from those of its blocks."""
    blocks = tl.cdiv(rows, block_rows)
    count = 0.0
    mean = tl.zeros([WIDTH], tl.float32)
    square = tl.zeros([WIDTH], tl.float32)
    for start in range(0, blocks, CHUNK):
        i = start + tl.arange(0, CHUNK)
        n = tl.maximum(tl.minimum(block_rows, rows - i * block_rows), 0).to(tl.float32)[:, None]
        here = (i < blocks)[:, None] & exists[None, :]
        place = (first_block + i)[:, None] * channels + column[None, :]
        each_mean = tl.load(means + place, mask=here, other=0)
        each_square = tl.load(squares + place, mask=here, other=0)
        chunk_count = tl.minimum(rows - start * block_rows, CHUNK * block_rows).to(tl.float32)
        chunk_mean = tl.sum(each_mean * n, 0) / chunk_count
        apart = each_mean - chunk_mean[None, :]
        chunk_square = tl.sum(each_square + n * apart * apart, 0)
        count, mean, square = _merge(count, mean, square, chunk_count, chunk_mean, chunk_square)
    return mean, square


@triton.jit
def _normalise(
    x, shortcut, y, weight, bias, means, squares, saved_mean, saved_scale, running_mean,
    running_var, momentum, epsilon, channels, blocks_0, blocks_1, rows_0, rows_1, rows_2,
    block_rows, PARTS: tl.constexpr, ADD: tl.constexpr, RELU: tl.constexpr,
    WIDTH: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """From rows to normalised rows; keeps statistics for the backward pass and for evaluation."""
    block = tl.program_id(0)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    exists = column < channels
    if block == 0:  # parts move the running statistics one after the other, as batches would
        running = tl.load(running_mean + column, mask=exists)
        running_v = tl.load(running_var + column, mask=exists)
        for p in tl.static_range(PARTS):
            b = 0 if p == 0 else (blocks_0 if p == 1 else blocks_0 + blocks_1)
            n = rows_0 if p == 0 else (rows_1 if p == 1 else rows_2)
            mean, square = _combined(
                means, squares, b, n, block_rows, column, exists, channels, WIDTH, CHUNK
            )
            running += momentum * (mean - running)
            running_v += momentum * (square / (n - 1) - running_v)
        tl.store(running_mean + column, running, mask=exists)
        tl.store(running_var + column, running_v, mask=exists)
    part, first_block, first_row, rows = _part_of(block, blocks_0, blocks_1, rows_0, rows_1, rows_2)
    mean, square = _combined(
        means, squares, first_block, rows, block_rows, column, exists, channels, WIDTH, CHUNK
    )
    scale = tl.rsqrt(square / rows + epsilon)
    if block == first_block:
        tl.store(saved_mean + part * channels + column, mean, mask=exists)
        tl.store(saved_scale + part * channels + column, scale, mask=exists)
    factor = scale * tl.load(weight + column, mask=exists, other=0).to(tl.float32)
    offset = tl.load(bias + column, mask=exists, other=0).to(tl.float32) - mean * factor
    begin = (block - first_block) * block_rows
    end = tl.minimum(begin + block_rows, rows)
    for start in range(begin, end, TILE):
        row = start + tl.arange(0, TILE)
        here = (row < end)[:, None] & exists[None, :]
        place = (first_row + row)[:, None] * channels + column[None, :]
        z = (
            tl.load(x + place, mask=here, other=0).to(tl.float32) * factor[None, :]
            + offset[None, :]
        )
        if ADD:
            z += tl.load(shortcut + place, mask=here, other=0).to(tl.float32)
        if RELU:
            z = tl.where(z < 0, 0.0, z)  # lets a value that is not a number through
        tl.store(y + place, z.to(y.dtype.element_ty), mask=here)


@triton.jit
def _gradient_sums(
    x, y, dy, saved_mean, saved_scale, sums, products, channels, blocks_0, blocks_1, rows_0,
    rows_1, rows_2, block_rows, RELU: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Sums over each block of the gradient, and of its product with the normalised input."""
    block = tl.program_id(0)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    exists = column < channels
    part, first_block, first_row, rows = _part_of(block, blocks_0, blocks_1, rows_0, rows_1, rows_2)
    mean = tl.load(saved_mean + part * channels + column, mask=exists, other=0)
    scale = tl.load(saved_scale + part * channels + column, mask=exists, other=0)
    begin = (block - first_block) * block_rows
    end = tl.minimum(begin + block_rows, rows)
    total = tl.zeros([WIDTH], tl.float32)
    product = tl.zeros([WIDTH], tl.float32)
    for start in range(begin, end, TILE):
        row = start + tl.arange(0, TILE)
        here = (row < end)[:, None] & exists[None, :]
        place = (first_row + row)[:, None] * channels + column[None, :]
        dz = tl.load(dy + place, mask=here, other=0).to(tl.float32)
        if RELU:
            dz = tl.where(tl.load(y + place, mask=here, other=0).to(tl.float32) <= 0, 0.0, dz)
        value = tl.load(x + place, mask=here, other=0).to(tl.float32)
        normal = (value - mean[None, :]) * scale[None, :]
        total += tl.sum(dz, 0)
        product += tl.sum(dz * normal, 0)
    tl.store(sums + block * channels + column, total, mask=exists)
    tl.store(products + block * channels + column, product, mask=exists)


@triton.jit
def _total(
    values, first_block, blocks, column, exists, channels, WIDTH: tl.constexpr, CHUNK: tl.constexpr
):
    """The sum of some blocks' values."""
    total = tl.zeros([WIDTH], tl.float32)
    for start in range(0, blocks, CHUNK):
        i = start + tl.arange(0, CHUNK)
        here = (i < blocks)[:, None] & exists[None, :]
        place = (first_block + i)[:, None] * channels + column[None, :]
        total += tl.sum(tl.load(values + place, mask=here, other=0), 0)
    return total


@triton.jit
def _gradient(
    x, y, dy, dx, d_shortcut, weight, d_weight, d_bias, saved_mean, saved_scale, sums, products,
    channels, blocks_0, blocks_1, rows_0, rows_1, rows_2, block_rows, ADD: tl.constexpr,
    RELU: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The gradients of input, shortcut, weight and bias."""
    block = tl.program_id(0)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    exists = column < channels
    if block == 0:
        all_blocks = tl.num_programs(0)
        total = _total(products, 0, all_blocks, column, exists, channels, WIDTH, CHUNK)
        tl.store(d_weight + column, total, mask=exists)
        total = _total(sums, 0, all_blocks, column, exists, channels, WIDTH, CHUNK)
        tl.store(d_bias + column, total, mask=exists)
    part, first_block, first_row, rows = _part_of(block, blocks_0, blocks_1, rows_0, rows_1, rows_2)
    blocks = tl.cdiv(rows, block_rows)
    average = _total(sums, first_block, blocks, column, exists, channels, WIDTH, CHUNK) / rows
    slope = _total(products, first_block, blocks, column, exists, channels, WIDTH, CHUNK) / rows
    mean = tl.load(saved_mean + part * channels + column, mask=exists, other=0)
    scale = tl.load(saved_scale + part * channels + column, mask=exists, other=0)
    factor = scale * tl.load(weight + column, mask=exists, other=0).to(tl.float32)
    begin = (block - first_block) * block_rows
    end = tl.minimum(begin + block_rows, rows)
    for start in range(begin, end, TILE):
        row = start + tl.arange(0, TILE)
        here = (row < end)[:, None] & exists[None, :]
        place = (first_row + row)[:, None] * channels + column[None, :]
        dz = tl.load(dy + place, mask=here, other=0).to(tl.float32)
        if RELU:
            dz = tl.where(tl.load(y + place, mask=here, other=0).to(tl.float32) <= 0, 0.0, dz)
        if ADD:
            tl.store(d_shortcut + place, dz.to(d_shortcut.dtype.element_ty), mask=here)
        value = tl.load(x + place, mask=here, other=0).to(tl.float32)
        normal = (value - mean[None, :]) * scale[None, :]
        change = factor[None, :] * (dz - average[None, :] - normal * slope[None, :])
        tl.store(dx + place, change.to(dx.dtype.element_ty), mask=here)


class _Layout:
    """How the rows of a tensor [n, C, H, W] are cut."""

    def __init__(self, x: Tensor, parts: Sequence[int]) -> None:
        self.channels = x.shape[1]
        pixels = x.shape[2] * x.shape[3]
        rows = [n * pixels for n in parts]
        self.width = min(64, triton.next_power_of_2(self.channels))
        columns = triton.cdiv(self.channels, self.width)
        tiles = triton.cdiv(sum(rows), _TILE * max(1, _BLOCKS // columns))
        self.block_rows = _TILE * max(1, tiles)
        self.blocks = [triton.cdiv(n, self.block_rows) for n in rows]
        self.grid = (sum(self.blocks), columns)
        self.partial = (sum(self.blocks), self.channels)
        blocks, padded = [*self.blocks, 0], [*rows, 0, 0]
        self.where = (self.channels, *blocks[:2], *padded[:3], self.block_rows)


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
        parts: Sequence[int],
        momentum: float,
        epsilon: float,
        relu: bool,
    ) -> Tensor:
        layout = _Layout(x, parts)
        means, squares = x.new_empty(2, *layout.partial, dtype=torch.float32)
        mean, scale = x.new_empty(2, len(parts), layout.channels, dtype=torch.float32)
        y = torch.empty_like(x)
        size = {"WIDTH": layout.width, "TILE": _TILE}
        _moments[layout.grid](x, means, squares, *layout.where, **size)
        _normalise[layout.grid](
            *(x, x if shortcut is None else shortcut, y, weight, bias, means, squares, mean, scale),
            *(running_mean, running_var, momentum, epsilon, *layout.where),
            PARTS=len(parts),
            ADD=shortcut is not None,
            RELU=relu,
            CHUNK=_CHUNK,
            **size,
        )
        ctx.save_for_backward(x, y if relu else x, weight, mean, scale)
        ctx.layout, ctx.relu, ctx.add = layout, relu, shortcut is not None
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, y, weight, mean, scale = ctx.saved_tensors
        layout = ctx.layout
        dy = dy.contiguous(memory_format=torch.channels_last)
        sums, products = x.new_empty(2, *layout.partial, dtype=torch.float32)
        d_weight, d_bias = x.new_empty(2, layout.channels, dtype=torch.float32)
        dx = torch.empty_like(x)
        d_shortcut = torch.empty_like(x) if ctx.add else None
        size = {"WIDTH": layout.width, "TILE": _TILE, "RELU": ctx.relu}
        _gradient_sums[layout.grid](x, y, dy, mean, scale, sums, products, *layout.where, **size)
        _gradient[layout.grid](
            *(x, y, dy, dx, dx if d_shortcut is None else d_shortcut, weight, d_weight, d_bias),
            *(mean, scale, sums, products, *layout.where),
            ADD=ctx.add,
            CHUNK=_CHUNK,
            **size,
        )
        grads = (dx, d_shortcut, d_weight.to(weight.dtype), d_bias.to(weight.dtype))
        return (*grads, None, None, None, None, None, None)


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
        *(x, shortcut, norm.weight, norm.bias, norm.running_mean, norm.running_var),
        *(parts, norm.momentum, norm.eps, relu),
    )
