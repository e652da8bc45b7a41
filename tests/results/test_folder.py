"""The run folder: names, files, and whole-or-nothing results."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from perdure.files import DamagedError, write_json
from perdure.learners import CLSER, ER
from perdure.results import RunFolder
from perdure.state import read_file

from . import made


@pytest.mark.parametrize(
    ("stream", "method", "expected"),
    [
        ("s-mnist", "clser", "s-mnist/clser-500-{}/seed-3"),
        ("s-mnist", "sgd", "s-mnist/sgd-{}/seed-3"),
        ("my.streams:digits", "er", "my.streams.digits/er-500-{}/seed-3"),
        ("a/b\\c d:e", "er", "a.b.c.d.e/er-500-{}/seed-3"),
    ],
)
def test_the_place_of_a_run(stream: str, method: str, expected: str, tmp_path: Path) -> None:
    config = made.config(method, stream=stream)
    folder = RunFolder.locate(tmp_path, config, 3)
    assert folder.path == tmp_path / expected.format(config.hash)
    assert folder.path.parent == RunFolder.group(tmp_path, config)


@pytest.mark.parametrize("character", ["a", "é", "数", "𝒳", "a\u0301数"])
def test_long_names_are_cut_to_what_file_systems_accept(character: str, tmp_path: Path) -> None:
    config = made.config(stream=f"table:{character * 300}.csv,target=y")
    config = replace(config, method=f"mine:{character * 300}")
    folder = RunFolder.locate(tmp_path, config, 0)
    folder.path.mkdir(parents=True)
    assert folder.path.parts[-3].startswith(f"table.{character[0]}")


def trained() -> CLSER:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        learner = CLSER(nn.Linear(4, 3), buffer_size=5)
    learner.observe(torch.ones(6, 4), torch.arange(6) % 3)
    return learner


def finished(path: Path, seconds: float = 1.0) -> RunFolder:
    folder = RunFolder(path)
    folder.begin({"seed": 0})
    folder.event("evaluation", step=1, class_il={"stable": [1.0, None]})
    folder.finish(trained(), {"predictors": {}}, {"seconds": seconds})
    return folder


def test_a_finished_run_has_every_file(tmp_path: Path) -> None:
    folder = finished(tmp_path / "a" / "seed-0")
    files = sorted(str(p.relative_to(folder.path)) for p in folder.path.rglob("*") if p.is_file())
    assert files == [
        "config.json",
        "events.jsonl",
        "learner.safetensors",
        "manifest.json",
        "models/plastic.safetensors",
        "models/stable.safetensors",
        "models/working.safetensors",
        "result.json",
        "timing.json",
    ]
    assert folder.complete
    assert folder.read("config.json", dict) == {"seed": 0}
    assert folder.read("timing.json", dict) == {"seconds": 1.0}
    assert list(folder.events()) == [
        {"event": "evaluation", "step": 1, "class_il": {"stable": [1.0, None]}}
    ]


def test_equal_runs_write_equal_bytes_except_for_the_timing(tmp_path: Path) -> None:
    one, other = finished(tmp_path / "a", 1.0), finished(tmp_path / "b", 2.0)
    names = {str(p.relative_to(one.path)) for p in one.path.rglob("*") if p.is_file()}
    differing = {
        name for name in names if (one.path / name).read_bytes() != (other.path / name).read_bytes()
    }
    assert differing == {"timing.json", "manifest.json"}  # which lists the timing


def test_models_contain_the_weights_of_each_predictor(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    for name, predictor in trained().predictors().items():
        state, about = read_file(folder.path / "models" / f"{name}.safetensors")
        assert about == {"predictor": name}
        fresh = nn.Linear(4, 3)
        fresh.load_state_dict(state)
        x = torch.rand(2, 4)
        assert predictor(x).equal(fresh(x))


def test_the_saved_learner_can_continue(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    resumed = CLSER(nn.Linear(4, 3), buffer_size=5, seed=9)
    resumed.load(folder.path / "learner.safetensors")
    expected = trained()
    for each in (resumed, expected):
        each.observe(
            torch.rand(4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(4) % 3
        )
    assert resumed.stable.network.state_dict()["weight"].equal(
        expected.stable.network.state_dict()["weight"]
    )


def test_a_run_that_starts_again_is_not_complete(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    folder.begin({"seed": 1})
    assert not folder.complete
    assert list(folder.events()) == []
    with pytest.raises(ValueError, match="not a finished run"):
        folder.read("result.json", dict)


def test_the_result_is_written_last(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.begin({})
    with pytest.raises(ValueError, match="JSON compliant"):
        folder.finish(trained(), {}, {"seconds": float("nan")})
    assert not folder.complete
    assert (tmp_path / "learner.safetensors").exists()


def test_numbers_that_json_cannot_represent_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "x", {"mean": float("inf")})
    assert list(tmp_path.iterdir()) == []


@given(content=st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_rejected_or_read(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(content)
    try:
        found = RunFolder(tmp_path).read("result.json", dict[str, Any])
    except ValueError:
        return
    assert found == json.loads(content)


@pytest.mark.parametrize(
    "content",
    [b"[1]", b"3", b"null", b"\xff", b"[" * 10**5, b'{"a": ' + b"9" * 10**4 + b"}", b""],
    ids=["list", "number", "null", "not utf-8", "deep", "huge number", "empty"],
)
def test_hostile_json_is_rejected(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.json"):
        RunFolder(tmp_path).read("config.json", dict[str, Any])


def test_a_learner_with_one_predictor_has_one_model(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.begin({})
    folder.finish(ER(nn.Linear(2, 2), buffer_size=3), {}, {})
    assert [p.name for p in (tmp_path / "models").iterdir()] == ["working.safetensors"]


def test_a_changed_file_is_noticed(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    write_json(tmp_path / "result.json", {"predictors": {"stable": 1}})
    with pytest.raises(DamagedError, match="changed"):
        folder.read("result.json", dict)
    (tmp_path / "manifest.json").unlink()
    assert folder.read("result.json", dict)


def test_changed_networks_are_noticed_and_missing_ones_accepted(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    folder.check_artifacts(read=True)
    model = tmp_path / "models" / "stable.safetensors"
    content = model.read_bytes()
    model.write_bytes(content[:-1])
    with pytest.raises(DamagedError, match=r"models/stable\.safetensors was changed"):
        folder.check_artifacts(read=False)
    model.write_bytes(content[:-4] + bytes(4))
    folder.check_artifacts(read=False)
    with pytest.raises(DamagedError, match=r"models/stable\.safetensors was changed"):
        folder.check_artifacts(read=True)
    model.unlink()
    (tmp_path / "learner.safetensors").unlink()
    (tmp_path / "models" / "mine.safetensors").write_bytes(b"a user's file")
    folder.check_artifacts(read=True)
