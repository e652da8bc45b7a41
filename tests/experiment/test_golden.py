"""Runs of all methods on five streams give the bits that they gave when they were recorded.

A change that alters random draws or arithmetic on purpose regenerates `golden.json` with
`python -m tests.experiment.test_golden` and says so in the changelog.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from perdure.cli import main

from .checksums import checksums

FILE = Path(__file__).with_name("golden.json")
GOLDEN = json.loads(FILE.read_text())
TORCH = torch.__version__.partition("+")[0]
SAME_ARITHMETIC = {
    "OMP_NUM_THREADS": "1",
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "Prescott",
}
"""Otherwise torch and NumPy choose instructions for the processor, which round differently, and not
only between instruction sets: two processors with AVX-512 gave different bits."""
NEEDS_ROOTS = "--method gss"
"""For `sqrt`, torch calls a function of MKL that has no such setting; only GSS depends on it."""


def train(command: str, out: Path) -> dict[str, Any]:
    status = main(["run", *command.split(), "--out", str(out), "--device", "cpu", "--quiet"])
    assert status == 0
    (folder,) = out.rglob("seed-*")
    return {"command": command, **checksums(folder)}


def train_all() -> dict[str, Any]:
    """The recorded runs again, in a process of their own: libraries read their settings once."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "golden.json"
        subprocess.run(
            [sys.executable, "-m", "tests.experiment.test_golden", str(found)],
            cwd=Path(__file__).parents[2],
            env={**os.environ, **SAME_ARITHMETIC},
            check=True,
        )
        golden: dict[str, Any] = json.loads(found.read_text())
    return golden


def square_roots() -> str:
    """The checksum of some square roots, in which processors differ."""
    roots = torch.linspace(0.1, 1, 1000, dtype=torch.float64).sqrt()
    return hashlib.sha256(roots.numpy().tobytes()).hexdigest()[:16]


def test_the_runs_were_recorded_with_the_pinned_torch() -> None:
    constraints = Path(__file__).parents[2] / "constraints.txt"
    assert f"torch=={GOLDEN['torch']}\n" in constraints.read_text()


@pytest.mark.skipif(
    GOLDEN["torch"] != TORCH or GOLDEN["machine"] != platform.machine(),
    reason=f"other hardware or torch than recorded: {platform.machine()}, torch {TORCH}",
)
def test_runs_give_the_recorded_bits() -> None:
    found, expected = train_all(), dict(GOLDEN)
    if found["square_roots"] != expected["square_roots"]:
        for golden in (found, expected):
            golden["runs"] = [run for run in golden["runs"] if NEEDS_ROOTS not in run["command"]]
            del golden["square_roots"]
    assert found == expected


if __name__ == "__main__":
    if len(sys.argv) == 1:
        FILE.write_text(json.dumps(train_all(), indent=1) + "\n")
    else:
        sys.path.insert(0, str(Path(__file__).parent))
        with tempfile.TemporaryDirectory() as folder:
            runs = [
                train(run["command"], Path(folder) / str(i)) for i, run in enumerate(GOLDEN["runs"])
            ]
        found = {
            "torch": TORCH,
            "machine": platform.machine(),
            "square_roots": square_roots(),
            "runs": runs,
        }
        Path(sys.argv[1]).write_text(json.dumps(found))
