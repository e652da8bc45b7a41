from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from perdure.learners import CLSER, ER
from perdure.results import RunFolder, settings_hash, summary, write_json
from perdure.state import read_file

# -- names ----------------------------------------------------------------------------------


def test_the_hash_is_that_of_the_sorted_settings() -> None:
    expected = hashlib.sha256(b'{"batch":10,"lr":0.1}').hexdigest()[:8]
    assert settings_hash({"lr": 0.1, "batch": 10}) == expected
    assert settings_hash({"batch": 10, "lr": 0.1}) == expected


def test_whatever_decides_the_numbers_changes_the_hash() -> None:
    base: dict[str, Any] = {
        "lr": 0.1,
        "values": {"batch": 10},
        "buffer_size": None,
        "seed": "per-run",
    }
    others = [
        {**base, "lr": 0.2},
        {**base, "values": {"batch": 11}},
        {**base, "buffer_size": 0},
        {**base, "seed": None},
        {**base, "more": None},
    ]
    assert len({settings_hash(settings) for settings in (base, *others)}) == 6


@pytest.mark.parametrize(
    ("stream", "method", "buffer_size", "expected"),
    [
        ("s-mnist", "clser", 500, "s-mnist/clser-500-0123abcd/seed-3"),
        ("p-mnist", "sgd", None, "p-mnist/sgd-0123abcd/seed-3"),
        ("my.streams:digits", "my:Learner", 20, "my.streams.digits/my.Learner-20-0123abcd/seed-3"),
        ("a/b\\c d:e", "er", 1, "a.b.c.d.e/er-1-0123abcd/seed-3"),
    ],
)
def test_a_run_has_its_place(
    stream: str, method: str, buffer_size: int | None, expected: str, tmp_path: Path
) -> None:
    folder = RunFolder.place(tmp_path, stream, method, buffer_size, "0123abcd", 3)
    assert folder.path == tmp_path / expected


# -- folders --------------------------------------------------------------------------------


def learner() -> CLSER:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = CLSER(nn.Linear(4, 3), buffer_size=5)
    made.observe(torch.ones(6, 4), torch.arange(6) % 3)
    return made


def finished(path: Path, seconds: float = 1.0) -> RunFolder:
    folder = RunFolder(path)
    folder.begin({"seed": 0})
    folder.event("evaluation", step=1, class_il={"stable": [1.0, None]})
    folder.finish(learner(), {"predictors": {}}, {"seconds": seconds})
    return folder


def test_a_finished_run_holds_every_file(tmp_path: Path) -> None:
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
    assert folder.read("config.json") == {"seed": 0}
    assert folder.read("timing.json") == {"seconds": 1.0}
    assert list(folder.events()) == [
        {"event": "evaluation", "step": 1, "class_il": {"stable": [1.0, None]}}
    ]


def test_equal_runs_give_equal_bytes_but_for_their_timing(tmp_path: Path) -> None:
    one, other = finished(tmp_path / "a", 1.0), finished(tmp_path / "b", 2.0)
    names = {str(p.relative_to(one.path)) for p in one.path.rglob("*") if p.is_file()}
    differing = {
        name for name in names if (one.path / name).read_bytes() != (other.path / name).read_bytes()
    }
    assert differing == {"timing.json", "manifest.json"}  # which vouches for the timing too


def test_models_hold_the_weights_of_each_predictor(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    for name, predictor in learner().predictors().items():
        state, about = read_file(folder.path / "models" / f"{name}.safetensors")
        assert about == {"predictor": name}
        fresh = nn.Linear(4, 3)
        fresh.load_state_dict(state)
        x = torch.rand(2, 4)
        assert predictor(x).equal(fresh(x))


def test_the_saved_learner_can_go_on(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    resumed = CLSER(nn.Linear(4, 3), buffer_size=5, seed=9)
    resumed.load(folder.path / "learner.safetensors")
    expected = learner()
    for each in (resumed, expected):
        each.observe(
            torch.rand(4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(4) % 3
        )
    assert resumed.stable.network.state_dict()["weight"].equal(
        expected.stable.network.state_dict()["weight"]
    )


def test_a_run_that_begins_again_is_not_complete(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    folder.begin({"seed": 1})
    assert not folder.complete
    assert list(folder.events()) == []
    with pytest.raises(ValueError, match=r"result\.json is missing: .* is not a finished run"):
        folder.read("result.json")


def test_the_result_is_written_last(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.begin({})
    with pytest.raises(ValueError, match="JSON compliant"):
        folder.finish(learner(), {}, {"seconds": float("nan")})
    assert not folder.complete
    assert (tmp_path / "learner.safetensors").exists()


def test_numbers_that_json_cannot_hold_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "x", {"mean": float("inf")})
    assert list(tmp_path.iterdir()) == []


@given(content=st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_refused_or_read(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(content)
    try:
        found = RunFolder(tmp_path).read("result.json")
    except ValueError:
        return
    assert found == json.loads(content)


@pytest.mark.parametrize(
    "content",
    [b"[1]", b"3", b"null", b"\xff", b"[" * 10**5, b'{"a": ' + b"9" * 10**4 + b"}", b""],
    ids=["list", "number", "null", "not utf-8", "deep", "huge number", "empty"],
)
def test_hostile_json_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.json"):
        RunFolder(tmp_path).read("config.json")


# -- summaries ------------------------------------------------------------------------------


def run(
    seed: int,
    class_il: float,
    task_il: float | None,
    *,
    last: float | None = None,
    forgetting: float | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    config = {
        "stream": "s-mnist",
        "data": "mnist",
        "method": "er",
        "buffer_size": 200,
        "seed": seed,
    }
    numbers = {
        "class_il": {
            "mean": class_il,
            "last_test": class_il if last is None else last,
            "forgetting": forgetting,
        },
        "task_il": None if task_il is None else {"mean": task_il},
    }
    tests = ["whole"] if last is None else ["first", "last"]
    moments = ["start", *tests]
    return config, {"predictors": {"working": numbers}, "tests": tests, "moments": moments}


def test_a_summary_is_mean_and_sample_deviation_over_seeds() -> None:
    found = summary([run(0, 80.0, 97.0), run(1, 84.0, 99.0), run(4, 88.0, 98.0)], seconds=12.5)
    assert found == {
        "stream": "s-mnist",
        "data": "mnist",
        "method": "er",
        "buffer_size": 200,
        "seeds": [0, 1, 4],
        "predictors": {
            "working": {
                "class_il": {"mean": 84.0, "std": 4.0},
                "task_il": {"mean": 98.0, "std": 1.0},
            }
        },
        "seconds": 12.5,
    }
    json.dumps(found, allow_nan=False)


def test_one_seed_has_no_deviation_and_a_stream_without_tasks_no_task_accuracy() -> None:
    found = summary([run(0, 80.0, None)], seconds=1)["predictors"]["working"]
    assert found == {
        "class_il": {"mean": 80.0, "std": None},
        "task_il": {"mean": None, "std": None},
    }


def test_the_last_test_alone_is_told_where_tests_overlap() -> None:
    overlapping = [run(0, 80.0, None, last=70.0), run(1, 82.0, None, last=74.0)]
    found = summary(overlapping, seconds=1)["predictors"]["working"]
    assert found["class_il"]["mean"] == 81.0
    assert found["last_test"] == {"mean": 72.0, "std": pytest.approx(2.828, abs=1e-3)}
    apart = [run(0, 80.0, None, last=70.0, forgetting=5.0)]  # as on r-mnist
    assert "last_test" not in summary(apart, seconds=1)["predictors"]["working"]
    config, joint = run(0, 80.0, None, last=70.0)
    joint["moments"] = ["start", "joint"]
    assert "last_test" not in summary([(config, joint)], seconds=1)["predictors"]["working"]


def test_a_learner_with_one_predictor_has_one_model(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.begin({})
    folder.finish(ER(nn.Linear(2, 2), buffer_size=3), {}, {})
    assert [p.name for p in (tmp_path / "models").iterdir()] == ["working.safetensors"]
