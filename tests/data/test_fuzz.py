"""Readers of datasets on mutated files with valid checksums: data, or a DataError."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.data import DataError, load

from . import small

LONG = max(1, round(200 * float(os.environ.get("PERDURE_FAULTS", "1"))))


def fuzz(name: str, layout: int, seed: int) -> None:
    random, made = Random(seed), small.make(name)
    path = random.choice(made.paths(layout))
    content = bytearray(made.files[path])
    for _ in range(random.choice([1, 3])):
        start = random.randrange(len(content) + 1)
        kind = random.randrange(4)
        if kind == 0 and start < len(content):
            content[start] ^= 1 << random.randrange(8)
        elif kind == 1:
            del content[start : start + random.choice([1, 10, 10_000])]
        elif kind == 2:
            content[start : start + 4] = random.choice([b"\x00" * 4, b"\xff" * 4, b"\x7f\xff"])
        else:
            content[start:start] = content[start : start + 50]
    altered = made.altered(path, bytes(content))
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(DataError):
        load(altered.spec, altered.write(Path(folder) / "data", layout))


@pytest.mark.parametrize(("name", "layout"), small.LAYOUTS)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=5, deadline=None, derandomize=True, database=None)
def test_mutated_files_are_read_or_refused(name: str, layout: int, seed: int) -> None:
    fuzz(name, layout, seed)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize(("name", "layout"), small.LAYOUTS)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=LONG, deadline=None, database=None)
def test_many_mutated_files_are_read_or_refused(name: str, layout: int, seed: int) -> None:
    fuzz(name, layout, seed)
