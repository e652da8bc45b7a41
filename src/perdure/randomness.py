"""Named random generators, which all random draws of a run use, and torch's global one."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

global_generators = threading.RLock()
"""Held by whoever sets torch's global generators or depends on them, in any thread."""


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


def global_state(device: torch.device) -> Tensor:
    """Return the state of torch's global generator, which dropout uses, on a device."""
    if device.type == "cpu":
        return torch.default_generator.get_state()
    return torch.cuda.get_rng_state(device)


def set_global_state(state: Tensor, device: torch.device) -> None:
    """Set the state of torch's global generator on a device."""
    if device.type == "cpu":
        torch.default_generator.set_state(state)
    else:
        torch.cuda.set_rng_state(state, device)


@contextmanager
def seeded_globally(seed: int, name: str) -> Iterator[None]:
    """Draw from torch's global CPU generator with a seed for one purpose; it is restored after.

    Args:
        seed: Seed of the run.
        name: Purpose of the draws.
    """
    with global_generators, torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, name))
        yield
