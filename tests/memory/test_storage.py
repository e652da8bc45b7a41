"""Memories whose inputs are in a file or in host memory."""

from __future__ import annotations

import copy
import errno
import gc
import mmap
import os
import pickle
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perdure import ER, Samples
from perdure.memory import GradientBuffer, Reservoir, Storage, TaskBuffer, storage
from perdure.structures import leaves
from perdure.undo import Snapshot

from .test_buffer_bytes import REPLAY, batch, make, train


def flat(state: Any) -> list[Tensor]:
    if isinstance(state, dict):
        return [tensor for key in sorted(state) for tensor in flat(state[key])]
    return [state] if isinstance(state, Tensor) else []


def same(one: Any, other: Any) -> bool:
    return len(flat(one)) == len(flat(other)) > 0 and all(
        a.dtype == b.dtype and a.equal(b) for a, b in zip(flat(one), flat(other), strict=True)
    )


def mapped_files(folder: Path) -> int:
    """Number of parts of this process's memory that are files of the folder."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sum(str(folder) in line for line in maps)


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.parametrize("method", REPLAY)
def test_learners_compute_the_same_wherever_inputs_are(method: str, tmp_path: Path) -> None:
    expected = train(make(method, buffer_size=10)).state_dict()
    for arguments in ({"memory_folder": tmp_path}, {"memory_device": "cpu"}):
        learner = train(make(method, buffer_size=10, **arguments))
        assert same(learner.state_dict(), expected)


@linux
@pytest.mark.parametrize("method", REPLAY)
def test_the_file_is_used_and_leaves_nothing_behind(method: str, tmp_path: Path) -> None:
    learner = make(method, buffer_size=10, memory_folder=tmp_path)
    assert mapped_files(tmp_path) == 0
    train(learner)
    assert mapped_files(tmp_path) == 1
    assert not any(tmp_path.iterdir())  # it has no name
    del learner
    gc.collect()
    assert mapped_files(tmp_path) == 0


@pytest.mark.parametrize("method", ["er", "clser", "derpp", "agem", "icarl"])
@pytest.mark.parametrize(("saved_in_file", "loaded_in_file"), [(True, False), (False, True)])
def test_states_move_between_file_and_memory(
    method: str, saved_in_file: bool, loaded_in_file: bool, tmp_path: Path
) -> None:
    folders = {True: tmp_path, False: None}
    one = train(make(method, buffer_size=10, memory_folder=folders[saved_in_file]))
    one.save(tmp_path / "state")
    other = make(method, buffer_size=10, memory_folder=folders[loaded_in_file])
    other.load(tmp_path / "state")
    assert same(one.state_dict(), other.state_dict())
    for learner in (one, other):
        learner.observe(*batch(8, 9)[:2])
    assert same(one.state_dict(), other.state_dict())


@pytest.mark.parametrize("shape", [(3,), (5, 7), ()])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.bfloat16, torch.float64])
def test_structures_of_any_dtype_are_kept(
    shape: tuple[int, ...], dtype: torch.dtype, tmp_path: Path
) -> None:
    memory = Reservoir(5, storage=Storage(memory_folder=tmp_path))
    draws = torch.Generator().manual_seed(0)
    inputs = {
        "a": torch.randint(2, (5, *shape), generator=draws).to(dtype),
        "b": (torch.rand(5, 2, generator=draws), torch.arange(15).reshape(5, 3)),
    }
    memory.add(Samples(inputs, torch.arange(5)))
    contents = memory.contents()
    assert contents is not None
    assert all(a.equal(b) for a, b in zip(leaves(contents.inputs), leaves(inputs), strict=True))
    drawn = memory.draw(5)
    assert drawn is not None
    for stored, one in zip(leaves(inputs), leaves(drawn.inputs), strict=True):
        assert stored[drawn.labels].equal(one)


@pytest.mark.parametrize("in_file", [False, True])
def test_inputs_may_be_empty(in_file: bool, tmp_path: Path) -> None:
    memory = Reservoir(5, storage=Storage(memory_folder=tmp_path if in_file else None))
    memory.add(Samples(torch.zeros(3, 0), torch.arange(3)))
    drawn = memory.draw(3)
    assert drawn is not None
    assert drawn.inputs.shape == (3, 0)
    assert set(drawn.labels.tolist()) == {0, 1, 2}


def test_large_rows_are_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advised: list[tuple[int, int]] = []
    advise = storage._advise

    def record(address: int, size: int, advice: int) -> None:
        advised.append((address, size))
        advise(address, size, advice)

    monkeypatch.setattr(storage, "_advise", record)
    for folder in (None, tmp_path):
        memory = Reservoir(9, storage=Storage(memory_folder=folder))
        memory.add(Samples((torch.rand(9, 5000), torch.rand(9, 5)), torch.arange(9)))
        drawn = memory.draw(4)
    assert drawn is not None
    contents = memory.contents()
    assert contents is not None
    assert len(advised) == 4  # in a file only, and only the first input
    for label, (address, size) in zip(drawn.labels.tolist(), advised, strict=True):
        start = contents.inputs[0][label].data_ptr()
        assert address <= start < address + mmap.PAGESIZE
        assert address % mmap.PAGESIZE == 0
        assert address + size == start + 4 * 5000


def test_rows_in_a_file_are_restored_after_a_failed_step(tmp_path: Path) -> None:
    memory = Reservoir(10, storage=Storage(memory_folder=tmp_path))
    for seed in range(3):
        memory.add(batch(8, seed))
    before, snapshot = memory.state_dict(), Snapshot(memory)
    snapshot.take()
    memory.add(batch(50, 3))
    assert not same(memory.state_dict()["stored"], before["stored"])
    snapshot.restore()
    assert same(memory.state_dict(), before)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@pytest.mark.parametrize("kind", [Reservoir, partial(TaskBuffer, tasks=2)])
def test_copies_have_a_file_of_their_own(duplicate: Any, kind: Any, tmp_path: Path) -> None:
    memory = kind(10, storage=Storage(memory_folder=tmp_path))
    duplicate(memory).add(batch(30))
    memory.add(batch(30))
    other = duplicate(memory)
    before = other.state_dict()
    assert same(before, memory.state_dict())
    memory.add(batch(30, 1))
    assert same(before, other.state_dict())
    if sys.platform == "linux":
        assert mapped_files(tmp_path) == 2


def test_unsuitable_places_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(ValueError, match="not a folder"):
            ER(nn.Linear(6, 3), buffer_size=10, memory_folder=folder)
    with pytest.raises(ValueError, match="memory_device is 'cuda'"):
        ER(nn.Linear(6, 3), buffer_size=10, memory_device="cuda")
    with pytest.raises(ValueError, match="memory_device is 'cuda'"):
        ER(nn.Linear(6, 3), buffer_size=10, memory_device="cuda", memory_folder=tmp_path)
    with pytest.raises(ValueError, match="a file is not on a device"):
        Storage("cuda", tmp_path)


def test_a_full_disk_is_reported_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = make("er", buffer_bytes=10_000, memory_folder=tmp_path)
    before = learner.state_dict()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", fail)
        with pytest.raises(ValueError, match="No space"):
            learner.observe(*batch(8)[:2])
    assert same(learner.state_dict(), before)
    assert not any(tmp_path.iterdir())
    learner.observe(*batch(8)[:2])


def test_room_is_reserved_where_the_system_has_no_function_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    for size in (8, 50_000):
        memory = Reservoir(size, storage=Storage(memory_folder=tmp_path))
        memory.add(batch(8))
        contents = memory.contents()
        assert contents is not None
        assert contents.inputs.equal(batch(8).inputs)


def test_states_that_exceed_the_memory_of_the_machine_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = train(make("er", buffer_size=10, memory_folder=tmp_path))
    monkeypatch.setattr(storage, "memory_bytes", lambda: 10 * 6 * 4 - 1)
    train(make("er", buffer_size=10)).state_dict()  # the copied inputs are not in a file
    with pytest.raises(ValueError, match="240 bytes"):
        learner.save(tmp_path / "state")
    assert not any(tmp_path.iterdir())
    monkeypatch.setattr(storage, "memory_bytes", lambda: 10 * 6 * 4)
    learner.save(tmp_path / "state")


def test_only_files_prevent_capture(tmp_path: Path) -> None:
    gpu = torch.device("cuda")
    assert Storage().capturable(gpu)
    assert Storage("cpu").capturable(gpu)
    assert not Storage(memory_folder=tmp_path).capturable(gpu)
    assert Reservoir(5, storage=Storage(memory_folder=tmp_path)).capturable  # on a CPU


def test_inputs_stay_on_the_host_if_they_are_in_its_memory_or_a_file(tmp_path: Path) -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    host, others = [Storage("cpu"), Storage(memory_folder=tmp_path)], [Storage(), Storage("cuda")]
    assert all(each.on_host(gpu) for each in host)
    assert not any(each.on_host(gpu) for each in others)
    assert not any(each.on_host(cpu) for each in (*host, *others))


def test_long_restores_write_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.memory.episodic._PART", 7)
    memory, other = GradientBuffer(40), GradientBuffer(40)
    memory.add(batch(30), torch.rand(30), torch.tensor(False))
    other.load_state_dict(memory.state_dict())
    assert same(memory.state_dict(), other.state_dict())
