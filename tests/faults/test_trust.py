"""Reading a run folder never imports or calls what the folder names."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from perdure import load_run
from perdure.cli import main
from perdure.experiment.analyze import AnalysisSettings, analyze
from perdure.experiment.resolve import resolve
from perdure.files import digest, read_manifest, write_manifest

from . import small


def forge(path: Path, **changes: Any) -> None:
    """Change a finished run's configuration, with valid checksums."""
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    manifest = read_manifest(path / "manifest.json")
    manifest["files"]["config.json"] = digest(file.read_bytes())
    del manifest["format"]
    write_manifest(path / "manifest.json", manifest)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.make(small.settings("sgd"), tmp_path_factory.mktemp("finished")).path


@pytest.fixture
def harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that importing `evil`, or calling anything in it, creates."""
    (tmp_path / "evil.py").write_text(
        "import pathlib\n"
        f"pathlib.Path({str(tmp_path / 'harm')!r}).touch()\n"
        "def call(*arguments): pass\n"
    )
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "harm"
    sys.modules.pop("evil", None)


FORGED: dict[str, dict[str, Any]] = {
    "network": {"network": "evil:call"},
    "method": {"method": "evil:call"},
    "stream": {"stream": "evil:call", "dataset": None, "normalise": "own()"},
    "stream with a dataset": {"stream": "evil:call", "normalise": "own()"},
    "a shell command": {"network": "subprocess:call", "shape": ["touch", "harm"]},
}


@pytest.mark.parametrize("name", FORGED)
def test_reading_executes_nothing(
    name: str, finished: Path, harm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path("runs/seed-0")
    shutil.copytree(finished, folder)
    forge(folder, **FORGED[name])
    with pytest.raises(ValueError, match=r"config.json|trust_code"):
        load_run(folder)
    with pytest.raises(ValueError, match=r"config.json|trust_code"):
        analyze(folder)
    assert main(["report", "runs"]) == 0
    assert main(["report", "runs", "--analyze"]) == 0
    if "shape" not in FORGED[name]:  # otherwise the folder is skipped as damaged
        assert "--trust-code" in Path("report.html").read_text()
        assert main(["analyze", "runs"]) == 1
        assert "--trust-code" in capsys.readouterr().err
    else:
        assert main(["analyze", "runs"]) == 2
    assert not harm.exists()


def test_with_an_explicit_word_the_code_is_imported(finished: Path, harm: Path) -> None:
    folder = Path("runs/seed-0")
    shutil.copytree(finished, folder)
    forge(folder, network="evil:call")
    assert main(["analyze", "runs", "--trust-code"]) == 1  # its network is none
    assert harm.exists()


def test_a_run_resumes_with_the_names_of_the_command_line(tmp_path: Path, harm: Path) -> None:
    config = small.settings("sgd")
    folder = small.stop_at(config, tmp_path / "runs", 20)
    file = folder.path / "config.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "network": "evil:call", "method": "evil:call"}))
    small.make(config, tmp_path / "runs", resume=True)
    assert json.loads(file.read_text())["method"] == "sgd"
    assert not harm.exists()


@pytest.mark.parametrize("kind", ["images", "table"])
def test_files_that_a_folder_names_are_not_read_to_load_it(
    kind: str, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(kind: str, text: str, **options: object) -> None:
        raise AssertionError(f"read {kind}:{text}")

    folder = tmp_path / "seed-0"
    shutil.copytree(finished, folder)
    monkeypatch.setattr("perdure.experiment.build.stream_from_files", read)
    forge(folder, stream=f"{kind}:{tmp_path / 'files'},target=y", dataset=None, normalise="Other()")
    with pytest.raises(ValueError, match=r"pass stream="):
        load_run(folder)
    with pytest.raises(ValueError, match=r"trust_code|--trust-code"):
        analyze(folder)
    forge(folder, normalise="Scale()")
    load_run(folder)


@pytest.mark.parametrize("kind", ["images", "table"])
def test_a_run_on_files_is_loaded_and_analysed_without_trust(kind: str, tmp_path: Path) -> None:
    if kind == "images":
        for label in ("cat", "dog"):
            (tmp_path / "files" / label).mkdir(parents=True)
            for number in range(8):
                place = tmp_path / "files" / label / f"{number}.png"
                Image.new("RGB", (4, 4), (number, 100 * (label == "cat"), 0)).save(place)
        stream = f"images:{tmp_path / 'files'},size=4"
    else:
        rows = (f"{number},{number % 3},{number % 2}" for number in range(40))
        (tmp_path / "files.csv").write_text("\n".join(["a,b,y", *rows]))
        stream = f"table:{tmp_path / 'files.csv'},target=y"
    config = resolve(stream, "er", 5, given={"epochs": 1, "batch": 4})
    folder = small.make(config, tmp_path / "runs").path
    analyze(folder, AnalysisSettings(sigmas=(0.0,), draws=1, samples=10))
    shutil.rmtree(tmp_path / "files", ignore_errors=True)
    (tmp_path / "files.csv").unlink(missing_ok=True)
    assert int(load_run(folder).steps) > 0
