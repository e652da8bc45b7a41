"""Read a dataset's files, packed or not, up to a limit of size."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import zipfile
import zlib
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from perdure.data.spec import Contents, DataError, File, Layout
from perdure.files import DamagedError, read_bytes

_MAX_SMALL = 2**20
"""Largest size of a file in a folder with a checksum that the decoder does not read."""
_MANY = 100
"""Largest number of files that are reported one by one."""


class FolderChecksum(NamedTuple):
    """The published checksum of a folder, and the checksums of the files read so far."""

    folder: Path
    expected: str
    found: dict[str, bytes]

    def matches(self) -> bool:
        """Whether the files read so far are the published ones."""
        return self._total() == self.expected

    def flaws(
        self, contents: Contents, known: Mapping[str, bytes], reported: Sequence[str] = ()
    ) -> list[str]:
        """How the files of the folder differ from the published ones, if they do.

        Args:
            contents: All files of the layout.
            known: First bytes of the checksum of each published file. With these, the files that
                differ are named, and files that have not been read yet are read.
            reported: Flaws that are known already. A file that one of them begins with is not named
                again.
        """
        flaws = self._differing(contents, known, sorted(reported))
        if flaws or reported or self.matches():  # all known files have now been read
            return flaws
        return [
            f"{self.folder} differs from the published files: the checksum of its "
            f"{len(self.found)} files is {self._total()}, expected {self.expected}"
        ]

    def _total(self) -> str:
        algorithm = self.expected.partition(":")[0]
        total = _new_hash(algorithm)
        for name, digest in sorted(self.found.items()):
            total.update(name.encode("utf-8", "surrogateescape") + b"\0" + digest)
        return f"{algorithm}:{total.hexdigest()}"

    def _differing(
        self, contents: Contents, known: Mapping[str, bytes], reported: Sequence[str]
    ) -> list[str]:
        """The published files that are missing or altered, and additional files next to them."""
        missing, altered, flaws = [], [], []
        for name, start in known.items():
            path = self.folder / name
            if path not in contents:
                missing.append(name)
                continue
            try:
                if name not in self.found:
                    contents[path](_MAX_SMALL)
            except DataError as error:
                flaws.append(str(error))
            else:
                if self.found[name].startswith(start) or _begins_one(reported, f"{path} "):
                    continue
                altered.append(name)
        published = {self.folder / name for name in known}
        kinds = {(path.parent, path.suffix) for path in published}
        additional = [
            str(path.relative_to(self.folder))
            for path in sorted(contents.keys() - published)
            if (path.parent, path.suffix) in kinds
        ]
        flaws += self._listed(missing, "missing")
        flaws += self._listed(altered, "not as published")
        return flaws + self._listed(additional, "not part of the dataset")

    def _listed(self, names: list[str], state: str) -> list[str]:
        if len(names) <= _MANY:
            return [f"{self.folder / name} is {state}" for name in names]
        return [f"{len(names)} files in {self.folder} are {state}, such as {', '.join(names[:3])}"]


def _begins_one(texts: Sequence[str], start: str) -> bool:
    """Whether one of these sorted texts begins with `start` and continues."""
    at = bisect(texts, start)
    return at < len(texts) and texts[at].startswith(start)


def read_files(
    layout: Layout, root: Path, size_limit: int
) -> tuple[Contents, list[FolderChecksum]]:
    """The contents of all files of a layout, and what to check once they have been read.

    Archives are unpacked in memory. Nothing larger than the limit is read.
    """
    contents: Contents = {}
    checksums = []
    for file in layout.files:
        place = root / file.path
        if file.digest is not None and place.is_dir():
            checksum = FolderChecksum(place, file.digest, {})
            checksums.append(checksum)
            for path in map(Path, walk_files(place)):
                contents[path] = partial(_read_in_folder, path, checksum, size_limit)
            continue
        for path in map(Path, walk_files(place)):
            if path.suffix == ".zip":
                contents |= unzip(path, _read(path, file.digest, size_limit), size_limit)
            elif path.name.endswith(".tar.gz"):
                data = _read(path, file.digest, size_limit)
                contents |= _untar(path, data, layout.members, size_limit)
            else:
                contents[path] = partial(_read, path, file.digest, size_limit)
    return contents, checksums


def walk_files(path: Path) -> Iterator[str]:
    """The file itself, or all files in the folder (as strings: `Path` is three times slower).

    Files whose names begin with a dot are left out: macOS adds `._name` to files that it copies.

    Raises:
        OSError: If a folder cannot be read.
    """
    if not path.is_dir():
        yield str(path)
        return
    for folder, _, names in os.walk(path, onerror=_raise):
        yield from (os.path.join(folder, name) for name in names if not name.startswith("."))


def _raise(error: OSError) -> None:
    raise error


def _read(path: Path, digest: str | None, size_limit: int, limit: int | None = None) -> bytes:
    return _verified(path, _regular_file(path, _smaller(size_limit, limit)), digest)


def _read_in_folder(
    path: Path, checksum: FolderChecksum, size_limit: int, limit: int | None = None
) -> bytes:
    try:
        data = _regular_file(path, _smaller(size_limit, limit))
    except OSError as error:  # a pipe or a dangling link, for example
        raise DataError.reading(path, error) from None
    algorithm = checksum.expected.partition(":")[0]
    name = str(path)[len(str(checksum.folder)) + 1 :].replace(os.sep, "/")
    checksum.found[name] = _new_hash(algorithm, data).digest()
    return data


def _smaller(size_limit: int, limit: int | None) -> int:
    return size_limit if limit is None else min(size_limit, limit)


def _regular_file(path: Path, limit: int) -> bytes:
    try:
        return read_bytes(path, limit)
    except DamagedError as error:
        raise DataError(str(error)) from None


def _too_large(path: Path, size: int, limit: int) -> DataError:
    return DataError(f"{path} has {size} bytes or more, expected at most {limit}")


def _verified(path: Path, data: bytes, digest: str | None) -> bytes:
    if digest is not None:
        algorithm, _, expected = digest.partition(":")
        found = _new_hash(algorithm, data).hexdigest()
        if found != expected:
            raise DataError(
                f"{path} ({len(data)} bytes) has {algorithm} {found}, expected {expected}"
            )
    return data


def _new_hash(algorithm: str, data: bytes = b"") -> hashlib._Hash:
    return hashlib.new(algorithm, data, usedforsecurity=False)


def _untar(path: Path, data: bytes, members: tuple[File, ...], size_limit: int) -> Contents:
    found = dict.fromkeys((member.path for member in members), b"")
    stream = _Bounded(path, gzip.GzipFile(fileobj=io.BytesIO(data)), size_limit)
    try:
        # In one pass: seeking back would decompress again.
        with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]
            for entry in archive:
                if entry.name not in found:
                    continue
                if not entry.isreg():
                    raise DataError(f"{path / entry.name} is not a regular file")
                if entry.size > size_limit:  # a sparse file is larger than its bytes in the stream
                    raise _too_large(path / entry.name, entry.size, size_limit)
                if file := archive.extractfile(entry):
                    found[entry.name] = file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is not a tar archive ({error})") from None
    return {
        path / name: partial(_read_member, path / name, found[name], digest)
        for name, digest in members
    }


class _Bounded:
    """A stream of decompressed bytes that ends with an error after a number of them."""

    def __init__(self, path: Path, stream: gzip.GzipFile, limit: int) -> None:
        self.path, self.stream, self.limit, self.count = path, stream, limit, 0

    def read(self, size: int) -> bytes:
        data = self.stream.read(size)
        self.count += len(data)
        if self.count > self.limit:
            raise _too_large(self.path, self.count, self.limit)
        return data


def _read_member(path: Path, data: bytes, digest: str | None, limit: int | None = None) -> bytes:
    if limit is not None and len(data) > limit:
        raise _too_large(path, len(data), limit)
    return _verified(path, data, digest)


def unzip(path: Path, data: bytes, size_limit: int) -> Contents:
    """The members of a zip archive. None larger than the limit is unpacked."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except Exception as error:  # a damaged directory can raise anything
        raise DataError(f"{path} is not a zip archive ({error})") from None
    return {
        path / entry.filename: partial(_unzip_member, path, archive, entry, size_limit)
        for entry in archive.infolist()
    }


def _unzip_member(
    path: Path,
    archive: zipfile.ZipFile,
    entry: zipfile.ZipInfo,
    size_limit: int,
    limit: int | None = None,
) -> bytes:
    place, limit = path / entry.filename, _smaller(size_limit, limit)
    if entry.file_size > limit:
        raise _too_large(place, entry.file_size, limit)
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{place} is compressed by a method other than deflate")
    try:
        with archive.open(entry) as member:
            # With a size: without one, a false size in the directory does not bound the memory.
            return member.read(entry.file_size)
    except Exception as error:  # a damaged member can raise anything
        raise DataError(f"{place} cannot be unpacked ({error})") from None
