"""Malicious files are refused with a sentence."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch import nn

from perdure import CLSER, GEM, ICaRL, Learner, load_run
from perdure.files import read_manifest, to_json_bytes, write_manifest
from perdure.results.folder import RunFolder
from perdure.results.records import Result
from perdure.state import as_bytes, read_file

from . import small


class Bomb:
    """Unpickling it makes a folder."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.place),)


def header(text: bytes, size: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if size is None else size) + text


def meta(**content: Any) -> bytes:
    text = json.dumps({"format": 1, "about": {"learner": "CLSER"}, "values": {}, **content})
    return save({"t": torch.zeros(2)}, metadata={"perdure": text})


HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "noise": bytes(range(256)) * 8,
    "a header of 2^63 bytes": header(b"{}", 2**63),
    "a header of 10 GB": header(b"{}", 10**10),
    "a header that is no JSON": header(b"{" * 100),
    "a header of many brackets": header(b"[" * 100_000),
    "a tensor beyond the end": header(b'{"t":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'),
    "a tensor of 2^62 numbers": header(
        b'{"t":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}}'
    ),
    "a negative shape": header(b'{"t":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}')
    + b"0000",
    "metadata of many brackets": save(
        {"t": torch.zeros(1)}, metadata={"perdure": "[" * 100_000 + "]" * 100_000}
    ),
    "metadata that is a list": save({"t": torch.zeros(1)}, metadata={"perdure": "[]"}),
    "metadata with infinite numbers": meta(values={"steps": float("inf")}),
    "values that are groups": meta(values={"t/u": 1}),
    "names that leave the folder": meta(values={"../../x": 1, "/etc/passwd": 2}),
    "attributes of the object": meta(values={"__class__/__init__": 1, "step": 5}),
}


def learner(kind: type[Learner] = CLSER) -> Learner:
    other: dict[str, Any] = {"tasks": 2} if kind is GEM else {}
    return kind(nn.Linear(4, 3), **{"buffer_size": 6, **other})


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_and_changes_nothing(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(HOSTILE[name])
    made = learner()
    before = as_bytes(made.state_dict(), {})
    with pytest.raises(ValueError, match="file"):
        made.load(tmp_path / "file")
    assert as_bytes(made.state_dict(), {}) == before


VALUES: list[Any] = [None, -1, 10**30, float("inf"), float("nan"), "x", [], {}, [[]], [1e400], True]


@pytest.mark.parametrize("kind", [CLSER, GEM, ICaRL])
def test_any_value_instead_of_any_other_is_refused_or_harmless(
    kind: type[Learner], tmp_path: Path
) -> None:
    """Replaces every value that is not a tensor, with a valid checksum."""
    made = learner(kind)
    made.observe(torch.rand(4, 4), torch.tensor([0, 1, 2, 0]))
    state = made.state_dict()
    about = {"learner": kind.__name__}

    def paths(node: dict[str, Any], prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        found = []
        for key, value in node.items():
            if isinstance(value, dict) and value:
                found += paths(value, (*prefix, key))
            else:
                found.append((*prefix, key))
        return found

    for path in paths(state):
        for value in VALUES:
            forged = json_copy(state)
            node = forged
            for key in path[:-1]:
                node = node[key]
            node[path[-1]] = value
            (tmp_path / "file").write_bytes(as_bytes(forged, about))
            fresh = learner(kind)
            with contextlib.suppress(ValueError):
                fresh.load(tmp_path / "file")
                fresh.predict(torch.rand(2, 4))


def json_copy(state: dict[str, Any]) -> dict[str, Any]:
    return {k: json_copy(v) if isinstance(v, dict) else v for k, v in state.items()}


def test_a_pickle_is_not_unpickled(tmp_path: Path) -> None:
    place = tmp_path / "harm"
    folder = small.stop_at(small.settings("sgd"), tmp_path / "runs", 20)
    for path in folder.path.rglob("*"):
        if path.is_file():
            path.write_bytes(pickle.dumps(Bomb(place)))
    small.make(small.settings("sgd"), tmp_path / "runs", resume=True)
    for path in folder.path.rglob("*"):
        if path.is_file():
            path.write_bytes(pickle.dumps(Bomb(place)))
    with pytest.raises(ValueError, match=r"damaged|cannot be read"):
        load_run(folder.path)
    with pytest.raises(ValueError, match="safetensors"):
        read_file(folder.path / "learner.safetensors")
    assert not place.exists()


@pytest.mark.parametrize("name", ["result.json", "manifest.json"])
@pytest.mark.parametrize("text", [b"", b"[" * 100_000, b"null", b"3", b"\xff", b'{"a": 1'])
def test_hostile_json_is_refused(text: bytes, name: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(to_json_bytes({}))
    (tmp_path / name).write_bytes(text)
    with pytest.raises(ValueError, match=name):
        RunFolder(tmp_path).read("result.json", Result)


def test_a_manifest_with_a_valid_seal_and_wrong_types_is_refused(tmp_path: Path) -> None:
    folder = small.stop_at(small.settings("sgd"), tmp_path, 20, 40)
    for number, key in ((1, "position"), (2, "events")):
        path = folder.path / "checkpoints" / f"{number}.json"
        write_manifest(path, {**read_manifest(path), key: [10**30, "x", None, []]})
    small.make(small.settings("sgd"), tmp_path, resume=True)
    assert json.loads((folder.path / "timing.json").read_text())["resumed"] == []


def test_no_file_of_ours_is_a_pickle() -> None:
    """The CIFAR archives are; their reader accepts a list of known names only."""
    source = Path(__file__).parents[2] / "src/perdure"
    users = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if any(word in path.read_text() for word in ("pickle", "torch.load", "torch.save"))
    }
    assert users <= {"data/decode.py"}  # also for npz, to forbid it
