"""Files on the disk, loose or in archives, and their checksums."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from perdure.data.spec import Contents, DataError, File, Layout


def contents(layout: Layout, root: Path) -> Contents:
    """What the files of a layout hold. Archives are read whole and unpacked in memory."""
    found: Contents = {}
    for file in layout.files:
        place = root / file.path
        for path in map(Path, walk(place)) if file.digest is None else [place]:
            if path.suffix == ".zip":
                found |= _unzip(path, read(path, file.digest))
            elif path.name.endswith(".tar.gz"):
                found |= _untar(path, read(path, file.digest), layout.members)
            else:
                found[path] = partial(read, path, file.digest)
    return found


def walk(path: Path) -> Iterator[str]:
    """The file, or all the files in the folder (strings: paths take three times as long)."""
    if not path.is_dir():
        yield str(path)
    for folder, _, names in os.walk(path):
        yield from (os.path.join(folder, name) for name in names)


def read(path: Path, digest: str | None) -> bytes:
    """All of a file, if it has this checksum."""
    return _checked(path, path.read_bytes(), digest)


def _checked(path: Path, data: bytes, digest: str | None) -> bytes:
    if digest is not None:
        algorithm, _, expected = digest.partition(":")
        found = hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()
        if found != expected:
            raise DataError(
                f"{path} ({len(data)} bytes) has {algorithm} {found}, expected {expected}"
            )
    return data


def _untar(path: Path, data: bytes, members: tuple[File, ...]) -> Contents:
    found = dict.fromkeys((member.path for member in members), b"")
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for entry in archive:  # in one pass: going back would mean unpacking again
                if entry.name in found and (file := archive.extractfile(entry)):
                    found[entry.name] = file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is no tar archive ({error})") from None
    return {
        path / name: partial(_checked, path / name, found[name], digest) for name, digest in members
    }


def _unzip(path: Path, data: bytes) -> Contents:
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except zipfile.BadZipFile as error:
        raise DataError(f"{path} is no zip archive ({error})") from None
    return {path / name: partial(archive.read, name) for name in archive.namelist()}
