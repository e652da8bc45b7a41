"""Named random generators. Every random draw of a run uses one; none uses global state."""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, name: str) -> int:
    """Derive a 63-bit seed for one purpose; different names give independent seeds.

    Args:
        seed: Seed of the run.
        name: Purpose of the draws.

    Examples:
        >>> derive(0, "order") == derive(0, "order"), derive(0, "order") == derive(0, "replay")
        (True, False)
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(seed: int, name: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Create the generator for one purpose of a run.

    Args:
        seed: Seed of the run.
        name: Purpose of the draws.
        device: Device on which the generator draws.
    """
    return torch.Generator(device=device).manual_seed(derive(seed, name))
