"""Runs of all methods on five streams give the bits that they gave when they were recorded.

A change that alters random draws or arithmetic on purpose regenerates `golden.json` with
`python -m tests.experiment.test_golden` and says so in the changelog.
"""

from __future__ import annotations

import json
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
HERE = {
    "torch": torch.__version__.partition("+")[0],
    "cpu": torch.backends.cpu.get_cpu_capability(),
}
"""Bits depend on the version of torch and on the instructions of the CPU."""


def train(command: str, out: Path) -> dict[str, Any]:
    status = main(["run", *command.split(), "--out", str(out), "--device", "cpu", "--quiet"])
    assert status == 0
    (folder,) = out.rglob("seed-*")
    return checksums(folder)


def test_the_runs_were_recorded_with_the_pinned_torch() -> None:
    constraints = Path(__file__).parents[2] / "constraints.txt"
    assert f"torch=={GOLDEN['torch']}\n" in constraints.read_text()


@pytest.mark.skipif(
    any(GOLDEN[name] != value for name, value in HERE.items()),
    reason=f"other hardware or torch than recorded: {HERE}",
)
@pytest.mark.parametrize("golden", GOLDEN["runs"], ids=lambda golden: golden["command"])
def test_runs_give_the_recorded_bits(
    golden: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    found = train(golden["command"], tmp_path)
    assert {"command": golden["command"], **found} == golden


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    with tempfile.TemporaryDirectory() as folder:
        found = [
            {"command": run["command"], **train(run["command"], Path(folder) / str(i))}
            for i, run in enumerate(GOLDEN["runs"])
        ]
    FILE.write_text(json.dumps({**HERE, "runs": found}, indent=1) + "\n")
