"""Runs trained together on a GPU resume bit for bit."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from perdure.training import Settings, plan
from perdure.training.job import Job, execute
from perdure.training.loop import Interrupted, Progress

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts


def settings(engine: str) -> Settings:
    made = plan(
        *("s-mnist", "clser", 200),
        dataset="mnist5k",
        device="cuda",
        engine=engine,
        deterministic=True,
        given={"epochs": 1, "batch": 10},
    )
    return replace(made, notes=())


def silent(progress: Progress) -> None:
    pass


@pytest.mark.parametrize("engine", ["eager", "captured"])
@pytest.mark.parametrize("asked", [90, 250])
def test_a_group_resumes_bit_for_bit(engine: str, asked: int, tmp_path: Path) -> None:
    what, seeds = settings(engine), (0, 1, 2)
    execute(Job(what, seeds, str(tmp_path / "whole")), silent)
    times = 0

    def stop() -> int:
        nonlocal times
        times += 1
        return 15 if times == asked else 0

    stopped = str(tmp_path / "stopped")
    with pytest.raises(Interrupted):
        execute(Job(what, seeds, stopped), silent, stop)
    execute(Job(what, seeds, stopped, resume=True), silent)
    for seed in seeds:
        one, other = (what.folder(tmp_path / name, seed).path for name in ("whole", "stopped"))
        [step] = what.folder(tmp_path / "stopped", seed).read("timing.json")["resumed"]
        assert asked - 5 <= step < asked  # stop is called once more at the end of a task
        for name in ("result.json", "learner.safetensors", "events.jsonl"):
            assert (one / name).read_bytes() == (other / name).read_bytes(), (seed, name)
