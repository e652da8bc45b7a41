"""`perdure report`."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.cli import main

from . import made


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty working folder; signal handlers are restored."""
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_page_and_its_figures(capfd: pytest.CaptureFixture[str]) -> None:
    made.make_run(Path("runs"), method="er")
    status = main(["report", "--figures", "figures"])
    out, err = capfd.readouterr()
    assert (status, err) == (0, "")
    assert out == "wrote report.html and 7 figures in figures\n"
    assert Path("report.html").read_text().startswith("<!doctype html>")
    names = {path.stem for path in Path("figures").iterdir()}
    assert len(names) == 7
    for name in names:
        data = json.loads(Path(f"figures/{name}.json").read_text())
        assert data["name"] == name
        assert data["charts"]
        assert Path(f"figures/{name}.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("form", "begins"), [("md", "# Report on runs\n"), ("tex", "% Report on runs")]
)
def test_tables_alone(form: str, begins: str, capfd: pytest.CaptureFixture[str]) -> None:
    made.make_run(Path("runs"))
    assert main(["report", "runs", "--format", form]) == 0
    assert capfd.readouterr().out == f"wrote report.{form}\n"
    assert Path(f"report.{form}").read_text().startswith(begins)


def test_a_file_of_unknown_format_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    made.make_run(Path("runs"))
    assert main(["report", "-o", "report.docx"]) == 2
    assert "--format" in capfd.readouterr().err
    assert not Path("report.docx").exists()


def test_folders_that_are_left_out_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    made.make_run(Path("runs"))
    damaged = made.make_run(Path("runs"), seed=1)
    (damaged / "result.json").write_text("{")
    assert main(["report", "--format", "md"]) == 0
    assert str(damaged) in capfd.readouterr().err
    assert main(["report", "--format", "md", "--quiet"]) == 0
    assert capfd.readouterr().err == ""


def test_figures_as_pdf_and_another_title() -> None:
    (
        made.make_run(Path("a"), method="sgd", buffer_size=None, analysed=False) / "events.jsonl"
    ).unlink()
    words = ["report", "a", "-o", "deep/er/x.md", "--format", "md", "--title", "My *runs*"]
    assert main([*words, "--figures", "f", "--figure-format", "pdf"]) == 0
    assert Path("deep/er/x.md").read_text().startswith("# My \\*runs\\*\n")
    assert {path.suffix for path in Path("f").iterdir()} == {".pdf", ".json"}


def test_missing_analyses_are_computed_if_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    short = ["--dataset", "mnist5k", "--epochs", "1", "--quiet"]
    assert main(["run", "--method", "clser", *short]) == 0
    capfd.readouterr()
    assert main(["report", "-o", "without.md"]) == 0
    assert (capfd.readouterr().err, [*Path("runs").rglob("analysis.json")]) == ("", [])
    assert main(["report", "--format", "md", "--figures", "figures", "--analyze"]) == 0
    err = capfd.readouterr().err
    assert "runs/s-mnist/clser-500-" in err
    assert "(1 of 1)" in err
    assert len([*Path("runs").rglob("analysis.json")]) == 1
    names = {path.stem.removeprefix("s-mnist-mnist5k-500-") for path in Path("figures").iterdir()}
    assert names == {
        *("tasks", "probabilities", "calibration", "flatness", "confusion"),
        *("agreement", "losses", "replay-sources", "memory"),
    }
    text = Path("report.md").read_text()
    assert "perdure run s-mnist --method clser --buffer-size 500 --seeds 0 --epochs 1" in text
    assert "| published |" not in text
    assert main(["report", "--format", "md"]) == 0
    assert capfd.readouterr().err == ""
    assert Path("report.md").read_text() == text


def test_analyses_without_data_are_explained(capfd: pytest.CaptureFixture[str]) -> None:
    made.make_run(Path("runs"), method="er", analysed=False)
    Path("nothing").mkdir()
    assert main(["report", "--analyze", "--data", "nothing", "-o", "x.html", "--quiet"]) == 0
    assert capfd.readouterr().err == ""
    assert "Not analysed (" in Path("x.html").read_text()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["empty"], "empty contains no runs"),
        (["runs", "-o", "file/x.html"], "-o file cannot be written"),
        (["runs", "-o", "empty"], "-o empty is a folder"),
        (["runs", "--figures", "file"], "--figures file cannot be written"),
        (["runs", "--format", "docx"], "docx"),
    ],
)
def test_bad_input_is_reported_in_one_sentence(
    words: list[str], complaint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    made.make_run(Path("runs"))
    Path("empty").mkdir()
    Path("file").write_text("kept")
    assert main(["report", *words]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("perdure: ")
    assert complaint in err
    assert err.count("\n") == 1
    assert Path("file").read_text() == "kept"
