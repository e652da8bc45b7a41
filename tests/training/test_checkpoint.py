"""Checkpoints: runs go on from them bit for bit, and nothing but a whole one is believed."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perdure import ER, Samples, Stream, from_batches
from perdure.data import load
from perdure.files import read_manifest, to_json_bytes, write_manifest
from perdure.results import RunFolder
from perdure.state import State
from perdure.streams import mnist360
from perdure.training import Run, TrainingError, checkpoint, train
from perdure.training.checkpoint import Checkpoints, Shelf
from perdure.training.loop import Interrupted, Position

from . import toy
from .test_loop import assert_same

PLACE = {"torch": "2", "threads": 1}


class Counting:
    """An iterable of batches that knows its place, such as a stateful DataLoader."""

    def __init__(self, count: int) -> None:
        self.count, self.place, self.started = count, 0, 0
        self.noise = torch.Generator().manual_seed(1)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        self.started += 1
        while self.place < self.count:
            self.place += 1
            images, labels, _ = toy.inputs(6, self.place)
            noise = torch.randint(0, 20, images.shape, generator=self.noise, dtype=torch.uint8)
            yield images // 2 + noise, labels
        self.place = 0

    def state_dict(self) -> State:
        return {"place": self.place, "noise": {"state": self.noise.get_state()}}

    def load_state_dict(self, state: State) -> None:
        self.place = state["place"]
        self.noise.set_state(state["noise"]["state"])


class Again:
    """An iterable that can be iterated again, always alike."""

    def __iter__(self) -> Iterator[Samples]:
        return (toy.inputs(6, seed) for seed in range(7))


def batches(source: Any) -> Stream:
    test = toy.inputs(16, 99)[:2]
    return from_batches({"a": source, "b": Again()}, classes=8, shape=(1, 4, 4), test=test)


STREAMS: dict[str, Callable[[], Stream]] = {
    "split": toy.split,
    "domain": toy.domain,
    "joint": lambda: toy.split().joined(6, torch.Generator()),
    "read again": lambda: batches(Again()),
}


def runs_of(kind: str, stream: str, seeds: tuple[int, ...] = (3,)) -> list[Run]:
    return [toy.run(kind, seed, STREAMS[stream](), epochs=2) for seed in seeds]


def shelf(folder: Path, seed: int = 3) -> Shelf:
    return Shelf(RunFolder(folder / f"seed-{seed}"), {"method": "toy", "seed": seed})


def keeper(folder: Path, *seeds: int, every: float = math.inf) -> Checkpoints:
    shelves = [shelf(folder, seed) for seed in seeds or (3,)]
    for each in shelves:
        each.run.path.mkdir(parents=True, exist_ok=True)
        (each.run.path / "events.jsonl").touch()
    return Checkpoints(shelves, every, PLACE)


def stop_at(runs: list[Run], step: int, kept: Checkpoints) -> None:
    """Train until the step, and be interrupted there."""
    with pytest.raises(Interrupted), kept:
        train(runs, keeper=kept, stop=lambda: 2 * (runs[0].step == step))
    assert {run.step for run in runs} == {step}


# -- going on -------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("kind", ["sgd", "clser"])
def test_a_run_goes_on_bit_for_bit(kind: str, stream: str, tmp_path: Path) -> None:
    (whole,) = runs_of(kind, stream)
    train([whole])
    last = whole.step
    few = [3, last // 2, last]
    steps = range(1, last + 1, 2) if (kind, stream) == ("sgd", "split") else few
    for step in steps:
        folder = tmp_path / str(step)
        stop_at(runs_of(kind, stream), step, keeper(folder))
        (resumed,) = runs_of(kind, stream)
        kept = keeper(folder)
        assert kept.restore([resumed])
        assert (resumed.step, kept.resumed) == (step, [step])
        train([resumed], keeper=kept)
        assert_same(resumed.learner.state_dict(), whole.learner.state_dict())
        assert resumed.record.result() == whole.record.result()
        assert resumed.order.get_state().equal(whole.order.get_state())


def test_leaving_the_stream_early_is_exact_as_well(tmp_path: Path) -> None:
    for step in (1, 8, 9, 10):
        (whole,), (begun,), (resumed,) = (runs_of("er", "split") for _ in range(3))
        train([whole], max_steps=10)  # in the middle of the second task
        kept = keeper(tmp_path / str(step))
        with pytest.raises(Interrupted), kept:
            train([begun], max_steps=10, keeper=kept, stop=lambda s=step, r=begun: r.step == s)  # type: ignore[misc]
        assert keeper(tmp_path / str(step)).restore([resumed])
        train([resumed], max_steps=10)
        assert resumed.step == 10
        assert resumed.record.result() == whole.record.result()
        assert_same(resumed.learner.state_dict(), whole.learner.state_dict())


def test_a_finished_task_is_not_evaluated_twice(tmp_path: Path) -> None:
    for run in (whole := runs_of("er", "split"))[:1]:
        kept = keeper(tmp_path)
        with kept:
            train([run], max_steps=8, keeper=kept)  # exactly the first task
    (resumed,) = runs_of("er", "split")
    assert keeper(tmp_path).restore([resumed])
    assert resumed.position == Position(1)
    train([resumed], max_steps=8)
    assert resumed.record.result() == whole[0].record.result()


def test_mnist_360_goes_on_inside_its_only_task(tmp_path: Path) -> None:
    stream = mnist360(load("mnist5k"))

    def make() -> Run:
        last = torch.nn.Linear(784, 10)
        torch.nn.init.zeros_(last.weight)
        torch.nn.init.zeros_(last.bias)
        network = torch.nn.Sequential(torch.nn.Flatten(), last)
        return Run(ER(network, buffer_size=30, seed=1), stream, batch=16, seed=1)

    whole, begun, resumed = make(), make(), make()
    train([whole], max_steps=150)
    stop_at([begun], 117, keeper(tmp_path))
    assert keeper(tmp_path).restore([resumed])
    train([resumed], max_steps=150)
    assert_same(resumed.learner.state_dict(), whole.learner.state_dict())


def test_an_iterable_with_a_state_is_asked_to_go_on_itself(tmp_path: Path) -> None:
    whole = toy.run("er", 3, batches(Counting(9)), epochs=2)
    train([whole])
    for step in (1, 5, 9, 10, 17, 18, 19, 31):
        begun = toy.run("er", 3, batches(Counting(9)), epochs=2)
        resumed = toy.run("er", 3, batches(last := Counting(9)), epochs=2)
        stop_at([begun], step, keeper(tmp_path / str(step)))
        assert keeper(tmp_path / str(step)).restore([resumed])
        train([resumed])
        assert_same(resumed.learner.state_dict(), whole.learner.state_dict())
        assert last.started <= 2


def test_an_iterable_that_gives_other_batches_when_read_again_is_noticed(tmp_path: Path) -> None:
    class Shuffled:
        def __iter__(self) -> Iterator[Samples]:
            order = torch.randperm(7, generator=shuffling).tolist()
            return (toy.inputs(6, seed) for seed in order)

    shuffling = torch.Generator().manual_seed(2)
    stream = from_batches(Shuffled(), classes=8, shape=(1, 4, 4))
    stop_at([toy.run("er", 3, stream)], 4, keeper(tmp_path))
    resumed = toy.run("er", 3, stream)
    assert keeper(tmp_path).restore([resumed])
    with pytest.raises(ValueError, match="differ from those read before"):
        train([resumed])


def test_an_iterator_cannot_be_resumed_and_says_so(tmp_path: Path) -> None:
    stream = from_batches(iter(Again()), classes=8, shape=(1, 4, 4))
    assert not stream.tasks[0].resumable
    run = toy.run("er", 3, stream)
    state = run.state_dict() | {"position": [0, 0, 3]}
    with pytest.raises(ValueError, match="can be read only once"):
        run.load_state_dict(state)


def test_runs_at_different_positions_are_not_trained_together() -> None:
    one, other = runs_of("sgd", "split", (3, 4))
    train([one], max_steps=3)
    with pytest.raises(ValueError, match="the runs stand at different positions"):
        train([one, other])


# -- groups ---------------------------------------------------------------------------------


def test_a_group_goes_on_from_the_newest_checkpoint_that_all_have(tmp_path: Path) -> None:
    seeds = (3, 4, 5)
    whole = runs_of("er", "split", seeds)
    train(whole)
    stop_at(runs_of("er", "split", seeds), 5, keeper(tmp_path, *seeds))
    begun, kept = runs_of("er", "split", seeds), keeper(tmp_path, *seeds)
    assert kept.restore(begun)
    stop_at(begun, 7, kept)
    for path in shelf(tmp_path, 4).path.glob("2.*"):
        path.unlink()  # the second run's was not yet written
    resumed = runs_of("er", "split", seeds)
    assert keeper(tmp_path, *seeds).restore(resumed)
    assert {run.step for run in resumed} == {5}
    assert [shelf(tmp_path, seed).numbers() for seed in seeds] == [[1], [1], [1]]
    train(resumed)
    for one, other in zip(whole, resumed, strict=True):
        assert_same(one.learner.state_dict(), other.learner.state_dict())


def test_a_group_with_nothing_in_common_starts_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stop_at(runs_of("er", "split", (3,)), 5, keeper(tmp_path, 3))
    stop_at(runs_of("er", "split", (4,)), 6, keeper(tmp_path, 4))
    fresh = runs_of("er", "split", (3, 4))
    assert not keeper(tmp_path, 3, 4).restore(fresh)
    assert {run.step for run in fresh} == {0}
    assert "seed 3, 4: no checkpoint can be used; starting again" in caplog.text


# -- when, and how many ---------------------------------------------------------------------


class Noting(Checkpoints):
    """Remembers when it kept the runs."""

    def __init__(self, folder: Path, every: float) -> None:
        super().__init__(keeper(folder).shelves, every, PLACE)
        self.taken: list[tuple[int, Position]] = []

    def keep(self, runs: Sequence[Run]) -> None:
        self.taken.append((runs[0].step, runs[0].position))
        super().keep(runs)


def test_every_task_ends_with_a_checkpoint(tmp_path: Path) -> None:
    kept = Noting(tmp_path, math.inf)
    with kept:
        train(runs_of("sgd", "split"), keeper=kept)
    assert kept.taken == [(8 * (task + 1), Position(task + 1)) for task in range(4)]


def test_between_them_checkpoints_come_by_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: now))

    def second() -> int:
        nonlocal now
        now += 1  # for each step
        kept.wait()
        return 0

    kept = Noting(tmp_path, every=3)
    with kept:
        train(runs_of("sgd", "split"), keeper=kept, stop=second)
    steps = [step for step, _ in kept.taken]
    assert steps == [4, 8, 8, 12, 16, 16, 20, 24, 24, 28, 32, 32]  # each eighth ends a task


def test_while_one_is_being_written_the_next_waits(tmp_path: Path) -> None:
    written = threading.Event()
    kept = Noting(tmp_path, every=1e-9)
    with kept:
        (slow,) = kept.shelves
        add = slow.add
        slow.add = lambda *what: (written.wait(), add(*what))[1]  # type: ignore[method-assign]
        (run,) = runs_of("sgd", "split")

        def release() -> int:
            if run.step == 5:
                written.set()
            return 0

        train([run], max_steps=5, keeper=kept, stop=release)
    assert kept.taken[0][0] == 1
    assert {step for step, _ in kept.taken} <= {1, 5}  # the end of the task waited


def test_the_last_two_are_kept_and_none_after_the_end(tmp_path: Path) -> None:
    kept = keeper(tmp_path, every=1e-9)
    (run,) = runs_of("sgd", "split")
    with kept:
        train([run], keeper=kept)
    found = sorted(path.name for path in shelf(tmp_path).path.iterdir())
    last = shelf(tmp_path).numbers()[0]
    assert last > 4
    kinds = ("json", "safetensors")
    assert found == sorted(f"{n}.{kind}" for n in (last - 1, last) for kind in kinds)
    assert shelf(tmp_path).latest_step() == run.step
    kept.clear()
    assert not shelf(tmp_path).path.exists()


def test_a_jumping_clock_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jumps = iter([1e9, -1e9] * 10_000)
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    kept = keeper(tmp_path, every=0.02)
    (run,) = runs_of("sgd", "split")
    with kept:
        train([run], keeper=kept, stop=lambda: pause(0.01))
    assert 0 < kept.seconds < 60
    assert shelf(tmp_path).numbers()[0] >= 6


def pause(seconds: float) -> int:
    time.sleep(seconds)
    return 0


# -- what is believed -----------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> Shelf:
    """A shelf with checkpoints of steps 5 and 7."""
    stop_at(runs_of("er", "split"), 5, keeper(tmp_path))
    kept = keeper(tmp_path)
    runs = runs_of("er", "split")
    assert kept.restore(runs)
    stop_at(runs, 7, kept)
    return shelf(tmp_path)


def resumed_step(two: Shelf) -> int:
    (run,) = runs_of("er", "split")
    Checkpoints([two], math.inf, PLACE).restore([run])
    return run.step


@pytest.mark.parametrize("name", ["2.json", "2.safetensors"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_a_damaged_checkpoint_is_left_for_the_one_before_it(
    two: Shelf, name: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = two.path / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else content)
    assert resumed_step(two) == 5
    if name != "2.json" or damage != "gone":  # without its manifest it was never there
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert record.getMessage().startswith(f"seed 3: {path} ")
        assert record.getMessage().endswith("; trying the checkpoint before it")
    assert two.numbers() == [1]  # and the damaged one is out of the way


def test_if_none_is_whole_the_run_starts_again_and_says_so(
    two: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    for path in two.path.glob("*.safetensors"):
        path.write_bytes(b"")
    assert resumed_step(two) == 0
    assert "no checkpoint can be used; starting again" in caplog.text


def test_a_checkpoint_of_another_run_is_refused(two: Shelf) -> None:
    other = Shelf(two.run, {"method": "clser", "seed": 3})
    (run,) = runs_of("clser", "split")
    with pytest.raises(ValueError, match=r"is a checkpoint of method 'toy'; expected method 'cls"):
        Checkpoints([other], math.inf, PLACE).restore([run])
    assert run.step == 0


def test_a_checkpoint_of_another_network_is_refused_with_a_sentence(two: Shelf) -> None:
    wider = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 8))
    run = Run(ER(wider, buffer_size=20), toy.split(), batch=6, seed=3)
    with pytest.raises(ValueError, match=r"2\.safetensors: the state does not fit this ER and its"):
        Checkpoints([two], math.inf, PLACE).restore([run])


def test_a_checkpoint_of_another_version_is_refused(two: Shelf) -> None:
    manifest = two.path / "2.json"
    write_manifest(manifest, {**read_manifest(manifest), "format": 2})
    with pytest.raises(ValueError, match=r"2\.json has format 2; this version reads format 1"):
        resumed_step(two)


@pytest.mark.parametrize("missing", ["step", "position", "state", "events", "environment"])
def test_a_manifest_of_something_else_is_not_believed(two: Shelf, missing: str) -> None:
    manifest = two.path / "2.json"
    content = read_manifest(manifest)
    del content[missing]
    write_manifest(manifest, content)
    assert resumed_step(two) == 5


def test_another_environment_is_said(two: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    (run,) = runs_of("er", "split")
    Checkpoints([two], math.inf, {**PLACE, "threads": 4}).restore([run])
    assert run.step == 7
    assert "(threads 1 then, 4 now); the last digits may differ" in caplog.text


def test_events_are_cut_back_to_the_checkpoint(tmp_path: Path) -> None:
    kept = keeper(tmp_path)
    folder = shelf(tmp_path).run
    folder.event("totals", step=1)
    before = (folder.path / "events.jsonl").read_bytes()
    stop_at(runs_of("sgd", "split"), 5, kept)
    folder.event("totals", step=6)
    assert keeper(tmp_path).restore(runs_of("sgd", "split"))
    assert (folder.path / "events.jsonl").read_bytes() == before


def test_altered_events_begin_anew_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = keeper(tmp_path)
    folder = shelf(tmp_path).run
    folder.event("totals", step=1)
    stop_at(runs_of("sgd", "split"), 5, kept)
    (folder.path / "events.jsonl").write_bytes(to_json_bytes({"event": "lies"}))
    assert keeper(tmp_path).restore(runs_of("sgd", "split"))
    assert (folder.path / "events.jsonl").read_bytes() == b""
    assert "events.jsonl was altered; it begins anew at step 5" in caplog.text


# -- what is not kept -----------------------------------------------------------------------


def test_a_loss_that_is_not_finite_is_never_kept(tmp_path: Path) -> None:
    kept = keeper(tmp_path, every=1e-9)
    learner = toy.Listener(toy.network(), poison=7)
    with pytest.raises(TrainingError, match="not a number at step 7"), kept:
        train([Run(learner, toy.split(), batch=6, seed=3)], keeper=kept)
    assert 1 <= (shelf(tmp_path).latest_step() or 0) <= 6


def test_weights_that_are_not_finite_are_never_kept(tmp_path: Path) -> None:
    class Exploding(toy.Listener):
        def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
            super().step(images, labels)
            if int(self.steps) == 7:  # its loss was still finite
                torch.nn.init.constant_(next(self.network.parameters()), math.inf)

    kept = keeper(tmp_path, every=1e-9)
    run = Run(Exploding(toy.network()), toy.split(), batch=6, seed=3)
    with pytest.raises(TrainingError, match="not a number at step 8"), kept:
        train([run], keeper=kept)
    assert 1 <= (shelf(tmp_path).latest_step() or 0) <= 6


def test_a_state_that_no_file_can_hold_costs_the_checkpoints_and_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(Counting):
        def state_dict(self) -> State:
            return {"handle": object()}

    kept = keeper(tmp_path, every=1e-9)
    run = toy.run("sgd", 3, batches(Odd(9)))
    with kept:
        train([run], keeper=kept)
    assert run.step == 16
    (record,) = caplog.records
    assert "goes on without a new checkpoint: the run's state cannot be wri" in record.getMessage()


def test_the_seconds_of_all_lives_add_up(two: Shelf) -> None:
    manifest = read_manifest(two.path / "2.json")
    assert manifest["seconds"] > read_manifest(two.path / "1.json")["seconds"] > 0
    assert manifest["resumed"] == [5]
    assert json.loads((two.path / "2.json").read_text())["step"] == 7
