"""Analyses of runs of every kind, and `perdure analyze`."""

from __future__ import annotations

import errno
import json
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from perdure import catalog, load_run
from perdure.cli import main
from perdure.config import RunConfig
from perdure.evaluation import accuracies
from perdure.experiment.analyze import AnalysisSettings, analyze, has_analysis
from perdure.experiment.build import build_stream, read_dataset
from perdure.experiment.resolve import resolve
from perdure.files import write_json
from perdure.results.records import Analysis, read_run
from perdure.streams import Stream

from .short import train_one

QUICK = AnalysisSettings(sigmas=(0.0, 0.05, 0.2), draws=2, samples=300)
FLAGS = ["--sigmas", "0,0.05,0.2", "--draws", "2", "--samples", "300", "--device", "cpu"]


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A terminal wide enough, and signals as they were."""
    monkeypatch.setenv("COLUMNS", "160")
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def make(out: Path, stream: str = "s-mnist", method: str = "clser", **other: Any) -> Path:
    return train_one(digits(stream, method, **other), out)


def digits(stream: str = "s-mnist", method: str = "clser", **other: Any) -> RunConfig:
    return resolve(stream, method, dataset="mnist5k", **{"given": {"epochs": 1}, **other})


def stream() -> Stream:
    """The stream of `shared`."""
    return build_stream(digits(), read_dataset(digits()), 0)


def saved(run: Path) -> Any:
    return json.loads((run / "analysis.json").read_text())


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of CLS-ER on all of s-mnist; to be copied by whoever changes it."""
    return make(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def run(shared: Path, tmp_path: Path) -> Path:
    """A copy, without the manifest that would tell of changes."""
    copied = Path(shutil.copytree(shared, tmp_path / "runs" / "s-mnist" / "clser" / "seed-0"))
    (copied / "manifest.json").unlink()
    return copied


def test_analysis_json_contains_what_is_documented(run: Path) -> None:
    assert isinstance(analyze(run, QUICK), Analysis)
    found = saved(run)
    assert list(found) == ["format", "predictors", "agreement", "settings"]
    assert found["format"] == 1
    chosen = {"sigmas": [0.0, 0.05, 0.2], "draws": 2, "bins": 15, "samples": 300, "seed": 0}
    assert found["settings"] == chosen
    assert list(found["predictors"]) == ["stable", "plastic", "working"]
    result = read_run(run).result
    for name, about in found["predictors"].items():
        assert list(about) == ["calibration", "flatness", "task_probabilities", "confusion"]
        bins = about["calibration"]["bins"]
        assert [sorted(b) for b in bins] == [
            ["accuracy", "confidence", "count", "lower", "upper"]
        ] * 15
        assert sum(b["count"] for b in bins) == 1000
        assert 0 < about["calibration"]["ece"] < 1
        curve = about["flatness"]
        assert (curve["sigmas"], curve["draws"], curve["samples"]) == ([0.0, 0.05, 0.2], 2, 300)
        assert curve["accuracy"][0] > curve["accuracy"][2]
        assert curve["loss"][0] < curve["loss"][2]
        assert len(curve["accuracy_std"]) == len(curve["loss_std"]) == 3
        shares = about["task_probabilities"]
        assert (shares["kind"], shares["names"]) == ("task", result.tests)
        assert sum(shares["mass"]) == pytest.approx(1)
        counts = torch.tensor(about["confusion"]["counts"])
        right = 100 * counts.diagonal() / counts.sum(1)
        assert right.tolist() == pytest.approx(result.predictors[name].per_class)
    matrix = found["agreement"]["matrix"]
    assert found["agreement"]["predictors"] == ["stable", "plastic", "working"]
    assert [matrix[i][i] for i in range(3)] == [1, 1, 1]
    assert matrix[0][1] == matrix[1][0] < 1


def test_the_same_analysis_twice_gives_the_same_bytes(run: Path) -> None:
    analyze(run, QUICK)
    first = (run / "analysis.json").read_bytes()
    analyze(run, QUICK)
    assert (run / "analysis.json").read_bytes() == first
    other = replace(QUICK, seed=1)
    analyze(run, other)
    assert (run / "analysis.json").read_bytes() != first
    assert not has_analysis(read_run(run), QUICK)
    assert has_analysis(read_run(run), other)


def test_accuracy_without_noise_is_that_on_training_samples(run: Path) -> None:
    everything = AnalysisSettings(sigmas=(0.0,), draws=1, samples=10**6)
    analyze(run, everything)
    found = saved(run)["predictors"]["stable"]["flatness"]
    predict = load_run(run).predictors()["stable"]
    right = count = 0
    for task in stream().tasks:
        inputs, labels = task.samples()[:2]
        right += int((predict(inputs).argmax(1) == labels).sum())
        count += len(labels)
    assert found["samples"] == count == 4000
    assert found["accuracy"] == [pytest.approx(100 * right / count)]


OTHER_PREDICTORS = ("mean-er", "icarl", "joint", "er")
"""Methods whose networks differ; clser is analysed in the other tests."""


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(m, marks=() if m in OTHER_PREDICTORS else pytest.mark.slow)
        for m in catalog.METHODS
        if m != "clser"
    ],
)
def test_every_method_can_be_analysed(method: str, tmp_path: Path) -> None:
    folder = make(
        tmp_path, method=method, max_steps=250 if method in ("gem", "gss", "mer") else None
    )
    found = analyze(folder, QUICK)
    assert list(found.predictors) == list(read_run(folder).result.predictors)
    for about in found.predictors.values():
        assert about.flatness is not None
        assert None not in about.flatness.loss
        assert sum(about.task_probabilities.mass) == pytest.approx(1)


def test_streams_without_tasks_have_shares_of_classes(tmp_path: Path) -> None:
    folder = make(tmp_path, "mnist-360", "sgd")
    shares = analyze(folder, QUICK).predictors["working"].task_probabilities
    assert shares.kind == "class"
    assert shares.names == [str(digit) for digit in range(9)]


OWN = """
import torch
from perdure import from_batches

def stream():
    draws = torch.Generator().manual_seed(0)
    batches = [
        (torch.rand(4, 6, generator=draws), torch.randint(3, (4,), generator=draws))
        for _ in range(20)
    ]
    test = batches[0] if TESTED else None
    return from_batches(batches, classes=3, shape=(6,), test=test)
"""


@pytest.mark.parametrize("tested", [True, False])
def test_a_users_stream(tested: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"my_{'tested' if tested else 'plain'}_stream"
    (tmp_path / f"{name}.py").write_text(OWN.replace("TESTED", str(tested)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = train_one(resolve(f"{name}:stream", "er", 10), tmp_path)
    if not tested:
        with pytest.raises(ValueError, match="no tests"):
            analyze(folder, QUICK, trust_code=True)
        return
    analyze(folder, QUICK, trust_code=True)
    found = saved(folder)["predictors"]["working"]
    assert found["flatness"]["samples"] == 80
    assert sum(map(sum, found["confusion"]["counts"])) == 4


def test_a_run_that_ended_early_is_analysed_on_the_tasks_it_learned(tmp_path: Path) -> None:
    folder = make(tmp_path, max_steps=120)
    analyze(folder, QUICK)
    found = saved(folder)["predictors"]["stable"]
    scores = read_run(folder).result.predictors["stable"].class_il
    assert scores is not None
    seen = 2  # 79 steps a task, so the second is being learned
    assert sum(map(sum, found["confusion"]["counts"])) == 200 * seen
    assert len(found["task_probabilities"]["mass"]) == seen
    assert scores.matrix[-1][seen + 1] is None


def test_networks_that_do_not_reproduce_the_result_are_refused(run: Path) -> None:
    path = run / "result.json"
    result = json.loads(path.read_text())
    result["predictors"]["plastic"]["class_il"]["matrix"][-1][0] -= 5
    path.write_text(json.dumps(result))
    with pytest.raises(ValueError, match="accuracy of plastic"):
        analyze(run, QUICK)
    assert not (run / "analysis.json").exists()


def test_a_stream_that_has_changed_is_refused(run: Path) -> None:
    path = run / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "stream_checksum": "0" * 16}))
    with pytest.raises(ValueError, match="not the stream of the run"):
        analyze(run, QUICK)


def test_training_again_discards_the_analysis(tmp_path: Path) -> None:
    folder = make(tmp_path, max_steps=20)
    analyze(folder, QUICK)
    (folder / "result.json").unlink()
    make(tmp_path, max_steps=20)
    assert not (folder / "analysis.json").exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"draws": 0}, "draws is 0"),
        ({"samples": -1}, "samples is -1"),
        ({"bins": 0}, "bins is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"sigmas": ()}, "sigmas are"),
        ({"sigmas": (0.1, 0.1)}, "sigmas are 0.1, 0.1; expected ascending numbers"),
        ({"sigmas": (-0.1, 0.1)}, "sigmas are -0.1"),
        ({"sigmas": (0.0, float("nan"))}, "sigmas are 0, nan"),
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AnalysisSettings(**wrong)


# -- the verb -------------------------------------------------------------------------------


def test_analyses_what_is_finished_and_names_the_rest(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "runs"
    partial = Path(shutil.copytree(run, run.with_name("seed-1")))
    (partial / "result.json").unlink()
    foreign = place / "model"
    foreign.mkdir()
    (foreign / "config.json").write_text('{"hidden": 3}')
    (foreign / "result.json").write_text("{}")
    damaged = place / "damaged"
    damaged.mkdir()
    (damaged / "config.json").write_text("{")
    (damaged / "result.json").write_text("{}")
    assert main(["analyze", str(place), *FLAGS, "--json"]) == 0
    out, err = capfd.readouterr()
    line = json.loads(out)
    assert line["analyzed"] == [str(run)]
    assert line["reused"] == []
    assert sorted(line["skipped"]) == sorted(
        path.relative_to(tmp_path).as_posix() for path in (partial, foreign, damaged)
    )
    assert line["failed"] == {}
    reasons = dict(re.findall(r"^skipped: (\S+): (.*)$", err, re.MULTILINE))
    assert reasons == line["skipped"]
    assert "has no result.json" in reasons[partial.relative_to(tmp_path).as_posix()]
    assert "config.json" in reasons["runs/model"]
    assert "config.json" in reasons["runs/damaged"]
    assert "calibration" in err

    before = (run / "analysis.json").stat().st_mtime_ns
    assert main(["analyze", str(run), str(place), *FLAGS, "--json", "--quiet"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["reused"] == [str(run)]
    assert (run / "analysis.json").stat().st_mtime_ns == before
    assert main(["analyze", str(run), *FLAGS, "--again", "--quiet"]) == 0
    assert (run / "analysis.json").stat().st_mtime_ns > before


def test_progress_counts_every_sample_that_is_evaluated(
    run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("perdure.experiment.progress.LOG_SECONDS", -1)
    assert main(["analyze", str(run), *FLAGS]) == 0
    shares = [int(share) for share in re.findall(r": (\d+) % analysed", capfd.readouterr().err)]
    assert shares[-1] == 100
    assert shares == sorted(shares)
    assert len(shares) == 3 * (1 + 3 * 2)  # a network: the tests, and three sigmas in two draws
    assert main(["analyze", str(run), *FLAGS, "--again", "--quiet"]) == 0
    assert capfd.readouterr() == ("", "")


def test_a_finished_run_that_cannot_be_analysed_is_a_failure(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (run / "learner.safetensors").write_bytes(b"no")
    assert main(["analyze", str(run), *FLAGS, "--json"]) == 1
    out, err = capfd.readouterr()
    assert "learner.safetensors" in err
    assert list(json.loads(out.splitlines()[-1])["failed"]) == [str(run)]


def test_changed_models_are_noticed(
    shared: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(shared, tmp_path / "seed-0"))
    model = run / "models" / "stable.safetensors"
    content = model.read_bytes()
    model.write_bytes(content[:-1000] + bytes(1000))
    assert main(["analyze", str(run), *FLAGS]) == 1
    assert "models/stable.safetensors was changed" in capfd.readouterr().err
    assert not (run / "analysis.json").exists()
    model.write_bytes(content)
    assert main(["analyze", str(run), *FLAGS]) == 0
    assert "was changed" not in capfd.readouterr().err
    model.write_bytes(content[:-1000])
    assert main(["analyze", str(run), *FLAGS]) == 0
    assert "models/stable.safetensors was changed" in capfd.readouterr().err


def test_a_full_disk_does_not_keep_other_runs_from_being_analysed(
    run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    other = Path(shutil.copytree(run, run.with_name("seed-1")))

    def write(path: Path, content: object) -> None:
        if path.parent == run:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write_json(path, content)

    monkeypatch.setattr("perdure.experiment.analyze.write_json", write)
    assert main(["analyze", str(run.parent), *FLAGS, "--json"]) == 1
    line = json.loads(capfd.readouterr().out)
    assert (list(line["failed"]), line["analyzed"]) == ([str(run)], [str(other)])


def test_runs_without_networks_keep_their_analysis(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", str(run), *FLAGS, "--quiet"]) == 0
    (run / "learner.safetensors").unlink()
    other = Path(shutil.copytree(run, run.with_name("seed-1")))
    (other / "analysis.json").unlink()
    capfd.readouterr()
    assert main(["analyze", str(run.parent), *FLAGS, "--again", "--json"]) == 0
    out, err = capfd.readouterr()
    line = json.loads(out.splitlines()[-1])
    assert (line["reused"], list(line["skipped"])) == ([str(run)], [str(other)])
    assert f"skipped: {other}: " in err
    assert "--again" not in err
    assert main(["analyze", str(other), *FLAGS]) == 2
    assert f"no finished run with its networks in {other}" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["."], "contains no runs"),
        ([], "runs does not exist"),
        ([".", "--sigmas", "0,much"], "--sigmas is '0,much'"),
        ([".", "--sigmas", "1,0"], "sigmas are 1, 0"),
        ([".", "--draws", "0"], "draws is 0"),
    ],
)
def test_invalid_input_is_one_sentence_and_status_2(
    argv: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["analyze", *argv]) == 2
    out, err = capfd.readouterr()
    assert message in err
    assert err.count("\n") == 1
    assert out == ""


def test_the_verified_accuracies_are_those_of_the_evaluation(run: Path) -> None:
    """Otherwise the check would prove nothing."""
    result = read_run(run).result
    for name, predict in load_run(run).predictors().items():
        scores = result.predictors[name].class_il
        assert scores is not None
        assert accuracies(predict, stream().tests).class_il == scores.matrix[-1]
