"""Tiny-ImageNet: a tree of JPEG files, a folder for each class (a WordNet id)."""

from __future__ import annotations

import io
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perdure.data.spec import Arrays, Contents, DataError, Shape, Spec


def decode(spec: Spec, contents: Contents) -> Arrays:
    """Read the tree. Classes are numbered in sorted order; the official val split is the test."""
    listing = next((path for path in contents if path.name == "wnids.txt"), Path("wnids.txt"))
    names = sorted(set(_lines(contents, listing)))
    if len(names) != spec.classes:
        raise DataError(f"{listing} names {len(names)} classes, expected {spec.classes}")
    number = {name: i for i, name in enumerate(names)}

    folders = defaultdict(list)
    for path in sorted(contents):
        if path.suffix == ".JPEG":
            folders[path.parent].append(path)
    train, val = listing.parent / "train", listing.parent / "val"

    each = spec.train[0] // spec.classes
    train_paths = []
    for name in names:
        train_paths += _exactly(each, folders, train / name / "images")
    test_paths = _exactly(spec.test[0], folders, val / "images")

    annotations = val / "val_annotations.txt"
    columns = (line.split()[:2] for line in _lines(contents, annotations))
    classes = dict(pair for pair in columns if len(pair) == 2)
    for path in test_paths:
        if classes.get(path.name) not in number:
            raise DataError(f"{annotations} gives {path.name} no class of {listing.name}")
    test_labels = np.array([number[classes[path.name]] for path in test_paths], np.int64)
    if len(set(np.bincount(test_labels, minlength=spec.classes))) > 1:
        raise DataError(f"{annotations} gives some classes more images than others")
    return Arrays(
        _images(contents, train_paths, spec.train),
        np.repeat(np.arange(spec.classes, dtype=np.int64), each),
        _images(contents, test_paths, spec.test),
        test_labels,
    )


def _lines(contents: Contents, path: Path) -> list[str]:
    if path not in contents:
        raise DataError(f"{path} is missing")
    return contents[path]().decode("ascii", errors="replace").splitlines()


def _exactly(count: int, folders: dict[Path, list[Path]], folder: Path) -> list[Path]:
    if len(folders[folder]) != count:
        raise DataError(f"{folder} holds {len(folders[folder])} JPEG files, expected {count}")
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
            raise DataError(f"{path} is no whole JPEG file") from None
        if size != (width, height):
            raise DataError(f"{path} is {size[0]} x {size[1]}, expected {width} x {height}")
    return images
