"""The command as a user meets it: help, output, statuses."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import perdure
from perdure import catalog, data
from perdure.cli import RunOptions, main, parse
from perdure.cli.command import VERBS
from perdure.display import ProgressDisplay, results_table, spread
from perdure.training import Progress
from perdure.training.plan import plan

COMMAND = [sys.executable, "-m", "perdure"]
ROOT = Path(__file__).parents[1]
SHORT = ["--max-steps", "30", "--dataset", "mnist5k"]


class Ended(NamedTuple):
    status: int | str | None
    out: str
    err: str


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of the test's own, wide enough a page, and signals as they were."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def call(capfd: pytest.CaptureFixture[str], *argv: str) -> Ended:
    status: int | str | None
    try:
        status = main(list(argv))
    except SystemExit as end:
        status = end.code
    return Ended(status, *capfd.readouterr())


# -- help -----------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["", *VERBS, "data fetch", "data verify"])
def test_every_verb_has_help(verb: str, capfd: pytest.CaptureFixture[str]) -> None:
    ended = call(capfd, *verb.split(), "--help")
    assert (ended.status, ended.err) == (0, "")
    text = " ".join(re.sub("[│╭╮╰╯─]", " ", ended.out).split())
    assert f"perdure {verb}".strip() in text
    assert "None" not in text


def test_every_hyperparameter_of_every_method_has_a_flag(
    capfd: pytest.CaptureFixture[str],
) -> None:
    text = call(capfd, "run", "--help").out
    for method in catalog.METHODS:
        for name in plan(method=method, dataset="mnist5k").values:
            assert f"--{name.replace('_', '-')} " in text


# -- results --------------------------------------------------------------------------------


def test_the_json_line_has_exactly_its_schema(capfd: pytest.CaptureFixture[str]) -> None:
    ended = call(capfd, "run", *SHORT, "--json", "--quiet")
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
    kinds = {"class_il": {"std": None}, "task_il": {"std": None}}
    assert line == {
        "stream": "s-mnist",
        "data": "mnist5k",
        "method": "clser",
        "buffer_size": 500,
        "max_steps": 30,  # named because it is not as usual
        "seeds": [0],
        "predictors": {"stable": kinds, "plastic": kinds, "working": kinds},
    }
    assert all(50 < mean <= 100 for found in means.values() for mean in found.values())


def test_over_seeds_there_is_a_mean_and_a_sample_standard_deviation(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = ["--max-steps", "2", "--dataset", "mnist5k", "--seeds", "3,1", "--workers", "1"]
    ended = call(capfd, "run", "--method", "er", *flags, "--json", "--quiet")
    line = json.loads(ended.out)
    found = {
        json.loads(file.read_text())["seed"]: json.loads(file.read_text())["predictors"]["working"]
        for file in tmp_path.glob("runs/s-mnist/er-500-*/seed-*/result.json")
    }
    assert line["seeds"] == [3, 1]
    for kind in ("class_il", "task_il"):
        values = [found[seed][kind]["mean"] for seed in (1, 3)]
        assert values[0] != values[1]
        assert line["predictors"]["working"][kind] == {
            "mean": pytest.approx(statistics.mean(values)),
            "std": pytest.approx(statistics.stdev(values)),
        }


def test_where_tasks_share_their_classes_task_il_is_null(
    capfd: pytest.CaptureFixture[str],
) -> None:
    flags = ["--method", "sgd", "--max-steps", "2", "--dataset", "mnist5k", "--json"]
    ended = call(capfd, "run", "mnist-360", *flags)
    line = json.loads(ended.out.splitlines()[-1])
    assert line["predictors"]["working"]["task_il"] == {"mean": None, "std": None}
    assert line["buffer_size"] is None
    assert "Class-IL" in ended.out
    assert "Task-IL" not in ended.out


def test_the_table_and_the_notes(capfd: pytest.CaptureFixture[str]) -> None:
    ended = call(capfd, "run", "--buffer", "300", "--max-steps", "30")
    title = " ".join(ended.out.split("┏")[0].split())
    assert title == "clser on s-mnist, buffer 300, data mnist5k, 1 seed: accuracy in percent"
    rows = [line.split("│")[1].strip() for line in ended.out.splitlines() if line.startswith("│")]
    assert rows == ["stable", "plastic", "working"]
    notes = [line for line in ended.err.splitlines() if line.startswith("note: ")]
    assert len(notes) == 2
    assert "mnist was not found: taking mnist5k" in ended.err
    assert "with buffer 300: taken from buffer 200" in ended.err
    assert "runs are in runs/s-mnist/clser-300-" in ended.err


def test_shipped_digits_never_stand_beside_the_papers_figures(
    capfd: pytest.CaptureFixture[str],
) -> None:
    ended = call(capfd, "run", "--dataset", "mnist5k", "--method", "sgd", "--epochs", "1")
    assert ended.status == 0
    assert "data mnist5k" in " ".join(ended.out.split())
    assert "paper" not in ended.out
    for method in catalog.METHODS:
        assert not plan(method=method, dataset="mnist5k").published


def summary(**other: Any) -> dict[str, Any]:
    found = {"class_il": {"mean": 90.0, "std": 1.0}, "task_il": {"mean": 99.0, "std": None}}
    line = {"stream": "s-mnist", "data": "mnist", "method": "clser", "buffer_size": 500}
    return {**line, "seeds": [0, 1], "predictors": {"stable": found}, "seconds": 1.0, **other}


def cells(published: bool, **other: Any) -> list[list[str]]:
    table = results_table(summary(**other), published=published)
    return [[str(cell) for cell in column.cells] for column in table.columns]


def test_published_settings_stand_beside_the_papers_figures() -> None:
    assert cells(True) == [["stable"], ["90.00 ± 1.00"], ["92.05 ± 0.32"], ["99.00"]]
    assert cells(False) == [["stable"], ["90.00 ± 1.00"], ["99.00"]]
    assert cells(True, method="gss", stream="mnist-360", buffer_size=7)[2] == ["–"]


def test_where_tests_overlap_the_last_one_alone_is_shown_too() -> None:
    numbers = {"mean": 34.0, "std": None}
    found = {"class_il": numbers, "task_il": {"mean": None, "std": None}, "last_test": numbers}
    of_gcil = summary(predictors={"stable": found}, stream="gcil-cifar100-uniform")
    columns = [str(column.header) for column in results_table(of_gcil, published=True).columns]
    assert columns == ["predictor", "Class-IL", "paper, Class-IL", "last test alone"]


def test_a_mean_without_a_deviation_stands_alone() -> None:
    assert spread(1.0, None) == "1.00"


def test_what_is_there_is_not_trained_again(capfd: pytest.CaptureFixture[str]) -> None:
    first = call(capfd, "run", *SHORT, "--json")
    second = call(capfd, "run", *SHORT, "--json")
    assert "were there already" not in first.err
    assert "1 of 1 runs were there already; --again trains them again" in second.err
    one, other = (json.loads(ended.out.splitlines()[-1]) for ended in (first, second))
    assert one["predictors"] == other["predictors"]
    again = call(capfd, "run", *SHORT, "--again")
    assert "were there already" not in again.err


# -- while it runs --------------------------------------------------------------------------

LINE = r"seed 0: task 1/5, epoch 15/15  \d+ steps/s  \d+:\d\d left  accuracy \d+\.\d\d %"


def test_not_on_a_terminal_there_is_a_plain_line_per_task() -> None:
    ended = subprocess.run(
        [*COMMAND, "run", "--method", "sgd", *SHORT, "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "\x1b" not in ended.stdout + ended.stderr
    first, second = ended.stderr.splitlines()
    assert re.fullmatch(LINE, first)
    assert second.startswith("runs are in runs/s-mnist/sgd-")
    assert json.loads(ended.stdout.splitlines()[-1])["method"] == "sgd"


def test_quiet_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert call(capfd, "run", "--max-steps", "30", "--quiet") == (0, "", "")


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
    flags = ["--method", "sgd", "--dataset", "mnist5k", "--max-steps", "2500"]
    status, text = on_terminal([*COMMAND, "run", *flags], 120)
    assert status == 0
    bar = r"seed 0 task \d/5, epoch \d+/15 [━╸╺ ]+ \d+ steps/s +\d+:\d\d left"
    bars = set(re.findall(bar, text))
    assert len(bars) > 1  # it moves
    assert re.search(r"left +accuracy \d+\.\d\d %", text)
    assert "sgd on s-mnist" in text


def progress(task: int, step: int, accuracy: float | None, epochs: int = 1) -> Progress:
    return Progress(step, 400, task, 4, 0, epochs, seconds=2.0, accuracy=accuracy)


def test_a_line_is_printed_when_a_task_has_ended(capfd: pytest.CaptureFixture[str]) -> None:
    with ProgressDisplay(quiet=False) as display:
        display(3, progress(0, 50, None))
        display(3, progress(0, 100, 90.0))
        display(3, progress(1, 150, 90.0))
        display(3, progress(1, 200, 85.5))
        display(4, progress(0, 100, 85.5, epochs=2))
    assert capfd.readouterr().err.splitlines() == [
        "seed 3: task 1/4  50 steps/s  0:06 left  accuracy 90.00 %",
        "seed 3: task 2/4  100 steps/s  0:02 left  accuracy 85.50 %",
        "seed 4: task 1/4, epoch 1/2  50 steps/s  0:06 left  accuracy 85.50 %",
    ]


def test_a_run_that_goes_on_says_from_where_and_how_fast_it_is_now(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with ProgressDisplay(quiet=False) as display:
        for step, accuracy in ((100, None), (120, 90.0)):
            display(3, Progress(step, 400, 1, 4, 0, 1, 2.0, accuracy, since=100))
    assert capfd.readouterr().err.splitlines() == [
        "seed 3 goes on from step 100",
        "seed 3: task 2/4  10 steps/s  0:28 left  accuracy 90.00 %",
    ]


# -- runs that fail -------------------------------------------------------------------------


def test_a_run_that_diverges_is_one_sentence_and_status_1(
    capfd: pytest.CaptureFixture[str],
) -> None:
    ended = call(capfd, "run", *SHORT, "--lr", "1e30", "--quiet", "--json")
    assert (ended.status, ended.out) == (1, "")
    (line,) = ended.err.splitlines()
    assert line.startswith("perdure: seed 0 failed: the loss was infinite or not a num")
    assert line.endswith("most often the learning rate (1e+30) is too high")


def test_the_seeds_that_did_not_fail_are_summed_up(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "half.py").write_text(
        "from perdure import SGD\n"
        "class Half(SGD):\n"
        "    def __init__(self, network, *, seed=0, lr=0.1, **common):\n"
        "        super().__init__(network, seed=seed, lr=1e30 if seed else lr, **common)\n"
    )
    flags = ["--method", "half:Half", "--seeds", "0:2", "--workers", "1", "--json", "--quiet"]
    ended = call(capfd, "run", *SHORT, *flags)
    assert ended.status == 1
    assert json.loads(ended.out)["seeds"] == [0]
    assert "perdure: seed 1 failed: " in ended.err


def interrupt(run: subprocess.Popen[str], *, when: Callable[[], bool]) -> tuple[str, str]:
    """Press Ctrl-C once it is time; what the process has written by its end."""
    try:
        deadline = time.monotonic() + 90
        while not when():
            assert time.monotonic() < deadline
            assert run.poll() is None
            time.sleep(0.02)
        run.send_signal(signal.SIGINT)
        return run.communicate(timeout=30)
    finally:
        run.kill()
        run.wait()


def test_ctrl_c_ends_a_run_with_one_sentence() -> None:  # SIGTERM: training/test_seeds.py
    run = subprocess.Popen(
        [*COMMAND, "run", "--dataset", "mnist5k", "--epochs", "9999", "--method", "sgd"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = interrupt(run, when=lambda: any(Path("runs/s-mnist").glob("*/seed-0/events.jsonl")))
    assert (run.returncode, out) == (130, "")
    again = "perdure run --dataset mnist5k --epochs 9999 --method sgd --resume"
    assert err == f"perdure: stopped; go on with `{again}`\n"


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


def test_public_names_are_there_when_they_are_asked_for() -> None:
    for name in perdure.__all__:
        assert getattr(perdure, name).__name__ == name
        assert name in dir(perdure)
    assert not hasattr(perdure, "no_such_name")


# -- other verbs ----------------------------------------------------------------------------


def test_the_demo_ends_in_a_table_of_three_methods(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*asked: Any, **other: Any) -> Any:
        return plan(*asked, **other, max_steps=30)

    monkeypatch.setattr(sys.modules[plan.__module__], "plan", short)
    ended = call(capfd, "demo")
    assert ended.status == 0
    rows = [line.split("│") for line in ended.out.splitlines() if line.startswith("│")]
    assert [row[1].strip() for row in rows] == ["sgd", "er", "clser"]
    assert all(50 < float(row[2]) <= 100 for row in rows)
    assert "mnist5k" in ended.out
    assert "paper" not in ended.out


def test_list_shows_methods_streams_and_datasets(capfd: pytest.CaptureFixture[str]) -> None:
    ended = call(capfd, "list")
    assert (ended.status, ended.err) == (0, "")
    for name in (*catalog.METHODS, *catalog.STREAMS, *data.DATASETS):
        assert re.search(rf"│ {re.escape(name)} +│", ended.out)
    assert "Arani, Sarfraz and Zonooz, ICLR 2022" in ended.out
    assert re.search(r"mnist5k +│ ships with perdure", ended.out)
    assert re.search(r"mnist +│ not found: perdure data fetch mnist", ended.out)
    assert re.search(r"s-mnist .*│ 200, 500, 5120 +│", ended.out)


def test_verify_in_an_empty_folder_finds_what_ships(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ended = call(capfd, "data", "verify", "--data", str(tmp_path))
    assert (ended.status, ended.err) == (0, "")
    lines = dict(line.split(": ", 1) for line in ended.out.splitlines())
    assert list(lines) == list(data.DATASETS)
    assert lines["mnist5k"].startswith("4000 training and 1000 test images, checksum ")
    assert lines["mnist"].startswith(f"mnist is not in {tmp_path}; fetch it with `perdure data")


def test_verify_fails_if_what_was_named_is_missing(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert call(capfd, "data", "verify", "mnist5k").status == 0
    assert call(capfd, "data", "verify", "mnist", "--data", str(tmp_path)).status == 1


def test_verify_names_what_is_damaged(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for file in data.DATASETS["mnist"].layouts[0].files:
        (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file.path).write_bytes(b"not the digits")
    ended = call(capfd, "data", "verify", "--data", str(tmp_path))
    assert (ended.status, ended.err) == (1, "")
    (line,) = (line for line in ended.out.splitlines() if line.startswith("mnist: "))
    assert str(tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz") in line
    assert f"fetch it again with `perdure data fetch mnist --data {tmp_path}`" in line


def test_fetch_says_where_the_dataset_is(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, Path | None, bool]] = []

    def fetch(name: str, root: Path | None, *, progress: bool) -> Path:
        asked.append((name, root, progress))
        return tmp_path / "place"

    monkeypatch.setattr(data, "fetch", fetch)
    ended = call(capfd, "data", "fetch", "cifar10", "--data", str(tmp_path), "--quiet")
    assert ended == (0, f"cifar10 is in {tmp_path / 'place'}\n", "")
    assert asked == [("cifar10", tmp_path, False)]


def test_a_download_that_fails_is_one_sentence(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(name: str, root: Path | None, *, progress: bool) -> Path:
        raise data.DataError("the server cannot be reached; try again later")

    monkeypatch.setattr(data, "fetch", fetch)
    expected = "perdure: the server cannot be reached; try again later\n"
    assert call(capfd, "data", "fetch", "mnist") == (2, "", expected)


def test_settings_of_ones_own_may_be_given_one_by_one() -> None:
    options = parse(["run", "--set", "lr=0.1", "--set", "batch=4"])
    assert isinstance(options, RunOptions)
    assert options.set == ("lr=0.1", "batch=4")
