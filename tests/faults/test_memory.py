"""Memory does not grow during long training."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from torch import nn

from perdure import CLSER, Samples
from perdure.cli import main

from .conftest import Count, share

PAGE = 4096
WARM_UP = 2000
"""Batches until the allocator has what it needs: a megabyte or two."""


def resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def growth(batches: int) -> tuple[int, int]:
    """Bytes and objects that a learner gains while it observes so many batches."""
    learner = CLSER(nn.Linear(4, 3), buffer_size=50, memory_batch=4)
    draws = torch.Generator().manual_seed(0)

    def supply(count: int) -> Iterator[Samples]:
        for _ in range(count):
            inputs = torch.rand(4, 4, generator=draws)
            yield Samples(inputs, torch.randint(3, (4,), generator=draws))

    for batch in supply(WARM_UP):
        learner.observe(batch.inputs, batch.labels)
    gc.collect()
    objects = len(gc.get_objects())  # a list of megabytes itself, so made first
    before = resident()
    for batch in supply(batches):
        learner.observe(batch.inputs, batch.labels)
    gc.collect()
    assert int(learner.steps) == batches + WARM_UP
    return resident() - before, len(gc.get_objects()) - objects


def test_a_learner_does_not_grow() -> None:
    memory, objects = growth(2000)
    assert memory < 1_000_000
    assert objects < 50


@pytest.mark.slow
@pytest.mark.faults
def test_a_learner_does_not_grow_over_300_000_batches(count: Count) -> None:
    number = share(300_000)
    memory, objects = growth(number)
    count("batches observed by one learner", WARM_UP + number)
    count("bytes by which it grew", memory)
    assert memory < 1_000_000  # four bytes a batch would be noticed
    assert objects < 50


ENDLESS = """
    import itertools
    import torch
    from perdure import from_batches

    class Endless:
        def __iter__(self):
            for number in itertools.count():
                draws = torch.Generator().manual_seed(number)
                labels = torch.randint(3, (8,), generator=draws)
                yield torch.rand(8, 1, 2, 2, generator=draws) + labels[:, None, None, None], labels

    def again():
        return from_batches(Endless(), classes=3, shape=(1, 2, 2))

    def once():
        return from_batches(iter(Endless()), classes=3, shape=(1, 2, 2))
"""


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "endless.py").write_text(dedent(ENDLESS))
    return tmp_path


def test_an_endless_stream_ends_after_max_steps(endless: Path) -> None:
    for stream in ("endless:again", "endless:once"):
        flags = ["--max-steps", "500", "--quiet", "--checkpoint-every", "0.01"]
        assert main(["run", stream, "--method", "er", *flags]) == 0


def test_a_stream_that_can_be_read_once_cannot_be_resumed(
    endless: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = ["--method", "er", "--max-steps", "50", "--quiet", "--resume"]
    assert main(["run", "endless:once", *flags]) == 2
    error = capfd.readouterr().err
    assert error.startswith("perdure: ")
    assert "iterator" in error
    assert error.count("\n") == 1
    assert main(["run", "endless:again", *flags]) == 0
