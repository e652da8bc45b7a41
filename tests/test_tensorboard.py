"""Runs as TensorBoard shows them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from perdure.cli import main
from perdure.results import RunFolder
from perdure.integrations.tensorboard import TensorBoardLog

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
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of the test's own, and signals as they were."""
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def scalars(folder: Path) -> dict[str, Any]:
    """What TensorBoard would show: by name, the values with their steps."""
    log = EventAccumulator(str(folder))
    log.Reload()
    names = log.Tags()["scalars"]
    return {name: [(e.step, e.value) for e in log.Scalars(name)] for name in names}


def test_losses_accuracies_and_memory_are_logged_for_every_run(tmp_path: Path) -> None:
    assert main([*ARGUMENTS, "--seeds", "0:2", "--tensorboard", "log"]) == 0
    (setting,) = (tmp_path / "runs" / "s-mnist").iterdir()
    for seed in (0, 1):
        events = list(RunFolder(setting / f"seed-{seed}").events())
        shown = scalars(tmp_path / "log" / "s-mnist" / setting.name / f"seed-{seed}")
        first, second = (e for e in events if e["event"] == "totals")
        assert shown["per step/loss"] == [
            (100, pytest.approx(first["loss"] / 100)),
            (150, pytest.approx((second["loss"] - first["loss"]) / 50)),
        ]
        evaluations = [e for e in events if e["event"] == "evaluation"]
        assert shown["accuracy/stable/test 0"] == [
            (e["step"], pytest.approx(e["class_il"]["stable"][0])) for e in evaluations
        ]
        memory = [e for e in events if e["event"] == "memory"]
        assert shown["memory/class 1"] == [(e["step"], e["classes"][1]) for e in memory]
        assert "per step/stable_used" in shown


def test_logging_again_shows_each_value_once(tmp_path: Path) -> None:
    for more in ([], [], ["--again"]):
        assert main([*ARGUMENTS, "--tensorboard", "log", *more]) == 0
    (folder,) = (tmp_path / "log" / "s-mnist").glob("*/seed-0")
    assert [step for step, _ in scalars(folder)["per step/loss"]] == [100, 150]


def test_events_are_read_as_they_are_written(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "s" / "m" / "seed-0")
    with TensorBoardLog(tmp_path / "log", [run]) as log:
        log.read()  # the run has not begun
        run.begin({})
        run.event("totals", step=100, loss=50.0)
        log.read()
        shown = tmp_path / "log" / "s" / "m" / "seed-0"
        assert scalars(shown)["per step/loss"] == [(100, 0.5)]
        with (run.path / "events.jsonl").open("a") as file:
            file.write('{"event": "totals", "lo')  # a line that is being written
            file.flush()
            log.read()
            file.write('ss": 80.0, "step": 200}\n')
        log.read()
        assert scalars(shown)["per step/loss"][1:] == [(200, pytest.approx(0.3))]
        run.begin({})  # and all over again
        run.event("totals", step=100, loss=60.0)
    assert scalars(shown)["per step/loss"] == [(100, pytest.approx(0.6))]


def test_without_the_package_a_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert main([*ARGUMENTS, "--tensorboard", "log"]) == 2
    assert "perdure[tensorboard]" in capfd.readouterr().err
    assert not list((tmp_path / "runs").iterdir())


def test_a_folder_that_cannot_be_written_is_refused_before_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_text("a file")
    assert main([*ARGUMENTS, "--tensorboard", "log"]) == 2
    assert "--tensorboard log cannot be written" in capfd.readouterr().err
