"""The scripts behind figures of the engineering log run on the stored records."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

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
