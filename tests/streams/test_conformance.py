"""All streams pass the conformance suite."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from perdure import catalog
from perdure.data import Dataset
from perdure.records import Samples
from perdure.streams import Stream, from_batches, from_dataset, from_tensors
from perdure.testing import STREAM_CHECKS, StreamCheck

SHAPES = {
    "mnist": ((1, 28, 28), 10, 7),
    "cifar10": ((3, 32, 32), 10, 9),
    "cifar100": ((3, 32, 32), 100, 5),
    "tiny-imagenet": ((3, 64, 64), 200, 3),
}
"""Shape of an image, number of classes, training images of each class."""


def samples(shape: tuple[int, ...], classes: int, each: int, seed: int) -> Samples:
    draws = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat(each)
    labels = labels[torch.randperm(len(labels), generator=draws)]
    inputs = torch.randint(256, (len(labels), *shape), generator=draws, dtype=torch.uint8)
    return Samples(inputs, labels)


def dataset(name: str, *, seed: int = 0, small: bool = False, each: int | None = None) -> Dataset:
    shape, classes, few = SHAPES[name]
    shape = (shape[0], 3, 3) if small else shape
    train, test = samples(shape, classes, each or few, seed), samples(shape, classes, 2, seed + 1)
    return Dataset(name, train, test, classes=classes, checksum=f"{name} {seed}")


def build(name: str, seed: int = 0) -> Stream:
    """A stream of the catalog over random images."""
    first = catalog.STREAMS[name].datasets[0]
    # GCIL needs up to 20,000 images, so they are tiny.
    many = name.startswith("gcil")
    data = dataset(first, seed=seed, small=many, each=200 if many else None)
    return catalog.build_stream(name, data)


def own_tensors() -> Stream:
    inputs, labels, _ = samples((1, 5, 4), 6, 10, 0)
    groups = [(0, 1, 5), (2,), (3, 4)]
    return from_tensors(inputs, labels, groups=groups, test=(inputs[:40], labels[:40]))


def own_dataset() -> Stream:
    inputs, labels, _ = samples((7,), 3, 20, 0)
    pairs = torch.utils.data.TensorDataset(inputs / 255, labels)
    return from_dataset(pairs, tasks=[range(25), range(10, 60)], tests=[pairs, pairs])


def own_batches() -> Stream:
    parts = [samples((2, 4), 3, 4, seed)[:2] for seed in range(5)]
    return from_batches({"a": parts[:2], "b": parts[2:]}, classes=3, shape=(2, 4), test=parts[0])


OWN = {"tensors": own_tensors, "dataset": own_dataset, "batches": own_batches}


@cache
def stream(name: str) -> Stream:
    return OWN[name]() if name in OWN else build(name)


@pytest.mark.parametrize("name", [*catalog.STREAMS, *OWN])
@pytest.mark.parametrize("check", STREAM_CHECKS, ids=lambda check: check.__name__)
def test_the_stream_passes(check: StreamCheck, name: str) -> None:
    checked = stream(name)
    check(checked, 32 if len(checked.tests) > 5 else 8)


@pytest.mark.parametrize("name", catalog.STREAMS)
def test_the_checksum_identifies_data_and_composition(name: str) -> None:
    assert stream(name).checksum == build(name).checksum
    assert stream(name).checksum != build(name, seed=1).checksum


@pytest.mark.parametrize("name", catalog.STREAMS)
def test_equal_builds_give_equal_batches(name: str) -> None:
    tasks = zip(stream(name).tasks, build(name).tasks, strict=True)
    for one, other in tasks:
        first, second = (next(task.epoch(8, torch.Generator())) for task in (one, other))
        assert first.inputs.equal(second.inputs)
        assert first.labels.equal(second.labels)
        one.release()


def test_different_streams_have_different_checksums() -> None:
    checksums = {stream(name).checksum for name in catalog.STREAMS}
    assert len(checksums) == len(catalog.STREAMS)
