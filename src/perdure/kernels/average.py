"""Moving one list of tensors towards another by a weight on the device, in one kernel.

A weight of zero costs nothing: the kernel returns before it reads a value.
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
    """One block of one tensor: target += weight · (source − target)."""
    w = tl.load(weight)
    if w != 0:
        block = tl.program_id(0)
        tensor = tl.load(tensors + block)
        target = tl.load(targets + tensor).to(tl.pointer_type(tl.float32))
        source = tl.load(sources + tensor).to(tl.pointer_type(tl.float32))
        place = tl.load(offsets + block) + tl.arange(0, BLOCK)
        here = place < tl.load(sizes + tensor)
        value = tl.load(target + place, mask=here)
        value += w * (tl.load(source + place, mask=here) - value)
        tl.store(target + place, value, mask=here)


class MovingAverage:
    """Pairs of float32 tensors on one GPU, each target to be moved towards its source.

    Targets and sources keep their addresses and are alike in shape and strides.
    """

    def __init__(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        self._kept = (list(targets), list(sources))  # the tables below hold their addresses
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
        """Move all targets by this share of the way; `weight` is a float32 scalar."""
        _lerp[self._grid](*self._tables, weight, BLOCK=_BLOCK)
