"""Decode a dataset's files to arrays."""

from __future__ import annotations

import gzip
import io
import math
import pickle
import pickletools
import struct
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perdure.data.archives import unzip
from perdure.data.spec import Arrays, Contents, DataError, Spec

# -- npz: the bundled digits ----------------------------------------------------------------


def decode_npz(spec: Spec, contents: Contents) -> Arrays:
    """Read one npz file with the fields of `Arrays`; labels are stored as bytes."""
    ((path, read),) = contents.items()
    members = unzip(path, read(), spec.size_limit)
    arrays = []
    for name, (shape, dtype) in spec.arrays().items():
        data = members[path / f"{name}.npy"]() if path / f"{name}.npy" in members else b""
        stream = io.BytesIO(data)
        try:
            np.lib.format.read_magic(stream)
            found, _, kind = np.lib.format.read_array_header_1_0(stream)
        except ValueError as error:
            raise DataError(f"{path} contains no array {name} ({error})") from None
        if found != shape or kind.hasobject:
            raise DataError(f"{path} contains {name} {list(found)}, expected {list(shape)}")
        stream.seek(0)
        arrays.append(np.lib.format.read_array(stream, allow_pickle=False).astype(dtype))
    return Arrays(*arrays)


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
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
                data = file.read(16 + math.prod(shape) + 1)  # at most one byte too many
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
        _check_opcodes(data)
        batch = _Unpickler(io.BytesIO(data), encoding="bytes").load()
        labels = batch[b"fine_labels"] if b"fine_labels" in batch else batch[b"labels"]
        images = np.frombuffer(bytearray(batch[b"data"].content), np.uint8)  # writable
        return images.reshape(-1, *spec.train[1:]), np.array(labels, np.int64)
    except Exception as error:  # unpickling can raise anything
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"{path} is not a pickled batch of {spec.name} ({reason})") from None


_OPCODES = frozenset(
    {"PROTO", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2"}
    | {"BINSTRING", "SHORT_BINSTRING", "BINUNICODE", "GLOBAL", "REDUCE", "BUILD"}
    | {"EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND", "APPENDS"}
    | {"EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
    | {"PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET"}
)
_MAX_TUPLES = 16
"""Nested tuples that share their parts take exponential time as keys."""


def _check_opcodes(data: bytes) -> None:
    """Raise ValueError unless these are the operations of a dict of strings, lists and an array."""
    tuples = 0
    for number, (opcode, value, _) in enumerate(pickletools.genops(data)):
        if opcode.name not in _OPCODES:
            raise ValueError(f"{opcode.name} is not allowed")
        tuples += opcode.name.startswith("TUPLE")
        if tuples > _MAX_TUPLES:
            raise ValueError(f"more than {_MAX_TUPLES} tuples")
        if opcode.name.endswith("PUT") and (value or 0) > number:  # takes memory for all below
            raise ValueError(f"{opcode.name} {value} is too large")


class _PickledArray:
    """Takes the place of an array: keeps its bytes and ignores the rest."""

    content = b""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if isinstance(state[-1], bytes):
            self.content = state[-1]


class _Unpickler(pickle.Unpickler):
    """Replaces the three globals of a pickled array in these files and allows no others."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in (
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
        ):
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        return lambda *_: _PickledArray()


# -- a tree of JPEG files: Tiny-ImageNet ----------------------------------------------------


_MAX_TEXT = 2**24
_MAX_HEADER = 2**20
"""Bytes of a text file, and of a JPEG file in addition to four for each value."""


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

    flaws: list[str] = []
    per_class = spec.train[0] // spec.classes
    train_paths = []
    for name in names:
        train_paths += _jpegs(folders, train / name / "images", per_class, flaws)
    test_paths = _jpegs(folders, val / "images", spec.test[0], flaws)

    annotations = val / "val_annotations.txt"
    classes: dict[str, str] = {}
    if annotations in contents:
        columns = (line.split()[:2] for line in _lines(contents, annotations))
        classes = dict(pair for pair in columns if len(pair) == 2)
        if unknown := [p.name for p in test_paths if classes.get(p.name) not in number]:
            flaws.append(f"{annotations} assigns no class of {listing.name} to {_some(unknown)}")
        present = {path.name for path in folders[val / "images"]}
        if missing := [name for name in classes if name not in present]:
            flaws.append(f"{val / 'images'} does not contain {_some(missing)}")
    else:
        flaws.append(f"{annotations} is missing")

    train_images = _images(contents, train_paths, spec.train[1:], flaws)
    test_images = _images(contents, test_paths, spec.test[1:], flaws)
    if flaws:
        raise DataError.of(flaws)
    test_labels = np.array([number[classes[path.name]] for path in test_paths], np.int64)
    if len(set(np.bincount(test_labels, minlength=spec.classes))) > 1:
        raise DataError(f"{annotations} assigns unequal numbers of images to the classes")
    return Arrays(
        train_images,
        np.repeat(np.arange(spec.classes, dtype=np.int64), per_class),
        test_images,
        test_labels,
    )


def _some(names: list[str]) -> str:
    """The first three names, and how many others there are.

    >>> _some(["a.JPEG", "b.JPEG", "c.JPEG", "d.JPEG"])
    'a.JPEG, b.JPEG, c.JPEG and 1 more'
    """
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _lines(contents: Contents, path: Path) -> list[str]:
    """The lines of a text file without surrounding blanks; empty lines are left out."""
    try:
        data = contents[path](_MAX_TEXT)
    except KeyError:
        raise DataError(f"{path} is missing") from None
    except OSError as error:
        raise DataError.reading(path, error) from None
    lines = (line.strip() for line in data.decode("ascii", errors="replace").splitlines())
    return [line for line in lines if line]


def _jpegs(
    folders: dict[Path, list[Path]], folder: Path, count: int, flaws: list[str]
) -> list[Path]:
    """The images in a folder, at most `count`; another number of them is added to the flaws."""
    if len(folders[folder]) != count:
        flaws.append(f"{folder} contains {len(folders[folder])} JPEG files, expected {count}")
    return folders[folder][:count]


def _images(
    contents: Contents, paths: list[Path], shape: tuple[int, int, int], flaws: list[str]
) -> NDArray[np.uint8]:
    """Decode images [n, *shape]; images that cannot be decoded become flaws.

    In one thread: several are no faster, because most of the time for such small images is spent
    under the interpreter lock.
    """
    images = np.empty((len(paths), *shape), np.uint8)
    for path, image in zip(paths, images, strict=True):
        flaw = _decode_image(contents, path, image)
        if flaw is not None:
            flaws.append(flaw)
    return images


def _decode_image(contents: Contents, path: Path, image: NDArray[np.uint8]) -> str | None:
    """Decode one image into the array; returns what is wrong with it, if anything."""
    from PIL import Image

    _, height, width = image.shape
    try:
        data = contents[path](_MAX_HEADER + 4 * image.size)
    except DataError as error:
        return str(error)
    try:
        with Image.open(io.BytesIO(data), formats=["JPEG"]) as jpeg:
            if jpeg.size != (width, height):
                return f"{path} is {jpeg.size[0]} x {jpeg.size[1]}, expected {width} x {height}"
            pixels = (jpeg if jpeg.mode == "RGB" else jpeg.convert("RGB")).tobytes()
    except Exception:  # Pillow raises anything, also for a size that it considers an attack
        return f"{path} is not a complete JPEG file"
    image[:] = np.frombuffer(pixels, np.uint8).reshape(height, width, 3).transpose(2, 0, 1)
    return None
