"""Linear interpolation of a list of tensors in one kernel, with the weight on the device.

With a weight of zero the kernel returns before it reads the tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


@triton.jit
def _lerp(targets, sources, sizes, tensors, offsets, weight, BLOCK: tl.constexpr):
    """Update one block of one tensor: target += weight · (source − target)."""
    w = tl.load(weight)
    if w != 0:
        block = tl.program_id(0)
        tensor = tl.load(tensors + block)
        target = tl.load(targets + tensor).to(tl.pointer_type(tl.float32))
        source = tl.load(sources + tensor).to(tl.pointer_type(tl.float32))
        place = tl.load(offsets + block) + tl.arange(0, BLOCK)
        valid = place < tl.load(sizes + tensor)
        value = tl.load(target + place, mask=valid)
        value += w * (tl.load(source + place, mask=valid) - value)
        tl.store(target + place, value, mask=valid)


class MovingAverage:
    """Interpolates float32 target tensors on one GPU towards source tensors.

    Args:
        targets: Tensors to update. Their addresses must not change.
        sources: One tensor per target, with the same shape and strides and a fixed address.
    """

    def __init__(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        self._tensors = (list(targets), list(sources))  # kept alive: the tables hold addresses
        sizes = [t.numel() for t in targets]
        blocks = [(i, at) for i, size in enumerate(sizes) for at in range(0, size, _BLOCK)]

        def table(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=targets[0].device)

        self._tables = (
            table([t.data_ptr() for t in targets]),
            table([t.data_ptr() for t in sources]),
            table(sizes),
            table([i for i, _ in blocks]),
            table([at for _, at in blocks]),
        )
        self._grid = (len(blocks),)

    def __call__(self, weight: Tensor) -> None:
        """Move every target towards its source by `weight`, a float32 scalar tensor."""
        _lerp[self._grid](*self._tables, weight, BLOCK=_BLOCK)
