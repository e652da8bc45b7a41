"""Files: atomic writes, JSON, and manifests whose checksums reveal altered files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

FORMAT = 1
"""Version of the manifest format and of the files that manifests list."""


class DamagedError(ValueError):
    """A file differs from what was written; the message names it."""


def write_atomic(path: Path, content: bytes | Callable[[IO[bytes]], object]) -> None:
    """Write a file in one rename: readers see the old content or the new, never a part.

    `content` may be a function that writes to the open file.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with naming_errors(path):
        try:
            with temporary.open("wb") as file:
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
        content = json.loads(path.read_bytes())
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
