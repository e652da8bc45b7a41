"""Tables on a terminal."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from perdure.results.terminal import analyses_table, results_table, show

from .made import analysis, collection, record, setting


def rendered(table: Table) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def columns(table: Table) -> list[str]:
    return [str(column.header) for column in table.columns]


def cells(table: Table, name: str) -> list[str]:
    return [str(cell) for cell in table.columns[columns(table).index(name)].cells]


def test_results_are_shown_next_to_published_figures() -> None:
    runs = [record(seed=s, accuracy=92.0 + s) for s in range(3)] + [record("sgd", accuracy=19.6)]
    table = results_table(collection(*runs).settings, "Results")
    left, right = ["method", "buffer", "seeds", "Class-IL"], ["Task-IL", "published Task-IL"]
    assert columns(table) == [*left, "published", *right, "forgetting"]
    assert cells(table, "published Task-IL") == ["98.95", "–"]
    assert cells(table, "Class-IL") == ["93.00 ± 1.00", "19.60"]
    assert cells(table, "published") == ["92.05 ± 0.32", "19.60 ± 0.04"]
    assert cells(table, "buffer") == ["500", "–"]


def test_columns_without_content_are_left_out() -> None:
    table = results_table([setting(record("sgd", dataset="mnist5k", overlap=True))], "Results")
    assert columns(table) == ["method", "seeds", "accuracy", "last test"]  # nothing is masked


def test_a_row_for_each_network() -> None:
    one = setting(record(accuracy={"stable": 92.0, "plastic": 91.0, "working": 90.0}))
    table = results_table([one], "Results", by_predictor=True)
    assert cells(table, "network") == ["stable", "plastic", "working"]
    assert cells(table, "Class-IL") == ["92.00", "91.00", "90.00"]
    assert cells(table, "method") == ["CLS-ER", "", ""]
    assert cells(table, "published")[1] == "92.04 ± 0.33"


def test_a_network_that_is_much_better_than_the_one_shown_is_mentioned() -> None:
    lagging = setting(record(accuracy={"stable": 10.0, "plastic": 14.0, "working": 80.0}))
    caption = str(results_table([lagging], "Results").caption)
    assert "working" in caption
    assert "80.00" in caption
    assert "plastic" not in caption
    assert results_table([lagging], "Results", by_predictor=True).caption is None
    usual = setting(record(accuracy={"stable": 90.0, "plastic": 89.0, "working": 91.0}))
    assert results_table([usual], "Results").caption is None


def test_missing_seeds_and_departures_are_shown() -> None:
    found = setting(record(hyperparameters={"lr": 0.05}))
    table = results_table([found], "Results", planned={found.config.hash: 3})
    assert cells(table, "seeds") == ["1 of 3"]
    assert cells(table, "settings") == ["lr 0.05"]


def test_conditions_that_vary_on_a_stream_are_shown() -> None:
    gcil: dict[str, Any] = {"stream": "gcil-cifar100-uniform", "dataset": "cifar100"}
    runs = [record("er", **gcil, stream_seed="published"), record("er-ace", **gcil), record("er")]
    table = results_table([setting(run) for run in runs], "Results")
    assert cells(table, "settings") == ["stream seed published", "stream seed 1993", ""]
    networks = [setting(record(network=name)) for name in ("mlp", "cnn")]
    assert cells(results_table(networks, "Results"), "settings") == ["network mlp", "network cnn"]


def test_streams_are_named_once_each() -> None:
    runs = [record(), record("er"), record(stream="mnist-360")]
    table = results_table(collection(*runs).settings, "Results")
    assert cells(table, "stream") == ["s-mnist", "", "mnist-360"]


def test_markup_in_names_is_shown_literally() -> None:
    table = results_table([setting(record(stream="[red]mine[/red]"))], "[bold]Results[/bold]")
    other = results_table(
        collection(record(stream="[red]mine[/red]"), record()).settings, "Results"
    )
    assert "[bold]Results[/bold]" in rendered(table)
    assert "[red]mine[/red]" in rendered(other)


def test_analyses_are_averaged_over_analysed_seeds() -> None:
    runs = [record(seed=s, analysis=analysis("stable", ece=0.1 + s / 10)) for s in range(2)]
    table = analyses_table(collection(*runs, record(seed=2)))
    assert cells(table, "seeds") == ["2"]
    assert cells(table, "calibration error") == ["0.150 ± 0.071"]


def test_analyses_of_shortened_runs_are_marked() -> None:
    runs = [record(max_steps=200), record(network="cnn"), record()]
    streams = cells(analyses_table(collection(*runs)), "stream")
    assert len(set(streams)) == 3
    assert [name for name in streams if "200 steps" in name]


def test_several_published_figures_are_told_apart() -> None:
    gcil: dict[str, Any] = {"stream": "gcil-cifar100-uniform", "dataset": "cifar100"}
    run = record(**gcil, network="resnet18", stream_seed="published")
    (text,) = cells(results_table([setting(run)], "Results"), "published")
    first, second = text.split("; ")
    assert "36.34" in first
    assert "Table 3" in first
    assert "Table S1" in second
    assert cells(results_table([setting(record())], "Results"), "published") == ["92.05 ± 0.32"]


def test_tables_in_a_log_are_not_folded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    long = "x" * 120
    show(results_table([setting(record(stream=long)), setting(record())], "Results"))
    assert long in capsys.readouterr().out
