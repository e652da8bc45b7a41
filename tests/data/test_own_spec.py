"""Files of a user's own `Spec` without checksums: any content loads or gives a DataError."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import pickle
import resource
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from perdure.data import DataError, Spec, load, verify
from perdure.data.decode import decode_npz
from perdure.data.spec import Arrays, Contents, File, Layout

from .small import idx, jpeg, make, put

GIGABYTE = 2**30
MEMORY = 512 * 2**20
"""Bytes that refusing a file may take at most."""
TOP = "tiny-imagenet-200"
BATCH = "cifar-10-batches-py/data_batch_1"


def own(name: str, layout: int) -> Spec:
    """A user's dataset in an official format, without checksums."""

    def plain(files: tuple[File, ...]) -> tuple[File, ...]:
        return tuple(File(file.path) for file in files)

    spec = make(name).spec
    chosen = spec.layouts[layout]
    return replace(
        spec, name="own", layouts=(Layout(plain(chosen.files), plain(chosen.members)),), url=""
    )


def refusal(spec: Spec, root: Path) -> str:
    """The message with which loading is refused, within the memory limit."""
    used, (soft, hard) = _address_space(), resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    try:
        with pytest.raises(DataError) as error:
            load(spec, root)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    (finding,) = verify(root, [spec])
    assert finding.state == "damaged"
    assert "perdure data fetch" not in str(error.value)  # which does not know the dataset
    return str(error.value)


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@pytest.mark.parametrize(
    ("name", "layout"), [("mnist", 0), ("cifar10", 0), ("cifar10", 1), ("tiny-imagenet", 0)]
)
def test_valid_files_load(name: str, layout: int, tmp_path: Path) -> None:
    small = make(name)
    assert small.same(load(own(name, layout), small.write(tmp_path, layout)))


@pytest.mark.parametrize("place", ["train/n01/images/n01_0.JPEG", "wnids.txt", None])
def test_pipes_are_not_read(place: str | None, tmp_path: Path) -> None:
    """Opening one would wait for a writer for ever."""
    layout = 0 if place is None else 1
    small = make("tiny-imagenet")
    path = small.write(tmp_path, layout) / (f"{TOP}.zip" if place is None else f"{TOP}/{place}")
    path.unlink()
    os.mkfifo(path)
    found = refusal(own("tiny-imagenet", layout), tmp_path)
    assert str(path) in found
    assert "not a regular file" in found


def test_sparse_files_are_not_read(tmp_path: Path) -> None:
    small = make("cifar10")
    path = small.write(tmp_path, 1) / BATCH
    os.truncate(path, 100 * GIGABYTE)
    assert "expected at most" in refusal(own("cifar10", 1), tmp_path)


def archive(*entries: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for entry in entries:
            archive.addfile(entry)
    return buffer.getvalue()


def link(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
@pytest.mark.parametrize("target", [BATCH, "/etc/passwd", "missing"])
def test_links_in_tar_archives(kind: bytes, target: str, tmp_path: Path) -> None:
    put(tmp_path / "cifar-10-python.tar.gz", archive(link(BATCH, target, kind)))
    assert "is not a regular file" in refusal(own("cifar10", 0), tmp_path)


def test_a_tar_archive_that_unpacks_to_gigabytes(tmp_path: Path) -> None:
    entry = tarfile.TarInfo("large")
    entry.size = 4 * GIGABYTE
    data = gzip.compress(entry.tobuf()) + gzip.compress(bytes(2**22)) * 1024
    put(tmp_path / "cifar-10-python.tar.gz", data)
    assert "expected at most" in refusal(own("cifar10", 0), tmp_path)


def test_a_sparse_file_in_a_tar_archive(tmp_path: Path) -> None:
    entry = tarfile.TarInfo(BATCH)
    entry.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(4 * GIGABYTE)}
    put(tmp_path / "cifar-10-python.tar.gz", archive(entry))
    assert "expected at most" in refusal(own("cifar10", 0), tmp_path)


def zipped(data: bytes, kind: int = zipfile.ZIP_DEFLATED, size: int | None = None) -> bytes:
    """The small dataset with one file replaced; `size` is what its directory claims."""
    buffer, name = io.BytesIO(), f"{TOP}/train/n01/images/n01_0.JPEG"
    files = make("tiny-imagenet").files
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in make("tiny-imagenet").paths(1):
            chosen = kind if path == name else zipfile.ZIP_STORED
            archive.writestr(path, data if path == name else files[path], compress_type=chosen)
    packed = buffer.getvalue()
    if size is not None:
        packed = packed.replace(struct.pack("<I", len(data)), struct.pack("<I", size))
    return packed


@pytest.mark.parametrize(
    "data",
    [
        b"PK\5\6" + bytes(18),
        b"not a zip",
        zipped(b"x" * 1000)[:-30],
        zipped(b"\0" * 2**23),
        zipped(b"\0" * 2**23, size=100),
        zipped(bz2.compress(b""), kind=zipfile.ZIP_BZIP2),
        zipped(b"x" * 1000).replace(b"PK\1\2", b"PK\1\3", 1),
        zipped(b"x" * 1000)[:100] + bytes(200) + zipped(b"x" * 1000)[300:],
    ],
    ids=["empty", "text", "cut", "large", "false-size", "bzip2", "directory", "overwritten"],
)
def test_damaged_zip_archives(data: bytes, tmp_path: Path) -> None:
    put(tmp_path / f"{TOP}.zip", data)
    refusal(own("tiny-imagenet", 0), tmp_path)


def bomb(width: int, height: int) -> bytes:
    """A JPEG file whose header claims another size."""
    data = jpeg(Image.new("RGB", (64, 64)))
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


@pytest.mark.parametrize("size", [(65_500, 65_500), (20_000, 9_000), (64, 63), (0, 0)])
def test_jpeg_files_that_claim_another_size(size: tuple[int, int], tmp_path: Path) -> None:
    small = make("tiny-imagenet")
    path = small.write(tmp_path, 1) / TOP / "val/images/val_3.JPEG"
    put(path, bomb(*size))
    assert str(path) in refusal(own("tiny-imagenet", 1), tmp_path)


def test_an_idx_file_that_unpacks_to_gigabytes(tmp_path: Path) -> None:
    small = make("mnist")
    path = small.write(tmp_path) / "MNIST/raw/train-images-idx3-ubyte.gz"
    put(
        path,
        gzip.compress(idx(small.arrays.train_images[:, 0])) + gzip.compress(bytes(2**22)) * 256,
    )
    assert "bytes of idx data" in refusal(own("mnist", 0), tmp_path)


class Nested:
    """Reduces to nested tuples that take 2^60 steps to hash."""

    def __reduce__(self) -> tuple[object, ...]:
        value: object = ()
        for _ in range(60):
            value = (value, value)
        return dict, ([(value, 1)],)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\2}r\xff\xff\xff\x7f.",  # a memo of two thousand million entries
        b"\x80\2}p2147483647\n.",
        b"\x80\2" + b"(" * 10_000 + b".",
        b"\x80\2" + b"]" * 10_000 + b"a" * 9_999 + b".",
        pickle.dumps({((((),) * 2,) * 2,) * 2: 1}, 2).replace(b"\x86", b"\x86" * 60),
        pickle.dumps(Nested(), 2),
        b"\x80\2cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        b"J\xff\xff\xff\x7f\x85U\1O\x87R.",
    ],
)
def test_pickles_that_take_memory_or_time(data: bytes, tmp_path: Path) -> None:
    path = make("cifar10").write(tmp_path, 1) / BATCH
    put(path, data)
    assert "is not a pickled batch" in refusal(own("cifar10", 1), tmp_path)


def npz(**arrays: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "data", [b"", npz(), npz(train_images=np.zeros(2**27, np.uint8)), npz(other=np.zeros(3, "u1"))]
)
def test_invalid_npz_files(data: bytes, tmp_path: Path) -> None:
    size = (4, 1, 2, 2)
    spec = Spec("own", size, size, 2, decode_npz, (Layout((File("own.npz"),)),))
    put(tmp_path / "own.npz", data)
    refusal(spec, tmp_path)


def raises(spec: Spec, contents: Contents) -> Arrays:
    raise KeyError("labels")


def returns_lists(spec: Spec, contents: Contents) -> Arrays:
    return Arrays([1], [2], [3], [4])  # type: ignore[arg-type]


def returns_nothing(spec: Spec, contents: Contents) -> Arrays:
    return None  # type: ignore[return-value]


@pytest.mark.parametrize("decode", [raises, returns_lists, returns_nothing])
def test_decoders_that_fail(decode: Callable[[Spec, Contents], Arrays], tmp_path: Path) -> None:
    size = (4, 1, 2, 2)
    spec = Spec("own", size, size, 2, decode, (Layout((File("own.bin"),)),))
    put(tmp_path / "own.bin", b"")
    assert str(tmp_path / "own.bin") in refusal(spec, tmp_path)


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    small = make("tiny-imagenet")
    small.write(tmp_path, 1)
    put(Path(os.fsdecode(os.fsencode(tmp_path / TOP / "train") + b"/\xff.JPEG")), b"")
    assert small.same(load(own("tiny-imagenet", 1), tmp_path))
