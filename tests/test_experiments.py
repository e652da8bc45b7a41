"""The scripts and methods behind figures of the engineering log run."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

from perdure.records import Samples

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("read_records.py", ["CLS-ER 500", "settled"]),
        ("compare_devices.py", ["largest_in_standard_errors"]),
    ],
)
def test_scripts_that_read_stored_records_print_their_figures(
    script: str, expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(ROOT / "experiments" / script), run_name="__main__")
    printed = capsys.readouterr().out
    assert all(part in printed for part in expected)


@pytest.mark.parametrize(
    "method",
    [
        "clser_published_ties:PublishedTies",
        "dropout:SeparateMasks",
        "gss_as_published:AsPublished",
        "gss_per_sample:PerSample",
        "icarl_mixing:SharedOut",
    ],
)
def test_methods_of_experiments_train_with_a_full_memory(method: str) -> None:
    file, _, name = method.partition(":")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    kind = runpy.run_path(str(ROOT / "experiments" / f"{file}.py"))[name]
    learner = kind(network, buffer_size=10, lr=0.1)
    inputs, labels = torch.eye(4), torch.arange(4) % 3
    for _ in range(300):
        learner.observe(inputs, labels)
    learner.end_task(Samples(inputs.repeat(8, 1), labels.repeat(8)))
    assert learner.memory.filled == 10
    assert learner.predict(inputs).equal(labels)
