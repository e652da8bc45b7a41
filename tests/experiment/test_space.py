"""Search spaces: how users write them, and the built-in ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perdure import catalog, presets
from perdure.experiment.build import read_dataset
from perdure.experiment.resolve import resolve
from perdure.experiment.space import (
    Choice,
    Range,
    check_space,
    default_space,
    fit_to_method,
    parse_space,
)


def test_ranges_and_choices_are_read() -> None:
    space = parse_space(["lr=0.01:1:log", "stable_rate=0.1:1", "memory_batch=16,32", "epochs=1:3"])
    assert space == {
        "lr": Range(0.01, 1, log=True),
        "stable_rate": Range(0.1, 1),
        "memory_batch": Choice((16, 32)),
        "epochs": Range(1, 3),
    }
    assert fit_to_method(space, "clser")["epochs"] == Range(1, 3, integer=True)
    assert fit_to_method(space, "clser")["lr"] == space["lr"]


def test_a_file_and_words_go_together(tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    file.write_text("lr = { low = 0.01, high = 1, log = true }\nmemory_batch = [16, 32]\n")
    assert parse_space([str(file), "memory_batch=8,16"]) == {
        "lr": Range(0.01, 1, log=True),
        "memory_batch": Choice((8, 16)),
    }


@pytest.mark.parametrize(
    "text",
    ["lr=", "lr=1:2:lin", "lr=a:b", "lr=1,b", "=1:2", "l r=1:2", "lr=1:2:log:3", "lr=:"],
)
def test_invalid_forms_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected NAME=LOW:HIGH"):
        parse_space([text])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr=2:1", "from 2 to 1"),
        ("lr=1:1", "from 1 to 1"),
        ("lr=0:nan", "from 0 to nan"),
        ("lr=0:1:log", "above 0"),
        ("lr=1", "at least two different numbers"),
        ("lr=1,1", "at least two different numbers"),
        ("lr=1,inf", "at least two different numbers"),
        ("nowhere.toml", "nowhere.toml: file not found"),
    ],
)
def test_empty_ranges_and_choices_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_space([text])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("lr = 3", r"lr: expected \[a, b, …\] or .* not 3"),
        ('lr = ["a", "b"]', "expected"),
        ("lr = { low = 1 }", "expected"),
        ("lr = { low = 1, high = 2, lag = true }", "expected"),
        ("lr = [", "space.toml: Invalid"),
    ],
)
def test_invalid_files_are_refused(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text(content)
    with pytest.raises(ValueError, match=said):
        parse_space([str(tmp_path / "space.toml")])


def test_ranges_of_counts_have_whole_ends() -> None:
    with pytest.raises(ValueError, match="batch: expected whole numbers"):
        fit_to_method({"batch": Range(1.5, 8)}, "er")


def test_the_papers_space() -> None:
    space = default_space("clser")
    assert space["stable_decay"] == space["plastic_decay"] == Choice((0.99, 0.999))
    for name, high in (("consistency_weight", 2), ("stable_rate", 1), ("plastic_rate", 1)):
        part = space[name]
        assert isinstance(part, Range)
        assert 0 < part.low <= 0.01
        assert part.high == high


@pytest.mark.parametrize("method", catalog.METHODS)
def test_every_method_has_a_valid_space_that_contains_the_published_values(
    method: str,
) -> None:
    space = fit_to_method(default_space(method), method)
    config = resolve("s-mnist", method, dataset="mnist5k", validation=0.1)
    check_space(space, config, read_dataset(config), seed=0)
    for stream in catalog.STREAMS:
        for buffer_size in presets.published_buffers(method, stream) or (None,):
            found = presets.find(method, stream, buffer_size)
            for name, part in space.items():
                if found is not None and name in found.values and not found.notes:
                    assert found.values[name] in part, (stream, buffer_size, name)


def test_values_that_a_method_refuses_are_reported_before_the_search() -> None:
    config = resolve("s-mnist", "clser", dataset="mnist5k", validation=0.1)
    dataset = read_dataset(config)
    with pytest.raises(ValueError, match=r"search space.*rate is 0"):
        check_space({"lr": Range(0.1, 1), "stable_rate": Range(0, 1)}, config, dataset, 0)
    with pytest.raises(ValueError, match=r"search space.*decay is 1"):
        check_space({"plastic_decay": Choice((0.9, 1, 0.99))}, config, dataset, 0)
    check_space({"stable_rate": Range(0.1, 1)}, replace(config, max_steps=1), dataset, 0)


def test_a_users_method_has_no_default_space() -> None:
    with pytest.raises(ValueError, match="own:Method has no default search space"):
        default_space("own:Method")
