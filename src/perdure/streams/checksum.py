"""Fingerprints: equal data in equal composition give the same one."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def checksum(*parts: str | int | float | Tensor) -> str:
    """SHA-256, in hex, of the parts in order; a tensor counts with its dtype, shape and bytes.

    >>> checksum("s-mnist", 5) == checksum("s-mnist", 5), checksum("a", "b") == checksum("ab")
    (True, False)
    """
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            digest.update(f"{part.dtype} {list(part.shape)}\n".encode())
            digest.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        else:
            digest.update(f"{part!r}\n".encode())
    return digest.hexdigest()
