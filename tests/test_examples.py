"""Every example runs as its docstring says."""

from __future__ import annotations

import ast
import glob
import io
import json
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch

from perdure.cli import main

EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = sorted(file.stem for file in EXAMPLES.glob("*.py"))


def quoted(name: str) -> list[list[str]]:
    """The commands in an example's docstring: its indented lines."""
    docstring = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text())) or ""
    return [shlex.split(line) for line in docstring.splitlines() if line.startswith("    ")]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the examples as current folder."""
    folder = tmp_path / "examples"
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    path, before = list(sys.path), signal.getsignal(signal.SIGTERM)
    yield folder
    sys.path[:] = path
    signal.signal(signal.SIGTERM, before)
    for name in NAMES:
        sys.modules.pop(name, None)


def script(words: list[str]) -> str:
    """Run a script in this process and return its output."""
    expanded = [found for word in words for found in (glob.glob(word) or [word])]
    printed, errors = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(printed),
        redirect_stderr(errors),
        torch.random.fork_rng(),
    ):
        patch.setattr(sys, "argv", expanded)
        runpy.run_path(expanded[0], run_name="__main__")
    assert errors.getvalue() == ""
    return printed.getvalue()


def run(words: list[str]) -> None:
    short = [] if "--max-steps" in words else ["--max-steps", "20"]
    assert main([*words, *short, "--quiet"]) == 0


def perform(name: str) -> str:
    """Run the commands in the docstring and return the output of the script."""
    printed = ""
    for program, *words in quoted(name):
        if program == "perdure":
            run(words)
        else:
            assert program == "python"
            printed = script(words)
    return printed


def percentages(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"(\d+)%", text)]


def test_every_docstring_contains_the_command() -> None:
    own = ["own_loop", "own_method", "own_network", "own_stream"]
    first = ["continue_learning", "hugging_face", "lightning_loop"]
    assert [*first, *own, "pretrained_backbone"] == NAMES
    for name in NAMES:
        assert any(words[:2] == ["python", f"{name}.py"] for words in quoted(name))


def test_own_loop(here: Path) -> None:
    sgd, clser = percentages(perform("own_loop"))
    assert clser >= 90
    assert clser >= sgd + 20


def test_own_stream(here: Path) -> None:
    lines = perform("own_stream").splitlines()
    sgd, er = ([float(value) for value in lines[i].split(":")[1].split()] for i in (4, 9))
    assert len(sgd) == len(er) == 4
    assert min(er) >= 80
    assert sum(er) > sum(sgd) + 50
    (config,) = here.glob("runs/own_stream.stream/clser-500-*/seed-0/config.json")
    assert json.loads(config.read_text())["data"] == "own"


def test_own_method(here: Path) -> None:
    assert "passes all checks" in perform("own_method")
    configs = [json.loads(file.read_text()) for file in here.glob("runs/s-mnist/*/*/config.json")]
    assert {config["method"] for config in configs} == {"own_method:RecentFirst"}
    settings = {(c["buffer_size"], c["hyperparameters"].get("past_weight")) for c in configs}
    assert settings == {(200, 1.0), (500, 0.5)}


def test_own_network(here: Path) -> None:
    (accuracy,) = percentages(perform("own_network"))
    assert accuracy >= 40
    (config,) = here.glob("runs/s-mnist/clser-500-*/seed-0/config.json")
    assert json.loads(config.read_text())["network"] == "own_network:convolutional"


def test_continue_learning(here: Path) -> None:
    before_old, before_new, after_old, after_new = percentages(perform("continue_learning"))
    assert (before_old >= 95, before_new) == (True, 0)
    assert after_old >= 90
    assert after_new >= 70
    assert (here / "learner.safetensors").is_file()


def test_continue_learning_without_a_folder_ends_with_its_usage(here: Path) -> None:
    with pytest.raises(SystemExit, match="usage"):
        script(["continue_learning.py"])


@pytest.mark.slow
def test_pretrained_backbone(here: Path) -> None:
    printed = perform("pretrained_backbone")
    (accuracy,) = percentages(printed)
    assert accuracy >= 80
    assert "shared by three networks" in printed


@pytest.mark.slow
def test_lightning_loop(here: Path) -> None:
    pytest.importorskip("lightning", reason="optional package not installed")
    ended = subprocess.run(  # Lightning prints advice and warnings
        [sys.executable, "lightning_loop.py"], capture_output=True, text=True, check=True
    )
    (accuracy,) = percentages(ended.stdout)
    assert accuracy >= 90


@pytest.mark.slow
def test_hugging_face(here: Path) -> None:
    pytest.importorskip("transformers", reason="optional package not installed")
    printed = perform("hugging_face")
    assert min(percentages(printed)) >= 90
    assert "predicts the same: True" in printed
    assert "['weather', 'sport', 'food', 'travel'], error" in printed
