"""States and state files: round trips, equal bytes for equal states, and rejection of damage."""

from __future__ import annotations

import ctypes
import json
import math
import os
import pickle
import struct
import tempfile
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file
from torch import Tensor, nn

from perdure.files import write_atomic
from perdure.state import (
    _DTYPES,
    FORMAT,
    State,
    as_bytes,
    get_state,
    is_stateful,
    load_state,
    read_file,
    to_bytes,
    to_host,
    write_file,
)

DTYPES = [torch.uint8, torch.int64, torch.float32, torch.float64, torch.bfloat16, torch.bool]


def same(one: Any, other: Any) -> bool:
    """Return whether two states are equal in structure, dtypes, shapes and values."""
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return (
            isinstance(one, Tensor)
            and isinstance(other, Tensor)
            and one.dtype == other.dtype
            and torch.equal(one, other)
        )
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


tensors = st.builds(
    lambda shape, dtype, seed: torch.randint(
        0, 100, shape, generator=torch.Generator().manual_seed(seed)
    ).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(DTYPES),
    st.integers(0, 5),
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
keys = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=6)
groups = st.recursive(
    st.dictionaries(keys, tensors | plain, min_size=1, max_size=3),
    lambda inner: st.dictionaries(keys, tensors | plain | inner, min_size=1, max_size=3),
    max_leaves=6,
)


def written(state: State, about: State | None = None) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write_file(Path(folder) / "state", state, about or {})
        return (Path(folder) / "state").read_bytes()


def read(content: bytes) -> tuple[State, State]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "state").write_bytes(content)
        return read_file(Path(folder) / "state")


def reordered(state: State) -> State:
    """Return the same state with its keys in reverse order."""
    return {k: reordered(v) if isinstance(v, dict) else v for k, v in reversed(state.items())}


# -- files ----------------------------------------------------------------------------------


@given(groups)
@settings(max_examples=150)
def test_states_survive_a_round_trip(state: State) -> None:
    found, about = read(written(state, {"learner": "SGD", "seed": 3}))
    assert same(found, state)
    assert about == {"learner": "SGD", "seed": 3}


@pytest.mark.parametrize("state", [{"a": {}}, {"a": {"b": {}, "c": 1}}, {}], ids=str)
def test_empty_groups_survive_a_round_trip(state: State) -> None:
    found, _ = read(written(state))
    assert found == state


@given(groups)
@settings(max_examples=50)
def test_equal_states_give_equal_bytes(state: State) -> None:
    assert written(state) == written(reordered(state))


def test_different_states_give_different_bytes() -> None:
    states: list[State] = [{"a": 1}, {"a": 2}, {"b": 1}, {"a": torch.zeros(1)}, {"a": {"b": 1}}]
    assert len({written(state) for state in states}) == len(states)
    assert written({"a": 1}, {"learner": "ER"}) != written({"a": 1}, {"learner": "SGD"})


def test_special_floats_survive_a_round_trip() -> None:
    found, _ = read(written({"x": math.inf, "y": -0.0, "t": torch.tensor([math.nan, -0.0])}))
    assert found["x"] == math.inf
    assert math.copysign(1, found["y"]) == -1
    assert found["t"].isnan().tolist() == [True, False]
    assert found["t"][1].signbit()


def test_shared_and_noncontiguous_tensors_survive_a_round_trip() -> None:
    base = torch.arange(12).view(3, 4)
    state = {"whole": base, "turned": base.T, "part": base[1:, ::2], "again": base}
    found, _ = read(written(state))
    assert same(found, state)


def test_parameters_are_saved_without_gradient() -> None:
    found, _ = read(written({"p": nn.Parameter(torch.ones(2))}))
    assert not found["p"].requires_grad


@cache
def _complete() -> bytes:
    state = {
        "network": {"weight": torch.rand(3, 4), "bias": torch.rand(3)},
        "memory": {"filled": 3, "stored": {"inputs": torch.zeros(3, 2, dtype=torch.uint8)}},
        "optimizer": {"groups": [{"lr": 0.1, "betas": [0.9, 0.99]}]},
    }
    return written(state, {"learner": "ER"})


def header_end(content: bytes) -> int:
    return 8 + int.from_bytes(content[:8], "little")


@given(st.data())
@settings(max_examples=150)
def test_truncated_file_is_rejected(data: st.DataObject) -> None:
    content = _complete()
    keep = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(ValueError, match="is not a complete safetensors file"):
        read(content[:keep])


@given(st.data())
@settings(max_examples=400)
def test_file_with_flipped_header_bits_is_rejected_or_read(data: st.DataObject) -> None:
    content = bytearray(_complete())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, header_end(_complete()) - 1))
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        state, about = read(bytes(content))
    except ValueError:
        return
    assert isinstance(state, dict)
    assert isinstance(about, dict)


@given(st.data())
@settings(max_examples=30)
def test_damage_inside_a_tensor_is_detected(data: st.DataObject) -> None:
    content = bytearray(_complete())
    place = data.draw(st.integers(header_end(_complete()), len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ValueError, match="is damaged"):
        read(bytes(content))


def with_metadata(text: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        save_file({"t": torch.zeros(2)}, path, metadata={"perdure": text})
        return path.read_bytes()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["format", "values", "about", "t", "t/u", "a", "a/b", ""]), inner
            )
        ),
        max_leaves=8,
    )
)
@example({"format": 1, "values": {}, "about": 5})
@example({"format": 1, "values": {}, "about": [1]})
@example({"format": 1, "values": {"t/u": 1}})
@example({"format": 1, "values": {"a": 1, "a/b": 2}})
@example({"format": 1, "values": {"a/b": 2, "a": 1}})
@example({"format": [1], "values": {}})
@settings(max_examples=150)
def test_arbitrary_metadata_is_rejected_or_read(meta: Any) -> None:
    try:
        state, about = read(with_metadata(json.dumps(meta)))
    except ValueError:
        return
    assert isinstance(state, dict)
    assert isinstance(about, dict)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a complete safetensors file"),
        ("[" * 100_000, "is not a complete safetensors file"),
        ("null", "was not written by perdure"),
        ('{"format": 1}', "was not written by perdure"),
        ('{"format": 99, "values": {}}', f"has format 99; this version reads format {FORMAT}"),
        ('{"format": 1, "values": {"a": 1, "a/b": 2}, "about": {}}', "a/b"),
    ],
    ids=["empty", "deep", "null", "no values", "from the future", "a value and a group"],
)
def test_unknown_metadata_is_rejected_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(with_metadata(text))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 8,
        b"\xff" * 64,
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 10**6) + b"[" * 10**6,
        b'{"a": 1}',
    ],
    ids=["empty", "zeros", "ones", "huge header", "no metadata", "deep header", "json"],
)
def test_other_files_are_rejected(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"safetensors file|was not written by perdure"):
        read(content)


def test_folder_and_missing_file_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        read_file(tmp_path / "nothing")
    with pytest.raises(ValueError, match="not a regular file"):
        read_file(tmp_path)


def test_a_file_larger_than_the_memory_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    write_file(path, {"weights": torch.zeros(10)}, {})
    size = path.stat().st_size
    monkeypatch.setattr("perdure.state.memory_bytes", lambda: size)
    read_file(path)
    monkeypatch.setattr("perdure.state.memory_bytes", lambda: size - 1)
    with pytest.raises(ValueError, match="memory"):
        read_file(path)


class Trap:
    """Creates a folder if it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def test_pickle_is_rejected_and_not_executed(tmp_path: Path) -> None:
    path, mark = tmp_path / "state", tmp_path / "mark"
    path.write_bytes(pickle.dumps(Trap(mark)))
    with pytest.raises(ValueError, match="is not a complete safetensors file"):
        read_file(path)
    torch.save({"trap": Trap(mark)}, path)
    with pytest.raises(ValueError, match="is not a complete safetensors file"):
        read_file(path)
    assert not mark.exists()


def test_unsupported_values_are_rejected_before_anything_is_written(
    tmp_path: Path,
) -> None:
    for value in ({1, 2}, b"bytes", object(), 1j):
        with pytest.raises(TypeError):
            write_file(tmp_path / "state", {"a": value}, {})
    with pytest.raises(ValueError, match="odd"):
        write_file(tmp_path / "state", {"odd": torch.zeros(1, dtype=torch.complex128)}, {})
    assert list(tmp_path.iterdir()) == []


def test_files_are_replaced_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"

    def fail(fd: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomic(path, b"newer")
    assert path.read_bytes() == b"new"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


# -- parts ----------------------------------------------------------------------------------


def test_get_state_copies_and_load_state_writes_in_place() -> None:
    tensor = torch.zeros(3)
    address = tensor.data_ptr()
    state = get_state(tensor)
    tensor.fill_(5)
    assert state.tolist() == [0, 0, 0]
    load_state(tensor, state)
    assert tensor.tolist() == [0, 0, 0]
    assert tensor.data_ptr() == address


def test_tensor_of_another_shape_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"shape is \(1,\); expected \(3,\)"):
        load_state(torch.zeros(3), torch.zeros(1))


def test_weights_that_a_network_lacks_are_rejected() -> None:
    network = torch.nn.Linear(2, 2)
    state = get_state(network)
    for other, name in (
        ({**state, "scale": torch.ones(1)}, "scale"),
        ({"bias": 0}, "weight"),
        ({**state, "bias": torch.ones(3)}, "bias"),
    ):
        with pytest.raises(ValueError, match=name):
            load_state(network, other)


def test_generator_resumes_from_its_state() -> None:
    draws = torch.Generator().manual_seed(1)
    torch.rand(10, generator=draws)
    state = get_state(draws)
    expected = torch.rand(5, generator=draws)
    other = torch.Generator()
    load_state(other, state)
    assert torch.rand(5, generator=other).equal(expected)


@pytest.mark.parametrize(
    "build",
    [
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
        lambda p: torch.optim.RMSprop(p, centered=True),
        lambda p: torch.optim.Adagrad(p),
        lambda p: torch.optim.AdamW([{"params": p[:1], "lr": 0.5}, {"params": p[1:]}]),
    ],
    ids=["SGD", "momentum", "Adam", "RMSprop", "Adagrad", "groups"],
)
def test_optimizer_resumes_from_a_file(build: Any) -> None:
    def learn(network: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
        for seed in range(steps):
            x = torch.rand(4, 3, generator=torch.Generator().manual_seed(seed))
            optimizer.zero_grad()
            network(x).square().sum().backward()
            optimizer.step()

    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    first, second = build(list(one.parameters())), build(list(other.parameters()))
    learn(one, first, 3)
    first.param_groups[0]["lr"] = 0.03
    found, _ = read(written({"network": get_state(one), "optimizer": get_state(first)}))
    load_state(other, found["network"])
    load_state(second, found["optimizer"])
    learn(one, first, 3)
    learn(other, second, 3)
    assert one.weight.equal(other.weight)
    assert second.param_groups[0]["lr"] == 0.03


def test_the_state_of_an_optimizer_is_a_copy() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    weight.grad = torch.ones(2)
    optimizer.step()
    state = get_state(optimizer)
    optimizer.step()
    assert state["state"]["0"]["momentum_buffer"].tolist() == [1, 1]


def test_groups_of_an_optimizer_keep_their_own_settings_and_schedules() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    state = get_state(optimizer)
    (group,) = state["groups"]
    load_state(optimizer, {**state, "groups": [{**group, "initial_lr": 0.5, "unknown": 1}]})
    assert optimizer.param_groups[0]["initial_lr"] == 0.5
    assert "unknown" not in optimizer.param_groups[0]
    with pytest.raises(ValueError, match=r"zip|group"):
        load_state(optimizer, {**state, "groups": [group, group]})


def test_is_stateful() -> None:
    parts = (torch.zeros(1), torch.Generator(), nn.Linear(1, 1))
    assert all(is_stateful(part) for part in parts)
    assert is_stateful(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1))
    assert not any(is_stateful(value) for value in (1, "text", None, [torch.zeros(1)], print))


def test_files_are_written_as_safetensors_writes_them() -> None:
    shapes = [(), (0,), (3,), (2, 5), (1, 0, 4)]
    tensors = {
        f"{dtype}/{shape} é": torch.ones(shape, dtype=dtype)
        for dtype in _DTYPES
        for shape in shapes
    }
    for chosen in (tensors, {}, {"b": torch.rand(3), "a": torch.rand(2).half()}):
        assert to_bytes(chosen, {"key": 'text " é'}) == save(chosen, metadata={"key": 'text " é'})


def test_states_of_many_sizes_leave_nothing_in_memory() -> None:
    types = ctypes._pointer_type_cache  # type: ignore[attr-defined]
    before = len(types)
    for size in range(100):
        as_bytes({"stored": torch.zeros(7001 + size)}, {})
    assert len(types) == before


def test_a_state_on_the_host_is_made_of_dicts() -> None:
    state = {"a": MappingProxyType({"b": torch.arange(3)}), "c": 2}
    found = to_host(MappingProxyType(state))
    assert type(found) is type(found["a"]) is dict
    assert torch.equal(found["a"]["b"], torch.arange(3))
    assert found["c"] == 2
