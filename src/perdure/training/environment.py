"""Where a run is made: what its bits may depend on beside its configuration."""

from __future__ import annotations

import platform
from typing import Any

import torch


def environment(device: str) -> dict[str, Any]:
    """Versions, processor and threads, as `timing.json` and checkpoints note them."""
    return {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "processor": _processor(device),
    }


def differences(then: object, now: dict[str, Any]) -> list[str]:
    """What has changed between two environments, as phrases."""
    before = then if isinstance(then, dict) else {}
    return [
        f"{name} {before.get(name)} then, {value} now"
        for name, value in now.items()
        if before.get(name) != value
    ]


def _processor(device: str) -> str:
    if device != "cpu":
        return torch.cuda.get_device_name(device)
    return torch.backends.cpu.get_cpu_capability()
