"""`perdure run` and the verbs without a file of their own: help, output, statuses."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import statistics
import subprocess
import sys
import time
import tomllib
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import perdure
from perdure import catalog, data
from perdure.cli import parse
from perdure.cli.command import VERBS
from perdure.cli.run import RunOptions
from perdure.experiment.build import build_run
from perdure.experiment.pool import run_tasks
from perdure.experiment.progress import GridProgress
from perdure.experiment.resolve import resolve
from perdure.streams.from_files import FILE_STREAMS, file_options
from perdure.training import Run

from .conftest import Call

COMMAND = [sys.executable, "-m", "perdure"]
ROOT = Path(__file__).parents[2]
SHORT = ["--max-steps", "30", "--dataset", "mnist5k"]


@pytest.fixture(autouse=True)
def _here(here: Path) -> None:
    """A current folder of the test's own."""


# -- help -----------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["", *VERBS, "data fetch", "data verify"])
def test_every_verb_has_help(verb: str, call: Call) -> None:
    ended = call(*verb.split(), "--help")
    assert (ended.status, ended.err) == (0, "")
    text = " ".join(re.sub("[│╭╮╰╯─]", " ", ended.out).split())
    assert f"perdure {verb}".strip() in text
    assert "None" not in text


def test_every_hyperparameter_of_every_method_has_a_flag(
    call: Call,
) -> None:
    text = call("run", "--help").out
    for method in catalog.METHODS:
        for name in resolve(method=method, dataset="mnist5k").hyperparameters:
            assert f"--{name.replace('_', '-')} " in text


@pytest.mark.parametrize("verb", ["run", "tune"])
def test_the_help_lists_the_options_of_streams_from_files(verb: str, call: Call) -> None:
    words = set(re.findall(r"\w+", call(verb, "--help").out))
    for kind in FILE_STREAMS:
        assert file_options(kind).keys() <= words
    assert {"size", "tasks", "keep_together"} <= words


# -- results --------------------------------------------------------------------------------


def test_the_json_line_has_exactly_its_schema(call: Call) -> None:
    ended = call("run", *SHORT, "--json", "--quiet")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.endswith("\n")
    assert ended.out.count("\n") == 1
    line = json.loads(ended.out)
    seconds = line.pop("seconds")
    assert isinstance(seconds, float)
    assert seconds > 0
    means = {
        name: {kind: found[kind].pop("mean") for kind in found}
        for name, found in line["predictors"].items()
    }
    for name, found in line["predictors"].items():
        assert {kind: found[kind].pop("by_seed") for kind in found} == {
            kind: [mean] for kind, mean in means[name].items()
        }
    kinds = {"class_il": {"std": None}, "task_il": {"std": None}}
    assert line == {
        "stream": "s-mnist",
        "data": "mnist5k",
        "method": "clser",
        "buffer_size": 500,
        "max_steps": 30,  # only if it is not the default
        "hash": resolve(dataset="mnist5k", max_steps=30).hash,
        "seeds": [0],
        "complete": False,
        "steps": [30],
        "processors": [torch.backends.cpu.get_cpu_capability()],
        "torch": [torch.__version__],
        "predictors": {"stable": kinds, "plastic": kinds, "working": kinds},
    }
    assert all(50 < mean <= 100 for found in means.values() for mean in found.values())


def test_over_seeds_there_is_a_mean_and_a_sample_standard_deviation(call: Call, here: Path) -> None:
    flags = ["--max-steps", "2", "--dataset", "mnist5k", "--seeds", "3,1", "--workers", "1"]
    ended = call("run", "--method", "er", *flags, "--json", "--quiet")
    line = json.loads(ended.out)
    found = {
        int(file.parent.name[5:]): json.loads(file.read_text())["predictors"]["working"]
        for file in here.glob("runs/s-mnist/er-500-*/seed-*/result.json")
    }
    assert line["seeds"] == [1, 3]
    for kind in ("class_il", "task_il"):
        values = [found[seed][kind]["mean"] for seed in (1, 3)]
        assert values[0] != values[1]
        assert line["predictors"]["working"][kind] == {
            "mean": pytest.approx(statistics.mean(values)),
            "std": pytest.approx(statistics.stdev(values)),
            "by_seed": values,
        }


def test_where_tasks_share_their_classes_task_il_is_null(
    call: Call,
) -> None:
    flags = ["--method", "sgd", "--max-steps", "2", "--dataset", "mnist5k", "--json"]
    ended = call("run", "mnist-360", *flags)
    line = json.loads(ended.out.splitlines()[-1])
    assert line["predictors"]["working"]["task_il"]["mean"] is None
    assert line["buffer_size"] is None
    assert "Class-IL" not in ended.err  # no class is masked
    assert "Task-IL" not in ended.err


def test_the_table_and_the_notes(call: Call) -> None:
    ended = call("run", "--buffer", "300", "--max-steps", "30")
    title = " ".join(ended.out.split("┏")[0].split())
    for words in ("CLS-ER on s-mnist", "mnist5k", "first 30 steps", "buffer 300", "1 seed"):
        assert words in title
    rows = [line.split("│") for line in ended.out.splitlines() if line.startswith("│")]
    names = [cell.strip() for row in rows for cell in row]
    assert [n for n in names if n in ("stable", "plastic", "working")] == [
        *("stable", "plastic", "working")
    ]
    notes = [line for line in ended.err.splitlines() if line.startswith("note: ")]
    assert len(notes) == 2
    assert "mnist5k" in notes[0]
    assert "buffer 300" in notes[1]
    assert "runs/s-mnist/clser-300-" in ended.err


def test_published_figures_are_shown_for_published_settings_only(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = call("run", "--dataset", "mnist5k", "--method", "sgd", "--epochs", "1")
    assert digits.status == 0
    assert "published" not in digits.out
    # Pretend that the shipped digits are MNIST.
    entry = catalog.STREAMS["s-mnist"]
    monkeypatch.setitem(catalog.STREAMS, "s-mnist", replace(entry, datasets=("mnist5k",)))
    monkeypatch.setattr("perdure.config.SMALL_DATA_EPOCHS", 1)
    for flags in ([], ["--epochs", "1"]):  # whoever creates the folder
        ended = call("run", "--method", "sgd", "--out", f"runs{len(flags)}", *flags)
        assert "published" in ended.out
    assert "published" not in call("run", "--method", "sgd", "--epochs", "2").out


def test_where_the_memory_is_does_not_change_results(call: Call, here: Path) -> None:
    (here / "scratch").mkdir()
    flags = ["--method", "derpp,sgd", *SHORT, "--json", "--quiet", "--workers", "1"]
    elsewhere = ["--memory-folder", "scratch", "--memory-device", "cpu"]
    lines = []
    for out, where in (("one", []), ("other", elsewhere)):
        ended = call("run", *flags, "--out", out, *where)
        assert (ended.status, ended.err) == (0, "")
        found = [json.loads(line) for line in ended.out.splitlines()]
        lines.append([{**line, "seconds": None} for line in found])
    assert lines[0] == lines[1]
    assert not any((here / "scratch").iterdir())


def test_complete_runs_are_reused(call: Call) -> None:
    first = call("run", *SHORT, "--json")
    second = call("run", *SHORT, "--json")
    assert "--restart" not in first.err
    assert "1 of 1 runs" in second.err
    assert "--restart" in second.err
    assert first.out == second.out
    again = call("run", *SHORT, "--restart")
    assert "1 of 1 runs" not in again.err


def test_complete_runs_count_for_the_time_left(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    call("run", *SHORT)
    started: list[GridProgress] = []

    def run_jobs(progress: GridProgress, *args: Any, **kwargs: Any) -> None:
        started.append(progress)

    monkeypatch.setattr("perdure.cli.run.run_jobs", run_jobs)
    call("run", *SHORT, "--seeds", "0:2")
    (progress,) = started
    ((speed,),) = progress.speeds.measured.values()
    assert progress.time_left().seconds == pytest.approx(30 * speed)


def test_the_default_number_of_workers_respects_affinity(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def recorded(*args: Any, workers: int, **how: Any) -> None:
        seen.append(workers)
        run_tasks(*args, workers=workers, **{**how, "in_process": True})

    monkeypatch.setattr("perdure.cli.run.run_tasks", recorded)
    monkeypatch.setattr("perdure.cli.reproduce.run_tasks", recorded)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 8}, raising=False)
    few = ["--dataset", "mnist5k", "--max-steps", "2", "--seeds", "0:5", "--quiet"]
    assert call("run", "--method", "sgd", *few).status == 0
    assert call("reproduce", "table2", "--methods", "sgd", *few).status == 0
    assert call("run", "--method", "sgd", "--restart", "--workers", "2", *few).status == 0
    assert seen == [3, 3, 2]


# -- while it runs --------------------------------------------------------------------------

LINE = r"seed 0: task 1/5, epoch 1/15  \d+ steps/s  \d+:\d\d left  accuracy \d+\.\d\d %"


def test_not_on_a_terminal_there_is_a_plain_line_per_task(call: Call) -> None:
    ended = call("run", "--method", "sgd", *SHORT)
    assert "\x1b" not in ended.out + ended.err
    first, early, second = ended.err.splitlines()
    assert "step 30" in early
    assert re.fullmatch(LINE, first)
    assert "runs/s-mnist/sgd-" in second
    assert "Class-IL" in ended.out


def test_with_json_the_output_is_json_and_the_table_goes_to_stderr(call: Call) -> None:
    ended = call("run", "--method", "sgd,er", *SHORT, "--json", "--workers", "1")
    assert [json.loads(line)["method"] for line in ended.out.splitlines()] == ["sgd", "er"]
    assert "Class-IL" in ended.err


def test_quiet_prints_nothing(call: Call) -> None:
    assert call("run", "--max-steps", "30", "--quiet") == (0, "", "")


def on_terminal(argv: list[str], seconds: float) -> tuple[int, str]:
    """What a command shows on a real terminal, colours and movements removed."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm", COLUMNS="120", LINES="40")
        os.execv(argv[0], argv)
    shown, deadline = b"", time.monotonic() + seconds
    try:
        while True:
            left = deadline - time.monotonic()
            assert left > 0, shown
            if terminal in select.select([terminal], [], [], left)[0]:
                try:
                    part = os.read(terminal, 65536)
                except OSError:  # the other side is closed
                    break
                if not part:
                    break
                shown += part
    finally:
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    return os.waitstatus_to_exitcode(status), text


def test_on_a_terminal_there_is_a_progress_display() -> None:
    # All five tasks, so that even a fast machine shows several of the updates, four per second.
    flags = ["--method", "sgd", "--dataset", "mnist5k"]
    status, text = on_terminal([*COMMAND, "run", *flags], 400)
    assert status == 0
    bar = r"seed 0 +[━╸╺ ]+ *task \d/5, epoch \d+/15 +\d+ steps/s +\d+:\d\d left"
    bars = set(re.findall(bar, text))
    assert len(bars) > 1  # it moves
    assert re.search(r"left +accuracy \d+\.\d\d %", text)
    assert "SGD on s-mnist" in text


# -- runs that fail -------------------------------------------------------------------------


def test_a_run_that_diverges_is_one_sentence_and_status_1(
    call: Call,
) -> None:
    ended = call("run", *SHORT, "--lr", "1e30", "--quiet", "--json")
    assert (ended.status, ended.out) == (1, "")
    (line,) = ended.err.splitlines()
    assert line.startswith("perdure: seed 0 failed: ")
    assert "1e+30" in line


def test_a_last_batch_that_batch_norm_cannot_use_is_reported_before_training(
    call: Call, here: Path
) -> None:
    (here / "norm.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "from perdure import from_tensors\n"
        "stream = from_tensors(torch.zeros(9, 4), torch.arange(9) % 2)\n"
        "def network(shape, classes):\n"
        "    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, classes))\n"
    )
    flags = ["--network", "norm:network", "--method", "sgd", "--batch", "4"]
    ended = call("run", "norm:stream", *flags)
    assert ended.status == 2
    assert "BatchNorm" in ended.err
    assert not (here / "runs").exists()


def test_seeds_that_did_not_fail_are_summarised(call: Call, here: Path) -> None:
    (here / "half.py").write_text(
        "from perdure import SGD\n"
        "class Half(SGD):\n"
        "    def __init__(self, network, *, seed=0, lr=0.1, **common):\n"
        "        super().__init__(network, seed=seed, lr=1e30 if seed else lr, **common)\n"
    )
    flags = ["--method", "half:Half", "--seeds", "0:2", "--workers", "1", "--json", "--quiet"]
    ended = call("run", *SHORT, *flags)
    assert ended.status == 1
    assert json.loads(ended.out)["seeds"] == [0]
    assert "perdure: seed 1 failed: " in ended.err


def interrupt(
    run: subprocess.Popen[str], *, when: Callable[[], bool], signum: int = signal.SIGINT
) -> tuple[str, str]:
    """Send a signal once it is time; what the process has written by its end."""
    try:
        deadline = time.monotonic() + 180
        while not when():
            assert time.monotonic() < deadline
            assert run.poll() is None
            time.sleep(0.02)
        run.send_signal(signum)
        return run.communicate(timeout=180)
    finally:
        run.kill()
        run.wait()


@pytest.mark.parametrize("quiet", [False, True])
def test_ctrl_c_is_confirmed_and_ends_a_run(quiet: bool) -> None:  # more: faults/test_processes.py
    words = ["run", "--dataset", "mnist5k", "--epochs", "9999", "--method", "sgd"]
    words += ["--quiet"] * quiet
    run = subprocess.Popen(
        [*COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = interrupt(run, when=lambda: any(Path("runs/s-mnist").glob("*/seed-0/events.jsonl")))
    assert (run.returncode, out) == (130, "")
    *confirmations, last = err.splitlines()
    assert f"`{shlex.join(['perdure', *words])}`" in last
    assert len(confirmations) == (0 if quiet else 1)
    assert all("stopping after" in line for line in confirmations)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_before_training_ends_the_command_with_one_sentence(name: str, here: Path) -> None:
    (here / "slow.py").write_text(
        "import pathlib, time\n"
        "def stream():\n"
        "    pathlib.Path('building').touch()\n"
        "    time.sleep(600)\n"
    )
    run = subprocess.Popen(
        [*COMMAND, "run", "slow:stream"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    signum = signal.Signals[name]
    out, err = interrupt(run, when=Path("building").exists, signum=signum)
    assert (run.returncode, out, err) == (128 + signum, "", "perdure: interrupted\n")


def test_the_run_that_checks_the_settings_is_released_before_training(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds all data of its stream."""
    built: list[weakref.ref[Run]] = []

    def build_and_note(*args: Any) -> Run:
        run = build_run(*args)
        built.append(weakref.ref(run))
        return run

    def train(*args: Any, **options: Any) -> int:
        assert [run() for run in built] == [None, None]
        return 0

    monkeypatch.setattr("perdure.cli.run.build_run", build_and_note)
    monkeypatch.setattr("perdure.cli.run.train_plan", train)
    assert call("run", *SHORT, "--method", "er,joint").status == 0


def test_a_stopped_run_on_an_iterator_says_that_it_cannot_be_continued(
    call: Call, here: Path
) -> None:
    (here / "endless.py").write_text(
        "import itertools, os, signal, torch, perdure\n"
        "def batches():\n"
        "    for number in itertools.count():\n"
        "        if number == 20:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "        yield torch.rand(8, 4), torch.arange(8) % 2\n"
        "def stream():\n"
        "    return perdure.from_batches(batches(), classes=2, shape=(4,))\n"
        "def network(shape, classes):\n"
        "    return torch.nn.Linear(4, 2)\n"
    )
    flags = ["--network", "endless:network", "--method", "sgd", "--max-steps", "1000"]
    ended = call("run", "endless:stream", *flags)
    assert ended.status == 130
    assert "cannot be resumed" in ended.err.splitlines()[-1]


@pytest.mark.parametrize("start", ["module", "script"])
def test_ctrl_c_while_libraries_are_loaded_ends_quietly(start: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "import pathlib, time\npathlib.Path('loading').touch()\ntime.sleep(60)\n"
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, name = project["scripts"]["perdure"].split(":")
    script = f"import sys; from {module} import {name}; sys.exit({name}())"
    command = COMMAND if start == "module" else [sys.executable, "-c", script]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    run = subprocess.Popen(
        [*command, "list"],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = interrupt(run, when=Path("loading").exists)
    assert (run.returncode, out, err) == (130, "", "")


def test_public_names_can_be_imported() -> None:
    for name in perdure.__all__:
        assert getattr(perdure, name).__name__ == name
        assert name in dir(perdure)
    assert not hasattr(perdure, "no_such_name")


# -- other verbs ----------------------------------------------------------------------------


def test_the_demo_ends_in_a_table_of_three_methods(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*asked: Any, **other: Any) -> Any:
        return resolve(*asked, **other, max_steps=30)

    monkeypatch.setattr("perdure.cli.demo.resolve", short)
    ended = call("demo")
    assert ended.status == 0
    rows = [line.split("│") for line in ended.out.splitlines() if line.startswith("│")]
    assert [row[1].strip() for row in rows] == ["SGD", "ER", "CLS-ER"]
    assert "mnist5k" in ended.out
    assert "published" not in ended.out


def test_list_shows_methods_streams_and_datasets(call: Call) -> None:
    ended = call("list")
    assert (ended.status, ended.err) == (0, "")
    for name in (*catalog.METHODS, *catalog.STREAMS, *data.DATASETS):
        assert re.search(rf"│ {re.escape(name)} +│", ended.out)
    assert "Arani, Sarfraz and Zonooz, ICLR 2022" in ended.out
    assert "perdure data fetch mnist" in ended.out
    assert re.search(r"s-mnist .*│ 200, 500, 5120 +│", ended.out)


def test_verify_lists_every_dataset(call: Call, here: Path) -> None:
    ended = call("data", "verify", "--data", str(here))
    assert (ended.status, ended.err) == (0, "")
    lines = dict(line.split(": ", 1) for line in ended.out.splitlines())
    assert list(lines) == list(data.DATASETS)
    assert "checksum" in lines["mnist5k"]
    assert "perdure data fetch mnist" in lines["mnist"]


def test_verify_fails_if_a_named_dataset_is_missing(call: Call, here: Path) -> None:
    assert call("data", "verify", "mnist5k").status == 0
    assert call("data", "verify", "mnist", "--data", str(here)).status == 1


def test_verify_names_damaged_files(call: Call, here: Path) -> None:
    for file in data.DATASETS["mnist"].layouts[0].files:
        (here / file.path).parent.mkdir(parents=True, exist_ok=True)
        (here / file.path).write_bytes(b"not the digits")
    ended = call("data", "verify", "--data", str(here))
    assert (ended.status, ended.err) == (1, "")
    (line,) = (line for line in ended.out.splitlines() if line.startswith("mnist: "))
    assert str(here / "MNIST/raw") in line
    assert str(here / "MNIST/raw/train-images-idx3-ubyte.gz") in ended.out
    assert f"`perdure data fetch mnist --data {here}`" in line


def test_fetch_prints_where_the_dataset_is(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, Path | None, bool]] = []

    def fetch(name: str, root: Path | None, *, progress: bool) -> Path:
        asked.append((name, root, progress))
        return tmp_path / "place"

    monkeypatch.setattr("perdure.cli.data.fetch", fetch)
    ended = call("data", "fetch", "cifar10", "--data", str(tmp_path), "--quiet")
    assert (ended.status, ended.err) == (0, "")
    assert str(tmp_path / "place") in ended.out
    assert asked == [("cifar10", tmp_path, False)]


def test_a_download_that_fails_is_one_sentence(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(name: str, root: Path | None, *, progress: bool) -> Path:
        raise data.DataError("the server cannot be reached; try again later")

    monkeypatch.setattr("perdure.cli.data.fetch", fetch)
    expected = "perdure: the server cannot be reached; try again later\n"
    assert call("data", "fetch", "mnist") == (2, "", expected)


def test_set_may_be_repeated() -> None:
    parsed = parse(["run", "--set", "lr=0.1", "--set", "batch=4"])
    assert isinstance(parsed, RunOptions)
    assert parsed.given() == {"lr": 0.1, "batch": 4}
