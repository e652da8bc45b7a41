"""Every reader, on mutated files whose checksums are valid: they are used or refused in a sentence.

`make test` runs a few mutations of each kind, `make faults` ten thousand. The readers of datasets
are fuzzed in tests/data/test_fuzz.py.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState
from torch import nn

from perdure import CLSER, DERPP, ER, GEM, GSS, ICaRL, Learner, load_run
from perdure.cli.tune import _trials_table as show_trials
from perdure.experiment import tune
from perdure.experiment.grid import read_grid
from perdure.experiment.resolve import resolve
from perdure.experiment.space import parse_space
from perdure.files import digest_file, write_manifest
from perdure.report import compose, render
from perdure.results import collect
from perdure.results.folder import RunFolder
from perdure.results.records import Result
from perdure.state import as_bytes, read_file, write_file
from perdure.training.checkpoint import CheckpointStore

from . import mutate, small
from .conftest import Count, share

SHORT = 15


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="perdure-fuzz-") as path:
        yield Path(path)


@cache
def finished() -> Path:
    """A run with every file that is read."""
    out = Path(tempfile.mkdtemp(prefix="perdure-fuzz-run-"))
    return small.make(small.settings("er", max_steps=20), out).path


def seal(path: Path) -> None:
    """Recompute the checksums of a run folder."""
    names = [p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()]
    files = {name: digest_file(path / name) for name in names if name != "manifest.json"}
    write_manifest(path / "manifest.json", {"files": files})


def a_report(name: str, random: Random) -> None:
    """The mutated run is reported or skipped; the other one is always reported."""
    with folder() as root:
        for run in ("good", "odd"):
            shutil.copytree(finished(), root / "runs" / run)
        path = root / "runs/odd" / name
        path.write_bytes(mutate.json_file(path.read_bytes(), random))
        seal(root / "runs/odd")
        report = compose(collect([root / "runs"]), "Report", {})
        render(report, "md").encode()
        if not random.randrange(10):  # drawing the figures takes a second
            render(report, "html").encode()
        assert any(run.folder.path.name == "good" for run in report.collection.runs) or any(
            skipped.place.endswith(("good", "odd")) for skipped in report.collection.skipped
        )
        with contextlib.suppress(ValueError):
            load_run(root / "runs/odd")


def a_manifest(random: Random) -> None:
    with folder() as root:
        shutil.copytree(finished(), root / "run")
        path = root / "run/manifest.json"
        content = json.loads(path.read_bytes())
        del content["seal"]
        changed = mutate.structure(content, random)
        with contextlib.suppress(ValueError):  # a number that JSON cannot hold
            if isinstance(changed, dict):
                write_manifest(path, changed)
        if random.randrange(2):
            path.write_bytes(mutate.bytes_of(path.read_bytes(), random))
        with contextlib.suppress(ValueError):
            RunFolder(root / "run").read("result.json", Result)
        with contextlib.suppress(ValueError):
            load_run(root / "run")


KINDS: list[type[Learner]] = [CLSER, DERPP, ER, GEM, GSS, ICaRL]


def learner(kind: type[Learner]) -> Learner:
    torch.manual_seed(0)
    other: dict[str, Any] = {"tasks": 2} if kind is GEM else {}
    return kind(nn.Linear(4, 3), **{"buffer_size": 6, **other})


def a_learner_file(random: Random) -> None:
    kind = random.choice(KINDS)
    trained = learner(kind)
    inputs, labels = torch.rand(4, 4), torch.tensor([0, 1, 2, 0])
    trained.observe(inputs, labels)
    state = mutate.structure(_plain(trained.state_dict()), random)
    content = b""
    with contextlib.suppress(TypeError, ValueError, UnicodeEncodeError):  # cannot be written
        content = as_bytes(_tensors(state, random), {"learner": kind.__name__})
    if not random.randrange(4):
        content = mutate.bytes_of(content, random)
    fresh = learner(kind)
    before = as_bytes(fresh.state_dict(), {})
    with folder() as root:
        (root / "file").write_bytes(content)
        try:
            fresh.load(root / "file")
        except ValueError:
            assert as_bytes(fresh.state_dict(), {}) == before
        else:
            with contextlib.suppress(ValueError):  # it claims to be used to other inputs
                fresh.predict(inputs)
                fresh.observe(inputs, labels)


def _plain(state: Any) -> Any:
    """A state in which every tensor is a marked list, so that it can be mutated too."""
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    return {"tensor": state} if isinstance(state, torch.Tensor) else state


def _tensors(state: Any, random: Random) -> Any:
    if not isinstance(state, dict):
        return state
    if isinstance(tensor := state.get("tensor"), torch.Tensor):
        kind = random.randrange(40)
        if kind == 0:
            return tensor.flatten()[: tensor.numel() // 2]
        if kind == 1:
            return tensor.to(random.choice([torch.float64, torch.int64, torch.uint8]))
        if kind == 2 and tensor.numel():
            tensor = tensor.clone()
            tensor.view(-1)[random.randrange(tensor.numel())] = random.choice([-1, 0, 200])
        return tensor
    return {key: _tensors(value, random) for key, value in state.items()}


def a_checkpoint(random: Random) -> None:
    """A mutated manifest of a checkpoint is used, skipped, or refused."""
    with folder() as root:
        store = CheckpointStore(root, {"seed": 0})
        facts = {"step": 3, "position": [0, 0, 3], "seconds": 1.0, "resumed": [], "environment": {}}
        for _ in range(2):
            store.add({"a": torch.zeros(2)}, facts, 0)
        path = store.path / "2.json"
        content = json.loads(path.read_bytes())
        del content["seal"]
        changed = mutate.structure(content, random)
        with contextlib.suppress(ValueError):
            if isinstance(changed, dict):
                write_manifest(path, changed)
        if not random.randrange(3):
            path.write_bytes(mutate.bytes_of(path.read_bytes(), random))
        store.latest_step()
        with contextlib.suppress(ValueError):
            list(store.valid())


@cache
def stopped() -> Path:
    """A folder with a run that has a checkpoint."""
    out = Path(tempfile.mkdtemp(prefix="perdure-fuzz-stopped-"))
    small.stop_at(SETTINGS, out, 10)
    return out


SETTINGS = small.settings("er", max_steps=20)


def a_run_state(random: Random) -> None:
    """A run resumes from a mutated state, or refuses it in a sentence."""
    with folder() as root:
        shutil.copytree(stopped(), root / "runs")
        run = small.folder(SETTINGS, root / "runs")
        path = run.path / "checkpoints/1.safetensors"
        state, about = read_file(path)
        state["record"]["content"] = json.loads(state["record"]["content"])
        changed = _tensors(mutate.structure(_plain(state), random), random)
        try:
            if isinstance(changed.get("record"), dict) and "content" in changed["record"]:
                changed["record"]["content"] = json.dumps(changed["record"]["content"])
            write_file(path, changed, about)
        except (TypeError, ValueError, AttributeError, UnicodeEncodeError):  # cannot be written
            return
        manifest = json.loads(path.with_suffix(".json").read_bytes())
        del manifest["seal"]
        write_manifest(path.with_suffix(".json"), {**manifest, "state": digest_file(path)})
        job = small.job(SETTINGS, root / "runs", resume=True)
        try:
            job.execute(small.silent)
        except Exception as error:
            failure = job.explain(error)
            assert failure.trace == "", failure.trace
            assert failure.reason


@cache
def study() -> bytes:
    """The journal of a study with four trials, one of which failed and one of which is lost."""
    with folder() as root:
        search = _search(root)
        found = tune.open_study(search)
        for number in range(4):
            trial = tune.ask(found, search)
            if number == 0:
                trial.set_user_attr("reason", "a reason")
                found.tell(trial, state=TrialState.FAIL)
            elif number < 3:
                trial.set_user_attr("by_seed", [10.0 * number])
                found.tell(trial, 10.0 * number)
        return Path(search.storage).read_bytes()


def _search(root: Path) -> tune.Search:
    config = resolve("s-mnist", "er", dataset="mnist5k", validation=0.1)
    return tune.Search(config, parse_space(["lr=0.01:1:log"]), (0,), 0, str(root / "journal"))


def a_study(random: Random) -> None:
    """A mutated study continues, or is refused in a sentence."""
    with folder() as root, contextlib.suppress(ValueError):
        search = _search(root)
        Path(search.storage).write_bytes(mutate.json_file(study(), random))
        found = tune.open_study(search)
        tune.discard_lost_trials(found)
        trials = tune.read_trials(found)
        tune.best_trial(trials)
        tune.write_trials(root / "trials.csv", trials, search.space)
        show_trials(trials, search.space, "Trials")
        tune.ask(found, search)


GRID = b"""title = "A grid"
seeds = "0:3"
[[runs]]
streams = ["s-mnist"]
methods = ["clser", "er"]
buffer_sizes = [200, 500]
networks = ["mlp"]
memory_batch = [10, 20]
seeds = "1,2"
"""
SPACE = b"""lr = {low = 0.01, high = 1.0, log = true}
memory_batch = [16, 32]
"""


def a_grid(random: Random) -> None:
    with folder() as root, contextlib.suppress(ValueError):
        (root / "grid.toml").write_bytes(mutate.bytes_of(GRID, random))
        read_grid(root / "grid.toml")


def a_space(random: Random) -> None:
    with folder() as root, contextlib.suppress(ValueError):
        (root / "space.toml").write_bytes(mutate.bytes_of(SPACE, random))
        parse_space([str(root / "space.toml")])
    text = mutate.bytes_of(b"lr=0.01:1:log", random).decode("utf-8", "replace")
    with contextlib.suppress(ValueError):
        parse_space([text])


def _report_on(name: str) -> Callable[[Random], None]:
    return lambda random: a_report(name, random)


TARGETS: dict[str, tuple[Callable[[Random], None], int]] = {
    "config": (_report_on("config.json"), 700),
    "result": (_report_on("result.json"), 700),
    "timing": (_report_on("timing.json"), 500),
    "events": (_report_on("events.jsonl"), 500),
    "manifest": (a_manifest, 1000),
    "learner file": (a_learner_file, 2000),
    "checkpoint": (a_checkpoint, 1000),
    "run state": (a_run_state, 600),
    "study": (a_study, 1000),
    "grid": (a_grid, 1000),
    "space": (a_space, 1000),
}
"""What reads each kind of file, and how many are mutated in a long test."""


def fuzz(target: str, seed: int) -> None:
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            TARGETS[target][0](Random(seed))
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("target", TARGETS)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=SHORT, deadline=None, derandomize=True, database=None)
def test_mutated_files_are_used_or_refused(target: str, seed: int) -> None:
    fuzz(target, seed)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("target", TARGETS)
def test_many_mutated_files_are_used_or_refused(target: str, count: Count) -> None:
    number = share(TARGETS[target][1])

    @given(seed=st.integers(0, 2**32))
    @settings(max_examples=number, deadline=None, database=None)
    def many(seed: int) -> None:
        fuzz(target, seed)

    many()
    count("mutated files", number)
