"""Streams of training data with the tests that belong to them."""

from perdure.streams.augment import CIFAR10, TINY_IMAGENET, CropFlip, Normalise, Scale
from perdure.streams.from_batches import from_batches
from perdure.streams.from_data import from_dataset, from_tensors
from perdure.streams.gcil import gcil
from perdure.streams.mnist360 import mnist360
from perdure.streams.permuted import permuted
from perdure.streams.rotated import rotate, rotated
from perdure.streams.split import split
from perdure.streams.stream import Augment, ComposedTask, Normaliser, Stream, Task, Test

__all__ = [
    "CIFAR10",
    "TINY_IMAGENET",
    "Augment",
    "ComposedTask",
    "CropFlip",
    "Normalise",
    "Normaliser",
    "Scale",
    "Stream",
    "Task",
    "Test",
    "from_batches",
    "from_dataset",
    "from_tensors",
    "gcil",
    "mnist360",
    "permuted",
    "rotate",
    "rotated",
    "split",
]
