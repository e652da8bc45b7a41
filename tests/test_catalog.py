"""The catalog, and methods that a user refers to as module:class."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import catalog, presets
from perdure.data import DATASETS, Dataset, load
from perdure.learners import ER, Learner


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("mnist5k")


PAPER = {
    *("s-mnist", "r-mnist", "p-mnist", "mnist-360", "s-cifar10", "s-tiny-imagenet"),
    *("gcil-cifar100-uniform", "gcil-cifar100-longtail"),
    *("s-cifar100-5x20", "s-cifar100-10x10"),
}


def test_all_streams_of_the_paper_are_in_the_catalog() -> None:
    assert set(catalog.STREAMS) >= PAPER
    for name in PAPER:
        assert presets.find("clser", name, 500) is not None


@pytest.mark.parametrize("name", sorted(catalog.METHODS))
def test_a_method_is_a_learner(name: str) -> None:
    learner = catalog.find_learner(name)
    assert issubclass(learner, Learner)
    assert catalog.METHODS[name].learner is learner
    assert catalog.is_joint(name) == (name == "joint")
    assert catalog.takes_buffer(name) == (name not in ("sgd", "joint"))
    assert {"lr", "seed", "augment", "normalise"} <= set(catalog.accepted(learner))


@pytest.mark.parametrize("name", sorted(catalog.STREAMS))
def test_the_entries_of_a_stream_exist(name: str) -> None:
    entry = catalog.STREAMS[name]
    assert set(entry.datasets) <= set(DATASETS)
    assert entry.network in catalog.NETWORKS


@pytest.mark.parametrize("name", ["s-mnist", "r-mnist", "p-mnist", "mnist-360"])
def test_the_entry_has_the_streams_preparation(name: str, digits: Dataset) -> None:
    entry, stream = catalog.STREAMS[name], catalog.build_stream(name, digits)
    assert (stream.name, stream.data) == (name, "mnist5k")
    assert repr(stream.normalise) == repr(entry.normalise)
    assert repr(stream.augment) == repr(entry.augment)
    assert catalog.build_stream(name, digits).checksum == stream.checksum


@pytest.mark.parametrize(("name", "random"), [("r-mnist", True), ("s-mnist", False)])
def test_the_seed_applies_to_random_compositions_only(
    name: str, random: bool, digits: Dataset
) -> None:
    default, other = (catalog.build_stream(name, digits, seed).checksum for seed in (None, 99))
    assert (default != other) == random


# -- a user's own ---------------------------------------------------------------------------


def test_a_users_method_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "method_of_a_user.py").write_text(
        "from perdure import ER\n\nclass Mine(ER):\n    pass\n"
    )
    learner = catalog.find_learner("method_of_a_user:Mine")
    assert issubclass(learner, ER)
    assert catalog.takes_buffer("method_of_a_user:Mine")
    assert not catalog.is_joint("method_of_a_user:Mine")


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        ("perdure:Samples", "not a subclass"),
        ("perdure:Learner", "abstract"),
        ("er2", "module:name"),
    ],
)
def test_what_is_not_a_learner_is_rejected(method: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        catalog.find_learner(method)
