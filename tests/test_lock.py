"""Folder locks: one writer at a time, released when a process dies."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from perdure.lock import LockedError, locked, refuse_if_locked


def test_a_lock_is_exclusive_and_leaves_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "run"
    with locked(folder):
        assert (folder / ".lock").read_text() == f"{os.getpid()}\n"
        holder = rf"{os.getpid()}.*{re.escape(str(folder))}"
        with pytest.raises(LockedError, match=holder), locked(folder):
            pass
        with pytest.raises(LockedError):
            refuse_if_locked(folder)
        assert (folder / ".lock").exists()
    assert list(folder.iterdir()) == []
    with locked(folder):
        pass


def test_the_file_of_a_killed_process_is_not_a_lock(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("4194305\n")
    refuse_if_locked(tmp_path)
    assert not (tmp_path / ".lock").exists()


def test_a_second_process_may_be_killed_as_well(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("4194305\n")
    with locked(tmp_path):
        left = (tmp_path / ".lock").read_text()
    assert left == f"{os.getpid()}\n"
    (tmp_path / ".lock").write_text(left)
    refuse_if_locked(tmp_path)


def test_checking_a_lock_creates_no_folder(tmp_path: Path) -> None:
    refuse_if_locked(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_lock_is_released_if_its_folder_was_removed_or_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with locked(folder):
        (folder / ".lock").unlink()
        folder.rmdir()
    with locked(folder):
        (folder / ".lock").unlink()
        (folder / ".lock").write_text("another's\n")
    assert (folder / ".lock").read_text() == "another's\n"


def test_a_lock_is_released_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), locked(tmp_path):
        raise KeyError
    with locked(tmp_path):
        pass
