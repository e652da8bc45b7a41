"""Names that are not UTF-8, and terminals that show only ASCII."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.cli import main

from . import small

ASCII = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}


def perdure(*words: str | bytes, **how: object) -> subprocess.CompletedProcess[bytes]:
    command = [os.fsencode(word) for word in (sys.executable, "-m", "perdure", *words)]
    return subprocess.run(command, capture_output=True, check=False, **how)  # type: ignore[call-overload,no-any-return]


def test_lists_are_shown_with_ascii_output() -> None:
    ended = perdure("list", env=ASCII)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert b"clser" in ended.stdout
    assert ended.stdout.isascii()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems reject such names")
def test_folders_whose_names_are_not_utf8_are_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xfcns"))
    small.make(small.settings("sgd", max_steps=5), out)
    ended = perdure("report", os.fsencode(out), "-o", os.fsencode(out / "report.md"))
    assert (ended.returncode, ended.stderr) == (0, b"")
    for form in ("html", "tex"):  # in this process, without the time to import torch
        assert main(["report", str(out), "-o", str(out / f"report.{form}")]) == 0
        assert capfd.readouterr().err == ""
    for form in ("md", "html", "tex"):
        (out / f"report.{form}").read_text(encoding="utf-8")
