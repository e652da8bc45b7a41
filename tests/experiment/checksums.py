"""Checksums of a finished run that do not depend on the names of tensors."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors import safe_open


def checksums(folder: Path) -> dict[str, Any]:
    """Checksums of a run's networks, of its learner's state, and of its accuracies."""
    result = json.loads((folder / "result.json").read_bytes())
    return {
        "models": {path.stem: _tensors(path) for path in sorted(folder.glob("models/*"))},
        "learner": _tensors(folder / "learner.safetensors"),
        "result": _digest(json.dumps(result["predictors"], sort_keys=True).encode()),
    }


def _tensors(path: Path) -> str:
    """The checksum of a file's tensors, in whatever order and under whatever names."""
    with safe_open(path, framework="pt") as file:
        tensors = [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118
    found = []
    for tensor in tensors:
        about = f"{tensor.dtype} {list(tensor.shape)} ".encode()
        found.append(_digest(about + tensor.contiguous().numpy().tobytes()))
    return _digest("\n".join(sorted(found)).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
