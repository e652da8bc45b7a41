"""One learner on several processes: the same as on one, but for rounding; and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from remanence.state import read_file
from remanence.training import plan

from . import rank as ranks

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SHORT = ["run", "s-mnist", "--dataset", "mnist5k", "--max-steps", "20"]


class Ended(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """What our processes said, without torchrun's own report of failures."""
        ours = [line for line in self.err.splitlines() if line.startswith(("remanence:", "  "))]
        return "\n".join(line for line in ours if line.startswith("remanence:"))


def together(*words: str, folder: Path, module: str = "remanence") -> Ended:
    """A module on two processes, as a user starts it."""
    ended = subprocess.run(
        [*TORCHRUN, "-m", module, *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


def flat(state: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of a nested state by their paths."""
    leaves: dict[str, Any] = {}
    for key, value in state.items():
        name = f"{prefix}{key}"
        leaves |= flat(value, f"{name}/") if isinstance(value, dict) else {name: value}
    return leaves


def assert_close(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Floats within rounding; all else (stored images, labels, generators, counts) exactly."""
    found, expected = flat(found), flat(expected)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=name)
        elif isinstance(value, Tensor):
            assert torch.equal(found[name], value), name
        else:
            assert found[name] == value, name


# -- the same numbers -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The states and results of every method, as two ranks left them."""
    folder = tmp_path_factory.mktemp("by-two")
    ended = together(str(folder), folder=ROOT, module="training.rank")
    assert ended.status == 0, ended.err
    return folder


@pytest.mark.parametrize("method", ranks.METHODS)
def test_two_ranks_learn_what_one_process_learns(method: str, by_two: Path) -> None:
    learner, result = ranks.learn(method, ranks=1)
    found, _ = read_file(by_two / f"{method}-0.safetensors")
    assert_close(found, by_file(learner.state_dict(), by_two))
    other = json.loads((by_two / f"{method}-0.json").read_text())
    for name, numbers in result["predictors"].items():
        there = other["predictors"][name]["class_il"]["mean"]
        assert there == pytest.approx(numbers["class_il"]["mean"], abs=0.3), name
    assert result["steps"] == other["steps"] == ranks.STEPS


@pytest.mark.parametrize("batch", ranks.UNEVEN)
def test_batches_that_cannot_be_shared_equally_count_right_all_the_same(
    batch: int, by_two: Path
) -> None:
    learner = ranks.uneven(batch, divided=False)
    found, _ = read_file(by_two / f"uneven-{batch}-0.safetensors")
    assert_close(found, by_file(learner.state_dict(), by_two))


def test_all_ranks_hold_the_same_learner_to_the_last_bit(by_two: Path) -> None:
    names = [*ranks.METHODS, *(f"uneven-{batch}" for batch in ranks.UNEVEN)]
    for name in names:
        one, other = ((by_two / f"{name}-{rank}.safetensors").read_bytes() for rank in (0, 1))
        assert one == other, name


def by_file(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A state as it comes back from a file, which keeps no empty part."""
    from remanence.state import write_file

    write_file(folder / "one.safetensors", state, {})
    return read_file(folder / "one.safetensors")[0]
