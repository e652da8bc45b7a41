"""Only files that perdure wrote are overwritten or deleted, and odd files are not read."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from perdure import load_run
from perdure.cli import main
from perdure.files import append_line, memory_bytes, read_bytes, write_atomic
from perdure.lock import locked
from perdure.results.folder import RunFolder
from perdure.results.records import read_runs
from perdure.state import read_file
from perdure.training.checkpoint import CheckpointStore

from . import small
from .test_trust import forge

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder of the user's, with files whose names look like ours."""
    folder = tmp_path / "precious"
    folder.mkdir()
    for name in ("1.json", "7.safetensors", "notes.txt", ".notes.tmp", "events", "lock"):
        (folder / name).write_text(f"{name} of the user\n" * 20)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("name", ["checkpoints", "models", ".lock", "events.jsonl", "config.json"])
@pytest.mark.parametrize("resume", [False, True])
def test_links_in_a_run_folder_lead_to_no_harm(
    name: str, resume: bool, precious: Path, tmp_path: Path
) -> None:
    config = small.settings("sgd", max_steps=20)
    folder = small.stop_at(config, tmp_path / "runs", 10)
    before = content(precious)
    path = folder.path / name
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    target = {".lock": "lock", "events.jsonl": "events", "config.json": "notes.txt"}
    path.symlink_to(precious / target.get(name, ""))
    refused = name in (".lock", "models")
    try:
        small.make(config, tmp_path / "runs", resume=resume)
    except (ValueError, OSError) as error:
        assert refused
        assert name in str(error)  # noqa: PT017
    else:
        assert not refused
        assert folder.complete
    assert content(precious) == before


def test_a_run_folder_that_is_a_link_is_not_written(precious: Path, tmp_path: Path) -> None:
    config = small.settings("sgd", max_steps=10)
    folder = small.folder(config, tmp_path / "runs")
    folder.path.parent.mkdir(parents=True)
    folder.path.symlink_to(precious)
    before = content(precious)
    with pytest.raises(ValueError, match="symbolic link"):
        small.make(config, tmp_path / "runs")
    assert content(precious) == before


def test_files_of_the_user_among_checkpoints_are_kept(precious: Path, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, {"seed": 0})
    shutil.copytree(precious, store.path)
    for _ in range(3):
        store.add({}, {}, 0)
    store.clear()
    linked = CheckpointStore(tmp_path / "linked", {"seed": 0})
    linked.path.parent.mkdir()
    linked.path.symlink_to(precious)
    assert linked.numbers() == []
    left = content(store.path)
    assert set(left) == {"notes.txt", ".notes.tmp", "events", "lock"}
    empty = CheckpointStore(tmp_path / "other", {"seed": 0})
    empty.path.parent.mkdir()
    empty.add({}, {}, 0)
    empty.clear()
    assert not empty.path.exists()


def test_hidden_files_of_the_user_are_kept(tmp_path: Path) -> None:
    (tmp_path / ".notes.tmp").touch()
    (tmp_path / ".config.json.0a1b2c3d.tmp").touch()
    RunFolder(tmp_path).begin({})
    assert (tmp_path / ".notes.tmp").exists()
    assert not (tmp_path / ".config.json.0a1b2c3d.tmp").exists()


@pytest.mark.parametrize("how", ["content", "hard link", "pipe", "folder"])
def test_a_lock_that_is_not_ours_is_refused(how: str, precious: Path, tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    if how == "content":
        lock.write_text("poetry.lock of the user")
    elif how == "hard link":
        lock.hardlink_to(precious / "lock")
    elif how == "pipe":
        os.mkfifo(lock)
    else:
        lock.mkdir()
    before = content(precious)
    with pytest.raises((ValueError, OSError), match=r"\.lock"), locked(tmp_path):
        pass
    assert lock.exists()
    assert content(precious) == before


def test_pipes_devices_and_huge_files_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(memory_bytes() + 1)  # takes no space
    for name in ("pipe", "link", "huge"):
        with pytest.raises((OSError, ValueError), match=name):
            read_bytes(tmp_path / name)
        with pytest.raises(ValueError, match=name):
            read_file(tmp_path / name)
    with pytest.raises(OSError, match="pipe"):
        append_line(tmp_path / "pipe", "line")


@pytest.mark.parametrize("name", ["pipe", "link to a device"])
def test_pipes_and_devices_are_not_replaced(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link to a device").symlink_to(os.devnull)
    with pytest.raises(OSError, match=f"{name}.*|not a regular file"):
        write_atomic(tmp_path / name, b"content")
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "link to a device"}
    assert not (tmp_path / name).is_file()


def test_an_analysis_that_cannot_be_written_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = small.make(small.settings("sgd", max_steps=10), tmp_path / "made").path
    for name in ("a", "b"):
        shutil.copytree(good, tmp_path / "runs" / name)
    forge(tmp_path / "runs/b", seed=1)
    (tmp_path / "runs/a/analysis.json").mkdir()
    assert main(["analyze", str(tmp_path / "runs"), "--samples", "10", "--draws", "1"]) == 1
    assert "analysis.json" in capsys.readouterr().err
    assert (tmp_path / "runs/b/analysis.json").is_file()


ODD = {
    "huge whole number": b'{"buffer_size": 1' + b"0" * 5000,
    "huge number": b'{"hyperparameters": {"lr": 1e39, "batch": 1, "epochs": 1}',
    "infinite number": b'{"hyperparameters": {"lr": 1e999, "batch": 1, "epochs": 1}',
    "unknown precision": b'{"precision": "fp8"',
    "unknown device": b'{"memory_device": "none:x"',
    "unknown stream seed": b'{"stream_seed": "x"',
    "lone surrogate": b'{"network": "\\ud800:net"',
    "no batch": b'{"hyperparameters": {}',
    "text that is not UTF-8": b'{"network": "\xff"',
    "huge seed": b'{"seed": 1' + b"0" * 400,
    "huge shape": b'{"shape": [1' + b"0" * 400 + b"]",
}


def test_odd_run_folders_are_listed_and_the_others_reported(tmp_path: Path) -> None:
    good = small.make(small.settings("sgd", max_steps=10), tmp_path / "made").path
    runs = tmp_path / "runs"
    shutil.copytree(good, runs / "good")
    for name, start in ODD.items():
        shutil.copytree(good, runs / name)
        (runs / name / "manifest.json").unlink()
        path = runs / name / "config.json"
        key = start.split(b'"')[1].decode()
        rest = {k: v for k, v in json.loads(path.read_text()).items() if k != key}
        path.write_bytes(start + b"," + json.dumps(rest).encode()[1:])
    shutil.copytree(good, runs / "pipe")
    (runs / "pipe/config.json").unlink()
    os.mkfifo(runs / "pipe/config.json")
    shutil.copytree(good, runs / "pipe of results")
    (runs / "pipe of results/result.json").unlink()
    os.mkfifo(runs / "pipe of results/result.json")
    found, skipped = read_runs([runs])
    assert [run.folder.path.name for run in found] == ["good"]
    assert {Path(folder.place).name for folder in skipped} == {*ODD, "pipe", "pipe of results"}
    assert {folder.state for folder in skipped} == {"damaged", "unfinished"}
    out = tmp_path / "report.html"
    assert main(["report", str(runs), "-o", str(out), "--quiet"]) == 0
    page = out.read_text()
    assert all(f"runs/{name}" in page for name in ODD)


def test_names_control_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "runs" / "\x1b[2J"
    shutil.copytree(small.make(small.settings("sgd", max_steps=10), tmp_path / "made").path, folder)
    forge(folder, network="\x1b]0;title\x07:x")
    assert main(["analyze", str(tmp_path / "runs")]) == 1
    assert "\x1b" not in "".join(capsys.readouterr())


def test_numbers_beyond_single_precision_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in ("1e39", "nan", "inf"):
        assert main(["run", "--lr", number, "--out", str(tmp_path)]) == 2
        assert "lr" in capsys.readouterr().err


def test_a_forged_folder_that_needs_too_much_memory_is_refused(tmp_path: Path) -> None:
    folder = small.make(small.settings("sgd", max_steps=10), tmp_path).path
    forge(folder, shape=[10**10, 10**5])
    with pytest.raises(ValueError, match=r"larger network|network 'mlp' failed"):
        load_run(folder)
