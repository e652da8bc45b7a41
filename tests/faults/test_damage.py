"""Any file of a run folder cut short or altered anywhere: noticed, or of no consequence."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from perdure import load_run
from perdure.results import RunFolder
from perdure.state import as_bytes
from perdure.training.seeds import make_runs

from . import small
from .compare import contents, left_over
from .conftest import Count

Draw = st.DataObject


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs that holds one finished run."""
    out = tmp_path_factory.mktemp("whole")
    small.make(small.settings(), out)
    return out


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, stopped at step 20 and again at step 40."""
    out = tmp_path_factory.mktemp("stopped")
    folder = small.stop_at(small.settings(), out, 20, 40)
    assert sorted(p.name for p in (folder.path / "checkpoints").glob("*.json")) == [
        "1.json",
        "2.json",
    ]
    return out


def cut(content: bytes, place: int, bit: int) -> bytes:
    return content[:place]


def flip(content: bytes, place: int, bit: int) -> bytes:
    return content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]


def grow(content: bytes, place: int, bit: int) -> bytes:
    return content + bytes([bit]) * (place + 1)


@contextmanager
def damaged(out: Path, data: Draw) -> Iterator[tuple[RunFolder, str]]:
    """A copy of a folder of runs in which one file is not as it was, and that file's name."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(shutil.copytree(out, Path(place) / "runs"))
        folder = small.settings().folder(copy, 0)
        files = sorted(path for path in folder.path.rglob("*") if path.is_file())
        path = data.draw(st.sampled_from(files), label="file")
        content = path.read_bytes()
        how: Callable[[bytes, int, int], bytes] | None
        how = data.draw(st.sampled_from([cut, flip, flip, grow, None]), label="how")
        if how is None:
            path.unlink()
        else:
            spot = data.draw(st.integers(0, max(0, len(content) - 1)), label="at")
            path.write_bytes(how(content, spot, data.draw(st.integers(0, 7), label="bit")))
        yield folder, str(path.relative_to(folder.path))


def expected(whole: Path) -> dict[str, str]:
    return contents(small.settings().folder(whole, 0).path)


def a_damaged_stopped_run_ends_right(stopped: Path, expected: dict[str, str], data: Draw) -> None:
    with damaged(stopped, data) as (folder, name):
        said: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("perdure").addHandler(handler)
        try:
            small.make(small.settings(), folder.path.parents[2], resume=True)
        finally:
            logging.getLogger("perdure").removeHandler(handler)
        found = contents(folder.path)
        if name == "events.jsonl" and said:  # the log of what was before it, which it says
            found["events.jsonl"] = expected["events.jsonl"]
        assert found == expected
        assert left_over(folder.path) == set()
        if name == "checkpoints/2.safetensors":
            assert any("trying the previous checkpoint" in sentence for sentence in said)


def a_damaged_finished_run_says_so(whole: Path, expected: dict[str, str], data: Draw) -> None:
    reference = small.settings().folder(whole, 0)
    result = reference.read("result.json")
    state = as_bytes(load_run(reference.path).state_dict(), {})
    with damaged(whole, data) as (folder, name):
        try:
            learner = load_run(folder.path)
        except ValueError:
            assert name != "timing.json"
        else:
            assert as_bytes(learner.state_dict(), {}) == state
        try:
            assert list(folder.events()) == list(reference.events())
        except ValueError:
            assert name in ("events.jsonl", "manifest.json")
        made = make_runs(small.settings(), [0], folder.path.parents[2], tell=lambda *_: None)
        assert made.failed == {}
        assert folder.read("result.json") == result
        if not made.reused:
            assert contents(folder.path) == expected


@examples(max_examples=25)
@given(data=st.data())
def test_a_stopped_run_ends_right_whatever_is_damaged(
    whole: Path, stopped: Path, data: Draw
) -> None:
    a_damaged_stopped_run_ends_right(
        stopped, contents(small.settings().folder(whole, 0).path), data
    )


@examples(max_examples=25)
@given(data=st.data())
def test_a_finished_run_is_right_or_says_that_it_is_not(whole: Path, data: Draw) -> None:
    a_damaged_finished_run_says_so(whole, expected(whole), data)


@pytest.mark.slow
@pytest.mark.faults
@examples(max_examples=500)
@given(data=st.data())
def test_five_hundred_stopped_runs(whole: Path, stopped: Path, count: Count, data: Draw) -> None:
    a_damaged_stopped_run_ends_right(
        stopped, contents(small.settings().folder(whole, 0).path), data
    )
    count("files mutated", 1)
    count("results compared byte for byte", 1)


@pytest.mark.slow
@pytest.mark.faults
@examples(max_examples=500)
@given(data=st.data())
def test_five_hundred_finished_runs(whole: Path, count: Count, data: Draw) -> None:
    a_damaged_finished_run_says_so(whole, expected(whole), data)
    count("files mutated", 1)
