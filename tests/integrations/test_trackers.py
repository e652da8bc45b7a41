"""Weights & Biases and MLflow, each with its local storage."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from perdure import CLSER, Callback, fit, from_tensors
from perdure.cli import main
from perdure.integrations.trackers import RunLogs, ScalarLog, scalars
from perdure.results import RunFolder

INPUTS, LABELS = torch.rand(64, 8), torch.arange(64) % 4
REASON = "optional package not installed"
COMMAND = [
    "run",
    "s-mnist",
    "--dataset",
    "mnist5k",
    "--max-steps",
    "150",
    "--quiet",
    "--workers",
    "1",
]


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


class Failing(Collected):
    """Fails from step 200 on, with an error of its own."""

    def log(self, values: dict[str, float], step: int) -> None:
        if step >= 200:
            raise LookupError("no server")
        super().log(values, step)


def test_a_tracker_that_fails_is_dropped_and_the_others_continue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, failing, other = RunFolder(tmp_path / "s" / "m" / "seed-0"), Failing(), Collected()
    run.begin({})
    with RunLogs([lambda run: failing, lambda run: other, lambda run: None], [run]) as logs:
        for step in (100, 200, 300):
            run.event("metrics", step=step, values={"loss": 0.5})
            logs.update()
    assert list(failing.values) == [("train/loss", 100)]
    assert list(other.values) == [("train/loss", step) for step in (100, 200, 300)]
    (warning,) = caplog.records
    assert "no server" in warning.getMessage()


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_the_command_names_the_extra_of_a_missing_package(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"perdure.integrations.{name}", raising=False)
    assert main([*COMMAND, f"--{name}", "demo"]) == 2
    assert f"extra {name}" in capfd.readouterr().err
    assert not list((tmp_path / "runs").iterdir())


def events(folder: Path) -> dict[tuple[str, int], float]:
    """What the only run of a command should have logged, by name and step."""
    (path,) = folder.glob("runs/s-mnist/*/seed-0")
    found = RunFolder(path).events()
    return {(name, e["step"]): value for e in found for name, value in scalars(e).items()}


@pytest.mark.slow
def test_mlflow_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow: Any = pytest.importorskip("mlflow", reason=REASON)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    client = mlflow.MlflowClient()
    for n, more in ((1, []), (1, []), (2, ["--restart", "--lr", "0.05"])):
        assert main([*COMMAND, "--mlflow", "demo", *more]) == 0
        experiment = client.get_experiment_by_name("demo").experiment_id
        found = client.search_runs([experiment])
        assert len(found) == n  # the second command finds the log of the first
        if n == 1:
            run = found[0].info.run_id
            assert found[0].info.status == "FINISHED"
            assert found[0].data.params["method"] == "clser"
            logged = {
                (name, point.step): point.value
                for name in found[0].data.metrics
                for point in client.get_metric_history(run, name)
            }
            assert logged == pytest.approx(events(tmp_path))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_wandb_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb: Any = pytest.importorskip("wandb", reason=REASON)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert main([*COMMAND, "--wandb", "demo"]) == 0
    wandb.teardown()  # writes what is buffered
    (log,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    content = log.read_bytes()
    for name in {name for name, _ in events(tmp_path)}:
        assert name.encode() in content
    assert b"consistency_weight" in content  # the configuration


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
