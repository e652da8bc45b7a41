"""Names that are not UTF-8, and terminals that show only ASCII."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
def test_folders_whose_names_are_not_utf8_are_reported(tmp_path: Path) -> None:
    out = Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xfcns"))
    small.make(small.settings("sgd", max_steps=5), out)
    name = os.fsencode(out)
    for form in ("html", "md", "tex"):
        written = b"%s/report.%s" % (name, form.encode())
        ended = perdure("report", name, "-o", written)
        assert (ended.returncode, ended.stderr) == (0, b"")
        Path(os.fsdecode(written)).read_text(encoding="utf-8")
