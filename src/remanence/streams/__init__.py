"""Streams: what arrives when, and the tests that belong to it."""

from remanence.streams.augment import CIFAR10, TINY_IMAGENET, CropFlip, Normalise, Scale
from remanence.streams.batches import from_batches
from remanence.streams.gcil import gcil
from remanence.streams.mnist360 import mnist360
from remanence.streams.own import from_dataset, from_tensors
from remanence.streams.permuted import permuted
from remanence.streams.rotated import rotate, rotated
from remanence.streams.split import split
from remanence.streams.stream import Augment, ComposedTask, Normaliser, Stream, Task, Test

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
