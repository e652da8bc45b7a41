"""kill -9 at random moments does not change the result."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from perdure import catalog
from perdure.files import read_manifest

from .compare import contents, find_run, left_over
from .conftest import Count, share
from .server import Life, Server

EVERY = 0.02
"""Seconds between checkpoints: several in every task, which takes about 0.1 s."""
EPOCHS = {"sgd": 5, "joint": 5, "er": 2, "agem": 2}
"""Methods with more than one epoch, so that each run takes about a second."""
KILLS = share(45)
"""Kills of each setting."""
QUICK = ("clser", "er")
"""One method for each kind of state; `make faults` kills runs of all methods."""


class Fate(NamedTuple):
    """Counts over all processes of the runs of one setting."""

    kills: int
    finished: int
    lost: float
    """Seconds of work lost by all kills, the start-up of killed processes included."""


def flags(stream: str, method: str) -> list[str]:
    epochs = str(EPOCHS.get(method, 1))
    steps = {"gss": "250"}.get(method) or ("" if stream == "s-mnist" else "600")
    short = ["--max-steps", steps] if steps else []
    return [
        *(
            "run",
            stream,
            "--method",
            method,
            "--dataset",
            "mnist5k",
            "--epochs",
            epochs,
            "--batch",
            "10",
        ),
        *("--workers", "1", "--checkpoint-every", str(EVERY), "--quiet", "--json", *short),
    ]


def newest_checkpoint(run: Path) -> dict[str, Any]:
    """The manifest of the checkpoint from which the run resumes."""
    return read_manifest(max(run.glob("checkpoints/*.json"), key=lambda path: int(path.stem)))


def wait_for_checkpoint(life: Life, out: Path) -> None:
    """Wait for the first checkpoint; from then on a kill costs at most one interval."""
    deadline = time.monotonic() + 120
    while not [*out.glob("*/*/seed-0/checkpoints/*.json")]:
        assert time.monotonic() < deadline, life.errors
        time.sleep(0.005)


def kill_and_resume(
    server: Server, folder: Path, stream: str, method: str, *, kills: int, seed: int
) -> Fate:
    """Kill runs of one setting at random moments, `kills` times."""
    draws = random.Random(f"{method} {stream} {seed}")
    reference, out = folder / "reference", folder / "killed"
    for _ in range(2):  # the first one also decodes the data
        shutil.rmtree(reference, ignore_errors=True)
        began = time.monotonic()
        life = server.start(folder, *flags(stream, method), "--out", str(reference))
        assert life.wait() == 0
        whole = time.monotonic() - began
    assert life.seen().first == 0  # its steps are logged
    expected = contents(find_run(reference))
    fate = Fate(0, 0, 0)
    while fate.kills < kills or not fate.finished:
        shutil.rmtree(out, ignore_errors=True)
        step, began = 0, time.monotonic()
        life = server.start(folder, *flags(stream, method), "--out", str(out))
        wait_for_checkpoint(life, out)
        while True:
            if fate.kills < kills:
                time.sleep(draws.uniform(0, whole / 2))
                os.kill(life.pid, signal.SIGKILL)
            killed = time.monotonic()
            ended, seen = life.wait(), life.seen()
            assert seen.first in (step, -1)
            if ended != -signal.SIGKILL:
                break
            if not (find_run(out) / "result.json").exists():  # else it was all but over
                newest = newest_checkpoint(find_run(out))
                step, position = newest["step"], newest["position"]
                assert step > 0
                later = [at for taken, at in seen.taken if taken > position]
                assert len(later) <= 1  # the one that was being written
                assert seen.overdue <= 1  # at most one step was begun while a checkpoint was due
                # If the checkpoint was written by an earlier process, all of this one is lost.
                since = next((at for taken, at in seen.taken if taken == position), began)
                assert began <= since <= killed
                fate = fate._replace(kills=fate.kills + 1, lost=fate.lost + killed - since)
            began = time.monotonic()
            life = server.start(folder, *flags(stream, method), "--out", str(out), "--resume")
        assert (life.wait(), life.errors) == (0, "")
        run = find_run(out)
        assert contents(run) == expected
        assert left_over(run) == set()
        assert json.loads((run / "timing.json").read_text())["resumed"][-1:] == [step][: bool(step)]
        fate = fate._replace(finished=fate.finished + 1)
    return fate


@pytest.mark.parametrize("method", QUICK)
def test_a_killed_run_ends_with_the_same_result(
    server: Server, tmp_path: Path, method: str
) -> None:
    fate = kill_and_resume(server, tmp_path, "s-mnist", method, kills=1, seed=0)
    assert fate.kills == 1


OVER_AND_OVER = [
    *(("s-mnist", method) for method in catalog.METHODS),
    *((stream, "clser") for stream in ("r-mnist", "p-mnist", "mnist-360")),
]


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize(("stream", "method"), OVER_AND_OVER)
def test_a_run_killed_many_times_ends_with_the_same_result(
    server: Server, tmp_path: Path, stream: str, method: str, count: Count
) -> None:
    fate = kill_and_resume(server, tmp_path, stream, method, kills=KILLS, seed=1)
    count("kills survived", fate.kills)
    count("seconds lost by kills of run, start-up included", fate.lost)
    count("results compared byte for byte", fate.finished)
