"""One writer: a lock of the operating system, which a dead process cannot leave behind."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path


class LockedError(ValueError):
    """Another process holds the lock; the message names it and what to do."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, making the folder if need be. LockedError if another has it.

    The lock is on a file `.lock` in the folder, which is there only while it is held or after a
    process was killed; a killed process holds nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".lock"
    file = _acquire(path, folder)
    try:
        os.ftruncate(file, 0)
        os.write(file, f"{os.getpid()}\n".encode())
        yield
    finally:
        with contextlib.suppress(OSError):  # the folder may be gone, or another's by now
            if _is_at(file, path):
                path.unlink()
        os.close(file)


def refuse_if_locked(folder: Path) -> None:
    """LockedError if another process holds the lock now; removes what a killed one left."""
    if (folder / ".lock").exists():
        with locked(folder):
            pass


def _acquire(path: Path, folder: Path) -> int:
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if not _try(file):
            holder = os.read(file, 20).decode("ascii", "replace").strip()
            os.close(file)
            raise LockedError(
                f"another process{f' ({holder})' if holder else ''} is at work in {folder}; wait "
                "until it is done, or end it"
            )
        if _is_at(file, path):
            return file
        os.close(file)  # its holder removed the file between our opening and our locking it


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


if sys.platform == "win32":
    import msvcrt

    def _try(file: int) -> bool:
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _try(file: int) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
