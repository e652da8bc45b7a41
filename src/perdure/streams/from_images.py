"""Streams from a folder of images."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from torch import Tensor

from perdure.arguments import as_count, check_callable, check_choices
from perdure.data.spec import OnProgress
from perdure.records import Samples
from perdure.streams.encoder import Encoder, first_names, labels_of
from perdure.streams.holdout import as_ids
from perdure.streams.image_encoder import (
    FORMATS,
    UNREAD,
    ImageEncoder,
    read_images,
    warn_of_low_values,
)
from perdure.streams.layout import (
    TEST_SHARE,
    Layout,
    build_stream,
    warn_of_cases,
    warn_of_single_class,
)
from perdure.streams.stream import Augment, Normaliser, Stream
from perdure.user_code import warn_caller


class _Image(NamedTuple):
    """A file, with the folders that name its task and its class."""

    path: Path
    task: str
    label: str


def from_image_folder(
    folder: str | Path,
    *,
    size: int | tuple[int, int] | None = None,
    grayscale: bool | None = None,
    tasks: int | Sequence[Sequence[str]] | Literal["folders"] | None = None,
    test_share: float | None = None,
    keep_together: Callable[[Path], Hashable] | None = None,
    encoder: Encoder | None = None,
    name: str | None = None,
    augment: Augment | None = None,
    normalise: Normaliser | None = None,
    drop_last: bool = False,
    on_progress: OnProgress | None = None,
) -> Stream:
    """Create a stream from images in one folder per class, which are read once into memory.

    The folder contains `CLASS/…` or `train/CLASS/…`, with any depth below a class. Labels number
    the classes in alphabetical order (`Stream.class_names`). The stream's `encoder` reads new
    images in the same way and turns predictions into names. Tests are the images in `test/CLASS/…`;
    without such a folder a share of every class of every task is held out, always the same. Other
    folders next to `train` are left out, with a warning. Images are turned upright according to
    their EXIF data, converted to RGB, scaled to cover `size`, cropped at the centre and stored as
    uint8 [3, height, width]. Images with 16 bits per pixel keep the upper 8, with a warning if all
    values are below 4096. Files are JPEG, PNG, WebP, BMP, GIF, TIFF or PPM. Hidden files and
    files with another suffix are ignored, with a warning if they are images, such as HEIC.

    Args:
        folder: The folder.
        size: Height and width of the inputs in pixels, or one number for both; 64 by default.
        grayscale: Whether to convert to grayscale, uint8 [1, height, width], instead of RGB;
            False by default.
        tasks: Number of tasks, which divide the classes in alphabetical order; or the classes of
            each task (images of other classes are omitted, with a warning); or "folders" if each
            task has a folder that contains those of its classes, `TASK/CLASS/…`. By default the
            stream is a single task.
        test_share: Share of the images to hold out as tests, 0.2 by default; 0 for no tests.
            Omit it if there is a folder `test`.
        keep_together: Called with the path of each training image. Images for which it returns
            the same value, such as frames of one video, are never separated by a split.
        encoder: The encoder of an earlier stream, if more of its data has arrived. It determines
            `size` and `grayscale`. Classes that it does not know get the next labels, for a
            learner with `grow=True`.
        name: Name in tables and reports; the folder's by default.
        augment: Augmentation of raw training inputs, such as `CropFlip`.
        normalise: Turns raw inputs into the float tensor that the network expects; by default
            bytes are scaled to [0, 1].
        drop_last: Whether an epoch omits the last batch if it is smaller than the others.
        on_progress: Called with the number of images read so far and the number of images.

    Raises:
        ValueError: If the folder does not have this structure, an image cannot be read, or the
            encoder has another size.

    >>> import tempfile
    >>> from PIL import Image
    >>> folder = tempfile.TemporaryDirectory()
    >>> for label in ("cat", "dog"):
    ...     (Path(folder.name) / label).mkdir()
    ...     for i in range(5):
    ...         Image.new("L", (20, 30), i).save(Path(folder.name) / label / f"{i}.png")
    >>> stream = from_image_folder(folder.name, size=8, tasks=2, name="pets")
    >>> stream, stream.class_names
    (Stream('pets': 2 tasks, 2 classes, inputs [3, 8, 8], 2 tests), ('cat', 'dog'))
    >>> folder.cleanup()
    """
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder")
    check_choices((True, False, None), grayscale=grayscale)
    check_choices((True, False), drop_last=drop_last)
    check_callable("keep_together", keep_together)
    reader = _reader(size, grayscale, encoder)
    by_folder = tasks == "folders"
    if isinstance(tasks, str) and not by_folder:
        raise ValueError(f"tasks is {tasks!r}; expected a number, lists of classes or 'folders'")
    divided = (root / "train").is_dir()
    if divided:
        _warn_of_other_folders(root)
    if not (divided or by_folder) and any(path.is_dir() for path in (root / "test").glob("*")):
        raise ValueError(f"{root} has a folder test with classes; move the others to {root}/train")
    train = _find(root / "train" if divided else root, by_folder)
    known = reader.class_names
    names = [*known, *sorted({image.label for image in train} - set(known))]
    reader = msgspec.structs.replace(reader, class_names=tuple(names))
    warn_of_single_class(known, names)
    warn_of_cases(known, names, f"the folders in {root} are")
    labels = labels_of([image.label for image in train], names)
    if by_folder:
        layout = Layout.by_value([image.task for image in train])
    else:
        layout = Layout.by_classes(tasks, names)
    n = len(train)
    keys = range(n) if keep_together is None else [keep_together(image.path) for image in train]
    ids = as_ids(keys, n)
    held_out: list[Tensor] = []
    found: list[_Image] = []
    if divided and (root / "test").is_dir():
        if test_share is not None:
            raise ValueError(f"{root} has a folder test; omit test_share")
        found = _find(root / "test", by_folder)
    else:
        held_out = layout.hold_out(labels, ids, TEST_SHARE if test_share is None else test_share)
    test_labels = labels_of([image.label for image in found], names)
    inputs, peaks = read_images(reader, [image.path for image in (*found, *train)], on_progress)
    warn_of_low_values(peaks, str(root))
    return build_stream(
        Samples(inputs[len(found) :], labels),
        layout,
        held_out,
        ids,
        reader,
        test=Samples(inputs[: len(found)], test_labels) if found else None,
        test_tasks=[image.task for image in found] if found and by_folder else None,
        name=name or root.resolve().name,
        augment=augment,
        normalise=normalise,
        drop_last=drop_last,
    )


def _reader(size: Any, grayscale: bool | None, encoder: Encoder | None) -> ImageEncoder:
    """The given encoder, which must have this size and these channels; otherwise a new one."""
    if encoder is not None and not isinstance(encoder, ImageEncoder):
        raise ValueError(f"the encoder is of type {type(encoder).__name__}, not ImageEncoder")
    if encoder is None:
        height, width = _height_and_width(64 if size is None else size)
        return ImageEncoder(class_names=(), height=height, width=width, grayscale=bool(grayscale))
    if size is not None and _height_and_width(size) != (encoder.height, encoder.width):
        raise ValueError(
            f"size is {size!r}; the encoder has {encoder.height} x {encoder.width} pixels, so "
            "omit size"
        )
    if grayscale is not None and bool(grayscale) != encoder.grayscale:
        raise ValueError(
            f"grayscale is {grayscale}; the encoder has {encoder.grayscale}, so omit grayscale"
        )
    return encoder


def _height_and_width(size: Any) -> tuple[int, int]:
    sides = tuple(size) if np.ndim(size) else (size, size)
    if len(sides) != 2:
        raise ValueError(
            f"size is {size!r}; expected a number, or height and width (size=16x20 in a command)"
        )
    return as_count("size", sides[0]), as_count("size", sides[1])


def _find(root: Path, by_folder: bool) -> list[_Image]:
    """The images below a folder, in the order of their paths."""
    from PIL import Image

    suffixes = {s for s, kind in Image.registered_extensions().items() if kind in FORMATS}
    where = "TASK/CLASS/IMAGE" if by_folder else "CLASS/IMAGE"
    found = []
    unread: list[str] = []
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if any(part.startswith(".") for part in parts) or not path.is_file():
            continue
        if path.suffix.lower() in suffixes:
            if len(parts) < (3 if by_folder else 2):
                raise ValueError(f"{path} is not in the folder of a class; expected {where}")
            task, label = parts[:2] if by_folder else ("", parts[0])
            found.append(_Image(path, task, label))
        elif UNREAD.fullmatch(path.suffix.lower()):
            unread.append(path.suffix.lower())
    other = (
        f"{len(unread)} file{'s' * (len(unread) != 1)} in formats that are not read "
        f"({first_names(sorted(set(unread)))}); convert to JPEG or PNG"
    )
    if not found:
        instead = f", but it has {other}" if unread else ""
        raise ValueError(
            f"{root} contains no images ({', '.join(FORMATS)} files); expected {where}{instead}"
        )
    if unread:
        warn_caller(f"{root} has {other}")
    _warn_of_empty_folders(root, found, by_folder)
    return found


def _warn_of_other_folders(root: Path) -> None:
    """Warn of folders next to the folder train that are not read."""
    folders = sorted(path.name for path in root.glob("[!.]*") if path.is_dir())
    if others := [name for name in folders if name not in ("train", "test")]:
        warn_caller(
            f"{root} has a folder train, so only train and test are read; left out: "
            f"{first_names(others)}"
        )


def _warn_of_empty_folders(root: Path, found: Sequence[_Image], by_folder: bool) -> None:
    """Warn of folders that are named like classes or tasks and contain no image."""
    levels = ("*", "*/*") if by_folder else ("*",)
    folders = {path.relative_to(root) for level in levels for path in root.glob(level)}
    used = {part for image in found for part in image.path.relative_to(root).parents}
    empty = sorted(
        str(path)
        for path in folders - used
        if (root / path).is_dir() and not any(part.startswith(".") for part in path.parts)
    )
    if empty:
        warn_caller(
            f"folders in {root} contain no images and are left out: {first_names(empty)} (links "
            f"are not followed; images are {', '.join(FORMATS)} files)"
        )
