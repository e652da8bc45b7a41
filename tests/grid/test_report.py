"""What a grid came to, beside the paper's figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from perdure.grid import Cell, Entry, Grid, Plan, Speeds, Standing
from perdure.grid.report import NAMED, failures_sentence, paper_text, write_summaries
from perdure.training import Settings
from perdure.training.job import Job

FULL = Settings("s-mnist", "clser", 500, {}, "mlp", "mnist", "0" * 8)


def entry(settings: Settings = FULL, **given: float) -> Entry:
    cell = Cell(settings.stream, settings.method, settings.buffer_size, given)
    return Entry(cell, settings, 1, (), (), ())


@pytest.mark.parametrize(
    ("table", "predictor", "first", "text"),
    [
        ("1", "stable", True, "92.05 ± 0.32"),
        ("S1", "stable", True, "92.05 ± 0.30"),
        ("S1", "working", False, "91.61 ± 0.47"),
        ("2", "stable", True, "92.05 ± 0.32"),  # not of this table, so of another
        (None, "plastic", False, "92.04 ± 0.33"),
        ("1", "nobody", False, "–"),
    ],
)
def test_the_papers_figure(table: str | None, predictor: str, first: bool, text: str) -> None:
    assert paper_text(table, entry(), predictor, first=first) == text


def test_a_row_of_the_sweep_is_found_by_its_settings() -> None:
    cifar = replace(FULL, stream="s-cifar10", network="resnet18", dataset="cifar10")
    row = {"consistency_weight": 0.15, "stable_rate": 0.1, "plastic_rate": 0.9}
    assert paper_text("S3", entry(cifar, **row), "stable", first=True) == "74.61 ± 0.91"
    assert paper_text("S3", entry(cifar, **row | {"lr": 1.0}), "stable", first=True) == "–"


@pytest.mark.parametrize(
    "other",
    [
        {"dataset": "mnist5k"},
        {"max_steps": 100},
        {"validation": 0.1},
        {"stream_seed": 3},
        {"network": "my:network"},
    ],
)
def test_other_data_or_another_length_is_not_compared(other: dict[str, object]) -> None:
    assert paper_text("1", entry(replace(FULL, **other)), "stable", first=True) == "–"  # type: ignore[arg-type]


def test_lines_of_other_settings_stay_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "table1.jsonl"
    write_summaries(path, [{"hash": "a", "seeds": 1}, {"hash": "b", "seeds": 1}])
    write_summaries(path, [{"hash": "a", "seeds": 2}, {"hash": "c", "seeds": 2}])
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"hash": "a", "seeds": 2},
        {"hash": "b", "seeds": 1},
        {"hash": "c", "seeds": 2},
    ]
    path.write_text("not ours\n")
    with pytest.raises(ValueError, match=r"table1.jsonl is not a file of results; move it away"):
        write_summaries(path, [])
    assert path.read_text() == "not ours\n"


def test_what_failed_is_named_by_setting_and_seeds_and_not_without_end(tmp_path: Path) -> None:
    entries = [replace(entry(lr=float(n)), missing=(0, 1)) for n in range(NAMED + 2)]
    entries = [replace(e, settings=replace(FULL)) for e in entries]  # told apart by identity
    plan = Plan(Grid("mine", "mine", "0:2", ()), tmp_path, entries, [])
    jobs = [Job(e.settings, (seed,), str(tmp_path)) for seed in (1, 0) for e in entries]
    standing = Standing(plan, jobs, Speeds(), 1)
    for course in standing.courses[: NAMED + 3]:
        course.state = "failed"
    clauses = [f"clser on s-mnist, buffer 500, lr {n}, seed 1" for n in range(1, NAMED)]
    assert failures_sentence(standing) == (
        f"{NAMED + 3} of {2 * NAMED + 4} runs failed, for the reasons above: "
        f"clser on s-mnist, buffer 500, lr 0, seeds 0, 1; {'; '.join(clauses)}; "
        "and 2 more settings"
    )
