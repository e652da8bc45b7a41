"""Small datasets of random images in the official file names and formats."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import struct
import tarfile
import zipfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from perdure.data import DATASETS, Dataset, Spec
from perdure.data.spec import Arrays, File, Layout, Shape

NAMES = ("mnist", "cifar10", "cifar100", "tiny-imagenet")
LAYOUTS = [(name, i) for name in NAMES for i in range(len(DATASETS[name].layouts))]


@dataclass(frozen=True)
class Small:
    """A dataset and its files in every layout."""

    spec: Spec
    arrays: Arrays
    files: dict[str, bytes]

    def paths(self, layout: int = 0) -> list[str]:
        """All files of a layout, including those in folders."""
        parts = [file.path for file in self.spec.layouts[layout].files]
        return [p for p in self.files if p in parts or any(p.startswith(f"{x}/") for x in parts)]

    def write(self, root: Path, layout: int = 0) -> Path:
        """Write the files of a layout, with modification times in the past."""
        for path in self.paths(layout):
            put(root / path, self.files[path])
        return root

    def altered(self, path: str, data: bytes) -> Small:
        """A copy with another content of one file, to which the checksums are adapted."""
        return publish(self.spec, self.arrays, {**self.files, path: data})

    def same(self, dataset: Dataset) -> bool:
        """Whether the dataset contains exactly these arrays."""
        got = Arrays(
            *(tensor.numpy() for tensor in (*dataset.train[:2], *dataset.test[:2])),
        )
        return all(np.array_equal(getattr(self.arrays, f), getattr(got, f)) for f in got._fields)


def put(path: Path, data: bytes, *, age: int = 3600) -> None:
    """Write a file that was last modified `age` seconds ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, ns=(then := path.stat().st_mtime_ns - age * 10**9, then))


def publish(spec: Spec, arrays: Arrays, files: dict[str, bytes]) -> Small:
    """A copy of the spec with the checksums of these files."""

    def stamped(file: File) -> File:
        if file.digest is None:
            return file
        if file.path not in files:
            return File(file.path, folder_digest(files, file.path))
        return File(file.path, f"md5:{hashlib.md5(files[file.path]).hexdigest()}")

    layouts = tuple(
        Layout(tuple(map(stamped, layout.files)), tuple(map(stamped, layout.members)))
        for layout in spec.layouts
    )
    return Small(replace(spec, layouts=layouts), arrays, files)


def folder_digest(files: dict[str, bytes], folder: str) -> str:
    """The checksum of the images and annotations in a folder."""
    used = {p: data for p, data in files.items() if p.endswith(("JPEG", "annotations.txt"))}
    total = hashlib.sha256()
    for path, data in sorted(used.items()):
        if path.startswith(f"{folder}/"):
            name = path.removeprefix(f"{folder}/").encode()
            total.update(name + b"\0" + hashlib.sha256(data).digest())
    return f"sha256:{total.hexdigest()}"


@cache
def make(name: str) -> Small:
    """The small dataset of this name."""
    if name == "mnist":
        return mnist()
    return tiny_imagenet() if name == "tiny-imagenet" else cifar(name)


def draw(train: Shape, test: Shape, classes: int) -> Arrays:
    rng = np.random.default_rng(0)
    return Arrays(
        rng.integers(0, 256, train, dtype=np.uint8),
        rng.permutation(np.arange(train[0]) % classes).astype(np.int64),
        rng.integers(0, 256, test, dtype=np.uint8),
        rng.permutation(np.arange(test[0]) % classes).astype(np.int64),
    )


def mnist() -> Small:
    spec = replace(DATASETS["mnist"], train=(20, 1, 28, 28), test=(10, 1, 28, 28))
    arrays = draw(spec.train, spec.test, spec.classes)
    files = {}
    for layout in spec.layouts:
        for file, field in zip(layout.files, arrays._fields, strict=True):
            data = idx(getattr(arrays, field).squeeze())
            files[file.path] = gzip.compress(data, mtime=0) if file.path.endswith("gz") else data
    return publish(spec, arrays, files)


def idx(array: NDArray[np.uint8] | NDArray[np.int64]) -> bytes:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def cifar(name: str, *, per_batch: int = 4, tests: int = 3) -> Small:
    spec = DATASETS[name]
    archive, members = spec.layouts[0].files[0].path, [f.path for f in spec.layouts[1].files]
    batches = len(members) - 1
    spec = replace(spec, train=(per_batch * batches, 3, 32, 32), test=(tests, 3, 32, 32))
    arrays = draw(spec.train, spec.test, spec.classes)
    inputs = [*np.split(arrays.train_images, batches), arrays.test_images]
    labels = [*np.split(arrays.train_labels, batches), arrays.test_labels]
    files = {
        path: batch(pixels, classes, fine=name == "cifar100")
        for path, pixels, classes in zip(members, inputs, labels, strict=True)
    }
    files[archive] = tar({"readme.html": b"<html>", **dict(reversed(files.items()))})
    return publish(spec, arrays, files)


def tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, data in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def batch(inputs: NDArray[np.uint8], labels: NDArray[np.int64], *, fine: bool) -> bytes:
    """A pickle as written by Python 2 and numpy 1; Python 3 cannot write this format."""

    def string(text: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(text)) + text

    def numbers(values: list[int]) -> bytes:
        return b"](" + b"".join(b"K" + bytes([value]) for value in values) + b"e"

    rows, columns = inputs.reshape(len(inputs), -1).shape
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85" + string(b"b") + b"\x87R"
    )
    shape = b"M" + struct.pack("<H", rows) + b"M" + struct.pack("<H", columns) + b"\x86"
    dtype = b"cnumpy\ndtype\n" + string(b"u1") + b"K\0K\1\x87R"
    dtype += b"(K\3" + string(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
    array += b"(K\1" + shape + dtype + b"\x89" + string(inputs.tobytes()) + b"tb"
    classes = string(b"fine_labels" if fine else b"labels") + numbers(labels.tolist())
    if fine:
        classes += string(b"coarse_labels") + numbers([0] * rows)
    return b"\x80\2}(" + string(b"data") + array + classes + b"u."


def tiny_imagenet(classes: int = 3) -> Small:
    """Two training and two test images of each class; the first is grayscale."""
    wnids = [f"n{i:02}" for i in (2, 1, *range(3, classes + 1))]
    size = (2 * classes, 3, 64, 64)
    official = DATASETS["tiny-imagenet"]
    spec = replace(official, train=size, test=size, classes=classes, checksums=dict)
    top = "tiny-imagenet-200"
    rng = np.random.default_rng(0)
    shades = rng.integers(0, 256, (4 * classes, 8, 8, 3), dtype=np.uint8)
    pictures = [Image.fromarray(image).resize((64, 64)) for image in shades]
    pictures[0] = pictures[0].convert("L")
    names = [f"train/{w}/images/{w}_{i}.JPEG" for w in sorted(wnids) for i in range(2)]
    names += [f"val/images/val_{i}.JPEG" for i in range(2 * classes)]
    files = {f"{top}/{name}": jpeg(p) for name, p in zip(names, pictures, strict=True)}
    files[f"{top}/wnids.txt"] = "\n".join(wnids).encode()
    lines = [f"val_{i}.JPEG\t{w}\t0\t0\t62\t62\n" for i, w in enumerate([*wnids, *sorted(wnids)])]
    files[f"{top}/val/val_annotations.txt"] = "".join(lines).encode()
    files[f"{top}/train/n01/n01_boxes.txt"] = b"n01_0.JPEG\t0\t0\t62\t62\n"
    decoded = [
        np.asarray(Image.open(io.BytesIO(files[f"{top}/{name}"])).convert("RGB")) for name in names
    ]
    inputs = np.stack(decoded).transpose(0, 3, 1, 2)
    number = {wnid: i for i, wnid in enumerate(sorted(wnids))}
    arrays = Arrays(
        inputs[: 2 * classes],
        np.repeat(np.arange(classes), 2),
        inputs[2 * classes :],
        np.array([number[w] for w in [*wnids, *sorted(wnids)]]),
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    files[f"{top}.zip"] = buffer.getvalue()
    return publish(spec, arrays, files)


def jpeg(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG")
    return buffer.getvalue()
