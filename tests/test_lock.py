"""One writer per folder, by a lock that dies with its process."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from perdure.lock import LockedError, locked, refuse_if_locked


def test_a_lock_is_held_once_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "run"
    with locked(folder):
        assert (folder / ".lock").read_text() == f"{os.getpid()}\n"
        who = rf"another process \({os.getpid()}\) is at work in {re.escape(str(folder))}; wait"
        with pytest.raises(LockedError, match=who), locked(folder):
            pass
        with pytest.raises(LockedError):
            refuse_if_locked(folder)
        assert (folder / ".lock").exists()  # the refused left it alone
    assert list(folder.iterdir()) == []
    with locked(folder):
        pass


def test_what_a_killed_process_left_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("4194305\n")
    refuse_if_locked(tmp_path)
    assert not (tmp_path / ".lock").exists()


def test_asking_makes_no_folder(tmp_path: Path) -> None:
    refuse_if_locked(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_lock_is_released_when_its_folder_is_gone_or_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with locked(folder):
        (folder / ".lock").unlink()
        folder.rmdir()
    with locked(folder):
        (folder / ".lock").unlink()
        (folder / ".lock").write_text("another's\n")
    assert (folder / ".lock").read_text() == "another's\n"


def test_locks_are_given_back_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), locked(tmp_path):
        raise KeyError
    with locked(tmp_path):
        pass
