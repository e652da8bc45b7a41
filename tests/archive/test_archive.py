"""Run folders of every release are read, loaded and resumed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from perdure import load_run
from perdure.experiment.run import Job, PlannedRun
from perdure.results.records import read_runs

from . import make, small

RELEASES = sorted(path.name for path in make.HERE.iterdir() if path.name[0].isdigit())


@pytest.mark.parametrize("release", RELEASES)
def test_the_runs_of_a_release_are_read_and_loaded(release: str) -> None:
    runs, skipped = read_runs([make.HERE / release])
    assert len(runs) >= 7
    assert [folder.state for folder in skipped] == ["unfinished"]
    inputs = small.stream().tests[0].samples().inputs
    for run in runs:
        assert (run.facts.version, len(run.facts.source)) == (release, 16)
        assert (run.remarks, bool(run.events)) == ((), True)
        learner = load_run(run.folder.path, trust_code=True)
        assert learner.predict_proba(inputs).sum(1).allclose(torch.ones(len(inputs)))
        learner.observe(inputs[:5], torch.arange(5) % 4)


@pytest.mark.parametrize("release", RELEASES)
def test_an_interrupted_run_of_a_release_resumes(release: str, tmp_path: Path) -> None:
    shutil.copytree(make.HERE / release, tmp_path / "runs")
    (stopped,) = (tmp_path / "runs").glob("*/*/seed-1")
    run = PlannedRun(make.settings("clser"), 1)
    assert run.folder(tmp_path / "runs").path == stopped
    Job((run,), tmp_path / "runs", resume=True).execute(lambda progress: None)
    timing = json.loads((stopped / "timing.json").read_text())
    assert timing["resumed"] == [make.INTERRUPTED_AT]
