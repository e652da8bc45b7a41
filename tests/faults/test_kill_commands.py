"""kill -9 at random moments of any command: the same command completes what it began."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from perdure.files import is_temporary

from . import small
from .compare import contents, left_over
from .conftest import Count, share
from .server import Server

KILLS = share(60)
"""Kills of each command."""
GRID = """
title = "Two methods"
seeds = "0:2"
[[runs]]
streams = ["s-mnist"]
methods = ["er", "sgd"]
buffer_sizes = [200]
epochs = 1
"""
COMMANDS: dict[str, list[str]] = {
    "reproduce": [
        *("--grid", "grid.toml", "--dataset", "mnist5k", "--max-steps", "250", "--workers", "1"),
        *("--checkpoint-every", "0.05", "--quiet", "--out", "made"),
    ],
    "tune": [
        *("s-mnist", "--method", "er", "--dataset", "mnist5k", "--trials", "5"),
        *("--max-steps", "60", "--space", "lr=0.01:0.5:log", "--quiet", "--out", "made"),
    ],
    "analyze": ["runs", "--samples", "500", "--draws", "2", "--quiet"],
    "report": ["runs", "-o", "made/report.html", "--figures", "made/figures"],
}


def prepare(folder: Path) -> None:
    """What the commands need."""
    (folder / "grid.toml").write_text(GRID)
    for method in ("er", "sgd"):
        small.make(small.settings(method, max_steps=200), folder / "runs")


def outcome(command: str, folder: Path) -> Any:
    """What a completed command leaves, without times and places."""
    if command == "reproduce":
        found = sorted((folder / "made").glob("*/*/seed-*"))
        assert all(left_over(run) == set() for run in found)
        lines = (folder / "made/grid.jsonl").read_text().splitlines()
        results = {line["hash"]: line["predictors"] for line in map(json.loads, lines)}
        return results, {run.relative_to(folder): contents(run) for run in found}
    if command == "tune":
        (trials,) = (folder / "made").rglob("trials.csv")
        rows = list(csv.DictReader(trials.read_text().splitlines()))
        assert len(rows) == 5
        return [{k: v for k, v in row.items() if k in ("accuracy", "lr", "failed")} for row in rows]
    files = (folder / "runs").rglob("analysis.json")
    if command == "report":
        files = (path for path in (folder / "made").rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if not is_temporary(path.name)
    }


def partial_outcome(command: str, folder: Path, expected: Any) -> None:
    """Whatever a killed command has written is complete."""
    if command in ("analyze", "report"):
        for name, content in outcome(command, folder).items():
            assert content == expected[name], name


def kill_and_repeat(server: Server, folder: Path, command: str, kills: int) -> int:
    """Kill a command at random moments, `kills` times; returns how often it was completed."""
    draws = random.Random(command)
    argv = [command, *COMMANDS[command]]
    prepare(folder)
    fresh = folder.with_name(f"{folder.name}-fresh")
    shutil.copytree(folder, fresh)

    def start_over() -> None:
        for path in (folder / "made", folder / "runs"):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(fresh / "runs", folder / "runs")

    for _ in range(2):  # the first one also decodes the data, which takes longer than the rest
        start_over()
        began = time.monotonic()
        life = server.start(folder, *argv)
        assert (life.wait(), life.errors) == (0, "")
        whole = time.monotonic() - began
    expected = outcome(command, folder)
    done = completed = 0
    while done < kills or not completed:
        start_over()
        while True:
            life = server.start(folder, *argv)
            if done < kills:
                time.sleep(draws.uniform(0, whole))
                os.kill(life.pid, signal.SIGKILL)
            if life.wait() != -signal.SIGKILL:
                break
            done += 1
            partial_outcome(command, folder, expected)
        assert (life.wait(), life.errors) == (0, "")
        assert outcome(command, folder) == expected
        completed += 1
    return completed


@pytest.mark.parametrize("command", ["tune", "analyze"])
def test_a_killed_command_is_completed_by_the_same_command(
    server: Server, tmp_path: Path, command: str
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    assert kill_and_repeat(server, folder, command, 2) > 0


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_killed_many_times_is_completed_by_the_same_command(
    server: Server, tmp_path: Path, command: str, count: Count
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    count(f"completed after kills of {command}", kill_and_repeat(server, folder, command, KILLS))
    count(f"kills of {command}", KILLS)
    count("kills survived", KILLS)
