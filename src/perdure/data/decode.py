"""Read a dataset's files, packed or not, and decode them to arrays."""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perdure.data.spec import Arrays, Contents, DataError, File, Layout, Shape, Spec

# -- files and archives ---------------------------------------------------------------------


def read_files(layout: Layout, root: Path) -> Contents:
    """The contents of all files of a layout. Archives are unpacked in memory."""
    contents: Contents = {}
    for file in layout.files:
        place = root / file.path
        for path in map(Path, walk_files(place)) if file.digest is None else [place]:
            if path.suffix == ".zip":
                contents |= _unzip(path, _read(path, file.digest))
            elif path.name.endswith(".tar.gz"):
                contents |= _untar(path, _read(path, file.digest), layout.members)
            else:
                contents[path] = partial(_read, path, file.digest)
    return contents


def walk_files(path: Path) -> Iterator[str]:
    """The file itself, or all files in the folder (as strings: `Path` is three times slower)."""
    if not path.is_dir():
        yield str(path)
    for folder, _, names in os.walk(path):
        yield from (os.path.join(folder, name) for name in names)


def _read(path: Path, digest: str | None) -> bytes:
    return _verified(path, path.read_bytes(), digest)


def _verified(path: Path, data: bytes, digest: str | None) -> bytes:
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
            for entry in archive:  # in one pass: seeking back would decompress again
                if entry.name in found and (file := archive.extractfile(entry)):
                    found[entry.name] = file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a tar archive ({error})") from None
    return {
        path / name: partial(_verified, path / name, found[name], digest)
        for name, digest in members
    }


def _unzip(path: Path, data: bytes) -> Contents:
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except zipfile.BadZipFile as error:
        raise DataError(f"{path} is not a zip archive ({error})") from None
    return {path / name: partial(archive.read, name) for name in archive.namelist()}


# -- npz: the bundled digits ----------------------------------------------------------------


def decode_npz(spec: Spec, contents: Contents) -> Arrays:
    """Read one npz file with the fields of `Arrays`; labels are stored as bytes."""
    (read,) = contents.values()
    with np.load(io.BytesIO(read()), allow_pickle=False) as stored:
        return Arrays(*(stored[name].astype(dtype) for name, (_, dtype) in spec.arrays().items()))


# -- idx: MNIST -----------------------------------------------------------------------------


def decode_idx(spec: Spec, contents: Contents) -> Arrays:
    """Read idx files, gzipped or not: training images and labels, test images and labels."""
    arrays = []
    for (path, read), (shape, dtype) in zip(contents.items(), spec.arrays().values(), strict=True):
        n, *image = shape
        values = _idx_values(path, read(), (n, *image[1:]))  # the files have no channel axis
        arrays.append(values.reshape(shape).astype(dtype))
    return Arrays(*arrays)


def _idx_values(path: Path, data: bytes, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path} is not a gzip file ({error})") from None
    header = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
    if data[: len(header)] != header:
        raise DataError(
            f"{path} starts with {data[: len(header)].hex(' ', 4)}, expected {header.hex(' ', 4)}, "
            f"the idx header of {list(shape)} unsigned bytes"
        )
    size = len(header) + math.prod(shape)
    if len(data) != size:
        raise DataError(f"{path} contains {len(data)} bytes of idx data, expected {size}")
    return np.frombuffer(data, np.uint8, offset=len(header)).reshape(shape)


# -- pickled batches: CIFAR-10 and CIFAR-100 ------------------------------------------------


def decode_cifar(spec: Spec, contents: Contents) -> Arrays:
    """Read pickled training batches and one test batch; of CIFAR-100 the fine labels."""
    *train, test = (_cifar_batch(spec, path, read()) for path, read in contents.items())
    images, labels = zip(*train, strict=True)
    return Arrays(np.concatenate(images), np.concatenate(labels), *test)


def _cifar_batch(
    spec: Spec, path: Path, data: bytes
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        batch = _Unpickler(io.BytesIO(data), encoding="bytes").load()
        labels = batch[b"fine_labels"] if b"fine_labels" in batch else batch[b"labels"]
        return batch[b"data"].reshape(-1, *spec.train[1:]), np.array(labels, np.int64)
    except Exception as error:  # unpickling can raise anything
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"{path} is not a pickled batch of {spec.name} ({reason})") from None


def _dtype(kind: bytes, align: int, copy: int) -> np.dtype[Any]:
    return np.dtype(kind.decode("ascii"), align=bool(align), copy=bool(copy))


class _Unpickler(pickle.Unpickler):
    """Allows only the three globals that a pickled array in these files needs."""

    _allowed = {  # noqa: RUF012 (never changed)
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): _dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        return self._allowed[module, name]


# -- a tree of JPEG files: Tiny-ImageNet ----------------------------------------------------


def decode_tiny_imagenet(spec: Spec, contents: Contents) -> Arrays:
    """Read the tree. Classes are numbered in sorted order; the official val split is the test."""
    listing = next((path for path in contents if path.name == "wnids.txt"), Path("wnids.txt"))
    names = sorted(set(_lines(contents, listing)))
    if len(names) != spec.classes:
        raise DataError(f"{listing} lists {len(names)} classes, expected {spec.classes}")
    number = {name: i for i, name in enumerate(names)}

    folders = defaultdict(list)
    for path in sorted(contents):
        if path.suffix == ".JPEG":
            folders[path.parent].append(path)
    train, val = listing.parent / "train", listing.parent / "val"

    per_class = spec.train[0] // spec.classes
    train_paths = []
    for name in names:
        train_paths += _jpegs(folders, train / name / "images", per_class)
    test_paths = _jpegs(folders, val / "images", spec.test[0])

    annotations = val / "val_annotations.txt"
    columns = (line.split()[:2] for line in _lines(contents, annotations))
    classes = dict(pair for pair in columns if len(pair) == 2)
    for path in test_paths:
        if classes.get(path.name) not in number:
            raise DataError(f"{annotations} assigns no class of {listing.name} to {path.name}")
    test_labels = np.array([number[classes[path.name]] for path in test_paths], np.int64)
    if len(set(np.bincount(test_labels, minlength=spec.classes))) > 1:
        raise DataError(f"{annotations} assigns unequal numbers of images to the classes")
    return Arrays(
        _images(contents, train_paths, spec.train),
        np.repeat(np.arange(spec.classes, dtype=np.int64), per_class),
        _images(contents, test_paths, spec.test),
        test_labels,
    )


def _lines(contents: Contents, path: Path) -> list[str]:
    if path not in contents:
        raise DataError(f"{path} is missing")
    return contents[path]().decode("ascii", errors="replace").splitlines()


def _jpegs(folders: dict[Path, list[Path]], folder: Path, count: int) -> list[Path]:
    if len(folders[folder]) != count:
        raise DataError(f"{folder} contains {len(folders[folder])} JPEG files, expected {count}")
    return folders[folder]


def _images(contents: Contents, paths: list[Path], shape: Shape) -> NDArray[np.uint8]:
    from PIL import Image

    images = np.empty(shape, np.uint8)
    _, _, height, width = shape
    for image, path in zip(images, paths, strict=True):
        data = io.BytesIO(contents[path]())
        try:
            with Image.open(data, formats=["JPEG"]) as jpeg:
                size = jpeg.size
                if size == (width, height):
                    image[:] = np.asarray(jpeg.convert("RGB")).transpose(2, 0, 1)
        except OSError:
            raise DataError(f"{path} is not a complete JPEG file") from None
        if size != (width, height):
            raise DataError(f"{path} is {size[0]} x {size[1]}, expected {width} x {height}")
    return images
