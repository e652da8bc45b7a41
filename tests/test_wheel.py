"""The wheel, installed in a clean environment: what a user gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "REMANENCE"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**kept, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", out, ROOT, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of programs of an environment that holds the wheel and what it asks for."""
    place = tmp_path_factory.mktemp("clean")
    venv.create(place / "env", with_pip=True)
    bin_ = place / "env" / ("Scripts" if os.name == "nt" else "bin")
    constraints = ROOT / "constraints.txt"
    run(bin_ / "pip", "install", "--quiet", "-c", constraints, wheel, cwd=place)
    yield bin_
    subprocess.run(["rm", "-rf", str(place)], check=True)


def test_the_wheel_carries_digits_presets_and_the_typing_marker(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "remanence/py.typed" in names
    assert "remanence/data/mnist5k/mnist5k.npz" in names
    presets = {p.name for p in (ROOT / "src/remanence/presets").glob("*.toml")}
    assert {f"remanence/presets/{name}" for name in presets} <= names


def test_the_installed_command_helps_and_learns(clean: Path, tmp_path: Path) -> None:
    cache = {"REMANENCE_CACHE": str(tmp_path / "cache")}
    assert "run" in run(clean / "remanence", "--help", cwd=tmp_path).stdout
    done = run(
        clean / "remanence", "run", "s-mnist", "--max-steps", "50", "--json", cwd=tmp_path, **cache
    )
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["data"], summary["method"], summary["seeds"]) == ("mnist5k", "clser", [0])
    assert (tmp_path / "runs").is_dir()


def test_importing_the_library_needs_torch_numpy_and_safetensors_only(
    clean: Path, tmp_path: Path
) -> None:
    check = "import remanence, sys; print([m for m in ('pooch', 'tyro', 'rich', 'PIL', 'quadprog')"
    check += " if m in sys.modules])"
    assert run(clean / "python", "-c", check, cwd=tmp_path).stdout.strip() == "[]"


def test_the_module_runs_from_a_bare_source_tree(tmp_path: Path) -> None:
    done = run(
        sys.executable, "-m", "remanence", "list", cwd=tmp_path, PYTHONPATH=str(ROOT / "src")
    )
    assert "clser" in done.stdout
