"""What is built and installed: the wheel's contents, the command, declared dependencies."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections import Counter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import perdure

ROOT = Path(__file__).parents[1]
TREE = ROOT / "src/perdure"


def call(*command: str | Path) -> str:
    """Return the output of a command that sees neither this environment nor the source tree."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    ended = subprocess.run(
        list(map(str, command)),
        env={name: value for name, value in os.environ.items() if name not in hidden},
        capture_output=True,
        text=True,
        timeout=120,
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
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the wheel, its dependencies borrowed from this one."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder)
    python = folder / "bin/python"
    call(
        sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel
    )
    # Folders named in a .pth file are searched last, and .pth files in them are not read: an
    # editable install of perdure in this environment stays hidden.
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text("\n".join(sorted(borrowed)) + "\n")
    return folder / "bin"


@pytest.fixture(autouse=True)
def _other_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_wheel_contains_code_data_presets_and_types(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {TREE / "py.typed", TREE / "data/tiny_imagenet.npz"}
    wanted |= {TREE / "data/mnist5k/mnist5k.npz", TREE / "data/mnist5k/README.md"}
    wanted |= {*TREE.rglob("*.py"), *TREE.rglob("*.toml"), *TREE.glob("report/templates/*")}
    assert {str(file.relative_to(TREE.parent)) for file in wanted} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "docs", "examples"))]
    assert wheel.stat().st_size < 3_000_000
    assert wheel.name.startswith(f"perdure-{perdure.__version__}-")


def test_the_installed_command_runs(programs: Path, tmp_path: Path) -> None:
    flags = ["--method", "sgd", "--max-steps", "5", "--quiet", "--json"]
    code = """
import sys; from perdure.__main__ import main
status = main(); print("torch._dynamo" in sys.modules); sys.exit(status)
"""
    out = call(programs / "python", "-c", code, "run", "s-mnist", *flags)
    result, has_loaded_the_compiler = out.splitlines()
    assert json.loads(result)["data"] == "mnist5k"
    assert has_loaded_the_compiler == "False"  # it would take a second
    assert [*tmp_path.glob("runs/s-mnist/sgd-*/seed-0/result.json")]


def test_importing_a_learner_loads_only_what_it_needs(programs: Path) -> None:
    code = """
import sys, perdure
assert "torch" not in sys.modules
perdure.CLSER
others = {"pooch", "tyro", "rich", "PIL", "matplotlib", "jinja2", "quadprog", "requests"}
print(perdure.__file__, sorted(others & set(sys.modules)))
"""
    place, loaded = call(programs / "python", "-c", code).split(maxsplit=1)
    assert Path(place).is_relative_to(programs.parent)
    assert loaded.strip() == "[]"


def test_the_version_is_printed_without_loading_torch(programs: Path) -> None:
    code = """
import sys; from perdure.__main__ import main
sys.argv = ["perdure", "--version"]; status = main()
sys.exit(status or "torch" in sys.modules)
"""
    expected = f"perdure {perdure.__version__}\n"
    assert call(programs / "perdure", "--version") == expected
    assert call(programs / "python", "-c", code) == expected


def test_dependencies_are_those_that_are_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"]) - {"docs", "dev"}
    declared = Counter(re.split(r"[<>=!~; \[]", one)[0].lower() for one in project["dependencies"])
    assert set(declared.values()) == {1}  # none is listed twice
    for extra in extras:
        required = project["optional-dependencies"][extra]
        declared.update({re.split(r"[<>=!~; \[]", one)[0].lower() for one in required})

    imported = set()
    for file in TREE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add((node.module or "").partition(".")[0])
    imported -= {"perdure", *sys.stdlib_module_names}
    imported -= {"triton"}  # torch requires it where there is a GPU
    distributions = packages_distributions()
    unusual = {"sklearn": "scikit-learn", "mlflow": "mlflow-skinny", "wandb": "wandb"}
    names = {unusual.get(name) or distributions[name][0].lower() for name in imported}
    # Imported by torch: torch.utils.tensorboard, torch.onnx.
    assert names | {"tensorboard", "onnx", "onnxscript", "onnxruntime"} == set(declared)
