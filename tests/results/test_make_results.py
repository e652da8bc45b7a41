"""The tables of the documentation come from the stored results."""

from __future__ import annotations

import importlib.util
import json
import math
import runpy
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from perdure.results import collect

ROOT = Path(__file__).parents[2]
PAGE = "before\n<!-- table {} -->\nold\n<!-- end -->\nafter\n"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("make_results", ROOT / "docs/make_results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_results"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["make_results"]


def test_all_stored_runs_can_be_read() -> None:
    found = collect([ROOT / "results" / "runs"])
    assert found.skipped == ()
    assert all(run.remarks == () for run in found.runs)
    for run in found.runs:
        assert run.facts.hash == run.config.hash
        assert run.folder.path.parent.name.endswith(run.config.hash)


def test_tables_show_the_stored_results(script: ModuleType) -> None:
    rows = script.read(ROOT / "results")
    cifar = script.make_table(rows, "s-cifar10")
    assert "| CLS-ER | 500 | stable | 74.32 ± 0.96 | 3 | 75.22 ± 0.71 | agrees |" in cifar
    assert "| ER | 500 | working | 64.21 ± 1.50 | 2 | 57.74 ± 0.27 | **above** |" in cifar
    gcil = script.make_table(rows, "gcil-cifar100-uniform")
    assert "| ER (fixed stream) | 500 | working | 22.99 ± 0.55 | 22.44 ± 0.32 | 2 | – | – |" in gcil
    assert "| 28.20 ± 0.92 | 28.30 ± 0.88 | 2 | 28.21 ± 0.69 | agrees |" in gcil
    assert "| JOINT | – | working | 59.14 | 58.95 | 1 |" in gcil
    assert "36.34 ± 0.59 (Table 3); 37.01 ± 1.67 (Table S1) | agrees |" in gcil
    assert "91.80 ± 0.53 | 10 | 92.05 ± 0.32" in script.make_table(rows, "clser")
    assert "| 0.15 | 0.1 | 0.2 | 69.51 " in script.make_table(rows, "sensitivity")
    analyses = script.make_table(rows, "analyses")
    assert "| ER | 500 | 1 | 0.294 | 0.209 | 0.226 | 9.460 | 50.023 | 0.750 |" in analyses
    assert "| 2 | 0.356 ± 0.003 | – | 0.297 ± 0.004 | 4.500 ± 0.105 |" in analyses
    for name in ("components", "analyses", "overview", "sgd", "s-mnist"):
        lines = script.make_table(rows, name).splitlines()
        assert len({line.count("|") for line in lines}) == 1
    with pytest.raises(ValueError, match="no table"):
        script.make_table(rows, "nothing")


def test_pages_are_checked_and_filled(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "docs" / "methods").mkdir(parents=True)
    (tmp_path / "README.md").write_text("no table")
    page = tmp_path / "docs" / "methods" / "er.md"
    page.write_text(PAGE.format("er"))
    assert script.main(["--check"], tmp_path) == 1
    assert page.read_text() == PAGE.format("er")
    assert script.main([], tmp_path) == 0
    text = page.read_text()
    assert text.startswith("before\n<!-- table er -->\n| stream |")
    assert text.endswith("\n<!-- end -->\nafter\n")
    assert "old" not in text
    assert script.main(["--check"], tmp_path) == 0


def test_the_documentation_has_the_stored_results(script: ModuleType) -> None:
    assert script.main(["--check"]) == 0, "run python docs/make_results.py"


def test_own_data_tables_have_complete_cases_only(tmp_path: Path) -> None:
    tables = runpy.run_path(str(ROOT / "benchmarks" / "own_data.py"))["tables"]
    assert tables(tmp_path / "missing.jsonl") == {}
    rows = []
    for steps, mean, seeds in ((100, 40.0, 3), (600, 70.0, 2)):
        case = {"data": "letter", "kind": "classes", "steps": steps, "network": "mlp"}
        for seed in range(seeds):
            run = {**case, "optimizer": "sgd", "seed": seed}
            for method in ("er", "derpp"):
                rows.append({**run, "method": method, "accuracy": {"working": 50.0 + seed}})
            if steps == 600 and seed == 1:  # not run yet
                continue
            own = {"stable": mean + seed, "plastic": 0.0, "working": mean + seed - 1}
            rows.append({**run, "method": "clser", "accuracy": own})
    file = tmp_path / "own-data.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = tables(file)
    assert "| **all** | 1 | −10.0 | 41.0 | 40.0 | 51.0 | 51.0 |" in found["own-data-sets"]
    assert "ER | −10.0 ± 0.0 |" in found["own-data-misses"]
    assert "its own working network" not in found["own-data-misses"]
    assert found["own-data-goals"].count("| no |") == 2
    assert "cover 1 of 90 cases, with 3 seeds each" in found["own-data-coverage"]
    assert "letter, MLP, 600 steps (6)" in found["own-data-coverage"]
    assert "600" not in found["own-data-cases"]
    assert tables(file, "choose") == {}
    assert tables(file, given={"stable_window": 0.1}) == {}


def test_own_data_runs_are_not_repeated_with_another_version_of_torch() -> None:
    key = runpy.run_path(str(ROOT / "benchmarks" / "own_data.py"))["key"]
    run = {"data": "letter", "method": "er", "seed": 0}
    assert key({**run, "torch": "2.13.0", "accuracy": {"working": 50.0}}) == key(run)
    assert key({**run, "seed": 1}) != key(run)


def test_windows_are_compared_with_the_preset_of_the_same_stream(
    script: ModuleType, tmp_path: Path
) -> None:
    rows = script.read(ROOT / "results")
    shutil.copy(ROOT / "results" / "windows.toml", tmp_path)
    assert script.compare_windows(rows, tmp_path) == []
    (preset,) = (
        json.loads(line)
        for line in (ROOT / "results" / "mnist.jsonl").read_text().splitlines()
        if '"s-mnist"' in line and '"clser"' in line and '"buffer_size": 500' in line
    )
    preset["predictors"]["stable"]["class_il"] = {"mean": 90.0, "std": 1.0}
    departures = {"stable_window": 0.05, "plastic_window": 0.03, "stable_decay": 0.9999}
    line = {**preset, "departures": departures, "seeds": [0, 1, 2, 3]}
    (tmp_path / "windows.jsonl").write_text(json.dumps(line) + "\n")
    found = script.compare_windows(rows, tmp_path)
    # 91.80 ± 0.53 over ten seeds against 90 ± 1 over four
    error = f"{2 * math.hypot(0.525 / math.sqrt(10), 1 / 2):.2f}"
    expected = f"| s-mnist | 500 | 91.80 ± 0.53 | 10 | 90.00 ± 1.00 | 4 of 10 | −1.80 ± {error} |"
    assert expected in script.windows(found)
    goals = script.windows_goals(found)
    assert goals.count("| no |") == 3
    assert "4 of 10 runs completed" in goals
