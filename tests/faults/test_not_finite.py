"""A loss that turns infinite or not a number: named, and the last good checkpoint kept."""

from __future__ import annotations

import random
import re
from pathlib import Path
from textwrap import dedent

import pytest

from perdure.training import TrainingError
from perdure.training.job import Job, execute

from . import small
from .compare import contents
from .conftest import Count

POISON = """
    from pathlib import Path
    from perdure import SGD

    class Poison(SGD):
        def optimizer_step(self, loss, **terms):
            step, _, kind = Path("poison").read_text().partition(" ")
            super().optimizer_step(loss * float(kind) if int(self.steps) + 1 == int(step) else loss)
"""


@pytest.fixture
def poison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that says at which step the loss goes wrong, and how."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "poisoned.py").write_text(dedent(POISON))
    path = tmp_path / "poison"
    path.write_text("0 nan")
    return path


def poisoned_run_goes_on_when_cured(poison: Path, name: str, draws: random.Random) -> None:
    what = small.settings("poisoned:Poison")
    whole, out = poison.parent / "whole", poison.parent / name
    if not what.folder(whole, 0).complete:
        small.make(what, whole)
    step = draws.randint(3, small.STEPS)
    poison.write_text(f"{step} {draws.choice(['nan', 'inf', '-inf'])}")
    with pytest.raises(TrainingError) as failure:
        execute(Job(what, (0,), str(out), checkpoint_every=1e-9), small.silent)
    sentence = re.fullmatch(
        rf"seed 0: the loss was infinite or not a number at step {step}; the learning "
        r"rate \(0\.\d+\) is probably too high; the checkpoint of step (\d+) is kept",
        str(failure.value),
    )
    assert sentence, failure.value
    assert 0 < int(sentence[1]) < step
    poison.write_text("0 nan")
    folder = small.make(what, out, resume=True)
    assert folder.read("timing.json")["resumed"] == [int(sentence[1])]
    assert contents(folder.path) == contents(what.folder(whole, 0).path)


def test_the_step_is_named_and_the_run_goes_on_from_before_it(poison: Path) -> None:
    draws = random.Random(5)
    for number in range(4):
        poisoned_run_goes_on_when_cured(poison, str(number), draws)


@pytest.mark.slow
@pytest.mark.faults
def test_it_is_so_at_any_step(poison: Path, count: Count) -> None:
    draws = random.Random(6)
    for number in range(100):
        poisoned_run_goes_on_when_cured(poison, str(number), draws)
    count("losses made infinite or not a number", 100)
    count("results compared byte for byte", 100)
