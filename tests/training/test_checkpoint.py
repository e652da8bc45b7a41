"""Checkpoints: runs resume from them bit for bit, and damaged ones are never used."""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perdure import ER, Samples, Stream, files, from_batches
from perdure.data import load
from perdure.files import read_manifest, to_json_bytes, write_manifest
from perdure.results import RunFolder
from perdure.state import State
from perdure.streams import mnist360
from perdure.training import Callback, EventLog, Run, TrainingError, checkpoint, train
from perdure.training.checkpoint import Checkpointer, CheckpointStore
from perdure.training.loop import Interrupted, Position

from . import toy
from .toy import RecordingLearner, assert_same

ENVIRONMENT = {"torch": "2", "threads": 1}


class Stateful:
    """An iterable of batches with a state, such as a stateful DataLoader."""

    def __init__(self, count: int) -> None:
        self.count, self.position, self.started = count, 0, 0
        self.noise = torch.Generator().manual_seed(1)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        self.started += 1
        while self.position < self.count:
            self.position += 1
            inputs, labels, _ = toy.inputs(6, self.position)
            noise = torch.randint(0, 20, inputs.shape, generator=self.noise, dtype=torch.uint8)
            yield inputs // 2 + noise, labels
        self.position = 0

    def state_dict(self) -> State:
        return {"position": self.position, "noise": {"state": self.noise.get_state()}}

    def load_state_dict(self, state: State) -> None:
        self.position = state["position"]
        self.noise.set_state(state["noise"]["state"])


class Repeatable:
    """An iterable that yields the same batches every time."""

    def __iter__(self) -> Iterator[Samples]:
        return (toy.inputs(6, seed) for seed in range(7))


def batches(source: Any) -> Stream:
    test = toy.inputs(16, 99)[:2]
    return from_batches({"a": source, "b": Repeatable()}, classes=8, shape=(1, 4, 4), test=test)


STREAMS: dict[str, Callable[[], Stream]] = {
    "split": toy.split,
    "domain": toy.domain,
    "joint": lambda: toy.split().joined(6, torch.Generator()),
    "batches": lambda: batches(Repeatable()),
}


def runs_of(kind: str, stream: str, seeds: tuple[int, ...] = (3,)) -> list[Run]:
    return [toy.run(kind, seed, STREAMS[stream](), epochs=2) for seed in seeds]


def store(folder: Path, seed: int = 3) -> CheckpointStore:
    return CheckpointStore(folder / f"seed-{seed}", {"method": "toy", "seed": seed})


def checkpointer(folder: Path, *seeds: int, interval: float = math.inf) -> Checkpointer:
    stores = [store(folder, seed) for seed in seeds or (3,)]
    for each in stores:
        each.path.parent.mkdir(parents=True, exist_ok=True)
    return Checkpointer(stores, interval, ENVIRONMENT)


def stop_at(
    runs: list[Run],
    step: int,
    saved: Checkpointer,
    *others: Callback,
    max_steps: int | None = None,
) -> None:
    """Train until the step, and stop there."""
    callbacks = [*others, saved]
    with pytest.raises(Interrupted), saved:
        train(runs, callbacks=callbacks, max_steps=max_steps, stop=lambda: runs[0].step == step)
    assert {run.step for run in runs} == {step}


# -- resuming -------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("kind", ["sgd", "clser"])
def test_a_run_resumes_bit_for_bit(kind: str, stream: str, tmp_path: Path) -> None:
    (whole,) = runs_of(kind, stream)
    train([whole])
    last = whole.step
    few = [3, last // 2, last]
    steps = range(1, last + 1, 2) if (kind, stream) == ("sgd", "split") else few
    for step in steps:
        folder = tmp_path / str(step)
        stop_at(runs_of(kind, stream), step, checkpointer(folder))
        (resumed,) = runs_of(kind, stream)
        saved = checkpointer(folder)
        assert saved.resume([resumed])
        assert (resumed.step, saved.resumed) == (step, [step])
        train([resumed], callbacks=[saved])
        assert_same(resumed.state_dict(), whole.state_dict())
        assert resumed.record.result() == whole.record.result()
        assert resumed.order.get_state().equal(whole.order.get_state())


@pytest.mark.parametrize(
    ("epochs", "reports", "stops"),  # at and next to ends of tasks and reports of metrics
    [
        (25, 4, (99, 100, 101, 400)),
        pytest.param(
            40, 10, (1, 99, 100, 101, 159, 160, 161, 200, 639, 640), marks=pytest.mark.slow
        ),
    ],
)
def test_events_and_checkpoints_of_a_resumed_run_are_the_same_bytes(
    epochs: int, reports: int, stops: Sequence[int], tmp_path: Path
) -> None:
    def make(name: str) -> tuple[Run, EventLog, Checkpointer]:
        run = toy.run("clser", 3, epochs=epochs)  # four steps per epoch
        saved = checkpointer(tmp_path / name)
        return run, EventLog(RunFolder(tmp_path / name / "seed-3"), run), saved

    def files(saved: Checkpointer) -> tuple[bytes, bytes]:
        (only,) = saved.stores
        newest = only.path / f"{only.numbers()[0]}.safetensors"
        return only.events.read_bytes(), newest.read_bytes()

    whole, log, saved = make("whole")
    with saved:
        train([whole], callbacks=[log, saved])
    expected = files(saved)
    kinds = [json.loads(line)["event"] for line in expected[0].splitlines()]
    assert kinds.count("metrics") == kinds.count("memory") == reports
    assert kinds.count("evaluation") == 5
    for step in stops:
        run, log, saved = make(str(step))
        stop_at([run], step, saved, log)
        log.folder.event("metrics", step=step + 1, loss=0.0)  # written after the checkpoint
        run, log, saved = make(str(step))
        assert saved.resume([run])
        with saved:
            train([run], callbacks=[log, saved])
        assert files(saved) == expected, step


def test_a_run_with_max_steps_resumes_bit_for_bit(tmp_path: Path) -> None:
    for step in (1, 8, 9, 10):
        (whole,), (begun,), (resumed,) = (runs_of("er", "split") for _ in range(3))
        train([whole], max_steps=10)  # in the middle of the second task
        stop_at([begun], step, checkpointer(tmp_path / str(step)), max_steps=10)
        assert checkpointer(tmp_path / str(step)).resume([resumed])
        train([resumed], max_steps=10)
        assert resumed.step == 10
        assert resumed.record.result() == whole.record.result()
        assert_same(resumed.learner.state_dict(), whole.learner.state_dict())


def test_a_finished_task_is_not_evaluated_twice(tmp_path: Path) -> None:
    (whole,), (resumed,) = (runs_of("er", "split") for _ in range(2))
    with checkpointer(tmp_path) as saved:
        train([whole], max_steps=8, callbacks=[saved])  # exactly the first task
    assert checkpointer(tmp_path).resume([resumed])
    assert resumed.position == Position(1)
    train([resumed], max_steps=8)
    assert resumed.record.result() == whole.record.result()


def test_mnist_360_resumes_inside_its_only_task(tmp_path: Path) -> None:
    stream = mnist360(load("mnist5k"))

    def make() -> Run:
        last = torch.nn.Linear(784, 10)
        torch.nn.init.zeros_(last.weight)
        torch.nn.init.zeros_(last.bias)
        network = torch.nn.Sequential(torch.nn.Flatten(), last)
        return Run(ER(network, buffer_size=30, seed=1), stream, batch=16, seed=1)

    whole, begun, resumed = make(), make(), make()
    train([whole], max_steps=150)
    stop_at([begun], 117, checkpointer(tmp_path))
    assert checkpointer(tmp_path).resume([resumed])
    train([resumed], max_steps=150)
    assert_same(resumed.learner.state_dict(), whole.learner.state_dict())


def test_an_iterable_with_a_state_restores_its_own_position(tmp_path: Path) -> None:
    whole = toy.run("er", 3, batches(Stateful(9)), epochs=2)
    train([whole])
    for step in (1, 5, 9, 10, 17, 18, 19, 31):
        begun = toy.run("er", 3, batches(Stateful(9)), epochs=2)
        resumed = toy.run("er", 3, batches(last := Stateful(9)), epochs=2)
        stop_at([begun], step, checkpointer(tmp_path / str(step)))
        assert checkpointer(tmp_path / str(step)).resume([resumed])
        train([resumed])
        assert_same(resumed.learner.state_dict(), whole.learner.state_dict())
        assert last.started <= 2


def test_an_iterable_that_yields_other_batches_when_read_again_is_refused(tmp_path: Path) -> None:
    class Shuffled:
        def __iter__(self) -> Iterator[Samples]:
            order = torch.randperm(7, generator=shuffling).tolist()
            return (toy.inputs(6, seed) for seed in order)

    shuffling = torch.Generator().manual_seed(2)
    stream = from_batches(Shuffled(), classes=8, shape=(1, 4, 4))
    stop_at([toy.run("er", 3, stream)], 4, checkpointer(tmp_path))
    resumed = toy.run("er", 3, stream)
    assert checkpointer(tmp_path).resume([resumed])
    with pytest.raises(ValueError, match="differ from those read before"):
        train([resumed])


def test_an_iterator_cannot_be_resumed(tmp_path: Path) -> None:
    stream = from_batches(iter(Repeatable()), classes=8, shape=(1, 4, 4))
    assert not stream.tasks[0].resumable
    run = toy.run("er", 3, stream)
    state = run.state_dict() | {"position": [0, 0, 3]}
    with pytest.raises(ValueError, match="can be read only once"):
        run.load_state_dict(state)


def test_runs_that_cannot_be_resumed_are_not_saved(tmp_path: Path) -> None:
    saved = checkpointer(tmp_path, interval=1e-9)
    stream = from_batches(iter(Repeatable()), classes=8, shape=(1, 4, 4))
    with saved:
        train([toy.run("er", 3, stream)], callbacks=[saved])
    assert store(tmp_path).numbers() == []
    assert not saved.checkpoint_due()


def test_runs_at_different_positions_are_not_trained_together() -> None:
    one, other = runs_of("sgd", "split", (3, 4))
    train([one], max_steps=3)
    with pytest.raises(ValueError, match="the runs are at different positions"):
        train([one, other])


# -- groups ---------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [3, 4])
def test_a_group_resumes_from_the_newest_checkpoint_in_common(late: int, tmp_path: Path) -> None:
    seeds = (3, 4, 5)
    whole = runs_of("er", "split", seeds)
    train(whole)
    stop_at(runs_of("er", "split", seeds), 5, checkpointer(tmp_path, *seeds))
    begun, saved = runs_of("er", "split", seeds), checkpointer(tmp_path, *seeds)
    assert saved.resume(begun)
    stop_at(begun, 7, saved)
    for path in store(tmp_path, late).path.glob("2.*"):
        path.unlink()  # not yet written
    resumed = runs_of("er", "split", seeds)
    assert checkpointer(tmp_path, *seeds).resume(resumed)
    assert {run.step for run in resumed} == {5}
    assert [store(tmp_path, seed).numbers() for seed in seeds] == [[1], [1], [1]]
    train(resumed)
    for one, other in zip(whole, resumed, strict=True):
        assert_same(one.learner.state_dict(), other.learner.state_dict())


def test_a_group_without_a_common_checkpoint_starts_from_the_beginning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stop_at(runs_of("er", "split", (3,)), 5, checkpointer(tmp_path, 3))
    stop_at(runs_of("er", "split", (4,)), 6, checkpointer(tmp_path, 4))
    fresh = runs_of("er", "split", (3, 4))
    assert not checkpointer(tmp_path, 3, 4).resume(fresh)
    assert {run.step for run in fresh} == {0}
    assert "seed 3, 4: no usable checkpoint" in caplog.text


# -- when checkpoints are written -----------------------------------------------------------


class Recording(Checkpointer):
    """Records when it saved the runs."""

    def __init__(self, folder: Path, interval: float) -> None:
        super().__init__(checkpointer(folder).stores, interval, ENVIRONMENT)
        self.calls: list[tuple[int, Position]] = []

    def on_checkpoint(self, runs: Sequence[Run]) -> None:
        self.calls.append((runs[0].step, runs[0].position))
        super().on_checkpoint(runs)


def test_a_checkpoint_is_written_at_the_end_of_every_task(tmp_path: Path) -> None:
    saved = Recording(tmp_path, math.inf)
    with saved:
        train(runs_of("sgd", "split"), callbacks=[saved])
    assert saved.calls == [(8 * (task + 1), Position(task + 1)) for task in range(4)]


def test_checkpoints_are_written_at_regular_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: now))

    def second() -> int:
        nonlocal now
        now += 1  # per step
        saved.wait()
        return 0

    saved = Recording(tmp_path, interval=3)
    with saved:
        train(runs_of("sgd", "split"), callbacks=[saved], stop=second)
    steps = [step for step, _ in saved.calls]
    assert steps == [4, 8, 8, 12, 16, 16, 20, 24, 24, 28, 32, 32]  # a task has 8 steps
    assert saved.seconds == now - 1000


def test_no_checkpoint_is_due_while_one_is_being_written(tmp_path: Path) -> None:
    written = threading.Event()
    saved = Recording(tmp_path, interval=1e-9)
    with saved:
        (slow,) = saved.stores
        add = slow.add
        slow.add = lambda *what: (written.wait(), add(*what))[1]  # type: ignore[method-assign]
        (run,) = runs_of("sgd", "split")

        def release() -> int:
            if run.step == 5:
                written.set()
            return 0

        train([run], max_steps=5, callbacks=[saved], stop=release)
    assert saved.calls[0][0] == 1
    assert {step for step, _ in saved.calls} <= {1, 5}  # the end of the task waited


def test_the_last_two_checkpoints_are_kept_until_the_end(tmp_path: Path) -> None:
    saved = checkpointer(tmp_path, interval=1e-9)
    (run,) = runs_of("sgd", "split")
    with saved:
        train([run], callbacks=[saved])
    found = sorted(path.name for path in store(tmp_path).path.iterdir())
    last = store(tmp_path).numbers()[0]
    assert last > 4
    kinds = ("json", "safetensors")
    assert found == sorted(f"{n}.{kind}" for n in (last - 1, last) for kind in kinds)
    assert store(tmp_path).latest_step() == run.step
    saved.clear()
    assert not store(tmp_path).path.exists()


def test_a_checkpoint_that_is_being_written_is_removed_too(tmp_path: Path) -> None:
    saved = checkpointer(tmp_path)
    (slow,) = saved.stores
    add = slow.add
    never = threading.Event()
    slow.add = lambda *what: (never.wait(0.05), add(*what))[1]  # type: ignore[method-assign]
    saved.on_checkpoint(runs_of("sgd", "split"))
    saved.clear()
    saved.wait()
    assert slow.numbers() == []


def test_a_jumping_clock_has_no_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jumps = iter([1e9, -1e9] * 10_000)
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    saved = checkpointer(tmp_path, interval=0.02)
    (run,) = runs_of("sgd", "split")

    def wait() -> int:
        saved.wait()
        time.sleep(0.03)
        return 0

    with saved:
        train([run], callbacks=[saved], stop=wait)
    assert 0 < saved.seconds < 600
    assert store(tmp_path).numbers()[0] >= 6


# -- damaged checkpoints --------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> CheckpointStore:
    """A store with checkpoints of steps 5 and 7."""
    stop_at(runs_of("er", "split"), 5, checkpointer(tmp_path))
    saved = checkpointer(tmp_path)
    runs = runs_of("er", "split")
    assert saved.resume(runs)
    stop_at(runs, 7, saved)
    return store(tmp_path)


def resumed_step(two: CheckpointStore) -> int:
    (run,) = runs_of("er", "split")
    Checkpointer([two], math.inf, ENVIRONMENT).resume([run])
    return run.step


@pytest.mark.parametrize("name", ["2.json", "2.safetensors"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_the_checkpoint_before_a_damaged_one_is_used(
    two: CheckpointStore, name: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = two.path / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else content)
    assert resumed_step(two) == 5
    if name != "2.json" or damage != "gone":  # without a manifest it does not exist
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert record.getMessage().startswith(f"seed 3: {path} ")
        assert record.getMessage().endswith("; trying the previous checkpoint")
    assert two.numbers() == [1]  # the damaged one is removed


def test_a_damaged_checkpoint_that_is_not_needed_causes_no_warning(
    two: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    (two.path / "1.safetensors").write_bytes(b"")
    assert resumed_step(two) == 7
    assert not caplog.records


IMPOSSIBLE: dict[str, list[Any]] = {
    "step": [math.inf, -5],
    "seconds": [math.inf, math.nan],
    "resumed": [[math.inf], [-1]],
    "events": [{}, *({"bytes": size, "sha256": ""} for size in (None, -1, 10**17, math.inf))],
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_the_checkpoint_before_an_impossible_one_is_used(two: CheckpointStore, name: str) -> None:
    manifest = read_manifest(two.path / "2.json")
    state = (two.path / "2.safetensors").read_bytes()
    for value in IMPOSSIBLE[name]:
        (two.path / "2.safetensors").write_bytes(state)
        write_json_with_seal(two.path / "2.json", {**manifest, name: value})
        assert two.latest_step() is not None
        assert resumed_step(two) == 5


def write_json_with_seal(path: Path, content: dict[str, Any]) -> None:
    """As `write_manifest`, also with infinite numbers."""
    path.write_text(json.dumps({**content, "seal": files._seal(content)}))


def test_a_run_starts_from_the_beginning_if_all_checkpoints_are_damaged(
    two: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    for path in two.path.glob("*.safetensors"):
        path.write_bytes(b"")
    assert resumed_step(two) == 0
    assert "no usable checkpoint" in caplog.text


def test_a_checkpoint_of_another_run_is_refused(two: CheckpointStore) -> None:
    other = CheckpointStore(two.path.parent, {"method": "clser", "seed": 3})
    (run,) = runs_of("clser", "split")
    with pytest.raises(ValueError, match=r"is a checkpoint of method 'toy'; expected method 'cls"):
        Checkpointer([other], math.inf, ENVIRONMENT).resume([run])
    assert run.step == 0


def test_a_checkpoint_of_another_network_is_refused(two: CheckpointStore) -> None:
    wider = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 8))
    run = Run(ER(wider, buffer_size=20), toy.split(), batch=6, seed=3)
    with pytest.raises(ValueError, match=r"2\.safetensors: the state does not fit this ER and its"):
        Checkpointer([two], math.inf, ENVIRONMENT).resume([run])


def test_a_checkpoint_without_the_state_of_a_run_is_refused(two: CheckpointStore) -> None:
    manifest = read_manifest(two.path / "2.json")
    two.add({}, {name: manifest[name] for name in checkpoint.Checkpoint.__struct_fields__[1:]}, 0)
    with pytest.raises(ValueError, match=r"3\.safetensors"):
        resumed_step(two)


def test_a_checkpoint_in_another_format_is_refused(two: CheckpointStore) -> None:
    manifest = two.path / "2.json"
    write_manifest(manifest, {**read_manifest(manifest), "format": 2})
    with pytest.raises(ValueError, match=r"2\.json has format 2; this version reads format 1"):
        resumed_step(two)


@pytest.mark.parametrize("missing", ["step", "position", "state", "events", "environment"])
def test_a_checkpoint_with_an_incomplete_manifest_is_not_used(
    two: CheckpointStore, missing: str
) -> None:
    manifest = two.path / "2.json"
    content = read_manifest(manifest)
    del content[missing]
    write_manifest(manifest, content)
    assert resumed_step(two) == 5


def test_a_changed_environment_causes_a_warning(
    two: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    (run,) = runs_of("er", "split")
    Checkpointer([two], math.inf, {**ENVIRONMENT, "threads": 4}).resume([run])
    assert run.step == 7
    assert "(threads was 1, now 4)" in caplog.text


def test_events_are_truncated_to_the_checkpoint(tmp_path: Path) -> None:
    saved = checkpointer(tmp_path)
    folder = RunFolder(store(tmp_path).path.parent)
    folder.event("metrics", step=1)
    before = (folder.path / "events.jsonl").read_bytes()
    stop_at(runs_of("sgd", "split"), 5, saved)
    folder.event("metrics", step=6)
    assert checkpointer(tmp_path).resume(runs_of("sgd", "split"))
    assert (folder.path / "events.jsonl").read_bytes() == before


def test_events_are_on_disk_before_the_checkpoint_that_follows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (only,) = checkpointer(tmp_path).stores
    only.events.write_bytes(b"{}\n")
    fsync, flushed = os.fsync, list[tuple[int, list[int]]]()

    def note(descriptor: int) -> None:
        flushed.append((os.fstat(descriptor).st_ino, only.numbers()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    only.add({}, {}, events=3)
    assert (only.events.stat().st_ino, []) in flushed


def test_altered_events_are_discarded_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved = checkpointer(tmp_path)
    folder = RunFolder(store(tmp_path).path.parent)
    folder.event("metrics", step=1)
    stop_at(runs_of("sgd", "split"), 5, saved)
    (folder.path / "events.jsonl").write_bytes(to_json_bytes({"event": "lies"}))
    assert checkpointer(tmp_path).resume(runs_of("sgd", "split"))
    assert (folder.path / "events.jsonl").read_bytes() == b""
    assert "events.jsonl was altered" in caplog.text


# -- what is never saved --------------------------------------------------------------------


def test_nothing_is_saved_after_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    saved = checkpointer(tmp_path, interval=1e-9)
    learner = RecordingLearner(toy.network(), nan_at=7)
    with pytest.raises(TrainingError, match="not a number at step 7"), saved:
        train([Run(learner, toy.split(), batch=6, seed=3)], callbacks=[saved])
    assert 1 <= (store(tmp_path).latest_step() or 0) <= 6


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    class Exploding(RecordingLearner):
        def step(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
            super().step(inputs, labels)
            if int(self.steps) == 7:  # while its loss is still finite
                torch.nn.init.constant_(next(self.network.parameters()), math.inf)

    saved = checkpointer(tmp_path, interval=1e-9)
    run = Run(Exploding(toy.network()), toy.split(), batch=6, seed=3)
    with pytest.raises(TrainingError, match="not a number at step 8"), saved:
        train([run], callbacks=[saved])
    assert 1 <= (store(tmp_path).latest_step() or 0) <= 6


def test_training_continues_if_the_state_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(Stateful):
        def state_dict(self) -> State:
            return {"handle": object()}

    saved = Recording(tmp_path, interval=1e-9)
    run = toy.run("sgd", 3, from_batches(Odd(9), classes=8, shape=(1, 4, 4)))
    with saved:
        train([run], callbacks=[saved])
    assert run.step == 9
    (record,) = caplog.records
    assert "cannot write a checkpoint" in record.getMessage()
    assert [step for step, _ in saved.calls] == [1, 9]  # not again until the end of the task


def test_training_continues_if_the_disk_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved = checkpointer(tmp_path, interval=1e-9)
    saved.stores[0].path.write_text("not a folder")
    (run,) = runs_of("sgd", "split")
    with saved:
        train([run], callbacks=[saved])
    assert run.step == 32
    (record,) = caplog.records  # the same problem is reported once
    assert str(saved.stores[0].path) in record.getMessage()


def test_training_time_adds_up_over_processes(two: CheckpointStore) -> None:
    manifest = read_manifest(two.path / "2.json")
    assert manifest["seconds"] > read_manifest(two.path / "1.json")["seconds"] > 0
    assert manifest["resumed"] == [5]
    assert json.loads((two.path / "2.json").read_text())["step"] == 7
    write_manifest(two.path / "2.json", {**manifest, "seconds": 1000.0})
    resumed = Checkpointer([two], math.inf, ENVIRONMENT)
    assert resumed.resume(runs_of("er", "split"))
    assert resumed.seconds > 1000
    assert resumed.resumed == [5, 7]
