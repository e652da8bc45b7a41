"""The cache of decoded datasets: used if valid, rebuilt if not, optional."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from numpy.typing import NDArray

from perdure.cli import main
from perdure.data import DATASETS, DataError, Dataset, load, verify
from perdure.data.spec import Arrays, Contents, Spec

from .small import LAYOUTS, Small, make, put


class Counted:
    """Loads a small dataset and counts how often it is decoded."""

    def __init__(self, small: Small, root: Path, layout: int = 0) -> None:
        self.small, self.root, self.decoded = small, small.write(root, layout), 0

        def decode(spec: Spec, contents: Contents) -> Arrays:
            self.decoded += 1
            return small.spec.decode(spec, contents)

        self.spec = replace(small.spec, decode=decode)

    def load(self, *, keep: bool = False) -> int:
        assert self.small.same(load(self.spec, self.root, keep=keep))
        return self.decoded


def cached(cache: Path) -> dict[str, Path]:
    return {path.name: path for path in cache.glob("decoded/*/*.npy")}


@pytest.mark.parametrize(("name", "layout"), LAYOUTS)
def test_files_are_decoded_once(name: str, layout: int, tmp_path: Path, cache: Path) -> None:
    counted = Counted(make(name), tmp_path, layout)
    assert [counted.load() for _ in range(3)] == [1, 1, 1]
    assert sorted(cached(cache)) == [
        "test_images.npy",
        "test_labels.npy",
        "train_images.npy",
        "train_labels.npy",
    ]
    checksum = load(counted.spec, tmp_path).checksum
    assert cached(cache)["test_images.npy"].parent.name == f"{name}-{checksum}"


def test_a_modified_file_is_verified_again(tmp_path: Path) -> None:
    counted = Counted(make("cifar10"), tmp_path, 1)
    counted.load()
    path = tmp_path / counted.small.paths(1)[2]
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert [counted.load(), counted.load()] == [2, 2]
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    put(path, bytes(data), age=60)
    with pytest.raises(DataError, match="has md5"):
        counted.load()


def test_a_file_modified_just_now_is_not_cached(tmp_path: Path) -> None:
    """It could change again without a new modification time."""
    counted = Counted(make("mnist"), tmp_path)
    path = tmp_path / counted.small.paths()[0]
    os.utime(path, (time.time() + 1000, time.time() + 1000))  # however long the test takes
    assert [counted.load(), counted.load()] == [1, 2]
    os.utime(path, (time.time() - 10, time.time() - 10))
    assert [counted.load(), counted.load()] == [3, 3]


def cut(data: bytes) -> bytes:
    return data[:-1]


def grow(data: bytes) -> bytes:
    return data + b"\0"


def reshape(data: bytes) -> bytes:
    return data.replace(b"28, 28", b"56, 14")


def empty(data: bytes) -> bytes:
    return b""


def flip(data: bytes) -> bytes:
    """Flip one bit in an image."""
    return data[:1000] + bytes([data[1000] ^ 4]) + data[1001:]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_pipes_in_the_cache_are_not_read(tmp_path: Path, cache: Path) -> None:
    counted = Counted(make("mnist"), tmp_path)
    counted.load()
    for path in [*(cache / "decoded/sources").iterdir(), *cached(cache).values()]:
        path.unlink()
        os.mkfifo(path)
    assert counted.load() == 2


@pytest.mark.parametrize("damage", [cut, grow, reshape, empty, flip, None])
def test_a_damaged_copy_is_rebuilt(
    damage: Callable[[bytes], bytes] | None, tmp_path: Path, cache: Path
) -> None:
    counted = Counted(make("mnist"), tmp_path)
    counted.load()
    path = cached(cache)["train_images.npy"]
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    assert [counted.load(), counted.load()] == [2, 2]


def hidden_flip(cache: Path) -> None:
    """Alter a cached array without a trace in its size or modification time."""
    path = cached(cache)["train_images.npy"]
    times = path.stat()
    path.write_bytes(flip(path.read_bytes()))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("hours", [25, -2])
def test_the_cached_arrays_are_verified_once_a_day(hours: int, tmp_path: Path, cache: Path) -> None:
    counted = Counted(make("mnist"), tmp_path)
    counted.load()
    hidden_flip(cache)
    load(counted.spec, tmp_path)
    assert counted.decoded == 1  # verified a moment ago
    for path in cache.glob("decoded/*/checked"):
        then = path.stat().st_mtime - hours * 3600
        os.utime(path, (then, then))
    assert [counted.load(), counted.load()] == [2, 2]


@pytest.mark.parametrize("entry", [b"", b"0123456789abcdef", b"\xff\0", b"../../.."])
def test_a_damaged_entry_of_sources_is_ignored(entry: bytes, tmp_path: Path, cache: Path) -> None:
    counted = Counted(make("mnist"), tmp_path)
    counted.load()
    for path in cache.glob("decoded/sources/*"):
        path.write_bytes(entry)
    assert [counted.load(), counted.load()] == [2, 2]


@pytest.fixture
def unwritable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that cannot be written."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path / "file" / "cache"))


@pytest.mark.usefixtures("unwritable")
def test_loading_works_without_a_writable_cache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, layout in LAYOUTS:
        counted = Counted(make(name), tmp_path / name / str(layout), layout)
        assert [counted.load(), counted.load()] == [1, 2]
        load(counted.spec, counted.root).test.inputs.zero_()
    assert "$PERDURE_CACHE" in caplog.messages[0]


@pytest.mark.usefixtures("unwritable")
def test_without_a_writable_cache_the_last_dataset_is_kept_if_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mnist = Counted(make("mnist"), tmp_path / "mnist")
    other = Counted(make("cifar10"), tmp_path / "cifar")
    assert [mnist.load(keep=True) for _ in range(3)] == [1, 1, 1]
    assert len(caplog.messages) == 1
    load(mnist.spec, mnist.root).train.inputs.zero_()  # has its own memory
    assert [mnist.decoded, mnist.load(keep=True)] == [2, 2]
    put(mnist.root / mnist.small.paths()[0], mnist.small.files[mnist.small.paths()[0]], age=1800)
    assert [mnist.load(keep=True), mnist.load(keep=True)] == [3, 3]
    assert other.load(keep=True) == 1
    assert mnist.load(keep=True) == 4  # at most one dataset is kept


@pytest.mark.usefixtures("unwritable")
def test_a_command_decodes_once_without_a_writable_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    counted = Counted(make("mnist"), tmp_path)
    monkeypatch.setitem(DATASETS, "mnist", counted.spec)
    monkeypatch.chdir(tmp_path)
    options = ["--data", ".", "--batch", "2", "--max-steps", "2", "--quiet"]
    assert main(["run", "s-mnist", *options]) == 0
    assert counted.decoded == 1
    assert sum("$PERDURE_CACHE" in message for message in caplog.messages) == 1


@pytest.mark.usefixtures("unwritable")
def test_workers_do_not_repeat_the_warning_of_their_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("perdure.data.cache.parent_process", lambda: "the parent")
    assert Counted(make("mnist"), tmp_path).load() == 1
    assert caplog.messages == []


def test_what_a_killed_process_left_is_removed_an_hour_later(tmp_path: Path, cache: Path) -> None:
    counted = Counted(make("mnist"), tmp_path)
    counted.load()
    folder = cached(cache)["train_images.npy"].parent
    old, recent, other = (
        folder / name
        for name in (".train_images.npy.0a1b2c3d.tmp", ".test_images.npy.0a1b2c3d.tmp", "notes.tmp")
    )
    put(old, b"part", age=3700)
    put(recent, b"part", age=60)  # another process may be writing it
    put(other, b"mine", age=3700)
    cached(cache)["train_images.npy"].unlink()
    assert counted.load() == 2
    assert [path.exists() for path in (old, recent, other)] == [False, True, True]


def test_an_interrupted_write_leaves_no_files(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(make("mnist"), tmp_path)
    save = np.save

    def interrupted(file: IO[bytes], arr: NDArray[np.uint8]) -> None:
        save(file, arr[:3])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("numpy.save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            counted.load()
    assert [path for path in cache.rglob("*") if path.is_file()] == []
    assert [counted.load(), counted.load()] == [2, 2]


def test_concurrent_loading(tmp_path: Path, cache: Path) -> None:
    small = make("cifar100")
    small.write(tmp_path)

    def read(_: int) -> Dataset:
        return load(small.spec, tmp_path)

    with ThreadPoolExecutor(8) as pool:
        assert all(map(small.same, pool.map(read, range(16))))
    assert len(cached(cache)) == len(list(cache.glob("decoded/cifar*/*"))) - 1 == 4  # checked


def test_verify_does_not_rely_on_the_cache(tmp_path: Path) -> None:
    mnist, cifar, tiny = make("mnist"), make("cifar10"), make("tiny-imagenet")
    mnist.write(tmp_path)
    cifar.write(tmp_path)
    load(cifar.spec, tmp_path)
    path = tmp_path / cifar.paths()[0]
    times = path.stat()
    path.write_bytes(bytes(times.st_size))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    load(cifar.spec, tmp_path)  # same size and modification time: not noticed

    good, damaged, missing = verify(tmp_path, [mnist.spec, cifar.spec, tiny.spec])
    assert (good.name, good.path, good.state) == ("mnist", tmp_path / "MNIST/raw", "ok")
    assert load(mnist.spec, tmp_path).checksum in good.message
    assert (damaged.path, damaged.state) == (path, "damaged")
    assert "has md5" in damaged.message
    assert (missing.path, missing.state) == (None, "missing")


def test_verify_deletes_a_modified_copy(tmp_path: Path, cache: Path) -> None:
    counted = Counted(make("mnist"), tmp_path)
    counted.load()
    path = cached(cache)["test_images.npy"]
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    (finding,) = verify(tmp_path, [counted.spec])
    assert finding.state == "ok"
    assert "deleted" in finding.message
    assert counted.load() == 3


def test_verify_checks_all_datasets_by_default(tmp_path: Path) -> None:
    assert [(finding.name, finding.state) for finding in verify(tmp_path)] == [
        ("mnist", "missing"),
        ("mnist5k", "ok"),
        ("cifar10", "missing"),
        ("cifar100", "missing"),
        ("tiny-imagenet", "missing"),
    ]


def test_the_default_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure.data import cache

    monkeypatch.delenv("PERDURE_CACHE")
    assert "perdure" in cache.folder().parts
