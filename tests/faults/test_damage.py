"""Damage to any file of a run folder is detected or has no consequences."""

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
from perdure.experiment.plan import plan_setting
from perdure.results.folder import RunFolder
from perdure.results.records import Result, read_run
from perdure.state import as_bytes

from . import small
from .compare import contents, left_over
from .conftest import Count, share

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
        folder = small.folder(small.settings(), copy)
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
    return contents(small.folder(small.settings(), whole).path)


def check_interrupted_run(stopped: Path, expected: dict[str, str], data: Draw) -> None:
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
            assert any("previous checkpoint" in sentence for sentence in said)


def check_finished_run(whole: Path, expected: dict[str, str], data: Draw) -> None:
    reference = small.folder(small.settings(), whole)
    result = reference.read("result.json", Result)
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
        out = folder.path.parents[2]
        if not plan_setting(small.settings(), [0], out).complete:
            small.make(small.settings(), out)
            assert contents(folder.path) == expected
        assert folder.read("result.json", Result) == result


@examples(max_examples=25)
@given(data=st.data())
def test_an_interrupted_run_ends_with_the_same_result_whatever_is_damaged(
    whole: Path, stopped: Path, data: Draw
) -> None:
    check_interrupted_run(stopped, contents(small.folder(small.settings(), whole).path), data)


@examples(max_examples=25)
@given(data=st.data())
def test_damage_to_a_finished_run_is_detected_or_harmless(whole: Path, data: Draw) -> None:
    check_finished_run(whole, expected(whole), data)


@pytest.mark.parametrize("name", ["learner.safetensors", "models/working.safetensors"])
def test_a_run_with_a_truncated_network_is_trained_again(
    name: str, whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = Path(shutil.copytree(whole, tmp_path / "runs"))
    folder = small.folder(small.settings(), out)
    (folder.path / name).write_bytes((folder.path / name).read_bytes()[:-1])
    assert plan_setting(small.settings(), [0], out).missing == (0,)
    assert name in caplog.text
    small.make(small.settings(), out, resume=True)
    assert contents(folder.path) == expected(whole)


def test_a_run_whose_networks_were_removed_is_reused(whole: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(whole, tmp_path / "runs"))
    folder = small.folder(small.settings(), out)
    (folder.path / "learner.safetensors").unlink()
    shutil.rmtree(folder.path / "models")
    assert plan_setting(small.settings(), [0], out).complete == (0,)
    assert read_run(folder.path).remarks == ()
    with pytest.raises(ValueError, match=r"learner\.safetensors"):
        load_run(folder.path)


@pytest.mark.slow
@pytest.mark.faults
@examples(max_examples=share(500))
@given(data=st.data())
def test_many_interrupted_runs(whole: Path, stopped: Path, count: Count, data: Draw) -> None:
    check_interrupted_run(stopped, contents(small.folder(small.settings(), whole).path), data)
    count("mutated files", 1)
    count("results compared byte for byte", 1)


@pytest.mark.slow
@pytest.mark.faults
@examples(max_examples=share(500))
@given(data=st.data())
def test_many_finished_runs(whole: Path, count: Count, data: Draw) -> None:
    check_finished_run(whole, expected(whole), data)
    count("mutated files", 1)
