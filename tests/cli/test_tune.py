"""`perdure tune`."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch

from perdure.cli import main, parse
from perdure.cli.run import RunOptions, _resolve
from perdure.config import RunConfig
from perdure.experiment import tune as studies

SHORT = "tune s-mnist --method er --dataset mnist5k --max-steps 20"


@pytest.fixture(autouse=True)
def _here(here: Path) -> None:
    """A current folder of the test's own."""


def resolved(command: str) -> RunConfig:
    """The configuration of a printed `perdure run` command."""
    program, *words = shlex.split(command)
    assert program == "perdure"
    options = parse(words)
    assert isinstance(options, RunOptions)
    (config,) = _resolve(options, ranks=1)
    return config


def test_a_study_prints_the_best_command_and_writes_a_table_and_a_figure(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(f"{SHORT} --buffer 200 --trials 3 --set batch=20 --json")) == 0
    out, err = capfd.readouterr()
    summary = json.loads(out)
    command = summary["command"]
    (folder,) = (here / "studies" / "s-mnist").iterdir()
    assert sorted(file.name for file in folder.iterdir()) == [
        *("study.journal", "study.svg", "trials.csv")
    ]
    assert command in err
    assert summary["study"] == f"s-mnist/{folder.name}"
    assert (summary["trials"], summary["failed"]) == (3, 0)
    assert Path(summary["figure"]) == Path("studies/s-mnist") / folder.name / "study.svg"
    config = resolved(command)
    assert config.validation is None
    assert (config.method, config.buffer_size, config.max_steps) == ("er", 200, 20)
    assert config.batch == 20
    best = summary["best"]["values"]
    assert {name: config.hyperparameters[name] for name in ("lr", "memory_batch")} == best
    assert "er on s-mnist, buffer 200" in err
    assert len(re.findall(r"^trial ", err, re.MULTILINE)) == 3
    assert main(shlex.split(f"{SHORT} --buffer 200 --trials 3 --batch 20 --quiet")) == 0
    assert capfd.readouterr() == ("", "")  # complete already


def test_hyperparameters_of_a_users_method_are_searched(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "own_tuned.py").write_text(
        "import perdure\n"
        "class Mine(perdure.SGD):\n"
        "    def __init__(self, network, *, depth: int = 1, mix: float = 0.5, **common):\n"
        "        super().__init__(network, **common)\n"
    )
    words = f"{SHORT} --method own_tuned:Mine --space depth=1:9 --space mix=0:1 --trials 2"
    assert main(shlex.split(words)) == 0
    command = capfd.readouterr().out.splitlines()[-1]
    values = resolved(command).hyperparameters
    assert values["depth"] in range(1, 10)
    assert 0 <= values["mix"] <= 1
    assert "--set depth=" in command


def test_a_study_in_which_all_trials_fail(capfd: pytest.CaptureFixture[str]) -> None:
    words = f"{SHORT} --method sgd --space lr=1e29:1e30 --trials 2"
    assert main(shlex.split(words)) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("failed: seed 0: ") == 2
    assert "perdure: all trials failed" in err
    assert "trials.csv" in err


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_study_prints_how_to_continue(
    signum: int,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    evaluate = studies.evaluate

    def interrupt(*args: Any) -> list[float]:
        os.kill(os.getpid(), signum)
        return evaluate(*args)

    monkeypatch.setattr(studies, "evaluate", interrupt)
    assert main(shlex.split(f"{SHORT} --trials 2")) == status
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert f"`perdure {SHORT} --trials 2`" in err


@pytest.mark.parametrize("running", [1, 2])
def test_trials_of_other_processes_are_mentioned(
    running: int, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(f"{SHORT} --trials 1 --storage kept")) == 0
    assert "other processes" not in capfd.readouterr().err
    storage = studies._storage(str(here / "kept"))
    (name,) = optuna.get_all_study_names(storage)
    shared = optuna.load_study(study_name=name, storage=storage)
    for _ in range(running):
        shared.ask().set_user_attr("process", "another-machine 1:1")
    assert main(shlex.split(f"{SHORT} --trials {1 + running} --storage kept")) == 0
    out, err = capfd.readouterr()
    assert f"other processes: {running}" in err
    assert out.count("running") == running


def test_seeds_and_threads_are_part_of_the_best_command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(studies, "evaluate", lambda *args: [80.0, 90.0])
    words = f"{SHORT} --trials 1 --seeds 0:2 --threads 2"
    threads = torch.get_num_threads()
    try:
        assert main(shlex.split(words)) == 0
    finally:
        torch.set_num_threads(threads)
    options = parse(shlex.split(capfd.readouterr().out.splitlines()[-1])[1:])
    assert isinstance(options, RunOptions)
    assert (options.seeds, options.execution.threads) == ("0:2", 2)


BAD = {
    "--trials 0": "--trials is 0",
    "--workers 0": "--workers is 0",
    "--threads 0": "--threads is 0",
    "--study-seed -1": "--study-seed is -1",
    "--study-seed 4294967296": "--study-seed is 4294967296",
    "--seeds 5:2": "--seeds 5:2 is empty",
    "--method none": "unknown method 'none'",
    "--validation 0": "0.0",
    "--validation many": "'many' is not a number",
    "--validation 0.0001": "--validation 0.0001",
    "--space lr": "--space lr: file not found",
    "--space lr=1": "--space lr=1: expected at least two",
    "--space empty.toml": "--space empty.toml: the file is empty",
    "--space from.toml": "--space from.toml: lr: the range from 2 to 1",
    "--space one.toml": "--space one.toml: lr: expected",
    "--space half.toml": "--space half.toml: batch: expected whole numbers",
    "--space speed.toml": "--space speed.toml: er has no hyperparameter 'speed'",
    "--space speed=1:2": "er has no hyperparameter 'speed'",
    "--space batch=0:8": "search space is invalid: batch is 0",
    "--space lr=0:1": "search space is invalid: lr is 0",
    "--space batch=1:2.5": "batch: expected whole numbers",
    "--space batch=2,2.5": "batch: expected whole numbers",
    "--space lr=1:2 --set lr=1": "lr is in --space and fixed",
    "--set lr=1 --set memory_batch=1": "every hyperparameter of the search space",
    "--set lr": "--set 'lr'",
    "--storage oracle://nobody:secret@nowhere/x": "--storage nowhere/x cannot be used: ",
    "--storage .": "--storage . cannot be used: ",
    "--out a-file": "--out a-file cannot be written: File exists",
}
"""Flags, and a key term of the sentence that each prints."""


FILES = {
    "empty": "# lr = [1, 2]\n",
    "from": "lr = { low = 2, high = 1 }\n",
    "one": "lr = 3\n",
    "half": "batch = [1, 2.5]\n",
    "speed": "speed = [1, 2]\n",
}


@pytest.mark.parametrize("words", BAD)
def test_invalid_input_is_one_sentence(
    words: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "a-file").touch()
    for name, content in FILES.items():
        (here / f"{name}.toml").write_text(content)
    status = main(shlex.split(f"{SHORT} {words}"))
    out, err = capfd.readouterr()
    assert (status, out) == (2, "")
    assert err.startswith("perdure: ")
    assert err.count("\n") == 1
    assert BAD[words] in err
    assert "secret" not in err
    assert not [*here.rglob("study.journal")]


OWN_STREAMS = """
import torch
from perdure import from_batches, from_tensors

INPUTS = torch.rand(200, 6, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(200) % 4

def stream():
    return from_tensors(INPUTS, LABELS, groups=[(0, 1), (2, 3)], test=(INPUTS, LABELS))

def batches():
    return from_batches([(INPUTS, LABELS)], classes=4, shape=(6,))
"""


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_users_stream_is_tuned_on_a_part_of_its_training_samples(
    optimizer: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "streams_to_tune.py").write_text(OWN_STREAMS)
    words = f"tune streams_to_tune:stream --trials 1 --optimizer {optimizer} --set batch=50 --json"
    assert main(shlex.split(words)) == 0
    summary = json.loads(capfd.readouterr().out)
    config, found = resolved(summary["command"]), summary["best"]["values"]
    assert set(found) == {"lr", "consistency_weight", "stable_window", "plastic_window"}
    assert found["lr"] <= (0.5 if optimizer == "sgd" else 0.01)
    assert config.optimizer == optimizer
    assert {name: config.hyperparameters[name] for name in found} == found


@pytest.mark.parametrize(("space", "noted"), [("lr=0.001,0.01", False), ("batch=10,20", True)])
def test_a_note_on_the_learning_rate_appears_unless_it_is_searched(
    space: str, noted: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*shlex.split(SHORT), "--optimizer=adam", "--trials=1", f"--space={space}"]) == 0
    assert ("--lr is not given" in capfd.readouterr().err) == noted


def test_a_stream_from_batches_cannot_be_tuned(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "streams_to_tune.py").write_text(OWN_STREAMS)
    assert main(["tune", "streams_to_tune:batches"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("perdure: the stream 'own' cannot be split")
    assert err.count("\n") == 1


def test_without_optuna_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name == "perdure.experiment.tune"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(shlex.split(SHORT)) == 2
    assert "extra tune" in capfd.readouterr().err
