"""The picture in the README shows means over the seeds of each method."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from .made import record, write

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_picture", ROOT / "docs/make_picture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_methods_with_similar_names_are_not_mixed(script: ModuleType, tmp_path: Path) -> None:
    for seed, accuracy in ((0, 80.0), (1, 90.0)):
        write(tmp_path, record("er", seed, accuracy=accuracy))
    write(tmp_path, record("er-ace", accuracy=20.0))
    assert script.accuracies(tmp_path, "er") == ([85.0, 85.0], [85.0, 85.0])
    with pytest.raises(SystemExit):
        script.accuracies(tmp_path, "sgd")
    write(tmp_path, record("er", buffer_size=200))
    with pytest.raises(SystemExit):
        script.accuracies(tmp_path, "er")
