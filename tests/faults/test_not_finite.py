"""Infinite or NaN losses: the step is reported and the last valid checkpoint kept."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from textwrap import dedent

import pytest

from perdure.experiment.run import Job, PlannedRun
from perdure.training import TrainingError

from . import small
from .compare import contents
from .conftest import Count, share

POISON = """
    from pathlib import Path
    from perdure import SGD

    class Poison(SGD):
        def optimizer_step(self, loss, **terms):
            step, _, kind = Path("poison").read_text().partition(" ")
            poisoned = int(self.steps) + 1 == int(step)
            super().optimizer_step(loss * float(kind) if poisoned else loss)
"""


@pytest.fixture
def poison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the step whose loss is invalid, and its value."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "poisoned.py").write_text(dedent(POISON))
    path = tmp_path / "poison"
    path.write_text("0 nan")
    return path


def check_poisoned_run(poison: Path, name: str, draws: random.Random) -> None:
    what = small.settings("poisoned:Poison")
    whole, out = poison.parent / "whole", poison.parent / name
    if not small.folder(what, whole).complete:
        small.make(what, whole)
    step = draws.randint(3, small.STEPS)
    poison.write_text(f"{step} {draws.choice(['nan', 'inf', '-inf'])}")
    job = small.job(what, out, checkpoint_every=1e-9)
    with pytest.raises(TrainingError) as failure:
        job.execute(small.silent)
    reason = job.explain(failure.value).reason
    assert reason.startswith("seed 0: ")
    assert re.search(rf"\bstep {step}\b", reason)
    kept = re.search(r"checkpoint from step (\d+) is kept", reason)
    assert kept, reason
    assert 0 < int(kept[1]) < step
    poison.write_text("0 nan")
    folder = small.make(what, out, resume=True)
    assert json.loads((folder.path / "timing.json").read_text())["resumed"] == [int(kept[1])]
    assert contents(folder.path) == contents(small.folder(what, whole).path)


def test_the_step_is_reported_and_the_run_resumes_from_before_it(poison: Path) -> None:
    draws = random.Random(5)
    for number in range(4):
        check_poisoned_run(poison, str(number), draws)


def test_the_other_runs_of_a_group_finish(poison: Path) -> None:
    """One process trains two seeds, as on a GPU; the loss of the second becomes NaN."""
    text = dedent(POISON).replace("== int(step)", "== int(step) and self.own_seed")
    text += (
        "    def __init__(self, network, *, seed=0, **common):\n"
        "        super().__init__(network, seed=seed, **common)\n"
        "        self.own_seed = seed\n"
    )
    poison.with_name("poisoned_seed.py").write_text(text)
    what = small.settings("poisoned_seed:Poison")
    runs = PlannedRun(what, 0), PlannedRun(what, 1)
    small.make(what, poison.parent / "whole")
    poison.write_text("30 nan")
    job = Job(runs, poison.parent / "runs", checkpoint_every=1e-9)
    with pytest.raises(TrainingError, match=r"seed 1: .* step 30") as failure:
        job.execute(small.silent)
    assert "seed 0" not in job.explain(failure.value).reason
    done, failed = (run.folder(job.out) for run in runs)
    assert contents(done.path) == contents(small.folder(what, poison.parent / "whole").path)
    assert not (done.path / "checkpoints").exists()
    assert not failed.complete
    assert 0 < (runs[1].checkpoints(job.out).latest_step() or 0) < 30


@pytest.mark.slow
@pytest.mark.faults
def test_any_step_may_fail(poison: Path, count: Count) -> None:
    draws = random.Random(6)
    runs = share(100)
    for number in range(runs):
        check_poisoned_run(poison, str(number), draws)
    count("losses made infinite or not a number", runs)
    count("results compared byte for byte", runs)
