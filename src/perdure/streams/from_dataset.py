"""Streams from your own map-style dataset."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from perdure.arguments import as_list, as_whole
from perdure.streams.from_tensors import Array, from_tensors
from perdure.streams.image_encoder import as_channels, as_plain
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
            "labels" holds the label and the others the input. PIL images become uint8 tensors
            [channels, height, width], transparent ones on white; tensors and arrays are used as
            they are. All items must have the same shape and dtype. Labels are whole numbers.
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
    inputs, labels = _collect(dataset, "dataset")
    return from_tensors(
        inputs,
        labels,
        tasks=tasks,
        groups=groups,
        test=None if test is None else _collect(test, "test dataset"),
        tests=None if tests is None else [_collect(part, "test dataset") for part in tests],
        keep_together=keep_together,
        classes=classes,
        class_names=class_names,
        name=name,
        augment=augment,
        normalise=normalise,
        drop_last=drop_last,
        shuffle=shuffle,
    )


def _collect(dataset: MapDataset, what: str) -> tuple[Inputs, npt.NDArray[Any]]:
    """The inputs of a dataset, as a structure of tensors, and the labels."""
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
    labels = []
    expected = ""
    for i in range(size):
        name = f"item {i} of the {what}"
        item, label = divide(dataset[i], name)
        item = _pixels(item, f"the input of {name}") if hasattr(item, "getbands") else item
        row = map_leaves(lambda leaf: leaf[None], as_tensors(item, f"the input of {name}"))
        if inputs is None:
            inputs = map_leaves(lambda leaf: leaf.new_empty((size, *leaf.shape[1:])), row)
            expected = layout(row)
        if (found := layout(row)) != expected:
            raise ValueError(
                f"{name} is {found}, the first {expected}; all must have the same shape and dtype"
            )
        for storage, leaf in zip(leaves(inputs), leaves(row), strict=True):
            storage[i] = leaf[0]
        labels.append(_label(label, name))
    return inputs, np.array(labels)


def _label(label: Any, item: str) -> int:
    """The label of an item: a whole number, also as an array with this single value."""
    if isinstance(label, Tensor | np.ndarray):
        if math.prod(label.shape) != 1:
            shape = list(label.shape)
            raise ValueError(f"the label of {item} has shape {shape}; expected a whole number")
        label = label.item()
    return as_whole(f"the label of {item}", label)


def _pixels(image: Any, what: str) -> Tensor:
    """A PIL image as a uint8 tensor [channels, height, width]: one channel if it is gray."""
    try:
        image, _ = as_plain(image)
    except ValueError as error:
        raise ValueError(f"{what} cannot be used as an image: {error}") from None
    return as_channels(np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB")))
