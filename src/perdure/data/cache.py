"""Decoded datasets, kept as memory-mapped files in the user's cache.

`decoded/<name>-<checksum>/` holds the four arrays. `decoded/sources/` remembers which files (by
path, size and time of change) have been verified, and the checksum of what they decode to. The
arrays themselves are checked against their checksum whenever size or time of change is new.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import math
import os
import secrets
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from perdure.data.files import walk
from perdure.data.spec import Arrays, Layout, Spec

_log = logging.getLogger(__name__)

_VERSION = 1
"""To be raised when a decoder gives other arrays for the same files."""
_SETTLED_NS = 2_000_000_000
"""A file changed more recently than this may change again without a new time of change."""


def folder() -> Path:
    """The user's cache: `$PERDURE_CACHE`, or where the system wants such files."""
    if chosen := os.environ.get("PERDURE_CACHE"):
        return Path(chosen)
    import pooch

    return Path(pooch.os_cache("perdure"))


def fingerprint(arrays: Arrays) -> str:
    """16 hexadecimal digits that depend on every pixel and label, not on how they were stored."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


def key(spec: Spec, layout: Layout, root: Path) -> str | None:
    """What stands for these files as they are now; None where they are too fresh to be sure."""
    shapes = (spec.name, spec.train, spec.test, spec.classes)
    digest = hashlib.sha256(repr((_VERSION, shapes, layout)).encode())
    newest = 0
    for path in sorted(path for file in layout.files for path in walk(root.absolute() / file.path)):
        stat = os.stat(path)
        digest.update(f"\n{path}\0{stat.st_size}\0{stat.st_mtime_ns}".encode())
        newest = max(newest, stat.st_mtime_ns)
    return digest.hexdigest() if newest < time.time_ns() - _SETTLED_NS else None


def recall(spec: Spec, key: str | None) -> tuple[Arrays, str] | None:
    """The arrays that the files with this key decode to, and their checksum."""
    if key is None:
        return None
    try:
        checksum = (_decoded() / "sources" / key).read_text("ascii")
        arrays = _genuine(spec, checksum)
    except (OSError, ValueError):
        return None
    return arrays and (arrays, checksum)


def keep(spec: Spec, key: str | None, arrays: Arrays, checksum: str) -> Arrays:
    """The same arrays, kept on the disk and mapped from there if it can be written."""
    place = _place(spec, checksum)
    try:
        if _genuine(spec, checksum) is None:
            for field, array in arrays._asdict().items():
                _write(place / f"{field}.npy", partial(np.save, arr=array))
            _vouch(place)
        if key is not None:
            _write(_decoded() / "sources" / key, lambda file: file.write(checksum.encode()))
    except OSError as error:
        _log.warning(
            "%s is decoded anew at every start: %s cannot be written (%s); "
            "set $PERDURE_CACHE to a folder that can be",
            *(spec.name, place, error.strerror),
        )
        return arrays
    return opened(spec, checksum) or arrays


def opened(spec: Spec, checksum: str) -> Arrays | None:
    """The arrays kept under this checksum, if all are there with the right header and size.

    Writing to them changes the memory of this process only.
    """
    arrays = []
    for field, (shape, dtype) in spec.arrays().items():
        buffer_size = io.BytesIO()
        description = {"descr": dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(buffer_size, description)
        header, path = buffer_size.getvalue(), _place(spec, checksum) / f"{field}.npy"
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size - len(header)
                if file.read(len(header)) != header or size != math.prod(shape) * dtype.itemsize:
                    return None
            arrays.append(np.load(path, mmap_mode="c"))
        except OSError:
            return None
    return Arrays(*arrays)


def _genuine(spec: Spec, checksum: str) -> Arrays | None:
    """The arrays kept under this checksum, if they are those; an altered copy is removed."""
    arrays = opened(spec, checksum)
    if arrays is None:
        return None
    place = _place(spec, checksum)
    try:
        if (place / "checked").read_text("ascii") == _stamp(place):
            return arrays
    except (OSError, ValueError):
        pass
    if fingerprint(arrays) != checksum:
        _log.warning("the decoded copy of %s in %s was altered; decoding anew", spec.name, place)
        forget(spec, checksum)
        return None
    with contextlib.suppress(OSError):  # then it is checked again next time
        _vouch(place)
    return arrays


def _vouch(place: Path) -> None:
    """Note that the arrays, as they are now, are those of their checksum."""
    stamp = _stamp(place)
    _write(place / "checked", lambda file: file.write(stamp.encode()))


def _stamp(place: Path) -> str:
    """Sizes and times of change of the arrays."""
    stats = [os.stat(place / f"{field}.npy") for field in Arrays._fields]
    return "\n".join(f"{stat.st_size} {stat.st_mtime_ns}" for stat in stats)


def forget(spec: Spec, checksum: str) -> None:
    """Remove the arrays kept under this checksum."""
    for field in Arrays._fields:
        (_place(spec, checksum) / f"{field}.npy").unlink(missing_ok=True)


def _decoded() -> Path:
    return folder() / "decoded"


def _place(spec: Spec, checksum: str) -> Path:
    return _decoded() / f"{spec.name}-{checksum}"


def _write(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Under another name first, so that the file is never there in part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with part.open("xb") as file:
            write(file)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
