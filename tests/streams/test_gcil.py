from __future__ import annotations

from collections import Counter
from typing import Literal

import numpy as np
import pytest
import torch
from scipy import stats

from perdure.data import Dataset
from perdure.records import Samples
from perdure.streams import CIFAR10, CropFlip, Stream, gcil
from perdure.streams.gcil import MemoryDraws

_FIRST_SHOWN = """
19 29 0 11 1 86 90 28 23 31 39 96 82 17 71 8 97 80 74 59 70 87 84 64 52 42 47 65 21 22 81
24 78 45 49 56 76 89 73 14 9 6 20 98 36 55 72 43 51 35 83 33 27 53 92 50 15 18 46 75 38 66
77 69 95 99 93 4 61 94 68 34 32 88 67 30 62 63 40 26 48 79 85 54 44 7 12 2 41 37 13 25 10
57 5 60 91 3 58 16
"""
APPEARANCE = [int(c) for c in _FIRST_SHOWN.split()]
"""The classes of CIFAR-100 in the order in which its training labels first show them."""


def dataset(order: list[int], each: int) -> Dataset:
    """`each` training and 10 test images of every class, whose three bytes encode class and row."""
    labels = torch.tensor(order).repeat(each)
    rows = torch.arange(len(labels))
    inputs = torch.stack([labels, rows // 256, rows % 256], 1).byte()[..., None, None]
    test = torch.arange(len(order)).repeat(10)
    test_images = torch.stack([test, test, test], 1).byte()[..., None, None]
    return Dataset("classes", Samples(inputs, labels), Samples(test_images, test), len(order), "c")


@pytest.fixture(scope="module")
def cifar100() -> Dataset:
    return dataset(APPEARANCE, 500)


@pytest.fixture(scope="module", params=["uniform", "longtail"])
def stream(request: pytest.FixtureRequest, cifar100: Dataset) -> Stream:
    return gcil(cifar100, weights=request.param)


def test_the_published_numbers_are_reproduced(cifar100: Dataset) -> None:
    uniform = [len(task.samples().labels) for task in gcil(cifar100).tasks]
    longtail = [len(task.samples().labels) for task in gcil(cifar100, weights="longtail").tasks]
    assert sum(uniform) == 19464
    assert sum(longtail) == 19374
    assert uniform[4] == 500
    assert len(set(gcil(cifar100).tasks[4].samples().labels.tolist())) == 1


@pytest.mark.parametrize(
    ("weights", "classes", "samples"),
    [
        ("uniform", "34 37 50 21 15 25 48 41 27 48 47 42 27 20 11 2 37 32 16 37", 19796),
        ("longtail", "34 37 50 21 15 25 48 1 46 8 27 48 39 39 12 13 11 16 7 1", 18441),
    ],
)
def test_the_streams_of_the_published_runs_are_reproduced(
    weights: Literal["uniform", "longtail"], classes: str, samples: int, cifar100: Dataset
) -> None:
    """The published sampler and memory, run together: buffer 500, 100 epochs, one read."""
    tasks = gcil(cifar100, weights=weights, memory=MemoryDraws(500, 1, 100, 32)).tasks
    labels = [task.samples().labels.tolist() for task in tasks]
    assert " ".join(str(len(set(phase))) for phase in labels) == classes
    assert sum(map(len, labels)) == samples


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "buffer_size", "reads", "epochs", "samples"),
    [
        ("uniform", 200, 1, 100, 19060),
        ("uniform", 1000, 1, 100, 19308),
        ("longtail", 200, 1, 100, 19557),
        ("longtail", 1000, 1, 100, 19357),
        ("uniform", 200, 2, 100, 19843),
        ("uniform", 500, 2, 100, 19388),
        ("uniform", 1000, 2, 100, 19878),
        ("longtail", 200, 2, 100, 19089),
        ("longtail", 500, 2, 100, 18365),
        ("longtail", 1000, 2, 100, 19577),
        ("uniform", 200, 1, 200, 19469),
    ],
)
def test_published_streams_of_the_other_cells_have_the_sizes_of_a_separate_simulation(
    weights: Literal["uniform", "longtail"],
    buffer_size: int,
    reads: int,
    epochs: int,
    samples: int,
    cifar100: Dataset,
) -> None:
    draws = MemoryDraws(buffer_size, reads, epochs, 32)
    tasks = gcil(cifar100, weights=weights, memory=draws).tasks
    assert sum(len(task.samples().labels) for task in tasks) == samples


@pytest.mark.parametrize(("buffer_size", "reads"), [(20, 1), (20, 2), (130, 1), (7, 0)])
def test_memory_draws_equal_those_of_a_learner(buffer_size: int, reads: int) -> None:
    """A reservoir that draws number by number from the generator of the stream."""
    epochs, batch, phases, size = 2, 8, 5, 60
    data = dataset([2, 0, 3, 1, 4], 55)
    labels = data.train.labels.numpy()
    random = np.random.RandomState(1993)
    left = {c: list(np.flatnonzero(labels == c)) for c in (2, 0, 3, 1, 4)}
    memory: list[int] = []
    seen = 0
    expected = []
    for _ in range(phases):
        available = [c for c in left if left[c]]
        number = 1 + random.randint(min(len(available), 3))
        chosen = random.choice(available, number, replace=False)
        while True:
            drawn = random.choice(number, size, p=np.full(number, 1 / number))
            if len(set(drawn.tolist())) == number:
                break
        phase = []
        for position, c in enumerate(chosen.tolist()):
            picked = random.permutation(len(left[c]))[: (drawn == position).sum()]
            phase += [left[c][i] for i in picked]
            left[c] = [row for i, row in enumerate(left[c]) if i not in set(picked.tolist())]
        expected.append(phase)
        for _ in range(epochs):
            for start in range(0, len(phase) - batch + 1, batch):
                for _ in range(reads):
                    if memory:
                        random.choice(len(memory), min(4, len(memory)), replace=False)
                for row in phase[start : start + batch]:
                    if len(memory) < buffer_size:
                        memory.append(row)
                    else:
                        slot = random.randint(0, seen + 1)
                        if slot < buffer_size:
                            memory[slot] = row
                    seen += 1
    draws = MemoryDraws(buffer_size, reads, epochs, batch)
    stream = gcil(data, phases=phases, size=size, most=3, memory=draws)
    found = [task.samples().inputs[:, 1:, 0, 0].int() for task in stream.tasks]
    assert [(p[:, 0] * 256 + p[:, 1]).tolist() for p in found] == expected


def test_phases_respect_their_limits_and_no_sample_is_used_twice(stream: Stream) -> None:
    assert len(stream.tasks) == len(stream.tests) == 20
    shown = []
    for task in stream.tasks:
        inputs, labels, _ = task.samples()
        assert 1 <= len(set(labels.tolist())) <= 50
        assert 1 <= len(labels) <= 1000
        assert task.steps(32) == len(labels) // 32
        shown += [tuple(image.flatten().tolist()[1:]) for image in inputs]
    assert len(set(shown)) == len(shown)


def test_classes_are_renumbered_in_order_of_first_appearance(stream: Stream) -> None:
    number: dict[int, int] = {}
    for task in stream.tasks:
        inputs, labels, _ = task.samples()
        for original, new in zip(inputs[:, 0, 0, 0].tolist(), labels.tolist(), strict=True):
            assert number.setdefault(original, len(number)) == new
    for original, new in zip(
        stream.tests[0].source().inputs[:, 0, 0, 0].tolist(),
        stream.tests[0].source().labels.tolist(),
        strict=True,
    ):
        assert number[original] == new


def test_each_test_covers_all_classes_seen_so_far(stream: Stream) -> None:
    seen: set[int] = set()
    samples = stream.tests[0].source()
    assert len({test.source for test in stream.tests}) == 1
    assert stream.tests[0].source() is samples
    for number, (task, test) in enumerate(zip(stream.tasks, stream.tests, strict=True)):
        seen |= set(task.samples().labels.tolist())
        assert test.since == number
        assert test.rows is not None
        assert Counter(samples.labels[test.rows].tolist()) == dict.fromkeys(seen, 10)
    assert set(samples.labels.tolist()) == seen


def test_preparation_and_boundaries(stream: Stream) -> None:
    assert (stream.augment, stream.normalise) == (CropFlip(), CIFAR10)
    assert (stream.classes, stream.boundaries, stream.cumulative) == (100, False, True)


CLASSES, MOST, SIZE = 6, 3, 600


def first_phases(weights: str, seeds: int) -> list[Counter[int]]:
    """Number of samples of each class in the first phase, for seeds 0, 1, 2 …"""
    plenty = dataset(list(range(CLASSES)), SIZE)
    assert weights in ("uniform", "longtail")
    streams = (
        gcil(plenty, weights=weights, seed=s, phases=1, size=SIZE, most=MOST)  # type: ignore[arg-type]
        for s in range(seeds)
    )
    return [Counter(s.tasks[0].samples().inputs[:, 0, 0, 0].tolist()) for s in streams]


@pytest.mark.parametrize(("weights", "decay"), [("uniform", 1.0), ("longtail", 0.984)])
def test_counts_are_multinomial_over_the_weights_of_the_chosen_classes(
    weights: str, decay: float
) -> None:
    """The deviations of the counts from their expectation are random."""
    excess, variance = np.zeros(CLASSES), np.zeros(CLASSES)
    for counts in first_phases(weights, 300):
        total = sum(decay**c for c in counts)
        for c, count in counts.items():
            share = decay**c / total
            excess[c] += count - SIZE * share
            variance[c] += SIZE * share * (1 - share)
    z = excess / np.sqrt(variance)
    assert np.abs(z).max() < 3.5
    assert stats.chi2(CLASSES).sf((z**2).sum()) > 0.01


def test_number_and_choice_of_classes_are_uniform() -> None:
    phases = first_phases("longtail", 600)
    numbers = Counter(len(counts) for counts in phases)
    assert set(numbers) == set(range(1, MOST + 1))
    assert stats.chisquare(list(numbers.values())).pvalue > 0.01
    chosen = Counter(c for counts in phases for c in counts)
    assert stats.chisquare([chosen[c] for c in range(CLASSES)]).pvalue > 0.01


def test_a_phase_ends_when_its_classes_have_no_samples_left() -> None:
    stream = gcil(dataset([0, 1, 2], 30), phases=3, size=100, most=1)
    assert [len(task.samples().labels) for task in stream.tasks] == [30, 30, 30]
    assert [set(task.samples().labels.tolist()) for task in stream.tasks] == [{0}, {1}, {2}]


def test_invalid_arguments_are_rejected() -> None:
    three = dataset([0, 1, 2], 30)
    with pytest.raises(ValueError, match="no samples are left after 3 of 4 phases"):
        gcil(three, phases=4, size=100, most=1)
    with pytest.raises(ValueError, match="20 samples are too few for up to 3 classes"):
        gcil(three, size=20, most=3)
    with pytest.raises(ValueError, match="expected 'uniform' or 'longtail'"):
        gcil(three, weights="zipf")  # type: ignore[arg-type]
