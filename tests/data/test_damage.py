"""Damaged files raise a DataError that names the file."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from perdure.data import DataError, load

from .small import LAYOUTS, Small, batch, idx, jpeg, make, put, tar

TOP = "tiny-imagenet-200"
BATCH = "cifar-10-batches-py/data_batch_1"
CHECKED = [(name, i) for name, i in LAYOUTS if (name, i) != ("tiny-imagenet", 1)]


def error_message(small: Small, root: Path) -> str:
    with pytest.raises(DataError) as error:
        load(small.spec, root)
    return str(error.value)


@pytest.mark.parametrize(("name", "layout"), CHECKED)
def test_a_truncated_file_is_rejected(name: str, layout: int, tmp_path: Path) -> None:
    small = make(name)
    small.write(tmp_path, layout)
    path = tmp_path / small.paths(layout)[-1]
    put(path, path.read_bytes()[:-1])
    message = error_message(small, tmp_path)
    assert f"{path} ({path.stat().st_size} bytes) has md5" in message
    assert f"`perdure data fetch {name} --data {tmp_path}`" in message


@settings(max_examples=150, deadline=None)
@given(
    which=st.sampled_from(CHECKED),
    file=st.integers(0, 100),
    offset=st.integers(0, 10**6),
    bit=st.none() | st.integers(0, 7),
)
def test_any_damage_is_detected(
    which: tuple[str, int], file: int, offset: int, bit: int | None
) -> None:
    """Truncate a file anywhere or flip any bit, before or after it was loaded once."""
    small = make(which[0])
    paths = small.paths(which[1])
    with tempfile.TemporaryDirectory() as folder:
        root = small.write(Path(folder), which[1])
        if offset % 2:
            load(small.spec, root)
        path = root / paths[file % len(paths)]
        data = bytearray(path.read_bytes())
        offset %= len(data)
        if bit is None:
            del data[offset:]
        else:
            data[offset] ^= 1 << bit
        put(path, bytes(data), age=1800)
        with pytest.raises(DataError):
            load(small.spec, root)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_tree_is_rejected_or_read_unchanged(data: st.DataObject) -> None:
    """Its files have no published checksums: a flipped bit may give another valid JPEG."""
    small = make("tiny-imagenet")
    name = data.draw(st.sampled_from(small.paths(1)))
    content = bytearray(small.files[name])
    offset = data.draw(st.integers(0, len(content) - 1))
    cut = data.draw(st.booleans())
    if cut:
        del content[offset:]
    else:
        content[offset] ^= 1 << data.draw(st.integers(0, 7))
    with tempfile.TemporaryDirectory() as folder:
        root = small.write(Path(folder), 1)
        put(root / name, bytes(content), age=1800)
        try:
            right = small.same(load(small.spec, root))
        except DataError:
            right = True
        assert right or (name.endswith("JPEG") and not cut)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            idx(np.zeros((20, 28, 28), np.uint8))[:-1],
            "contains 15695 bytes of idx data, expected 15696",
        ),
        (idx(np.zeros((20, 28, 28), np.uint8)) + b"\0", "expected 15696"),
        (idx(np.zeros((19, 28, 28), np.uint8)), "starts with 00000803 00000013"),
        (idx(np.zeros((20, 28, 27), np.uint8)), "expected 00000803 00000014 0000001c 0000001c"),
        (idx(np.zeros(20, np.uint8)), "the idx header of [20, 28, 28] unsigned bytes"),
        (b"", "starts with "),
    ],
)
def test_idx_files_with_a_wrong_shape(data: bytes, expected: str, tmp_path: Path) -> None:
    """The checksum of each file matches."""
    for layout, packed in ((0, gzip.compress(data)), (1, data)):
        path = make("mnist").paths(layout)[0]
        small = make("mnist").altered(path, packed)
        message = error_message(small, small.write(tmp_path / str(layout), layout))
        assert str(tmp_path / str(layout) / path) in message
        assert expected in message


def test_labels_must_be_in_range(tmp_path: Path) -> None:
    labels = np.arange(10, dtype=np.uint8) + 1
    small = make("mnist").altered(make("mnist").paths(1)[3], idx(labels))
    message = error_message(small, small.write(tmp_path, 1))
    assert "contains test labels from 1 to 10, expected 0 to 9" in message


def test_broken_gzip_files_and_archives(tmp_path: Path) -> None:
    for name, what in (
        ("mnist", "gzip file"),
        ("cifar10", "tar archive"),
        ("tiny-imagenet", "zip"),
    ):
        for junk in (b"junk", make(name).files[make(name).paths()[0]][:200]):
            small = make(name).altered(make(name).paths()[0], junk)
            assert f"is not a {what}" in error_message(small, small.write(tmp_path))


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, ("bang",)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (pickle.dumps(Bomb(), 2), "mkdir is not allowed"),
        (pickle.dumps(np.zeros(3, np.uint8), 2), "is not allowed"),
        (pickle.dumps([1, 2], 2), "is not a pickled batch of cifar10"),
        (pickle.dumps({b"data": 1}, 2), "is not a pickled batch of cifar10"),
        (b"", "is not a pickled batch of cifar10 ("),
        (
            batch(np.zeros((3, 3, 32, 32), np.uint8), np.zeros(3, np.int64), fine=False),
            "[19, 3, 32, 32]",
        ),
        (batch(np.zeros((4, 3, 32, 32), np.uint8), np.zeros(3, np.int64), fine=False), "int64[19]"),
        (batch(np.zeros((4, 3, 32, 31), np.uint8), np.zeros(4, np.int64), fine=False), "reshape"),
        (batch(np.zeros((4, 3, 32, 32), np.uint8), np.full(4, 10), fine=False), "from 0 to 10"),
    ],
)
def test_invalid_cifar_batches(
    data: bytes, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = make("cifar10").altered(BATCH, data)
    assert expected in error_message(small, small.write(tmp_path, 1))
    assert not Path("bang").exists()


def test_files_with_a_wrong_checksum_are_not_unpickled(tmp_path: Path) -> None:
    def unreachable(*_: object) -> None:
        raise AssertionError("unpickled")

    small = make("cifar10")
    for layout in (0, 1):
        small.write(tmp_path, layout)
        put(tmp_path / small.paths(layout)[0], pickle.dumps(Bomb(), 2))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("perdure.data.decode._Unpickler.load", unreachable)
            assert "has md5" in error_message(small, tmp_path)
        (tmp_path / small.paths(layout)[0]).unlink()


def test_an_archive_without_a_member(tmp_path: Path) -> None:
    files = {path: data for path, data in make("cifar10").files.items() if "batch" in path}
    del files[BATCH]
    small = make("cifar10").altered("cifar-10-python.tar.gz", tar(files))
    assert f"{BATCH} (0 bytes) has md5" in error_message(small, small.write(tmp_path))


def test_a_folder_instead_of_a_file(tmp_path: Path) -> None:
    small = make("cifar10")
    small.write(tmp_path, 1)
    (tmp_path / BATCH).unlink()
    (tmp_path / BATCH).mkdir()
    assert f"{tmp_path / BATCH} differs from the published files" in error_message(small, tmp_path)


def picture(size: tuple[int, int] = (64, 64), kind: str = "JPEG") -> bytes:
    if kind == "JPEG":
        return jpeg(Image.new("RGB", size))
    buffer = io.BytesIO()
    Image.new("RGB", size).save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("path", "data", "expected"),
    [
        ("wnids.txt", None, "wnids.txt is missing"),
        ("wnids.txt", b"n01\nn02\n", "lists 2 classes, expected 3"),
        ("wnids.txt", b"n01\nn02\nn04\n", "train/n04/images contains 0 JPEG files, expected 2"),
        ("train/n02/images/n02_1.JPEG", None, "train/n02/images contains 1 JPEG files, expected 2"),
        ("train/n02/images/n02_2.JPEG", picture(), "contains 3 JPEG files, expected 2"),
        ("train/n02/images/n02_1.JPEG", picture((64, 63)), "is 64 x 63, expected 64 x 64"),
        (
            "train/n02/images/n02_1.JPEG",
            picture(kind="PNG"),
            "n02_1.JPEG is not a complete JPEG file",
        ),
        ("train/n02/images/n02_1.JPEG", b"", "n02_1.JPEG is not a complete JPEG file"),
        ("val/images/val_0.JPEG", None, "val/images contains 5 JPEG files, expected 6"),
        ("val/val_annotations.txt", None, "val_annotations.txt is missing"),
        (
            "val/val_annotations.txt",
            b"".join(b"val_%d.JPEG\tn01\n" % i for i in range(6)),
            "unequal numbers of images",
        ),
        (
            "val/val_annotations.txt",
            b"val_0.JPEG\tn09\n\n",
            "assigns no class of wnids.txt to val_0.JPEG",
        ),
        ("val/val_annotations.txt", b"\xff\tn01", "assigns no class of wnids.txt to val_0.JPEG"),
    ],
)
def test_invalid_image_trees(path: str, data: bytes | None, expected: str, tmp_path: Path) -> None:
    small = make("tiny-imagenet")
    file = small.write(tmp_path, 1) / TOP / path
    if data is None:
        file.unlink()
    else:
        put(file, data)
    assert expected in error_message(small, tmp_path)
