"""Named random generators: every draw of a run comes from one of them, never from global state."""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, name: str) -> int:
    """A 63-bit seed for one purpose of a run; different names give unrelated streams.

    >>> derive(0, "order") == derive(0, "order"), derive(0, "order") == derive(0, "replay")
    (True, False)
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(seed: int, name: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator on `device` for the draws called `name` in the run with this seed."""
    return torch.Generator(device=device).manual_seed(derive(seed, name))
