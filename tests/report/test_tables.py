"""Tables: ours beside the paper's where it may stand, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perdure.report import tables
from perdure.report.paper_tables import paper_tables
from perdure.report.reading import collect
from perdure.report.tables import Table

from . import made


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def of_the_paper(root: Path) -> dict[str, Table]:
    return {table.name: table for table in paper_tables(collect([root]))}


def test_what_was_run(tmp_path: Path) -> None:
    made.make_runs(tmp_path)
    table = tables.overview(collect([tmp_path]))
    assert table.columns == (
        *("stream", "method", "seeds", "data", "time per run", "on", "finished"),
    )
    assert texts(table)[0] == [
        *("s-mnist", "CLS-ER 500", "0 to 2", "mnist", "1 min 15 s"),
        *("AVX2, torch 2.13.0", "2026-01-02 03:04"),
    ]
    assert [row[1] for row in texts(table)] == [
        *("CLS-ER 500", "Mean-ER 500", "DER++ 500", "ER 500", "SGD"),
    ]


def test_results_stand_beside_the_papers_with_difference_and_verdict(tmp_path: Path) -> None:
    made.make_runs(tmp_path)  # means over seeds: 93, 92, 92, 87, 20.6
    (setup,) = collect([tmp_path]).setups
    table = tables.results(setup)
    rows = [dict(zip(table.columns, row, strict=True)) for row in texts(table)]
    assert {row["method"]: (row["paper"], row["difference"], row["within"]) for row in rows} == {
        "CLS-ER": ("92.05 ± 0.32", "+0.95", "no"),
        "Mean-ER": ("91.79 ± 0.23", "+0.21", "yes"),
        "DER++": ("91.00 ± 1.49", "+1.00", "yes"),
        "ER": ("86.12 ± 1.89", "+0.88", "yes"),
        "SGD": ("19.60 ± 0.04", "+1.00", "no"),
    }
    assert rows[0]["accuracy"] == "93.00 ± 1.00"
    assert rows[0]["network"] == "stable"
    assert rows[0]["Task-IL"] == "98.00 ± 0.00"
    assert "no further from the paper's than one standard deviation" in table.caption


def test_where_tests_overlap_the_last_one_alone_has_a_column(tmp_path: Path) -> None:
    for seed, last in enumerate((70.0, 72.0)):
        folder = made.make_run(tmp_path, seed=seed)
        content = json.loads((folder / "result.json").read_text())
        for found in content["predictors"].values():
            found["task_il"] = None
            found["class_il"] |= {"last_test": last, "forgetting": None}
        (folder / "result.json").write_text(json.dumps(content))
    (setup,) = collect([tmp_path]).setups
    table = tables.results(setup)
    assert "forgetting" not in table.columns
    assert "the last one alone holds all classes" in table.caption
    assert texts(table)[0][table.columns.index("last test alone")] == "71.00 ± 1.41"


def test_the_edge_of_the_spread_is_within_it(tmp_path: Path) -> None:
    made.make_run(tmp_path, mean=92.05 - 0.32)
    made.make_run(tmp_path, buffer_size=200, mean=89.54 - 0.22)
    (setup,) = collect([tmp_path]).setups
    column = tables.results(setup).columns.index("within")
    rows = texts(tables.results(setup))
    assert [row[column] for row in rows] == ["no", "yes"]
    assert [row[column - 1] for row in rows] == ["−0.22", "−0.32"]


@pytest.mark.parametrize(
    "how",
    [
        {"dataset": "mnist5k"},
        {"values": {"lr": 0.05}},
        {"max_steps": 500},
    ],
)
def test_the_papers_figures_stand_beside_nothing_else(tmp_path: Path, how: dict[str, Any]) -> None:
    made.make_run(tmp_path, **how)
    found = collect([tmp_path])
    assert "paper" not in tables.results(found.setups[0]).columns
    cells = [cell for t in paper_tables(found) for row in t.rows for cell in row]
    assert [cell.beside for cell in cells if cell.beside] == []
    assert not any(name in of_the_paper(tmp_path) for name in ("table-1", "table-2", "table-3"))


def test_mnist5k_never_even_if_its_config_claims_so(tmp_path: Path) -> None:
    folder = made.make_run(tmp_path, dataset="mnist5k")
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"published": false', '"published": true'))
    found = collect([tmp_path])
    assert found.runs
    table = tables.results(found.setups[0])
    assert "paper" not in table.columns
    assert "do not belong beside these" in table.caption


def test_tables_1_and_2_hold_what_was_run(tmp_path: Path) -> None:
    made.make_runs(tmp_path)
    made.make_run(tmp_path, buffer_size=200, mean=89.5)
    made.make_run(tmp_path, "mnist-360", tests=["all"], mean=70.0)
    found = of_the_paper(tmp_path)
    first = found["table-1"]
    assert first.columns == ("buffer_size", "method", "s-mnist")
    assert [row[:2] for row in texts(first)] == [
        ["–", "SGD"],
        ["200", "CLS-ER"],
        ["500", "CLS-ER"],
        ["500", "ER"],
        ["500", "DER++"],
    ]
    cell = first.rows[1][2]
    assert (cell.text, cell.beside, cell.mood) == ("89.50", "89.54 ± 0.21", "within")
    second = found["table-2"].rows[0][2]
    assert (second.text, second.beside, second.mood) == ("70.00", "75.70 ± 0.41", "outside")
    assert "table-3" not in found
    assert len(first.commands) == 5
    assert all(line.startswith("perdure run s-mnist ") for line in first.commands)


def test_table_s1_gives_each_network_its_figure(tmp_path: Path) -> None:
    made.make_run(tmp_path, mean=92.0)
    made.make_run(tmp_path, mean=90.0, dataset="mnist5k")
    table = of_the_paper(tmp_path)["table-S1"]
    assert table.columns == ("stream", "setting", "stable", "plastic", "working", "best")
    full, small = table.rows
    assert [(c.text, c.beside) for c in full[2:5]] == [
        ("92.00", "92.05 ± 0.30"),
        ("91.50", "92.04 ± 0.33"),
        ("91.00", "91.61 ± 0.47"),
    ]
    assert [(c.text, c.beside) for c in small[2:5]] == [("90.00", ""), ("89.50", ""), ("89.00", "")]
    assert full[5].text == "stable"


def test_table_s2_needs_both(tmp_path: Path) -> None:
    made.make_run(tmp_path)
    assert "table-S2" not in of_the_paper(tmp_path)
    made.make_run(tmp_path, method="mean-er", mean=91.5)
    (row,) = of_the_paper(tmp_path)["table-S2"].rows
    assert [(cell.text, cell.beside) for cell in row[2:]] == [
        ("91.50", "91.79 ± 0.23"),
        ("92.00", "92.05 ± 0.32"),
    ]


def test_sensitivity_names_what_was_varied(tmp_path: Path) -> None:
    made.make_run(tmp_path)
    assert not any("S3" in name for name in of_the_paper(tmp_path))
    made.make_run(tmp_path, values={"stable_rate": 0.5, "lr": 0.05}, mean=91.0)
    table = of_the_paper(tmp_path)["table-S3-s-mnist-clser-500"]
    assert table.columns == ("lr", "stable rate", "seeds", "stable", "plastic", "working")
    assert [row[:4] for row in texts(table)] == [
        ["0.1", "0.9", "1", "92.00"],
        ["0.05", "0.5", "1", "91.00"],
    ]


def test_regular_updates_are_a_column_of_their_own(tmp_path: Path) -> None:
    made.make_run(tmp_path)
    made.make_run(tmp_path, update="regular")
    table = of_the_paper(tmp_path)["table-S3-s-mnist-clser-500"]
    assert table.columns[0] == "update"
    assert [row[0] for row in texts(table)] == ["random", "regular"]


def test_table_s3_stands_beside_the_papers_sweep(tmp_path: Path) -> None:
    cifar: dict[str, Any] = {"stream": "s-cifar10", "dataset": "cifar10", "network": "resnet18"}
    swept = {"consistency_weight": 0.1, "stable_rate": 0.1, "plastic_rate": 0.2}
    made.make_run(tmp_path, values=swept, mean=73.0, **cifar)
    made.make_run(tmp_path, values={**swept, "lr": 0.5}, mean=73.0, **cifar)
    (table,) = (t for name, t in of_the_paper(tmp_path).items() if "S3" in name)
    stable = [row[table.columns.index("stable")] for row in table.rows]
    assert sorted((cell.beside, cell.mood) for cell in stable) == [
        ("", ""),
        ("73.53 ± 1.07", "within"),
    ]


def test_a_run_that_ended_early_stands_beside_nothing(tmp_path: Path) -> None:
    folder = made.make_run(tmp_path)
    text = (folder / "result.json").read_text()
    (folder / "result.json").write_text(text.replace('"complete": true', '"complete": false'))
    assert "paper" not in tables.results(collect([tmp_path]).setups[0]).columns
