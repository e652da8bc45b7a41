"""Files: atomic writes, guarded reads, JSON, and manifests whose checksums reveal altered files.

Nothing is written through a symbolic link, and only regular files of a plausible size are read: a
pipe would block, and a device or a sparse file would fill the memory.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

FORMAT = 1
"""Version of the manifest format and of the files that manifests list."""
MAX_JSON = 64 * 2**20
"""Bytes of the largest JSON file that is read."""
MAX_EVENTS = 2**30
"""Bytes of the largest log of events that is read."""
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has none of these flags
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)
_BINARY = getattr(os, "O_BINARY", 0)
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")


class DamagedError(ValueError):
    """A file differs from what was written; the message names it."""


def write_atomic(path: Path, content: bytes | Callable[[IO[bytes]], object]) -> None:
    """Write a file in one rename: readers see the old content or the new, never a part.

    `content` may be a function that writes to the open file. A symbolic link is replaced, a pipe or
    a device is not.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with naming_errors(path):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise OSError(errno.EINVAL, "not a regular file")
        try:
            with open(temporary, "xb") as file:
                content(file) if callable(content) else file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(path.parent)


@contextlib.contextmanager
def naming_errors(path: Path) -> Iterator[None]:
    """Raise OSErrors from the block with this file's name (a full disk, for example, has none)."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


def is_temporary(name: str) -> bool:
    """Whether a file has a name that `write_atomic` uses until the file is complete.

    >>> is_temporary(".result.json.0a1b2c3d.tmp"), is_temporary(".notes.tmp")
    (True, False)
    """
    return _TEMPORARY.fullmatch(name) is not None


def make_folder(path: Path) -> None:
    """Create a folder of ours. Raises ValueError if it is a symbolic link."""
    if path.is_symlink():
        raise ValueError(f"{path} is a symbolic link; perdure does not write through it: remove it")
    with naming_errors(path):
        path.mkdir(parents=True, exist_ok=True)


def open_regular(path: Path, flags: int, mode: int = 0o644) -> int:
    """Open a regular file without blocking; not through a symbolic link if it is for writing.

    Raises:
        OSError: If it cannot be opened, or is a link, a pipe, a device or a folder.
    """
    if flags & (os.O_WRONLY | os.O_RDWR):
        flags |= _NOFOLLOW
    with naming_errors(path):
        try:
            file = os.open(path, flags | _NONBLOCK | _BINARY, mode)
        except OSError as error:
            if error.errno == errno.ELOOP and flags & _NOFOLLOW and path.is_symlink():
                raise OSError(errno.ELOOP, "a symbolic link; it is not written through") from None
            raise
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(errno.EINVAL, "not a regular file")
        return file


def read_bytes(path: Path, limit: int = MAX_JSON) -> bytes:
    """Read a regular file of at most `limit` bytes.

    Raises:
        OSError: If it cannot be read or is not a regular file.
        DamagedError: If it is larger.
    """
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file, naming_errors(path):
        size = os.fstat(file.fileno()).st_size
        content = file.read(size + 1) if size <= limit else b""
        if len(content) > size:  # it grows
            content += file.read(limit)
    if max(size, len(content)) > limit:
        raise DamagedError(f"{path} is too large: expected at most {limit} bytes")
    return content


def memory_bytes() -> int:
    """Size of this machine's memory: the largest state that can be read."""
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 2**40


def append_line(path: Path, line: str) -> None:
    """Add a line to a file, which is created if necessary."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    file = open_regular(path, flags)
    with naming_errors(path), os.fdopen(file, "ab") as opened:
        opened.write(f"{line}\n".encode())


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power failure, where the file system supports it."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems cannot
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def to_json_bytes(content: object) -> bytes:
    """Indented JSON, keys in the given order."""
    return f"{json.dumps(content, indent=1, allow_nan=False)}\n".encode()


def write_json(path: Path, content: object) -> None:
    """Write a JSON file atomically."""
    write_atomic(path, to_json_bytes(content))


def digest(content: bytes) -> dict[str, Any]:
    """Size and checksum of a file, as manifests record them.

    >>> digest(b"abc")["bytes"]
    3
    """
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def digest_file(path: Path) -> dict[str, Any]:
    """Size and checksum of a file on disk, read in parts. Raises OSError if it cannot be read."""
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file, naming_errors(path):
        size = os.fstat(file.fileno()).st_size
        return {"bytes": size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def differs(path: Path, expected: object, *, read: bool = True) -> bool:
    """Whether a file is not the one that a manifest describes.

    Compares the size first and, unless `read` is False, then the checksum.
    """
    size = expected.get("bytes") if isinstance(expected, dict) else None
    with naming_errors(path):
        if path.stat().st_size != size:
            return True
    return read and digest_file(path) != expected


def write_manifest(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON with a checksum of its own, which `read_manifest` verifies."""
    whole = {"format": FORMAT, **content}
    write_json(path, {**whole, "seal": _seal(whole)})


def read_manifest(path: Path) -> dict[str, Any]:
    """Read a manifest.

    Raises:
        DamagedError: If the file is not as it was written.
        ValueError: If it was written in a format that this version does not read.
    """
    try:
        content = json.loads(read_bytes(path))
        if not isinstance(content, dict) or content.pop("seal", None) != _seal(content):
            raise ValueError("its checksum does not match its content")
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: {error}") from None
    if content.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {content.get('format')}; this version reads format {FORMAT}"
        )
    return content


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
