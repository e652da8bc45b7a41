"""Data that change between runs."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from perdure.cli import main
from perdure.experiment.resolve import resolve
from perdure.training.loop import Interrupted

from . import small

STREAM = """
    from pathlib import Path
    import numpy as np
    from perdure import from_tensors

    def stream():
        pixels = np.frombuffer(Path("pixels").read_bytes(), np.uint8).reshape(-1, 1, 4, 4)
        labels = np.arange(len(pixels)) % 4
        return from_tensors(pixels, labels, groups=[(0, 1), (2, 3)], test=(pixels, labels))
"""


def test_a_data_file_modified_between_runs_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "altered.py").write_text(dedent(STREAM))
    pixels = bytearray(i * 7 % 256 for i in range(16 * 400))
    (tmp_path / "pixels").write_bytes(pixels)
    what = resolve("altered:stream", "er", 40, given={"batch": 8, "epochs": 2})
    with pytest.raises(Interrupted):
        small.job(what, Path("runs")).execute(small.silent, lambda: 15)
    stopped = small.folder(what, Path("runs"))
    before = sorted(path.name for path in stopped.path.rglob("*"))
    pixels[1000] ^= 1
    (tmp_path / "pixels").write_bytes(pixels)
    flags = "run altered:stream --method er --buffer 40 --batch 8 --epochs 2 --resume"
    assert main(flags.split()) == 0
    errors = capfd.readouterr().err
    now = resolve("altered:stream", "er", 40, given={"batch": 8, "epochs": 2}).data_checksum
    assert now != what.data_checksum
    (note,) = (line for line in errors.splitlines() if str(stopped.path.parent) in line)
    assert note.startswith("note: ")
    assert now in note
    assert what.data_checksum in note
    assert sorted(path.name for path in stopped.path.rglob("*")) == before
