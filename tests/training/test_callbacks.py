"""The events that `EventLog` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perdure import fit
from perdure.results import RunFolder
from perdure.training import Callback, EventLog, train

from . import toy


def events(folder: RunFolder) -> list[dict[str, Any]]:
    return list(folder.events())


def folder(path: Path) -> RunFolder:
    path.mkdir()
    return RunFolder(path)


def test_metrics_memory_and_accuracies_are_logged(tmp_path: Path) -> None:
    log, recorder = EventLog(folder(tmp_path / "run")), toy.Recorder()
    learner = toy.learner("er")
    record = fit(learner, toy.split(), batch=6, callbacks=[log, recorder], initial_evaluation=True)
    written = events(log.folder)
    assert [e["event"] for e in written] == [
        "evaluation",
        *(["metrics", "memory", "evaluation"] * 4),
    ]
    metrics = [e for e in written if e["event"] == "metrics"]
    assert metrics == [{"event": "metrics", "step": s, "values": m} for s, m in recorder.metrics]
    evaluations = [e for e in written if e["event"] == "evaluation"]
    assert [(e["task"], e["step"]) for e in evaluations] == recorder.tasks
    assert [e["class_il"]["working"] for e in evaluations] == record.class_il["working"]
    memory = [e["classes"] for e in written if e["event"] == "memory"]
    assert [sum(classes) for classes in memory] == [20, 20, 20, 20]
    assert learner.memory is not None
    assert memory[-1] == learner.memory.class_counts(toy.CLASSES)


def test_methods_without_memory_log_no_class_counts(tmp_path: Path) -> None:
    log = EventLog(folder(tmp_path / "run"))
    fit(toy.learner("sgd"), toy.split(), callbacks=[log])
    assert {e["event"] for e in events(log.folder)} == {"metrics", "evaluation"}


def test_runs_trained_together_are_logged_separately(tmp_path: Path) -> None:
    runs = [toy.run("er", seed) for seed in (1, 2)]
    logs = [EventLog(folder(tmp_path / str(run.seed)), run) for run in runs]
    train(runs, callbacks=logs)
    for run, log in zip(runs, logs, strict=True):
        alone = EventLog(folder(tmp_path / f"{run.seed} alone"))
        train([toy.run("er", run.seed)], callbacks=[alone])
        assert events(log.folder) == events(alone.folder)


def test_every_method_of_a_callback_is_optional() -> None:
    record = fit(toy.learner("er"), toy.split(), batch=6, callbacks=[Callback()])
    assert record.steps == 16
