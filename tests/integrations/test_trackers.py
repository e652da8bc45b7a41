"""Weights & Biases and MLflow, each with its local storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from perdure import CLSER, Callback, fit, from_tensors
from perdure.integrations.scalars import ScalarLog

INPUTS, LABELS = torch.rand(64, 8), torch.arange(64) % 4
REASON = "optional package not installed"


def train(*callbacks: Callback) -> None:
    stream = from_tensors(INPUTS, LABELS, groups=[(0, 1), (2, 3)], test=(INPUTS, LABELS))
    learner = CLSER(torch.nn.Linear(8, 4), buffer_size=20)
    fit(learner, stream, batch=8, callbacks=callbacks)


class Collected(ScalarLog):
    def __init__(self) -> None:
        super().__init__()
        self.values: dict[tuple[str, int], float] = {}

    def log(self, values: dict[str, float], step: int) -> None:
        self.values |= {(name, step): value for name, value in values.items()}


def test_losses_accuracies_and_the_memory_are_logged() -> None:
    train(log := Collected())
    for name in ("accuracy/stable/test 1", "accuracy/working/test 0"):
        assert [step for each, step in log.values if each == name] == [4, 8]
    for name in ("train/loss", "memory/class 3"):
        assert [step for each, step in log.values if each == name] == [4, 8]
    assert sum(log.values[f"memory/class {c}", 8] for c in range(4)) == 20


@pytest.mark.slow
def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow: Any = pytest.importorskip("mlflow", reason=REASON)
    from perdure.integrations.mlflow import MLflowLog

    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    with pytest.raises(ValueError, match="start_run"):
        MLflowLog()
    log = Collected()
    with mlflow.start_run() as active:
        train(MLflowLog(), log)
    client, run = mlflow.MlflowClient(), active.info.run_id
    stored = {
        (name, point.step): point.value
        for name in client.get_run(run).data.metrics
        for point in client.get_metric_history(run, name)
    }
    assert stored == log.values


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_wandb_offline(tmp_path: Path) -> None:
    wandb: Any = pytest.importorskip("wandb", reason=REASON)
    from perdure.integrations.wandb import WandbLog

    with pytest.raises(ValueError, match=r"wandb\.init"):
        WandbLog()
    log = Collected()
    with wandb.init(mode="offline", project="perdure", dir=tmp_path) as run:
        train(WandbLog(), log)
        run.log({"end": 1}, step=9)  # a step is complete when the next one begins
        summary = dict(run.summary)
    for name in {name for name, _ in log.values}:
        assert summary[name] == pytest.approx(log.values[name, 8])
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
