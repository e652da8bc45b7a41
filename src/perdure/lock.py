"""Locks held by the operating system, which therefore end when a process is killed."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from perdure.files import make_folder, open_regular

_CONTENT = re.compile(rb"(\d{1,20}\n)?")
"""The id of the process that has the lock; empty between opening and writing."""


class LockedError(ValueError):
    """Another process is writing to the folder."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder inside the block; the folder is created if necessary.

    The lock is on the file `.lock`, which is removed afterwards. If a process is killed the file
    remains, but not the lock.

    Raises:
        LockedError: If another process holds the lock.
    """
    make_folder(folder)
    path = folder / ".lock"
    file = _acquire(path, folder)
    try:
        os.lseek(file, 0, os.SEEK_SET)
        os.ftruncate(file, 0)
        os.write(file, f"{os.getpid()}\n".encode())
        yield
    finally:
        with contextlib.suppress(OSError):  # the folder may have been removed or replaced
            if _is_at(file, path):
                path.unlink()
        os.close(file)


def refuse_if_locked(folder: Path) -> None:
    """Raise LockedError if another process holds the lock; remove the file of a killed one."""
    if os.path.lexists(folder / ".lock"):
        with locked(folder):
            pass


@contextlib.contextmanager
def waited_for(path: Path) -> Iterator[None]:
    """Lock a file inside the block, as soon as no other process does; others can still read it."""
    file = open_regular(path, os.O_RDWR | os.O_CREAT)
    os.lseek(file, 2**40, os.SEEK_SET)  # Windows locks a byte: one that no file has
    try:
        while not _try(file):
            time.sleep(0.005)
        yield
    finally:
        os.close(file)


def _acquire(path: Path, folder: Path) -> int:
    while True:
        file = open_regular(path, os.O_RDWR | os.O_CREAT)
        content = os.read(file, 64)
        if os.fstat(file).st_nlink > 1 or not _CONTENT.fullmatch(content):
            os.close(file)
            raise ValueError(f"{path} was not written by perdure; move it away")
        if not _try(file):
            holder = content.decode().strip()
            os.close(file)
            raise LockedError(
                f"another process{f' ({holder})' if holder else ''} is writing to {folder}; wait "
                "until it finishes, or stop it"
            )
        if _is_at(file, path):
            return file
        os.close(file)  # the holder removed the file before we locked it


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.lstat(path))
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
