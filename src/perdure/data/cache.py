"""Cache of decoded datasets, as memory-mapped files.

`decoded/<name>-<checksum>/` contains the four arrays. `decoded/sources/` maps files that have been
verified, identified by path, size and modification time, to the checksum of their decoded arrays.
The cached arrays are verified against that checksum whenever their size or modification time has
changed, and otherwise if that was done more than a day ago.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import math
import os
import time
from functools import partial
from multiprocessing import parent_process
from pathlib import Path

import numpy as np

from perdure.data.archives import walk_files
from perdure.data.spec import Arrays, Layout, Spec
from perdure.files import is_temporary, open_regular, read_bytes, write_atomic

_log = logging.getLogger(__name__)

_VERSION = 1
"""Increased when a decoder returns different arrays for the same files."""
_VERIFIED_FOR_NS = 86_400_000_000_000
"""A day: time after which cached arrays are verified again when they are used."""
_SETTLED_NS = 2_000_000_000
"""A file modified more recently may change again without a new modification time."""
_ABANDONED_S = 3600
"""An hour: age at which a temporary file belongs to a write that was killed."""


def folder() -> Path:
    """The cache folder: `$PERDURE_CACHE`, or the system's folder for user caches."""
    if chosen := os.environ.get("PERDURE_CACHE"):
        return Path(chosen)
    import pooch

    return Path(pooch.os_cache("perdure"))


def fingerprint(arrays: Arrays) -> str:
    """16 hexadecimal digits that depend on all pixels and labels, not on the file format."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


def source_key(spec: Spec, layout: Layout, root: Path) -> str | None:
    """Identifies a dataset's files in their current state; None if they changed just now."""
    shapes = (spec.name, spec.train, spec.test, spec.classes)
    digest = hashlib.sha256(repr((_VERSION, shapes, layout)).encode())
    newest = 0
    paths = (path for file in layout.files for path in walk_files(root.absolute() / file.path))
    for path in sorted(paths):
        stat = os.stat(path)
        digest.update(b"\n" + os.fsencode(path))
        digest.update(f"\0{stat.st_size}\0{stat.st_mtime_ns}".encode())
        newest = max(newest, stat.st_mtime_ns)
    return digest.hexdigest() if newest < time.time_ns() - _SETTLED_NS else None


def get(spec: Spec, key: str | None) -> tuple[Arrays, str] | None:
    """The cached arrays of the files with this key, and their checksum."""
    if key is None:
        return None
    try:
        checksum = read_bytes(folder() / "decoded" / "sources" / key).decode("ascii")
        arrays = _verified_arrays(spec, checksum)
    except (OSError, ValueError):
        return None
    return arrays and (arrays, checksum)


def put(spec: Spec, key: str | None, arrays: Arrays, checksum: str) -> Arrays:
    """Write arrays to the cache; returns them memory-mapped, or as given if that fails."""
    place = _place(spec, checksum)
    sources = folder() / "decoded" / "sources"
    try:
        if _verified_arrays(spec, checksum) is None:
            place.mkdir(parents=True, exist_ok=True)
            for field, array in arrays._asdict().items():
                write_atomic(place / f"{field}.npy", partial(np.save, arr=array))
            _mark_verified(place)
        if key is not None:
            sources.mkdir(parents=True, exist_ok=True)
            write_atomic(sources / key, checksum.encode())
    except OSError as error:
        if parent_process() is None:  # workers would repeat the warning
            _log.warning(
                "%s must be decoded again at every start because %s cannot be written (%s); "
                "set $PERDURE_CACHE to a writable folder",
                *(spec.name, place, error.strerror),
            )
        return arrays
    return open_arrays(spec, checksum) or arrays


def open_arrays(spec: Spec, checksum: str) -> Arrays | None:
    """The arrays cached under this checksum, if all have the expected header and size.

    They are mapped copy-on-write: writing to them does not change the files.
    """
    arrays = []
    for field, (shape, dtype) in spec.arrays().items():
        buffer = io.BytesIO()
        description = {"descr": dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(buffer, description)
        header, path = buffer.getvalue(), _place(spec, checksum) / f"{field}.npy"
        try:
            with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
                size = os.fstat(file.fileno()).st_size - len(header)
                if file.read(len(header)) != header or size != math.prod(shape) * dtype.itemsize:
                    return None
            arrays.append(np.load(path, mmap_mode="c"))
        except OSError:
            return None
    return Arrays(*arrays)


def remove(spec: Spec, checksum: str) -> None:
    """Delete the arrays cached under this checksum."""
    for field in Arrays._fields:
        (_place(spec, checksum) / f"{field}.npy").unlink(missing_ok=True)


def _verified_arrays(spec: Spec, checksum: str) -> Arrays | None:
    """The arrays cached under this checksum, if they match it; a modified copy is deleted."""
    arrays = open_arrays(spec, checksum)
    if arrays is None:
        return None
    place = _place(spec, checksum)
    with contextlib.suppress(OSError, ValueError):
        age = time.time_ns() - os.stat(place / "checked").st_mtime_ns
        recent = 0 <= age < _VERIFIED_FOR_NS  # also not in the future, if the clock was wrong
        if recent and read_bytes(place / "checked").decode("ascii") == _stamp(place):
            return arrays
    if fingerprint(arrays) != checksum:
        _log.warning("the cached copy of %s in %s was modified; decoding again", spec.name, place)
        remove(spec, checksum)
        return None
    with contextlib.suppress(OSError):  # verified again next time
        _mark_verified(place)
    return arrays


def _mark_verified(place: Path) -> None:
    """Record the state of the arrays in `checked`; remove what killed processes left next to it."""
    write_atomic(place / "checked", _stamp(place).encode())
    for path in filter(lambda path: is_temporary(path.name), place.iterdir()):
        with contextlib.suppress(OSError):  # another process has completed or removed it
            if path.lstat().st_mtime < time.time() - _ABANDONED_S:
                path.unlink()


def _stamp(place: Path) -> str:
    """Sizes and modification times of the arrays; `checked` contains those last verified."""
    stats = [os.stat(place / f"{field}.npy") for field in Arrays._fields]
    return "\n".join(f"{stat.st_size} {stat.st_mtime_ns}" for stat in stats)


def _place(spec: Spec, checksum: str) -> Path:
    return folder() / "decoded" / f"{spec.name}-{checksum}"
