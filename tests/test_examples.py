"""The examples run as they are shown, and so do the commands in their docstrings."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py"))


def run(arguments: list[str], folder: Path, tmp_path: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "REMANENCE_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_runs_and_says_what_it_did(name: str, tmp_path: Path) -> None:
    assert run([str(EXAMPLES / name)], tmp_path, tmp_path).strip()


def commands() -> list[tuple[str, str]]:
    found = []
    for name in SCRIPTS:
        text = (EXAMPLES / name).read_text().replace("\\\n", " ").replace("\\\\\n", " ")
        found += [(name, line) for line in re.findall(r"^    (remanence run .*)$", text, re.M)]
    return found


def test_there_are_commands_to_run() -> None:
    assert {name for name, _ in commands()} == {"own_stream.py", "own_method.py", "own_network.py"}


@pytest.mark.parametrize(("name", "command"), commands())
def test_the_command_of_an_example_runs(name: str, command: str, tmp_path: Path) -> None:
    arguments = shlex.split(command)[1:]
    if "--max-steps" not in arguments:
        arguments += ["--max-steps", "60"]
    out = ["--out", str(tmp_path / "runs"), "--quiet", "--json"]
    assert run(["-m", "remanence", *arguments, *out], EXAMPLES, tmp_path).startswith("{")


def test_remembering_beats_forgetting_in_the_first_example(tmp_path: Path) -> None:
    said = run([str(EXAMPLES / "own_loop.py")], tmp_path, tmp_path)
    forgetful, remembering = map(int, re.findall(r"(\d+) %", said))
    assert remembering > forgetful + 30
