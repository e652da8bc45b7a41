"""Tables show our results next to the published ones where they apply."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perdure.report import tables
from perdure.report.tables import Table, paper_tables
from perdure.results import collect

from . import made


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def rows(table: Table) -> list[dict[str, str]]:
    return [dict(zip(table.columns, row, strict=True)) for row in texts(table)]


def of_the_paper(root: Path) -> dict[str, Table]:
    return {table.name: table for table in paper_tables(collect([root]))}


def results(root: Path) -> Table:
    return tables.results(made.section(root))


def test_the_overview_has_a_row_for_each_setting(tmp_path: Path) -> None:
    made.make_runs(tmp_path)
    (table,) = tables.overview(collect([tmp_path]))
    assert rows(table)[0] == {
        "stream": "s-mnist",
        "method": "CLS-ER 500",
        "seeds": "0 to 2",
        "data": "mnist",
        "time per run": "1 min 15 s",
        "machine": "AVX2, torch 2.13.0",
        "finished": "2026-01-02 03:04",
    }
    assert [row["method"] for row in rows(table)] == [
        *("CLS-ER 500", "Mean-ER 500", "DER++ 500", "ER 500", "SGD"),
    ]
    assert len(table.commands) == 5


def test_results_are_compared_with_published_figures(tmp_path: Path) -> None:
    made.make_runs(tmp_path)  # means over seeds: 93, 92, 92, 87, 20.6
    made.make_run(tmp_path, buffer_size=200, mean=95.0)
    found = {(row["method"], row["buffer"]): row for row in rows(results(tmp_path))}
    first = found["CLS-ER", "500"]
    assert (first["accuracy"], first["published"]) == ("93.00 ± 1.00", "92.05 ± 0.32")
    assert (first["difference"], first["verdict"]) == ("+0.95", "agrees")
    assert (first["network"], first["Task-IL"], first["seeds"]) == ("stable", "98.00 ± 0.00", "3")
    assert found["CLS-ER", "200"]["verdict"] == "above"
    assert found["Mean-ER", "500"]["verdict"] == "agrees"


def test_overlapping_tests_have_a_column_for_the_last_one(tmp_path: Path) -> None:
    for seed, last in enumerate((70.0, 72.0)):
        folder = made.make_run(tmp_path, seed=seed)
        content = json.loads((folder / "result.json").read_text())
        for found in content["predictors"].values():
            found["task_il"] = None
            found["class_il"] |= {"last_test": last, "forgetting": None}
        (folder / "result.json").write_text(json.dumps(content))
    (row,) = rows(results(tmp_path))
    assert row["last test"] == "71.00 ± 1.41"
    assert "forgetting" not in row
    assert "Task-IL" not in row
    folder = made.make_run(tmp_path, method="joint")
    content = json.loads((folder / "result.json").read_text())
    content["moments"] = ["start", "joint"]
    for found in content["predictors"].values():
        for scores in (found["class_il"], found["task_il"]):
            del scores["matrix"][2:]
        found["class_il"] |= {"last_test": 80.0, "forgetting": None}
    (folder / "result.json").write_text(json.dumps(content))
    assert [row["last test"] for row in rows(results(tmp_path))] == ["80.00", "71.00 ± 1.41"]


@pytest.mark.parametrize(
    "changed", [{"dataset": "mnist5k"}, {"values": {"lr": 0.05}}, {"max_steps": 500}]
)
def test_other_settings_have_no_published_figures(tmp_path: Path, changed: dict[str, Any]) -> None:
    made.make_run(tmp_path, **changed)
    assert "published" not in results(tmp_path).columns
    found = of_the_paper(tmp_path)
    assert not {"table-1", "table-2", "table-3"} & set(found)
    cells = [cell for table in found.values() for row in table.rows for cell in row]
    assert not any(cell.published or cell.status for cell in cells)


def test_an_interrupted_stream_has_no_published_figure(tmp_path: Path) -> None:
    folder = made.make_run(tmp_path)
    assert "after the last task" in results(tmp_path).caption
    text = (folder / "result.json").read_text()
    (folder / "result.json").write_text(text.replace('"complete": true', '"complete": false'))
    found = results(tmp_path)
    assert "published" not in found.columns
    assert "after the last task" not in found.caption
    assert "step" in found.caption


def test_tables_1_and_2_contain_what_was_run(tmp_path: Path) -> None:
    made.make_runs(tmp_path)
    made.make_run(tmp_path, buffer_size=200, mean=89.5)
    made.make_run(tmp_path, "mnist-360", tests=["all"], mean=70.0)
    found = of_the_paper(tmp_path)
    first = found["table-1"]
    assert first.columns == ("buffer", "method", "s-mnist")
    assert [row[:2] for row in texts(first)] == [
        ["–", "SGD"],
        ["200", "CLS-ER"],
        ["500", "CLS-ER"],
        ["500", "ER"],
        ["500", "DER++"],
    ]
    cell = first.rows[1][2]
    assert (cell.text, cell.published, cell.status) == ("89.50", "89.54 ± 0.21", "agrees")
    second = found["table-2"].rows[0][2]
    assert (second.text, second.published, second.status) == ("70.00", "75.70 ± 0.41", "below")
    assert "table-3" not in found
    assert len(first.commands) == 5
    assert all(line.startswith("perdure run s-mnist ") for line in first.commands)


def test_table_s1_has_a_figure_for_each_network(tmp_path: Path) -> None:
    made.make_run(tmp_path, mean=92.0)
    made.make_run(tmp_path, mean=90.0, dataset="mnist5k")
    table = of_the_paper(tmp_path)["table-S1"]
    full, small = table.rows
    assert [(c.text, c.published) for c in full[2:5]] == [
        ("92.00", "92.05 ± 0.30"),
        ("91.50", "92.04 ± 0.33"),
        ("91.00", "91.61 ± 0.47"),
    ]
    assert [(c.text, c.published) for c in small[2:5]] == [
        ("90.00", ""),
        ("89.50", ""),
        ("89.00", ""),
    ]
    assert full[5].text == "stable"


def test_table_s2_needs_both_methods(tmp_path: Path) -> None:
    made.make_run(tmp_path)
    assert "table-S2" not in of_the_paper(tmp_path)
    made.make_run(tmp_path, method="mean-er", mean=91.5)
    (row,) = of_the_paper(tmp_path)["table-S2"].rows
    assert [(cell.text, cell.published) for cell in row[2:]] == [
        ("91.50", "91.79 ± 0.23"),
        ("92.00", "92.05 ± 0.32"),
    ]


def test_a_sensitivity_table_has_a_column_for_each_varied_setting(tmp_path: Path) -> None:
    made.make_run(tmp_path)
    assert not any("S3" in name for name in of_the_paper(tmp_path))
    made.make_run(tmp_path, values={"stable_rate": 0.5, "lr": 0.05}, mean=91.0)
    table = of_the_paper(tmp_path)["table-S3-s-mnist-clser-500"]
    assert table.columns == ("lr", "stable rate", "seeds", "stable", "plastic", "working")
    assert [row[:4] for row in texts(table)] == [
        ["0.1", "0.9", "1", "92.00"],
        ["0.05", "0.5", "1", "91.00"],
    ]
    made.make_run(tmp_path, update="regular")
    table = of_the_paper(tmp_path)["table-S3-s-mnist-clser-500"]
    assert {row["update"] for row in rows(table)} == {"random", "regular"}
    assert table.title == "Sensitivity of CLS-ER on s-mnist, buffer 500"


def test_only_settings_with_published_figures_are_called_table_s3(tmp_path: Path) -> None:
    cifar: dict[str, Any] = {"stream": "s-cifar10", "dataset": "cifar10", "network": "resnet18"}
    for method, changed in (("clser", {"plastic_rate": 0.5}), ("er", {"memory_batch": 128})):
        made.make_run(tmp_path, method=method, **cifar)
        made.make_run(tmp_path, method=method, values=changed, **cifar)
    found = of_the_paper(tmp_path)
    assert [table.title for name, table in found.items() if "S3" in name] == [
        "Table S3: sensitivity of CLS-ER on s-cifar10, buffer 500",
        "Sensitivity of ER on s-cifar10, buffer 500",
    ]


def test_memories_with_a_budget_in_bytes_are_not_mixed(tmp_path: Path) -> None:
    for size in (10**6, 2 * 10**6):
        lr = {"lr": size / 10**8}
        made.make_run(tmp_path, values=lr, buffer_size=None, buffer_bytes=size)
    assert not any("S3" in name for name in of_the_paper(tmp_path))
    made.make_run(tmp_path, method="mean-er", buffer_size=None, buffer_bytes=10**6)
    made.make_run(tmp_path, method="mean-er", mean=91.5)
    found = made.comparison(tmp_path)
    assert found.buffers() == ["1 MB", "2 MB", "500"]
    assert [s.label for s in found.by_method("500").values()] == ["Mean-ER 500"]
    (row,) = rows(of_the_paper(tmp_path)["table-S2"])
    assert (row["stream"], row["buffer"]) == ("s-mnist", "1 MB")


def test_table_s3_shows_the_published_sweep(tmp_path: Path) -> None:
    cifar: dict[str, Any] = {"stream": "s-cifar10", "dataset": "cifar10", "network": "resnet18"}
    swept = {"consistency_weight": 0.1, "stable_rate": 0.1, "plastic_rate": 0.2}
    made.make_run(tmp_path, values=swept, mean=73.0, **cifar)
    made.make_run(tmp_path, values={**swept, "lr": 0.5}, mean=73.0, **cifar)
    (table,) = (t for name, t in of_the_paper(tmp_path).items() if "S3" in name)
    stable = [row[table.columns.index("stable")] for row in table.rows]
    assert sorted((cell.published, cell.status) for cell in stable) == [
        ("", ""),
        ("73.53 ± 1.07", "agrees"),
    ]
