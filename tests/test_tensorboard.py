"""TensorBoard logs of runs."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from perdure.cli import main
from perdure.integrations.tensorboard import track
from perdure.integrations.trackers import RunLogs
from perdure.results import RunFolder

ARGUMENTS = [
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


@pytest.fixture(autouse=True)
def _isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in a temporary folder, and restore the signal handlers."""
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def scalars(folder: Path) -> dict[str, Any]:
    """What TensorBoard shows: steps and values, by name."""
    log = EventAccumulator(str(folder))
    log.Reload()
    names = log.Tags()["scalars"]
    return {name: [(e.step, e.value) for e in log.Scalars(name)] for name in names}


def test_metrics_accuracies_and_memory_are_logged_for_every_run(tmp_path: Path) -> None:
    assert main([*ARGUMENTS, "--seeds", "0:2", "--tensorboard", "log"]) == 0
    (setting,) = (tmp_path / "runs" / "s-mnist").iterdir()
    for seed in (0, 1):
        events = list(RunFolder(setting / f"seed-{seed}").events())
        shown = scalars(tmp_path / "log" / "s-mnist" / setting.name / f"seed-{seed}")
        metrics = [e for e in events if e["event"] == "metrics"]
        assert [e["step"] for e in metrics] == [100, 150]
        for name in ("loss", "stable_used"):
            expected = [(e["step"], pytest.approx(e["values"][name])) for e in metrics]
            assert shown[f"train/{name}"] == expected
        evaluations = [e for e in events if e["event"] == "evaluation" and e["class_il"]]
        assert shown["accuracy/stable/test 0"] == [
            (e["step"], pytest.approx(e["class_il"]["stable"][0])) for e in evaluations
        ]
        memory = [e for e in events if e["event"] == "memory"]
        assert shown["memory/class 1"] == [(e["step"], e["classes"][1]) for e in memory]


def test_logging_a_run_again_replaces_its_values(tmp_path: Path) -> None:
    for more in ([], [], ["--restart"]):
        assert main([*ARGUMENTS, "--tensorboard", "log", *more]) == 0
    (folder,) = (tmp_path / "log" / "s-mnist").glob("*/seed-0")
    assert [step for step, _ in scalars(folder)["train/loss"]] == [100, 150]


def test_events_are_logged_as_they_are_written(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "s" / "m" / "seed-0")
    with RunLogs([track(tmp_path / "log")], [run]) as log:
        log.update()  # the run has not started
        run.begin({})
        run.event("metrics", step=100, values={"loss": 0.5})
        log.update()
        shown = tmp_path / "log" / "s" / "m" / "seed-0"
        assert scalars(shown)["train/loss"] == [(100, 0.5)]
        with (run.path / "events.jsonl").open("a") as file:
            file.write('{"event": "metrics", "values": {"lo')  # an incomplete line
            file.flush()
            log.update()
            file.write('ss": 0.25}, "step": 200}\n')
        log.update()
        assert scalars(shown)["train/loss"][1:] == [(200, 0.25)]
        run.begin({})  # starts over
        run.event("metrics", step=100, values={"loss": 0.75})
    assert scalars(shown)["train/loss"] == [(100, 0.75)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_log_that_cannot_be_written_is_dropped_and_the_others_continue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runs = [RunFolder(tmp_path / "s" / "m" / f"seed-{seed}") for seed in range(3)]
    shown = [tmp_path / "log" / "s" / "m" / f"seed-{seed}" for seed in range(3)]
    shown[1].parent.mkdir(parents=True)
    shown[1].write_text("a file in its way")
    with RunLogs([track(tmp_path / "log")], runs) as log:
        for run in runs:
            run.begin({})
            run.event("metrics", step=100, values={"loss": 0.5})
        log.update()
        (file,) = shown[2].iterdir()
        file.unlink()
        file.symlink_to("/dev/full")  # from now on the disk is full
        for run in runs:
            run.event("metrics", step=200, values={"loss": 0.25})
        log.update()
    for thread in threading.enumerate():  # TensorBoard's writer raises in its own thread
        if type(thread).__name__ == "_AsyncWriterThread":
            thread.join(5)
    assert scalars(shown[0])["train/loss"] == [(100, 0.5), (200, 0.25)]
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 2
    for run, warning in zip(runs[1:], warnings, strict=True):
        assert str(run.path) in warning


def test_the_message_for_a_missing_package_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.delitem(sys.modules, "perdure.integrations.tensorboard")
    assert main([*ARGUMENTS, "--tensorboard", "log"]) == 2
    assert "extra tensorboard" in capfd.readouterr().err
    assert not list((tmp_path / "runs").iterdir())


def test_a_folder_that_cannot_be_written_is_refused_before_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_text("a file")
    assert main([*ARGUMENTS, "--tensorboard", "log"]) == 2
    assert "--tensorboard log cannot be written" in capfd.readouterr().err
