"""Fixtures: a folder with a small MNIST, and importable modules such as users write."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from perdure.data import DATASETS, File, Layout

Write = Callable[[str, str], str]


@pytest.fixture
def small_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with MNIST files of 200 training and 50 test images, all random."""
    names = [file.path.removesuffix(".gz") for file in DATASETS["mnist"].layouts[0].files]
    spec = replace(
        DATASETS["mnist"],
        train=(200, 1, 28, 28),
        test=(50, 1, 28, 28),
        layouts=(Layout(tuple(map(File, names))),),
    )
    monkeypatch.setitem(DATASETS, "mnist", spec)
    draws = torch.Generator().manual_seed(0)
    folder = tmp_path / "datasets"
    (folder / names[0]).parent.mkdir(parents=True)
    for name, (count, *shape) in zip(
        names, [(200, 28, 28), (200,), (50, 28, 28), (50,)], strict=True
    ):
        values = torch.randint(0, 256, (count, *shape), generator=draws, dtype=torch.uint8)
        if not shape:
            values = (torch.arange(count) % 10).byte()
        header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
        (folder / name).write_bytes(header + values.numpy().tobytes())
    return folder


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module into the current folder, a temporary one."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    path, before = list(sys.path), set(sys.modules)

    def module(name: str, source: str) -> str:
        (folder / f"{name}.py").write_text(dedent(source))
        return name

    yield module
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) == str(folder / f"{name}.py"):
            del sys.modules[name]
