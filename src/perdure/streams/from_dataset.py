"""Streams from your own map-style dataset."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from perdure.arguments import as_list, as_whole
from perdure.streams.from_tensors import Array, from_tensors
from perdure.streams.image_encoder import as_channels, as_plain, reason_of, warn_of_low_values
from perdure.streams.pairs import divide
from perdure.streams.stream import Augment, Normaliser, Stream
from perdure.structures import Inputs, as_tensors, layout, leaves, map_leaves


class MapDataset(Protocol):
    """A map-style dataset as in `torch.utils.data`."""

    def __len__(self) -> int:
        """Number of items."""

    def __getitem__(self, index: int, /) -> Any:
        """A pair of an input (tensor, array or PIL image) and its label, or a dict of both."""


def from_dataset(
    dataset: MapDataset,
    *,
    tasks: Sequence[Array | Sequence[int]] | None = None,
    groups: Sequence[Sequence[int]] | None = None,
    test: MapDataset | None = None,
    tests: Sequence[MapDataset] | None = None,
    keep_together: Sequence[Hashable] | Array | None = None,
    classes: int | None = None,
    class_names: Sequence[str] = (),
    name: str = "own",
    augment: Augment | None = None,
    normalise: Normaliser | None = None,
    drop_last: bool = False,
    shuffle: bool = True,
) -> Stream:
    """Create a stream from a map-style dataset, which is read once into memory.

    A random transform inside the dataset is therefore applied only once; use `augment` instead.

    Args:
        dataset: Training data: a sequence of pairs (input, label), or of dicts in which the key
            "labels" holds the label and the others the input. PIL images are read as by
            `from_image_folder`, but not resized: they are turned upright according to their EXIF
            data, and become uint8 tensors [3, height, width], or [1, height, width] if all of them
            are of mode L or have 16 bits per pixel. Tensors and arrays are used as they are. All
            items must have the same shape and dtype. Labels are whole numbers.
        tasks: Rows of each task. Samples in no task are omitted.
        groups: Classes of each task, instead of `tasks`. Samples of other classes are omitted,
            with a warning.
        test: Test data for the whole stream. With `groups`, each task is tested on the samples
            of its classes.
        tests: Test data for each task, instead of `test`.
        keep_together: A value for each training sample, such as the patient it comes from. A
            validation split never separates samples with the same value.
        classes: Number of outputs; by default the highest training label plus one. It is needed if
            training samples of more than 10,000 classes are missing.
        class_names: Names of the classes for figures, in the order of the labels.
        name: Name in tables and reports.
        augment: Augmentation of raw training inputs, such as `CropFlip`.
        normalise: Turns raw inputs into the float tensor that the network expects; by default
            bytes are scaled to [0, 1].
        drop_last: Whether an epoch omits the last batch if it is smaller than the others.
        shuffle: Whether the samples of a task are presented in a new random order in each epoch;
            False keeps their order, for data that are sorted by time.

    Raises:
        ValueError: If the data do not fit together.

    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> stream = from_dataset(TensorDataset(torch.rand(6, 1, 8, 8), torch.arange(6) % 2))
    >>> stream.classes, stream.shape, stream.tasks[0].steps(4)
    (2, (1, 8, 8), 2)
    """
    if tests is not None:
        tests = as_list("tests", tests, "a test dataset for each task")
    train = _collect(dataset, "dataset")
    parts = tests or ([] if test is None else [test])
    held_out = [_collect(part, "test dataset") for part in parts]
    peaks = [peak for items in (train, *held_out) for peak in items.peaks]
    warn_of_low_values(peaks, "the dataset")
    (inputs, labels), *pairs = _with_equal_channels([train, *held_out])
    return from_tensors(
        inputs,
        labels,
        tasks=tasks,
        groups=groups,
        test=None if test is None else pairs[0],
        tests=None if tests is None else pairs,
        keep_together=keep_together,
        classes=classes,
        class_names=class_names,
        name=name,
        augment=augment,
        normalise=normalise,
        drop_last=drop_last,
        shuffle=shuffle,
    )


class _Items(NamedTuple):
    """The items of a dataset."""

    inputs: Inputs
    labels: npt.NDArray[Any]
    images: bool
    """Whether the inputs are PIL images."""
    peaks: list[int]
    """The largest value of each image with 16 bits per pixel."""


def _collect(dataset: MapDataset, what: str) -> _Items:
    """The items of a dataset; the inputs are a structure of tensors."""
    indexed = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if not indexed or isinstance(dataset, Mapping):
        raise ValueError(
            f"the {what} is of type {type(dataset).__name__}; expected a map-style dataset, which "
            "has a length and returns items by index"
        )
    size = len(dataset)
    if not size:
        raise ValueError(f"the {what} is empty")
    inputs: Inputs = None
    images = True
    labels, peaks = [], []
    expected = ""
    for i in range(size):
        name = f"item {i} of the {what}"
        item, label = divide(dataset[i], name)
        images = images and hasattr(item, "getbands")
        if hasattr(item, "getbands"):
            item, peak = _pixels(item, f"the input of {name}")
            peaks += [] if peak is None else [peak]
        row = map_leaves(lambda leaf: leaf[None], as_tensors(item, f"the input of {name}"))
        if inputs is None:
            inputs = map_leaves(lambda leaf: leaf.new_empty((size, *leaf.shape[1:])), row)
        elif images and row.shape[1] < inputs.shape[1]:
            row = row.expand(-1, 3, -1, -1)
        elif images and row.shape[1] > inputs.shape[1]:  # the earlier images are gray
            gray, inputs = inputs, inputs.new_empty((size, 3, *inputs.shape[2:]))
            inputs[:i] = gray[:i]
        expected = layout(inputs)
        if (found := layout(row)) != expected:
            hint = "; resize the images in the dataset, after ImageOps.exif_transpose"
            raise ValueError(
                f"{name} is {found}, the first {expected}; all must have the same shape and dtype"
                f"{hint if images else ''}"
            )
        for storage, leaf in zip(leaves(inputs), leaves(row), strict=True):
            storage[i] = leaf[0]
        labels.append(_label(label, name))
    return _Items(inputs, np.array(labels), images, peaks)


def _with_equal_channels(parts: Sequence[_Items]) -> list[tuple[Inputs, npt.NDArray[Any]]]:
    """The inputs and labels; gray images have three channels if images of another part have."""
    if all(part.images for part in parts):
        channels = max(part.inputs.shape[1] for part in parts)
        return [
            (part.inputs.expand(-1, channels, -1, -1).contiguous(), part.labels) for part in parts
        ]
    return [(part.inputs, part.labels) for part in parts]


def _label(label: Any, item: str) -> int:
    """The label of an item: a whole number, also as an array with this single value."""
    if isinstance(label, Tensor | np.ndarray):
        if math.prod(label.shape) != 1:
            shape = list(label.shape)
            raise ValueError(f"the label of {item} has shape {shape}; expected a whole number")
        label = label.item()
    return as_whole(f"the label of {item}", label)


def _pixels(image: Any, what: str) -> tuple[Tensor, int | None]:
    """A PIL image as a uint8 tensor [channels, height, width], one channel if it is gray; its peak.

    The peak is the largest value if the image has 16 bits per pixel, otherwise None.
    """
    try:
        image, peak = as_plain(image)
        pixels = np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"))
    except Exception as error:  # of any of Pillow's decoders
        reason = reason_of(error)
        raise ValueError(f"{what} cannot be used as an image: {reason}") from error
    return as_channels(pixels), peak
