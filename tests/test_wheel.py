"""The wheel, installed into an environment of its own and used from another folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def call(*command: str | Path, **environment: str) -> str:
    """What a command prints; it sees neither this environment nor the source tree."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    inherited = {name: value for name, value in os.environ.items() if name not in hidden}
    ended = subprocess.run(
        list(map(str, command)),
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    call(*build, "--outdir", folder, ROOT)
    (found,) = folder.glob("perdure-*.whl")
    return found


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The programs of an environment that has the wheel and what it asks for, no more."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    try:
        venv.create(folder, with_pip=True)
        python, install = folder / "bin/python", ["-m", "pip", "install", "--quiet", "--no-compile"]
        call(python, *install, "-c", ROOT / "constraints.txt", wheel)
        yield folder / "bin"
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # a gigabyte


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_wheel_holds_data_presets_and_types(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tree = ROOT / "src/perdure"
    wanted = {tree / "py.typed", tree / "data/mnist5k/mnist5k.npz", tree / "data/mnist5k/README.md"}
    wanted |= {*tree.glob("presets/*.toml"), *tree.rglob("*.py")}
    wanted |= {*tree.glob("report/templates/*")}
    assert {str(file.relative_to(tree.parent)) for file in wanted} <= names
    assert len([name for name in names if name.endswith(".toml")]) > 10
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "docs", "examples"))]
    assert wheel.stat().st_size < 3_000_000


def test_the_command_runs(clean: Path, tmp_path: Path) -> None:
    assert "Train and evaluate a method on a stream" in call(clean / "perdure", "--help")
    out = call(clean / "perdure", "run", "s-mnist", "--max-steps", "50", "--json")
    line = json.loads(out.splitlines()[-1])
    assert (line["data"], line["method"], line["seeds"]) == ("mnist5k", "clser", [0])
    assert line["predictors"]["stable"]["class_il"]["mean"] > 80
    assert [*tmp_path.glob("runs/s-mnist/clser-500-*/seed-0/result.json")]


def test_importing_takes_only_what_a_learner_needs(clean: Path) -> None:
    code = """
import sys, perdure
others = {"pooch", "tyro", "rich", "PIL", "matplotlib", "jinja2", "quadprog", "requests"}
print(perdure.__file__, perdure.__version__, sorted(others & set(sys.modules)))
"""
    place, version, loaded = call(clean / "python", "-c", code).split(maxsplit=2)
    assert Path(place).is_relative_to(clean.parent)
    assert version == "0.1.0"
    assert loaded.strip() == "[]"


def test_a_bare_source_tree_runs(clean: Path, tmp_path: Path) -> None:
    bare = tmp_path / "tree/src"
    shutil.copytree(ROOT / "src", bare, ignore=shutil.ignore_patterns("__pycache__"))
    code = "import perdure; print(perdure.__file__)"
    where = call(clean / "python", "-c", code, PYTHONPATH=str(bare))
    assert Path(where.strip()).is_relative_to(bare)
    flags = ["--method", "sgd", "--max-steps", "5", "--quiet", "--json"]
    out = call(clean / "python", "-m", "perdure", "run", *flags, PYTHONPATH=str(bare))
    assert json.loads(out)["method"] == "sgd"
