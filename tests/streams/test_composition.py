"""Every stream is determined by its data and its own seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from perdure.data import Dataset
from perdure.records import Samples
from perdure.streams import Stream, from_tensors, gcil, mnist360, permuted, rotated, split
from perdure.streams.stream import checksum_of

Builder = Callable[[Dataset, int], Stream]

SEEDED: dict[str, Builder] = {
    "rotated": lambda dataset, seed: rotated(dataset, seed=seed, tasks=3),
    "permuted": lambda dataset, seed: permuted(dataset, seed=seed, tasks=3),
    "gcil-uniform": lambda dataset, seed: gcil(dataset, seed=seed, phases=4, size=60, most=4),
    "gcil-longtail": lambda dataset, seed: gcil(
        dataset, weights="longtail", seed=seed, phases=4, size=60, most=4
    ),
}
BUILDERS: dict[str, Builder] = {
    **SEEDED,
    "split": lambda dataset, seed: split(dataset, 5, "s-digits"),
    "mnist360": lambda dataset, seed: mnist360(dataset),
    "own": lambda dataset, seed: from_tensors(
        *dataset.train[:2], groups=[(0, 1), (5, 2), (3, 4, 6, 7, 8, 9)], test=dataset.test
    ),
}


@pytest.fixture(params=BUILDERS)
def build(request: pytest.FixtureRequest) -> Builder:
    return BUILDERS[request.param]


@pytest.fixture(params=SEEDED)
def build_seeded(request: pytest.FixtureRequest) -> Builder:
    return SEEDED[request.param]


@contextmanager
def global_random_state_unchanged() -> Iterator[None]:
    before = torch.get_rng_state(), np.random.get_state(legacy=False), random.getstate()
    yield
    after = np.random.get_state(legacy=False)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert repr(after) == repr(before[1])
    assert random.getstate() == before[2]


def contents(stream: Stream, batch: int = 16, seed: int = 0) -> str:
    """Checksum of all batches and tests."""
    order = torch.Generator().manual_seed(seed)
    shown = [b for task in stream.tasks for b in task.epoch(batch, order)]
    held_out = [test.samples() for test in stream.tests]
    rows = [test.rows for test in stream.tests if test.rows is not None]
    return checksum_of(*(t for s in (*shown, *held_out) for t in (s.inputs, s.labels)), *rows)


def test_the_same_seed_gives_the_same_stream(digits: Dataset, build: Builder) -> None:
    one, two = build(digits, 3), build(digits, 3)
    assert one.checksum == two.checksum
    assert contents(one) == contents(two)


def test_another_seed_gives_another_stream(digits: Dataset, build_seeded: Builder) -> None:
    one, two = build_seeded(digits, 3), build_seeded(digits, 4)
    assert one.checksum != two.checksum
    assert contents(one) != contents(two)


def test_global_random_state_is_neither_used_nor_advanced(digits: Dataset, build: Builder) -> None:
    torch.manual_seed(0)
    with global_random_state_unchanged():
        one = contents(build(digits, 3))
    torch.manual_seed(1)
    np.random.seed(5)
    random.seed(7)
    assert contents(build(digits, 3)) == one


def test_the_checksum_depends_on_the_data(digits: Dataset, build: Builder) -> None:
    inputs = digits.train.inputs.clone()
    inputs[0, 0, 0, 0] ^= 1
    changed = replace(digits, train=Samples(inputs, digits.train.labels), checksum="other")
    assert build(changed, 3).checksum != build(digits, 3).checksum
    assert len(build(digits, 3).checksum) == 64


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_stream_is_the_same_on_a_gpu(digits: Dataset, build: Builder) -> None:
    there = build(digits.to("cuda"), 3)
    for task in there.tasks:
        assert next(task.epoch(8, torch.Generator())).inputs.is_cuda
    for test in there.tests:
        assert test.samples().inputs.is_cuda
        assert test.rows is None or test.rows.is_cuda
    assert contents(there) == contents(build(digits, 3))
    assert there.checksum == build(digits, 3).checksum
