"""`perdure reproduce` on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from perdure.cli import parse
from perdure.cli.reproduce import ReproduceOptions, _grid
from perdure.experiment.build import build_run, config_file, read_dataset
from perdure.experiment.pool import run_tasks
from perdure.experiment.resolve import resolve
from perdure.experiment.run import PlannedRun, make_jobs
from perdure.training.loop import train as train_loop

from .conftest import Call, Write

SMALL = ["table1", "--dataset", "mnist5k", "--streams", "s-mnist", "--buffer-sizes", "200"]
Seen = TypeVar("Seen")
DECIDED = ("result.json", "learner.safetensors")


def files(out: Path) -> dict[str, bytes]:
    """The files that equal runs share, by their place below a folder of runs."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.glob("*/*/seed-*/**/*"))
        if path.name in DECIDED or path.parent.name == "models"
    }


@pytest.fixture
def reproduce(call: Call) -> Call:
    """Runs `perdure reproduce` in this process."""
    return lambda *argv: call("reproduce", *argv)


@pytest.fixture
def without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are trained in this process: starting workers takes longer than the tests."""

    def in_process(tasks: Any, on_event: Any, *, threads: int, **_: Any) -> None:
        run_tasks(tasks, on_event, workers=1, threads=threads, in_process=True)

    monkeypatch.setattr("perdure.cli.reproduce.run_tasks", in_process)


def train(out: Path, seeds: list[int], *asked: Any, **other: Any) -> None:
    """Train runs in this process, one after another."""
    runs = [PlannedRun(resolve(*asked, dataset="mnist5k", **other), seed) for seed in seeds]
    jobs = make_jobs(runs, out, resume=False)
    run_tasks(jobs, lambda event: None, workers=1, in_process=True)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# -- a grid from beginning to end -----------------------------------------------------------


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_grid_is_run_shown_and_reused(workers: str, reproduce: Call, here: Path) -> None:
    grid = [*SMALL, "--methods", "sgd,er", "--max-steps", "20", "--seeds", "0:2", "--out", "out"]
    grid += ["--workers", workers]
    first = reproduce(*grid, "--json")
    assert first.status == 0
    assert "Table 1: Class-IL and Domain-IL, data mnist5k" in first.err
    assert first.err.count(" failed, ") == 4
    assert "[4 of 4 done, 0 running, 0 failed, 0:00 left]" in first.err
    found = lines(here / "out/table1.jsonl")
    assert [(line["method"], line["buffer_size"], line["seeds"]) for line in found] == [
        ("sgd", None, [0, 1]),
        ("er", 200, [0, 1]),
    ]
    assert [json.loads(line) for line in first.out.splitlines()] == found

    train(here / "alone", [1], "s-mnist", "er", 200, max_steps=20)
    alone = files(here / "alone")
    assert alone
    assert alone.items() <= files(here / "out").items()

    timings = {path: path.read_bytes() for path in here.glob("out/*/*/*/timing.json")}
    assert len(timings) == 4
    second = reproduce(*grid, "--json")
    assert (second.status, "4 of 4 runs are complete" in second.err) == (0, True)
    assert second.out == first.out
    assert {path: path.read_bytes() for path in timings} == timings


def test_a_dry_run_writes_nothing(reproduce: Call, here: Path) -> None:
    ended = reproduce(
        *SMALL, "--methods", "sgd,gss", "--seeds", "0:3", "--workers", "2", "--dry-run"
    )
    assert (ended.status, ended.err) == (0, "")
    rows = [line.split("│")[1:-1] for line in ended.out.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row[:4]] for row in rows] == [
        ["sgd on s-mnist", "–", "–", "3"],
        ["gss on s-mnist, buffer 200", "–", "–", "3"],
    ]
    assert "6 of 6 runs to do, 2 at a time: about " in ended.out
    assert list(here.iterdir()) == []


def test_a_dry_run_for_a_gpu_does_not_need_one(
    reproduce: Call, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    flags = ["--methods", "sgd", "--seeds", "0:3", "--device", "cuda"]
    ended = reproduce(*SMALL, *flags, "--dry-run")
    assert (ended.status, ended.err) == (0, "")
    assert "3 of 3 runs to do" in ended.out
    assert reproduce(*SMALL, *flags).status == 2
    assert list(here.iterdir()) == []


def test_complete_runs_of_a_gpu_are_shown_without_one(
    reproduce: Call, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    config = resolve("s-mnist", "sgd", dataset="mnist5k", max_steps=3)
    run = build_run(config, read_dataset(config), seed=0)
    train_loop([run], max_steps=3)
    on_gpu = replace(config, device="cuda", precision="bf16", engine="captured")
    folder = PlannedRun(on_gpu, 0).folder(here / "out")
    with folder.locked():
        folder.begin(config_file(on_gpu, run))
        folder.finish(run.learner, run.record.result(), {"seconds": 1.0})
    flags = ["--methods", "sgd", "--max-steps", "3", "--device", "cuda", "--out", "out"]
    ended = reproduce(*SMALL, *flags, "--seeds", "0", "--json")
    assert (ended.status, "1 of 1 runs are complete" in ended.err) == (0, True)
    assert json.loads(ended.out)["seeds"] == [0]
    ended = reproduce(*SMALL, *flags, "--seeds", "0:2")
    assert (ended.status, "no CUDA device" in ended.err) == (2, True)


@pytest.mark.usefixtures("without_workers")
def test_settings_named_twice_are_run_once_with_the_seeds_of_both(
    reproduce: Call, here: Path
) -> None:
    (here / "twice.toml").write_text(
        '[[runs]]\nmethods = "er"\nbuffer_sizes = 500\nseeds = "0:2"\n'
        '[[runs]]\nmethods = "er"\nbuffer_sizes = 500\nlr = 0.1\nseeds = "1:3"\n'
        '[[runs]]\nmethods = "sgd"\nseeds = 5\n'
    )
    ended = reproduce("--grid", "twice.toml", "--dataset", "mnist5k", "--max-steps", "3")
    assert ended.status == 0
    found = lines(here / "runs/twice.jsonl")
    assert [(line["method"], line["seeds"]) for line in found] == [("er", [0, 1, 2]), ("sgd", [5])]
    assert len(list(here.glob("runs/*/*/seed-*"))) == 4


@pytest.mark.usefixtures("without_workers")
def test_the_results_file_has_a_line_per_setting_over_all_seeds(
    reproduce: Call, here: Path
) -> None:
    grid = [*SMALL, "--methods", "sgd", "--workers", "1", "--out", "out"]
    assert reproduce(*grid, "--max-steps", "3", "--seeds", "0:2").status == 0
    assert reproduce(*grid, "--max-steps", "5", "--seeds", "0").status == 0
    fewer = reproduce(*grid, "--max-steps", "3", "--seeds", "1", "--json")
    found = lines(here / "out/table1.jsonl")
    assert [(line["max_steps"], line["seeds"]) for line in found] == [(3, [0, 1]), (5, [0])]
    assert json.loads(fewer.out.splitlines()[-1])["seeds"] == [1]  # what was asked for


@pytest.mark.usefixtures("without_workers")
def test_a_line_has_values_by_seed_and_where_they_were_computed(
    reproduce: Call, here: Path
) -> None:
    old = {"hash": "0" * 8, "seeds": [0], "predictors": {}}  # a line of an earlier version
    (here / "out").mkdir()
    (here / "out/table1.jsonl").write_text(f"{json.dumps(old)}\n")
    grid = [*SMALL, "--methods", "sgd", "--workers", "1", "--out", "out", "--max-steps", "3"]
    assert reproduce(*grid, "--seeds", "0:2").status == 0
    kept, line = lines(here / "out/table1.jsonl")
    assert kept == old
    results = [json.loads(path.read_text()) for path in sorted(here.glob("out/*/*/*/result.json"))]
    expected = [result["predictors"]["working"]["class_il"]["mean"] for result in results]
    predictors: Any = line["predictors"]
    assert predictors["working"]["class_il"]["by_seed"] == expected
    assert line["processors"] == [torch.backends.cpu.get_cpu_capability()]
    assert line["torch"] == [torch.__version__]


def test_an_invalid_results_file_is_refused_before_training(reproduce: Call, here: Path) -> None:
    (here / "out").mkdir()
    (here / "out/table1.jsonl").write_text("not json")
    ended = reproduce(
        *SMALL, "--methods", "sgd", "--max-steps", "3", "--seeds", "0", "--out", "out"
    )
    assert ended.status == 2
    assert "table1.jsonl is not a results file" in ended.err
    assert [path.name for path in (here / "out").iterdir()] == ["table1.jsonl"]


@pytest.mark.usefixtures("without_workers")
def test_a_missing_timing_affects_estimates_only(reproduce: Call, here: Path) -> None:
    grid = [*SMALL, "--methods", "sgd", "--max-steps", "3", "--seeds", "0:2", "--out", "out"]
    assert reproduce(*grid).status == 0
    [timing] = here.glob("out/*/*/seed-1/timing.json")
    before = lines(here / "out/table1.jsonl")[0]
    timing.write_text("")
    again = reproduce(*grid)
    assert again.status == 0
    assert lines(here / "out/table1.jsonl")[0] == {**before, "seconds": None}


@pytest.mark.usefixtures("without_workers")
def test_a_grid_may_mix_users_streams_with_those_of_a_dataset(
    reproduce: Call, here: Path, module: Write
) -> None:
    module(
        "mine",
        """
        import torch
        from perdure.streams import from_tensors

        def stream():
            inputs = torch.rand(20, 1, 4, 4, generator=torch.Generator().manual_seed(0))
            labels = torch.arange(20) % 2
            return from_tensors(inputs, labels, test=(inputs, labels), name="mine")
        """,
    )
    (here / "both.toml").write_text(
        '[[runs]]\nstreams = ["s-mnist", "mine:stream"]\nmethods = "sgd"\n'
    )
    ended = reproduce("--grid", "both.toml", "--dataset", "mnist5k", "--max-steps", "2")
    assert ended.status == 0, ended.err
    assert [line["stream"] for line in lines(here / "runs/both.jsonl")] == [
        "s-mnist",
        "mine:stream",
    ]


def test_conditions_on_one_name_are_joined() -> None:
    options = parse(
        ["reproduce", "s3", "--where", "plastic_rate=0.2", "--where", "plastic-rate=0.5"]
    )
    assert isinstance(options, ReproduceOptions)
    assert {cell.given["plastic_rate"] for cell in _grid(options).cells} == {0.2, 0.5}


@pytest.mark.usefixtures("without_workers")
def test_a_users_grid(reproduce: Call, here: Path) -> None:
    (here / "rates.toml").write_text(
        'title = "alpha in [0, 1] and [/b] bold"\nseeds = "1"\n'
        '[[runs]]\nmethods = ["er", "sgd"]\nbuffer_sizes = 50\nlr = [0.1, 0.2]\n'
    )
    few = ["--dataset", "mnist5k", "--max-steps", "3", "--workers", "1"]
    ended = reproduce("--grid", "rates.toml", *few, "--methods", "er")
    assert ended.status == 0
    assert "note: " in ended.err
    assert "alpha in [0, 1] and [/b] bold" in ended.out  # brackets are not markup
    found = lines(here / "runs/rates.jsonl")
    assert [(line["departures"], line["seeds"]) for line in found] == [
        ({"lr": 0.1}, [1]),
        ({"lr": 0.2}, [1]),
    ]


# -- runs that fail -------------------------------------------------------------------------

FRAIL = """
    import os, signal
    from pathlib import Path
    from perdure import SGD

    class Frail(SGD):
        '''Seed 1 fails twice, once by dying; seed 2 always.'''
        def __init__(self, network, *, seed=0, **common):
            super().__init__(network, seed=seed, **common)
            self.own_seed = seed

        def step(self, inputs, labels):
            super().step(inputs, labels)
            if int(self.steps) != 5 or self.own_seed == 0:
                return
            attempt = len(list(Path.cwd().glob(f"attempt-{self.own_seed}-*"))) + 1
            Path(f"attempt-{self.own_seed}-{attempt}").touch()
            if self.own_seed == 1 and attempt == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.own_seed == 2 or attempt == 2:
                raise KeyError(f"slot {attempt}")
"""


def test_failed_runs_are_retried_twice_and_the_others_continue(
    reproduce: Call, module: Write, here: Path
) -> None:
    module("frail", FRAIL)
    ended = reproduce(
        *("table2", "--methods", "frail:Frail", "--dataset", "mnist5k", "--max-steps", "8"),
        *("--seeds", "0:3", "--workers", "1", "--out", "out"),
    )
    assert ended.status == 1
    shown = ended.err.splitlines()
    failures = [line for line in shown if line.startswith(("seed", "perdure: seed"))]
    assert [line for line in failures if "done" not in line] == [
        "seed 1 failed; trying again: its worker process died (signal 9)",
        "seed 2 failed; trying again: KeyError: 'slot 1'",
        "seed 1 failed; trying again: KeyError: 'slot 2'",
        "seed 2 failed; trying again: KeyError: 'slot 2'",
        "perdure: seed 2 failed: KeyError: 'slot 3'",
    ]
    assert len(list(here.glob("attempt-2-*"))) == 3
    assert [line["seeds"] for line in lines(here / "out/table2.jsonl")] == [[0, 1]]
    assert ended.err.count("Traceback") == 2  # one per seed and place
    assert ended.err.count("in step\n    raise KeyError(") == 2
    (row,) = (line for line in ended.out.splitlines() if "frail:Frail" in line)
    assert "2 of 3" in row
    assert shown[-1].startswith("perdure: 1 of 3 runs failed")
    assert shown[-1].endswith("frail:Frail on mnist-360, seed 2")


@pytest.mark.usefixtures("without_workers")
def test_a_grid_in_which_all_runs_fail_ends_with_a_summary(reproduce: Call, here: Path) -> None:
    (here / "steep.toml").write_text('[[runs]]\nmethods = "er"\nbuffer_sizes = 200\nlr = 1e30\n')
    few = ["--dataset", "mnist5k", "--max-steps", "3", "--seeds", "0:2", "--workers", "1"]
    ended = reproduce("--grid", "steep.toml", *few, "--quiet")
    assert (ended.status, ended.out) == (1, "")
    *reasons, last = ended.err.splitlines()
    named = [line.partition(" failed")[0] for line in reasons]
    assert named == ["perdure: seed 0", "perdure: seed 1"]
    assert last.startswith("perdure: 2 of 2 runs failed")
    assert last.endswith("er on s-mnist, buffer 200, lr 1e+30, seeds 0, 1")


# -- a stop in the middle -------------------------------------------------------------------

SLOW = """
    import time
    from perdure import SGD

    class Slow(SGD):
        '''All seeds but the first take two seconds or more.'''
        def __init__(self, network, *, seed=0, **common):
            super().__init__(network, seed=seed, **common)
            self.pause = 0.01 if seed else 0

        def step(self, inputs, labels):
            super().step(inputs, labels)
            time.sleep(self.pause)
"""


def start(out: str) -> tuple[list[str], subprocess.Popen[str]]:
    """Three runs, one after the other."""
    words = "reproduce table2 --methods slow:Slow --dataset mnist5k --max-steps 200 --seeds 0:3"
    how = f"--workers 1 --checkpoint-every 0.2 --out {out}"
    command = [sys.executable, "-m", "perdure", *words.split(), *how.split()]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return command, subprocess.Popen(command, text=True, start_new_session=True, **pipes)  # type: ignore[call-overload]


def wait_for(look: Callable[[], Seen], what: str, seconds: float = 180) -> Seen:
    """What there is to see, as soon as there is something."""
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return seen


def stop(process: subprocess.Popen[str], here: Path, name: str) -> str:
    """Send a signal when the second run has a checkpoint; returns what was said."""
    try:
        half_done = "out/mnist-360/*/seed-1/checkpoints/*.json"
        wait_for(lambda: list(here.glob(half_done)), "no checkpoint of the second run")
        os.kill(process.pid, signal.Signals[name])
        return process.communicate(timeout=60)[1]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
def test_a_second_call_finishes_what_a_killed_one_began(
    reproduce: Call, module: Write, here: Path
) -> None:
    module("slow", SLOW)
    command, process = start("out")
    stop(process, here, "SIGKILL")
    states = {p.name: (p / "result.json").exists() for p in here.glob("out/mnist-360/*/seed-*")}
    assert states == {"seed-0": True, "seed-1": False}
    first = next(here.glob("out/mnist-360/*/seed-0/timing.json"))
    before = first.read_bytes()

    assert reproduce(*command[4:]).status == 0
    assert first.read_bytes() == before
    resumed = {
        path.parent.name: json.loads(path.read_text())["resumed"]
        for path in here.glob("out/mnist-360/*/seed-*/timing.json")
    }
    assert (resumed["seed-0"], resumed["seed-2"]) == ([], [])
    (step,) = resumed["seed-1"]
    assert 0 < step < 200
    train(here / "undisturbed", [0, 1, 2], "mnist-360", "slow:Slow", None, max_steps=200)
    assert files(here / "out") == files(here / "undisturbed")


def test_ctrl_c_prints_how_to_continue(module: Write, here: Path) -> None:
    module("slow", SLOW)
    command, process = start("out")
    errors = stop(process, here, "SIGINT")
    assert process.returncode == 130
    count, last = errors.splitlines()[-2:]
    assert count == "1 of 3 runs are complete"
    assert last.endswith(f"`perdure {' '.join(command[3:])}`")
    assert list(here.glob("out/mnist-360/*/seed-1/checkpoints/*.json")) != []


# -- invalid input --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("table9", "'table9'; choose from table1, table2, table3, s1, s2, s3"),
        ("", "a table (table1, table2, table3, s1, s2, s3) or --grid FILE"),
        ("table1 --grid g.toml", "either a table"),
        ("--grid nowhere.toml", "--grid nowhere.toml does not exist"),
        ("table1 --streams x", "table1 has no stream x; it has s-mnist, r-mnist, p-mnist"),
        ("table1 --streams s-mnist,", "--streams is 's-mnist,'"),
        ("table1 --methods foo", "unknown method 'foo'"),
        ("table1 --buffer-sizes 7", "table1 has no buffer size 7; it has 200, 500, 5120"),
        ("table1 --buffer-sizes a", "--buffer-sizes is 'a'"),
        ("table1 --seeds 3:1", "--seeds 3:1 is empty"),
        ("table1 --workers 0", "--workers is 0"),
        ("table1 --threads 0", "--threads is 0"),
        ("table1 --side-by-side 0", "--side-by-side is 0"),
        ("table1 --checkpoint-every 0", "--checkpoint-every is 0"),
        ("table1", "s-mnist, r-mnist, p-mnist: mnist"),
        ("table1 --data .", "--dataset mnist5k"),
        ("table1 --dataset foo", "'foo'; choose from mnist, mnist5k, cifar10"),
        ("table3 --dataset mnist5k", "requires cifar100, not mnist5k"),
        ("table2 --dataset mnist5k --engine captured --device cpu", "--engine captured"),
        ("s3 --where lr=1", "--where lr: s3 does not vary it"),
        ("s3 --where plastic_rate", "--where 'plastic_rate'"),
        ("s3 --where plastic-rate=7", "s3 has no plastic_rate 7.0; it has 0.2, 0.3, 0.4"),
        ("table2 --methods gem --dataset mnist5k", "gem on mnist-360, buffer 200: GEM"),
        ("table2 --dataset mnist5k --address a:1", "add --backend ray"),
        ("table2 --dataset mnist5k --backend ray --address 127.0.0.1:1", "Connection refused"),
        ("table2 --backend ray --address ray://head:1", "expected HOST:PORT"),
        ("table2 --backend ray --workers 2", "--workers applies to this machine"),
    ],
)
def test_invalid_input_is_one_sentence_before_anything_starts(
    words: str, expected: str, reproduce: Call, here: Path
) -> None:
    ended = reproduce(*words.split(), "--out", "out")
    assert ended.status == 2
    assert ended.err.startswith("perdure: ")
    assert expected in ended.err
    assert ended.err.count("\n") == 1
    assert list(here.glob("out/*")) == []


def test_streams_without_data_are_skipped(reproduce: Call) -> None:
    ended = reproduce("s2", "--methods", "sgd", "--dataset", "mnist5k", "--dry-run")
    assert ended.status == 0
    skipped = [line for line in ended.err.splitlines() if line.startswith("skipped: ")]
    assert [line.split(": ")[1] for line in skipped] == ["s-cifar10", "s-tiny-imagenet"]
    assert "sgd on p-mnist" in ended.out
