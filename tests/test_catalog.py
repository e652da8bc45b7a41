"""What there is, by name, and what a user names as module:name."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import catalog, presets
from perdure.data import DATASETS, Dataset, load
from perdure.learners import Learner


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in ("mine", "faulty"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("mnist5k")


def test_the_streams_of_the_paper_are_there() -> None:
    assert set(catalog.STREAMS) == {
        *("s-mnist", "r-mnist", "p-mnist", "mnist-360", "s-cifar10", "s-tiny-imagenet"),
        *("gcil-cifar100-uniform", "gcil-cifar100-longtail"),
        *("s-cifar100-5x20", "s-cifar100-10x10"),
    }


@pytest.mark.parametrize("name", sorted(catalog.METHODS))
def test_a_method_is_a_learner_with_a_title_and_a_source(name: str) -> None:
    method = catalog.METHODS[name]
    assert issubclass(catalog.find_object(method.learner, "method"), Learner)
    assert method.title
    assert method.paper
    assert method.joined == (name == "joint")


@pytest.mark.parametrize("name", sorted(catalog.STREAMS))
def test_a_stream_is_made_from_datasets_that_there_are(name: str) -> None:
    entry = catalog.STREAMS[name]
    assert set(entry.datasets) <= set(DATASETS)
    assert entry.network in catalog.NETWORKS
    assert entry.title
    assert presets.find("clser", name, 500) is not None


@pytest.mark.parametrize("name", ["s-mnist", "r-mnist", "p-mnist", "mnist-360"])
def test_the_entry_says_how_the_stream_prepares_its_images(name: str, digits: Dataset) -> None:
    entry, stream = catalog.STREAMS[name], catalog.build_stream(name, digits)
    assert (stream.name, stream.data, stream.classes) == (name, "mnist5k", stream.classes)
    assert repr(stream.normalise) == repr(entry.normalise)
    assert repr(stream.augment) == repr(entry.augment)
    assert catalog.build_stream(name, digits).checksum == stream.checksum


@pytest.mark.parametrize(("name", "composed"), [("r-mnist", True), ("s-mnist", False)])
def test_only_streams_that_chance_composes_take_a_seed(
    name: str, composed: bool, digits: Dataset
) -> None:
    own, other = (catalog.build_stream(name, digits, seed).checksum for seed in (None, 99))
    assert (own != other) == composed


# -- a user's own ---------------------------------------------------------------------------


def test_modules_of_the_current_folder_are_found(here: Path) -> None:
    (here / "mine.py").write_text("class Outer:\n    inner = 7\n")
    assert catalog.find_object("mine:Outer.inner", "method") == 7
    assert catalog.find_object("os.path:join", "function")("a", "b") == "a/b"


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (":", "method ':'; expected module:name"),
        ("mine", "method 'mine'; expected module:name"),
        ("mine:", "method 'mine:'; expected module:name"),
        (":x", "method ':x'; expected module:name"),
        ("mine:x", "method 'mine:x': mine has no 'x'"),
        ("mine:value.real.x", "method 'mine:value.real.x': mine has no 'value.real.x'"),
        ("nowhere:x", "method 'nowhere:x': No module named 'nowhere'"),
        ("mine.deeper:x", "No module named 'mine.deeper'; 'mine' is not a package"),
    ],
)
def test_references_that_lead_nowhere_are_refused(
    reference: str, expected: str, here: Path
) -> None:
    (here / "mine.py").write_text("value = 1\n")
    with pytest.raises(ValueError, match=re.escape(expected)):
        catalog.find_object(reference, "method")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import nothing_of_the_kind", "No module named 'nothing_of_the_kind'"),
        ("def (", "invalid syntax (faulty.py, line 1)"),
        ("\n\n{}['key']", "KeyError: 'key' (faulty.py, line 3)"),
        ("raise AttributeError('odd')", "AttributeError: odd (faulty.py, line 1)"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named_with_its_fault(
    source: str, expected: str, here: Path
) -> None:
    (here / "faulty.py").write_text(source)
    with pytest.raises(ValueError, match=re.escape(f"method 'faulty:X': {expected}")):
        catalog.find_object("faulty:X", "method")
