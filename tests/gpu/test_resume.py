"""Runs trained together on a GPU resume bit for bit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from perdure.config import RunConfig
from perdure.experiment.resolve import resolve
from perdure.experiment.run import Job, PlannedRun
from perdure.results import read_run
from perdure.training.loop import Interrupted, Progress

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts


def config(engine: str) -> RunConfig:
    return resolve(
        *("s-mnist", "clser", 200),
        dataset="mnist5k",
        device="cuda",
        engine=engine,
        deterministic=True,
        given={"epochs": 1, "batch": 10},
    )


def silent(progress: Progress) -> None:
    pass


@pytest.mark.parametrize("engine", ["eager", "captured"])
@pytest.mark.parametrize("asked", [90, 250])
def test_a_group_resumes_bit_for_bit(engine: str, asked: int, tmp_path: Path) -> None:
    runs = tuple(PlannedRun(config(engine), seed) for seed in (0, 1, 2))
    Job(runs, tmp_path / "whole").execute(silent)
    times = 0

    def stop() -> int:
        nonlocal times
        times += 1
        return 15 if times == asked else 0

    with pytest.raises(Interrupted):
        Job(runs, tmp_path / "stopped").execute(silent, stop)
    Job(runs, tmp_path / "stopped", resume=True).execute(silent)
    for run in runs:
        one, other = (run.folder(tmp_path / name).path for name in ("whole", "stopped"))
        [step] = read_run(other).timing.resumed
        assert 0 < step < asked  # stop is also called during evaluations
        for name in ("result.json", "learner.safetensors", "events.jsonl"):
            assert (one / name).read_bytes() == (other / name).read_bytes(), (run.seed, name)
