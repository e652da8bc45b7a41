"""Where to search: what a user may write, what is refused, and the spaces that are built in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perdure import catalog, presets
from perdure.training import plan
from perdure.training.build import read_dataset
from perdure.tuning.space import (
    Choice,
    Range,
    check,
    default_space,
    fitted,
    read_space,
)


def test_ranges_and_choices_are_read() -> None:
    space = read_space(["lr=0.01:1:log", "stable_rate=0.1:1", "memory_batch=16,32", "epochs=1:3"])
    assert space == {
        "lr": Range(0.01, 1, log=True),
        "stable_rate": Range(0.1, 1),
        "memory_batch": Choice((16, 32)),
        "epochs": Range(1, 3),
    }
    assert fitted(space, "clser")["epochs"] == Range(1, 3, whole=True)
    assert fitted(space, "clser")["lr"] == space["lr"]


def test_a_file_and_words_go_together(tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    file.write_text("lr = { low = 0.01, high = 1, log = true }\nmemory_batch = [16, 32]\n")
    assert read_space([str(file), "memory_batch=8,16"]) == {
        "lr": Range(0.01, 1, log=True),
        "memory_batch": Choice((8, 16)),
    }


@pytest.mark.parametrize(
    "text",
    ["lr=1", "lr=", "lr=1:2:lin", "lr=a:b", "lr=1,b", "=1:2", "l r=1:2", "lr=1:2:log:3", "lr=:"],
)
def test_what_is_no_space_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected name=low:high, name=low:high:log, name=a"):
        read_space([text])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr=2:1", "from 2 to 1 there is nothing to search"),
        ("lr=1:1", "from 1 to 1 there is nothing to search"),
        ("lr=0:nan", "from 0 to nan there is nothing to search"),
        ("lr=0:1:log", "a logarithmic range must begin above 0"),
        ("lr=1,1", "expected two or more different numbers"),
        ("lr=1,inf", "expected two or more different numbers"),
        ("nowhere.toml", "nowhere.toml: there is no such file"),
    ],
)
def test_what_cannot_be_searched_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_space([text])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("lr = 3", r"lr is 3; expected \[a, b, …\] or"),
        ('lr = ["a", "b"]', "expected"),
        ("lr = { low = 1 }", "expected"),
        ("lr = { low = 1, high = 2, lag = true }", "expected"),
        ("lr = [", "cannot be read"),
    ],
)
def test_files_that_hold_no_space_are_refused(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text(content)
    with pytest.raises(ValueError, match=said):
        read_space([str(tmp_path / "space.toml")])


def test_whole_numbers_have_whole_ends() -> None:
    with pytest.raises(ValueError, match=r"space 'batch': expected whole numbers, not \[1.5, 8\]"):
        fitted({"batch": Range(1.5, 8)}, "er")


def test_the_papers_space() -> None:
    space = default_space("clser")
    assert space["stable_decay"] == space["plastic_decay"] == Choice((0.99, 0.999))
    for name, high in (("consistency_weight", 2), ("stable_rate", 1), ("plastic_rate", 1)):
        part = space[name]
        assert isinstance(part, Range)
        assert 0 < part.low <= 0.01
        assert part.high == high


@pytest.mark.parametrize("method", catalog.METHODS)
def test_every_method_has_a_space_that_it_allows_and_that_holds_what_was_published(
    method: str,
) -> None:
    space = fitted(default_space(method), method)
    settings = plan("s-mnist", method, dataset="mnist5k", validation=0.1)
    check(space, settings, read_dataset(settings), seed=0)
    for stream in catalog.STREAMS:
        for buffer_size in presets.published_buffers(method, stream) or (None,):
            found = presets.find(method, stream, buffer_size)
            for name, part in space.items():
                if found is not None and name in found.values and not found.notes:
                    assert part.holds(found.values[name]), (stream, buffer_size, name)


def test_values_that_a_method_refuses_are_found_before_the_search() -> None:
    settings = plan("s-mnist", "clser", dataset="mnist5k", validation=0.1)
    dataset = read_dataset(settings)
    with pytest.raises(ValueError, match=r"does not fit: stable rate is 0; expected a number abo"):
        check({"lr": Range(0.1, 1), "stable_rate": Range(0, 1)}, settings, dataset, 0)
    with pytest.raises(ValueError, match=r"does not fit: plastic decay is 1; expected"):
        check({"plastic_decay": Choice((0.9, 1, 0.99))}, settings, dataset, 0)
    check({"stable_rate": Range(0.1, 1)}, replace(settings, max_steps=1), dataset, 0)


def test_a_method_of_ones_own_has_no_space() -> None:
    with pytest.raises(ValueError, match="there is no search space for own:Method; give one"):
        default_space("own:Method")
