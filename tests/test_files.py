"""Manifests detect changes of themselves and of the files that they describe."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.files import (
    DamagedError,
    append_line,
    differs,
    digest,
    memory_bytes,
    read_bytes,
    read_manifest,
    to_json_bytes,
    write_atomic,
    write_manifest,
)
from perdure.state import read_file, write_file

CONTENT = {"of": {"method": "er", "seed": 3}, "step": 12, "seconds": 0.25}


def test_a_manifest_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write_manifest(tmp_path / "m", CONTENT)
    assert read_manifest(tmp_path / "m") == {
        "format": 1,
        **CONTENT,
    }


@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_no_altered_bit_goes_unnoticed(
    place: int, bit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "manifest"
    write_manifest(path, CONTENT)
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= 1 << bit
    path.write_bytes(content)
    with contextlib.suppress(DamagedError):  # or it was white space between the values
        assert read_manifest(path) == {"format": 1, **CONTENT}


def test_a_value_changed_by_hand_is_noticed(tmp_path: Path) -> None:
    write_manifest(tmp_path / "m", CONTENT)
    content = json.loads((tmp_path / "m").read_text())
    (tmp_path / "m").write_bytes(to_json_bytes({**content, "step": 13}))
    with pytest.raises(DamagedError, match="m is damaged"):
        read_manifest(tmp_path / "m")


def test_another_version_is_named(tmp_path: Path) -> None:
    write_manifest(tmp_path / "m", {**CONTENT, "format": 7})
    with pytest.raises(ValueError, match="has format 7; this version reads format 1") as error:
        read_manifest(tmp_path / "m")
    assert not isinstance(error.value, DamagedError)


def test_a_missing_one_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match="m cannot be read: No such file"):
        read_manifest(tmp_path / "m")


def test_digests_tell_contents_apart() -> None:
    assert digest(b"a") != digest(b"b")
    assert digest(b"") == {
        "bytes": 0,
        "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    }


def test_a_file_differs_if_its_size_or_content_does(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert not differs(path, digest(b"abc"))
    for other in (digest(b"abd"), digest(b"abcd"), {}, None):
        assert differs(path, other)


def test_a_file_is_replaced_and_not_overwritten(tmp_path: Path) -> None:
    """Whoever has the old file open keeps reading it as it was: a copy would change it."""
    path = tmp_path / "file"
    write_atomic(path, b"old" * 1000)
    other = tmp_path / "link"
    other.hardlink_to(path)
    with path.open("rb") as opened:
        first = opened.read(3)
        write_atomic(path, b"new")
        assert first + opened.read() == b"old" * 1000
    assert other.read_bytes() == b"old" * 1000
    assert path.read_bytes() == b"new"
    write_file(path, {"steps": 1}, {})
    assert other.read_bytes() == b"old" * 1000
    assert sorted(tmp_path.iterdir()) == [path, other]


def test_a_reader_never_sees_a_part(tmp_path: Path) -> None:
    path, size = tmp_path / "file", 2_000_000
    write_atomic(path, b"0" * size)
    done = threading.Event()
    seen: set[bytes] = set()

    def read() -> None:
        while not done.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for digit in b"123456789" * 2:
        write_atomic(path, bytes([digit]) * size)
    done.set()
    reader.join()
    assert all(len(content) == size and len(set(content)) == 1 for content in seen)


def test_a_file_is_on_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power failure could leave a name without content."""
    path, fsync = tmp_path / "file", os.fsync
    flushed: list[tuple[bool, int]] = []

    def note(descriptor: int) -> None:
        flushed.append((path.exists(), os.fstat(descriptor).st_size))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    write_atomic(path, b"content")
    assert flushed[0] == (False, 7)
    assert [exists for exists, _ in flushed[1:]] == [True]  # the folder


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def fail(file: IO[bytes]) -> None:
        file.write(b"half")
        raise KeyError

    with pytest.raises(KeyError):
        write_atomic(path, fail)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_files_are_read_through_links_but_not_written(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    append_line(path, "first")
    append_line(path, "second")
    link.symlink_to(path)
    assert read_bytes(link) == b"first\nsecond\n"
    with pytest.raises(OSError, match="symbolic link"):
        append_line(link, "third")
    assert read_bytes(path) == b"first\nsecond\n"


def test_a_file_may_be_as_large_as_the_limit(tmp_path: Path) -> None:
    paths = [tmp_path / "file", Path("/proc/version")]  # the system states a size of 0
    paths[0].write_bytes(b"content")
    for path in filter(Path.exists, paths):
        content = path.read_bytes()
        assert read_bytes(path, len(content)) == content
        with pytest.raises(DamagedError, match="too large"):
            read_bytes(path, len(content) - 1)


def test_no_file_stays_open(tmp_path: Path) -> None:
    def next_descriptor() -> int:
        descriptor = os.open(os.devnull, os.O_RDONLY)
        os.close(descriptor)
        return descriptor

    before = next_descriptor()
    write_file(tmp_path / "state", {}, {})
    read_file(tmp_path / "state")
    with pytest.raises(OSError, match="not a regular file"):
        read_bytes(tmp_path)
    assert next_descriptor() == before


def test_the_memory_of_an_unknown_system_is_not_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 2**28 < memory_bytes() < 2**50
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.get)
    assert memory_bytes() == 4096 * 1000
    monkeypatch.delattr(os, "sysconf")
    assert memory_bytes() == 2**40
