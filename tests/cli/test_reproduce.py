"""`perdure reproduce` on this machine, as a user meets it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from perdure.cli.reproduce import _conditions
from perdure.training import plan
from perdure.training.job import Job, execute
from perdure.training.seeds import make_runs

from .conftest import Call, Write

SMALL = ["table1", "--dataset", "mnist5k", "--streams", "s-mnist", "--buffers", "200"]
Seen = TypeVar("Seen")
DECIDED = ("result.json", "learner.safetensors")


def decided(out: Path) -> dict[str, bytes]:
    """The files that equal runs share, by their place below a folder of runs."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.glob("*/*/seed-*/**/*"))
        if path.name in DECIDED or path.parent.name == "models"
    }


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# -- a grid from beginning to end -----------------------------------------------------------


def test_a_grid_is_made_shown_and_not_made_again(call: Call, here: Path) -> None:
    grid = [*SMALL, "--methods", "sgd,er", "--max-steps", "20", "--seeds", "0:2", "--out", "out"]
    first = call(*grid, "--json")
    assert first.status == 0
    assert "Table 1: Class-IL and Domain-IL, data mnist5k" in first.out
    assert first.err.count(" failed, ") == 4
    assert "[4 of 4 done, 0 running, 0 failed, 0:00 left]" in first.err
    found = lines(here / "out/table1.jsonl")
    assert [(line["method"], line["buffer_size"], line["seeds"]) for line in found] == [
        ("sgd", None, [0, 1]),
        ("er", 200, [0, 1]),
    ]
    assert [json.loads(line) for line in first.out.splitlines()[-2:]] == found

    settings = plan("s-mnist", "er", 200, dataset="mnist5k", max_steps=20)
    alone = make_runs(settings, [1], here / "alone", tell=lambda seed, progress: None).done[1]
    place = alone.path.relative_to(here / "alone")
    assert decided(here / "alone") == {
        name: content
        for name, content in decided(here / "out").items()
        if Path(name).is_relative_to(place)
    }

    timings = {path: path.read_bytes() for path in here.glob("out/*/*/*/timing.json")}
    assert len(timings) == 4
    second = call(*grid, "--json")
    assert (second.status, "4 of 4 runs are there already" in second.err) == (0, True)
    assert second.out == first.out
    assert {path: path.read_bytes() for path in timings} == timings


def test_a_dry_run_leaves_nothing_behind(call: Call, here: Path) -> None:
    ended = call(*SMALL, "--methods", "sgd,gss", "--seeds", "0:3", "--workers", "2", "--dry-run")
    assert (ended.status, ended.err) == (0, "")
    rows = [line.split("│")[1:-1] for line in ended.out.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row[:4]] for row in rows] == [
        ["sgd on s-mnist", "–", "–", "3"],
        ["gss on s-mnist, buffer 200", "–", "–", "3"],
    ]
    assert "6 of 6 runs to do, 2 at a time: about " in ended.out
    assert list(here.iterdir()) == []


def test_what_a_gpu_would_have_to_do_can_be_seen_without_one(
    call: Call, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    flags = ["--methods", "sgd", "--seeds", "0:3", "--device", "cuda"]
    ended = call(*SMALL, *flags, "--dry-run")
    assert (ended.status, ended.err) == (0, "")
    assert "3 of 3 runs to do" in ended.out
    assert call(*SMALL, *flags).status == 2
    assert list(here.iterdir()) == []


def test_the_same_setting_named_twice_is_run_with_the_seeds_of_both(call: Call, here: Path) -> None:
    (here / "twice.toml").write_text(
        '[[runs]]\nmethods = "er"\nbuffers = 500\nseeds = "0:2"\n'
        '[[runs]]\nmethods = "er"\nbuffers = 500\nlr = 0.1\nseeds = "1:3"\n'  # 0.1 is published
        '[[runs]]\nmethods = "sgd"\nseeds = 5\n'
    )
    ended = call("--grid", "twice.toml", "--dataset", "mnist5k", "--max-steps", "3")
    assert ended.status == 0
    found = lines(here / "runs/twice.jsonl")
    assert [(line["method"], line["seeds"]) for line in found] == [("er", [0, 1, 2]), ("sgd", [5])]
    assert len(list(here.glob("runs/*/*/seed-*"))) == 4


def test_a_grid_that_another_process_has_made_meanwhile_is_not_made_again(here: Path) -> None:
    settings = plan("s-mnist", "sgd", dataset="mnist5k", max_steps=3)
    job = Job(settings, (0,), str(here / "out"), resume=True)
    folder = settings.folder(here / "out", 0)
    execute(job, lambda progress: None)  # the other process
    written = (folder.path / "timing.json").read_bytes()
    execute(job, lambda progress: None)  # planned when the run was not there yet
    assert (folder.path / "timing.json").read_bytes() == written


def test_the_file_of_results_tells_settings_apart_and_covers_all_seeds(
    call: Call, here: Path
) -> None:
    grid = [*SMALL, "--methods", "sgd", "--workers", "1", "--out", "out"]
    assert call(*grid, "--max-steps", "3", "--seeds", "0:2").status == 0
    assert call(*grid, "--max-steps", "5", "--seeds", "0").status == 0
    fewer = call(*grid, "--max-steps", "3", "--seeds", "1", "--json")
    found = lines(here / "out/table1.jsonl")
    assert [(line["max_steps"], line["seeds"]) for line in found] == [(3, [0, 1]), (5, [0])]
    assert json.loads(fewer.out.splitlines()[-1])["seeds"] == [1]  # what was asked for


def test_a_file_that_is_no_file_of_results_is_refused_before_the_work(
    call: Call, here: Path
) -> None:
    (here / "out").mkdir()
    (here / "out/table1.jsonl").write_text("not json")
    ended = call(*SMALL, "--methods", "sgd", "--max-steps", "3", "--seeds", "0", "--out", "out")
    assert ended.status == 2
    assert "table1.jsonl is not a file of results; move it away" in ended.err
    assert [path.name for path in (here / "out").iterdir()] == ["table1.jsonl"]


def test_a_lost_timing_costs_an_estimate_and_nothing_else(call: Call, here: Path) -> None:
    grid = [*SMALL, "--methods", "sgd", "--max-steps", "3", "--seeds", "0:2", "--out", "out"]
    assert call(*grid).status == 0
    [timing] = here.glob("out/*/*/seed-1/timing.json")
    before = lines(here / "out/table1.jsonl")[0]
    timing.write_text("")
    again = call(*grid)
    assert again.status == 0
    assert lines(here / "out/table1.jsonl")[0] == {**before, "seconds": None}


def test_brackets_in_a_title_are_shown_as_they_are(call: Call, here: Path) -> None:
    (here / "mine.toml").write_text(
        'title = "alpha in [0, 1] and [/b] bold"\n[[runs]]\nmethods = "sgd"\n'
    )
    ended = call("--grid", "mine.toml", "--dataset", "mnist5k", "--max-steps", "3")
    assert ended.status == 0
    assert "alpha in [0, 1] and [/b] bold" in ended.out


def test_streams_of_ones_own_stand_beside_those_of_a_dataset(
    call: Call, here: Path, module: Write
) -> None:
    module(
        "mine",
        """
        import torch
        from perdure.streams import from_tensors

        def stream():
            images = torch.rand(20, 1, 4, 4, generator=torch.Generator().manual_seed(0))
            labels = torch.arange(20) % 2
            return from_tensors(images, labels, test=(images, labels), name="mine")
        """,
    )
    (here / "both.toml").write_text(
        '[[runs]]\nstreams = ["s-mnist", "mine:stream"]\nmethods = "sgd"\n'
    )
    ended = call("--grid", "both.toml", "--dataset", "mnist5k", "--max-steps", "2")
    assert ended.status == 0, ended.err
    assert [line["stream"] for line in lines(here / "runs/both.jsonl")] == [
        "s-mnist",
        "mine:stream",
    ]


def test_conditions_on_one_name_are_joined() -> None:
    assert _conditions(["plastic_rate=0.2", "plastic-rate=0.5"]) == {"plastic_rate": [0.2, 0.5]}


def test_a_grid_of_ones_own(call: Call, here: Path) -> None:
    (here / "rates.toml").write_text(
        'seeds = "1"\n[[runs]]\nmethods = ["er", "sgd"]\nbuffers = 50\nlr = [0.1, 0.2]\n'
    )
    few = ["--dataset", "mnist5k", "--max-steps", "3", "--workers", "1"]
    ended = call("--grid", "rates.toml", *few, "--methods", "er")
    assert ended.status == 0
    assert "note: no published er setting for s-mnist with buffer 50" in ended.err
    found = lines(here / "runs/rates.jsonl")
    assert [(line["given"], line["seeds"]) for line in found] == [
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

        def step(self, images, labels):
            super().step(images, labels)
            if int(self.steps) != 5 or self.own_seed == 0:
                return
            attempt = len(list(Path.cwd().glob(f"attempt-{self.own_seed}-*"))) + 1
            Path(f"attempt-{self.own_seed}-{attempt}").touch()
            if self.own_seed == 1 and attempt == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.own_seed == 2 or attempt == 2:
                raise KeyError(f"slot {attempt}")
"""


def test_failures_are_tried_again_twice_and_the_rest_goes_on(
    call: Call, module: Write, here: Path
) -> None:
    module("frail", FRAIL)
    ended = call(
        *("table2", "--methods", "frail:Frail", "--dataset", "mnist5k", "--max-steps", "8"),
        *("--seeds", "0:3", "--workers", "1", "--out", "out"),
    )
    assert ended.status == 1
    told = ended.err.splitlines()
    *said, last = [line for line in told if "frail:Frail on mnist-360, seed" in line]
    assert [line.partition("  [")[0].partition(" %")[0] for line in said if "done" not in line] == [
        "frail:Frail on mnist-360, seed 1 failed and is tried again: its worker process died "
        "(signal 9)",
        "frail:Frail on mnist-360, seed 2 failed and is tried again: KeyError: 'slot 1'",
        "frail:Frail on mnist-360, seed 1 failed and is tried again: KeyError: 'slot 2'",
        "frail:Frail on mnist-360, seed 2 failed and is tried again: KeyError: 'slot 2'",
        "perdure: frail:Frail on mnist-360, seed 2 failed: KeyError: 'slot 3'",
    ]
    assert len(list(here.glob("attempt-2-*"))) == 3
    assert [line["seeds"] for line in lines(here / "out/table2.jsonl")] == [[0, 1]]
    assert ended.err.count("Traceback") == 2  # of each seed one, where it was
    assert ended.err.count("in step\n    raise KeyError(") == 2
    (row,) = (line for line in ended.out.splitlines() if "frail:Frail" in line)
    assert "2 of 3" in row
    assert last == told[-1]
    assert last == (
        "perdure: 1 of 3 runs failed, for the reasons above: frail:Frail on mnist-360, seed 2"
    )


def test_a_grid_that_failed_as_a_whole_has_a_last_word(call: Call, here: Path) -> None:
    (here / "steep.toml").write_text('[[runs]]\nmethods = "er"\nbuffers = 200\nlr = 1e30\n')
    few = ["--dataset", "mnist5k", "--max-steps", "3", "--seeds", "0:2", "--workers", "1"]
    ended = call("--grid", "steep.toml", *few, "--quiet")
    assert (ended.status, ended.out) == (1, "")
    *reasons, last = [line for line in ended.err.splitlines() if line.startswith("perdure: ")]
    assert [line.partition(" was ")[0] for line in reasons] == [
        f"perdure: er on s-mnist, buffer 200, lr 1e+30, seed {seed} failed: the loss"
        for seed in (0, 1)
    ]
    assert last == (
        "perdure: 2 of 2 runs failed, for the reasons above: "
        "er on s-mnist, buffer 200, lr 1e+30, seeds 0, 1"
    )


# -- a stop in the middle -------------------------------------------------------------------

SLOW = """
    import time
    from perdure import SGD

    class Slow(SGD):
        def step(self, images, labels):
            super().step(images, labels)
            time.sleep(0.01)
"""


def start(out: str) -> tuple[list[str], subprocess.Popen[str]]:
    """Three runs of two seconds or more, one after the other."""
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


def test_a_second_call_finishes_what_a_killed_one_began(
    call: Call, module: Write, here: Path
) -> None:
    module("slow", SLOW)
    command, process = start("out")
    stop(process, here, "SIGKILL")
    states = {p.name: (p / "result.json").exists() for p in here.glob("out/mnist-360/*/seed-*")}
    assert states == {"seed-0": True, "seed-1": False}
    first = next(here.glob("out/mnist-360/*/seed-0/timing.json"))
    before = first.read_bytes()

    assert call(*command[4:]).status == 0
    assert first.read_bytes() == before
    resumed = {
        path.parent.name: json.loads(path.read_text())["resumed"]
        for path in here.glob("out/mnist-360/*/seed-*/timing.json")
    }
    assert (resumed["seed-0"], resumed["seed-2"]) == ([], [])
    (step,) = resumed["seed-1"]
    assert 0 < step < 200
    settings = plan("mnist-360", "slow:Slow", None, dataset="mnist5k", max_steps=200)
    make_runs(settings, [0, 1, 2], here / "undisturbed", tell=lambda seed, progress: None)
    assert decided(here / "out") == decided(here / "undisturbed")


def test_ctrl_c_says_how_to_go_on(module: Write, here: Path) -> None:
    module("slow", SLOW)
    command, process = start("out")
    errors = stop(process, here, "SIGINT")
    assert process.returncode == 130
    assert errors.splitlines()[-2:] == [
        "1 of 3 runs are done",
        f"perdure: stopped; go on with `perdure {' '.join(command[3:])}`",
    ]
    assert list(here.glob("out/mnist-360/*/seed-1/checkpoints/*.json")) != []


# -- what a user can get wrong --------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("table9", "there is no table 'table9'; the tables are table1, table2, table3, s1, s2, s3"),
        ("", "expected a table (table1, table2, table3, s1, s2, s3) or --grid FILE"),
        ("table1 --grid g.toml", "expected a table or --grid FILE, not both table1 and a grid"),
        ("--grid nowhere.toml", "--grid nowhere.toml does not exist"),
        ("table1 --streams x", "table1 has no stream x; what it has is s-mnist, r-mnist, p-mnist"),
        ("table1 --streams s-mnist,", "--streams is 's-mnist,'; expected names with commas"),
        ("table1 --methods foo", "there is no method 'foo'; the methods are clser, mean-er"),
        ("table1 --buffers 7", "table1 has no buffer 7; what it has is 200, 500, 5120"),
        ("table1 --buffers a", "--buffers is 'a'; expected numbers with commas between them"),
        ("table1 --seeds 3:1", "--seeds 3:1 is empty"),
        ("table1 --workers 0", "--workers is 0; expected 1 or more"),
        ("table1 --threads 0", "--threads is 0; expected 1 or more"),
        ("table1 --threads 100000", "--threads is 100000; expected at most 256"),
        ("table1 --side-by-side 0", "--side-by-side is 0; expected 1 or more"),
        ("table1 --checkpoint-every 0", "--checkpoint-every is 0; expected a number above 0"),
        ("table1", "nothing of table1 can be run: s-mnist, r-mnist, p-mnist: mnist is not"),
        ("table1 --data .", "or take --dataset mnist5k"),
        ("table1 --dataset foo", "no dataset is called 'foo'; there are mnist, mnist5k, cifar10"),
        ("table3 --dataset mnist5k", "gcil-cifar100-longtail: not mnist5k but cifar100 is needed"),
        ("s3 --where lr=1", "--where lr: s3 does not vary it"),
        ("s3 --where plastic_rate", "--where 'plastic_rate'; expected name=number,number"),
        ("s3 --where plastic-rate=7", "s3 has no plastic_rate 7.0; what it has is 0.2, 0.3, 0.4"),
        (
            "table2 --methods gem --dataset mnist5k",
            "gem on mnist-360, buffer 200: GEM must be told where tasks end, and mnist-360 has no",
        ),
        ("table2 --dataset mnist5k --address a:1", "--address names a Ray cluster; add --engine r"),
        (
            "table2 --dataset mnist5k --engine ray --address 127.0.0.1:1",
            "no Ray cluster answers at 127.0.0.1:1 ([Errno 111] Connection refused); start one",
        ),
        (
            "table2 --engine ray --address ray://head:1",
            "--address is 'ray://head:1'; expected HOST",
        ),
        ("table2 --engine ray --workers 2", "--workers counts processes of this machine; Ray pla"),
    ],
)
def test_bad_input_is_one_sentence_before_anything_starts(
    words: str, sentence: str, call: Call, here: Path
) -> None:
    ended = call(*words.split(), "--out", "out")
    assert ended.status == 2
    assert ended.err.startswith("perdure: ")
    assert sentence in ended.err
    assert ended.err.count("\n") == 1
    assert list(here.glob("out/*")) == []


def test_streams_without_data_are_left_out_with_a_sentence(call: Call) -> None:
    ended = call("s2", "--methods", "sgd", "--dataset", "mnist5k", "--dry-run")
    assert ended.status == 0
    assert ended.err.splitlines() == [
        "left out: s-cifar10: not mnist5k but cifar10 is needed",
        "left out: s-tiny-imagenet: not mnist5k but tiny-imagenet is needed",
    ]
    assert "sgd on p-mnist" in ended.out
