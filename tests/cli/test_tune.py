"""`perdure tune` as a user meets it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
import torch

from perdure.cli import RunOptions, main, parse
from perdure.cli import run as run_verb
from perdure.training import Settings, plan
from perdure.tuning import study as studies

SHORT = "tune s-mnist --method er --dataset mnist5k --max-steps 20"


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    before, path = signal.getsignal(signal.SIGTERM), list(sys.path)
    yield
    signal.signal(signal.SIGTERM, before)
    sys.path[:] = path


def planned(command: str) -> Settings:
    """What a printed `perdure run` command would train."""
    program, *words = shlex.split(command)
    assert program == "perdure"
    options = parse(words)
    assert isinstance(options, RunOptions)
    given = {n: v for n in run_verb.HYPERPARAMETERS if (v := getattr(options, n)) is not None}
    given |= dict(map(run_verb.assignment, options.set))
    return plan(
        options.stream,
        options.method,
        options.buffer_size,
        given=given,
        dataset=options.dataset,
        max_steps=options.max_steps,
        validation=options.validation,
    )


def test_a_study_ends_with_the_best_command_a_table_and_a_figure(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(f"{SHORT} --buffer 200 --trials 3 --set batch=20 --json")) == 0
    out, err = capfd.readouterr()
    *_, command, line = out.splitlines()
    summary = json.loads(line)
    (folder,) = (tmp_path / "studies" / "s-mnist").iterdir()
    assert sorted(file.name for file in folder.iterdir()) == [
        *("study.journal", "study.svg", "trials.csv")
    ]
    assert summary["command"] == command
    assert summary["study"] == f"s-mnist/{folder.name}"
    assert (summary["trials"], summary["failed"]) == (3, 0)
    assert Path(summary["figure"]) == Path("studies/s-mnist") / folder.name / "study.svg"
    settings = planned(command)
    assert settings.validation is None
    assert (settings.method, settings.buffer_size, settings.max_steps) == ("er", 200, 20)
    assert settings.values["batch"] == 20
    assert {name: settings.values[name] for name in ("lr", "memory_batch")} == {
        **summary["best"]["values"]
    }
    assert "er on s-mnist, buffer 200: 3 trials, validation accuracy" in out
    assert err.count("trial ") == 3
    assert main(shlex.split(f"{SHORT} --buffer 200 --trials 3 --set batch=20 --quiet")) == 0
    assert capfd.readouterr() == ("", "")  # they are there already


def test_settings_of_ones_own_method_are_searched(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_tuned.py").write_text(
        "import perdure\n"
        "class Mine(perdure.SGD):\n"
        "    def __init__(self, network, *, depth: int = 1, mix: float = 0.5, **common):\n"
        "        super().__init__(network, **common)\n"
    )
    words = f"{SHORT} --method own_tuned:Mine --space depth=1:9 --space mix=0:1 --trials 2"
    assert main(shlex.split(words)) == 0
    command = capfd.readouterr().out.splitlines()[-1]
    values = planned(command).values
    assert values["depth"] in range(1, 10)
    assert 0 <= values["mix"] <= 1
    assert "--set depth=" in command


def test_a_study_in_which_all_fails_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    words = f"{SHORT} --method sgd --space lr=1e29:1e30 --trials 2"
    assert main(shlex.split(words)) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("failed: seed 0: the loss was infinite or not a number") == 2
    assert "perdure: no trial came to an end; why is in studies" in err


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_study_says_how_to_go_on(
    signum: int,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def interrupt(*args: object) -> list[float]:
        os.kill(os.getpid(), signum)
        raise AssertionError("the signal was not heard")

    monkeypatch.setattr(studies, "evaluate", interrupt)
    assert main(shlex.split(f"{SHORT} --trials 2")) == status
    out, err = capfd.readouterr()
    assert (out, err) == ("", f"perdure: stopped; go on with `perdure {SHORT} --trials 2`\n")


@pytest.mark.parametrize(
    ("running", "said"), [(1, "1 trial still runs"), (2, "2 trials still run")]
)
def test_trials_that_run_elsewhere_are_remarked_on(
    running: int, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(f"{SHORT} --trials 1 --storage kept")) == 0
    assert "elsewhere" not in capfd.readouterr().err
    storage = studies._storage(str(tmp_path / "kept"))
    (name,) = optuna.get_all_study_names(storage)
    shared = optuna.load_study(study_name=name, storage=storage)
    for _ in range(running):
        shared.ask().set_user_attr("process", "another-machine 1:1")
    assert main(shlex.split(f"{SHORT} --trials {1 + running} --storage kept")) == 0
    out, err = capfd.readouterr()
    assert f"perdure: {said} elsewhere; call again for the final table\n" in err
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
    assert (options.seeds, options.threads) == ("0:2", 2)


BAD = {
    "--trials 0": "--trials is 0; expected 1 or more",
    "--workers 0": "--workers is 0; expected 1 or more",
    "--threads 0": "--threads is 0; expected 1 or more",
    "--threads 100000": "--threads is 100000; expected at most 256",
    "--study-seed -1": "--study-seed is -1; expected a whole number from 0 to 4294967295",
    "--study-seed 4294967296": "--study-seed is 4294967296; expected a whole number from 0 to",
    "--seeds 5:2": "--seeds 5:2 is empty",
    "--method none": "there is no method 'none'; the methods are clser",
    "--validation 0": "validation fraction is 0.0; expected a number between 0 and 1",
    "--validation many": "'many' is not a number",
    "--validation 0.0001": "--validation 0.0001 leaves 'classes 0 to 1' without a sample",
    "--space lr": "--space lr: there is no such file; expected name=low:high",
    "--space lr=1": "--space 'lr=1'; expected name=low:high",
    "--space empty.toml": "--space empty.toml names no hyperparameter; a line may be lr = { low",
    "--space from.toml": "--space from.toml: lr: from 2 to 1 there is nothing to search",
    "--space one.toml": "--space one.toml: lr is 3; expected [a, b, …] or { low",
    "--space half.toml": "--space half.toml: space 'batch': expected whole numbers, not [1, 2.5]",
    "--space speed.toml": "--space speed.toml: er has no setting 'speed'; it takes batch, epochs",
    "--space speed=1:2": "er has no setting 'speed'; it takes batch, epochs",
    "--space batch=0:8": "the search space does not fit: batch is 0; expected 1 or more",
    "--space lr=0:1": "the search space does not fit: lr is 0; expected a number above 0",
    "--space batch=1:2.5": "space 'batch': expected whole numbers, not [1, 2.5]",
    "--space batch=2,2.5": "space 'batch': expected whole numbers, not [2, 2.5]",
    "--space lr=1:2 --set lr=1": "lr is in --space and in --set: search it or hold it, not both",
    "--set lr=1 --set memory_batch=1": "--set holds every hyperparameter of the space: nothing",
    "--set lr": "--set 'lr'; expected name=number",
    "--storage oracle://nobody:secret@nowhere/x": "--storage nowhere/x cannot be used: ",
    "--storage .": "--storage . cannot be used: ",
    "--out a-file": "--out a-file cannot be written: File exists",
}


FILES = {
    "empty": "# lr = [1, 2]\n",
    "from": "lr = { low = 2, high = 1 }\n",
    "one": "lr = 3\n",
    "half": "batch = [1, 2.5]\n",
    "speed": "speed = [1, 2]\n",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_sentence(
    words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a-file").touch()
    for name, content in FILES.items():
        (tmp_path / f"{name}.toml").write_text(content)
    status = main(shlex.split(f"{SHORT} {words}"))
    out, err = capfd.readouterr()
    assert (status, out) == (2, "")
    assert err.startswith("perdure: ")
    assert err.count("\n") == 1
    assert BAD[words] in err
    assert "secret" not in err
    assert not [*tmp_path.rglob("study.journal")]


def test_a_stream_of_ones_own_cannot_be_tuned_on(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "mine:stream"]) == 2
    assert "mine:stream brings its own tests, on which nothing may" in capfd.readouterr().err


def test_an_unknown_stream_is_answered_with_those_that_can_be_tuned_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["tune", "nope"]) == 2
    err = capfd.readouterr().err
    assert err.startswith("perdure: there is no stream 'nope'; the streams are s-mnist, r-mnist")
    assert "module:function" not in err


def test_without_optuna_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("perdure.tuning")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(shlex.split(SHORT)) == 2
    assert capfd.readouterr().err == ("perdure: tuning needs Optuna: pip install 'perdure[tune]'\n")
