"""The command of a report makes the same runs again: the same settings, to the last digit."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perdure import catalog
from perdure.analysis import AnalysisSettings
from perdure.cli import RunOptions, main, parse
from perdure.report.commands import analysis_command, command
from perdure.report.reading import collect
from perdure.report.runs import Run, Setting
from perdure.results import RunFolder, settings_hash
from perdure.training.build import Settings
from perdure.training.plan import parse_seeds, plan

from . import made


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """As they were before the command took them."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


class PlannedError(Exception):
    """Carries the settings out of a command that has only to plan."""


def planned_by(words: list[str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings that a command plans; nothing is trained."""

    def only_plan(*arguments: Any, **named: Any) -> Settings:
        raise PlannedError(plan(*arguments, **named))

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["perdure.training.plan"], "plan", only_plan)
        with pytest.raises(PlannedError) as found:
            main(words)
    settings = found.value.args[0]
    assert isinstance(settings, Settings)
    return settings


def setting_of(settings: Settings, seeds: tuple[int, ...] = (0,)) -> Setting:
    """As a report reads it back from run folders."""
    config = {**settings.deciding(), "hash": settings_hash(settings.deciding())}
    return Setting(
        tuple(
            Run("", RunFolder(Path()), {**config, "seed": seed}, {}, {}, [], None) for seed in seeds
        )
    )


def again(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> str:
    """The rebuilt command, found to plan the same settings."""
    text = command(setting_of(settings))
    assert text is not None
    program, *words = shlex.split(text)
    assert program == "perdure"
    assert isinstance(parse(words), RunOptions)
    found = planned_by(words, monkeypatch)
    assert settings_hash(found.deciding()) == settings_hash(settings.deciding())
    assert found.published == settings.published
    return text


@pytest.mark.parametrize("method", catalog.METHODS)
def test_every_method_as_published(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = again(plan(method=method, dataset="mnist5k"), monkeypatch)
    buffer = "" if method in ("sgd", "joint") else " --buffer 500"
    assert text == (
        f"perdure run s-mnist --method {method}{buffer} --seeds 0 --dataset mnist5k --device cpu"
    )


@pytest.mark.parametrize(
    "asked",
    [
        {"given": {"lr": 0.03, "memory_batch": 64, "stable_rate": 1.0}},
        {"given": {"epochs": 1, "consistency_weight": 1e-05}},
        {"given": {"lr": 1}},  # from Python: a whole number where the flag would make 1.0
        {"buffer_size": 123, "max_steps": 30},
        {"update": "regular", "method": "mean-er"},
        {"stream": "r-mnist", "stream_seed": 7},
        {"stream": "p-mnist", "stream_seed": "per-run"},
        {"validation": 0.1, "network": "perdure.networks:mlp"},
        {"method": "gss", "given": {"gss_batch": 5}},
        {"stream": "mnist-360", "method": "derpp", "given": {"alpha": 0.25}},
        {"method": "perdure.learners:ER", "given": {"lr": 0.5, "memory_batch": 8}},
    ],
    ids=repr,
)
def test_everything_that_departs_from_it(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    again(plan(**{"dataset": "mnist5k", **asked}), monkeypatch)


def test_seeds_are_those_that_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = plan(dataset="mnist5k")
    for seeds, said in (((0, 1, 2), "0:3"), ((0, 4), "0,4"), ((7,), "7")):
        text = command(setting_of(settings, seeds))
        assert text is not None
        assert f"--seeds {said} " in text
        assert parse_seeds(said) == list(seeds)


def test_the_command_behind_an_analysis(tmp_path: Path) -> None:
    folder = made.make_run(tmp_path / "my runs")
    (found,) = collect([tmp_path / "my runs"]).settings
    usual = f"perdure analyze 'my runs/s-mnist/{folder.parent.name}'"
    assert analysis_command(found) == usual
    content = made.analysis(["stable", "plastic", "working"])
    asked = AnalysisSettings(sigmas=(0.0, 0.5), draws=2)
    (folder / "analysis.json").write_text(json.dumps({**content, "settings": asked.plain()}))
    (found,) = collect([tmp_path / "my runs"]).settings
    text = analysis_command(found)
    assert text == f"{usual} --sigmas 0.0,0.5 --draws 2"
    options = parse(shlex.split(text)[1:])
    assert (options.sigmas, options.draws) == ("0.0,0.5", 2)  # type: ignore[union-attr]
    (folder / "analysis.json").unlink()
    (found,) = collect([tmp_path / "my runs"]).settings
    assert analysis_command(found) is None


def test_names_are_quoted() -> None:
    settings = plan(dataset="mnist5k")
    odd = {**settings.deciding(), "network": "my module:$(rm -rf *)", "hash": "0", "seed": 0}
    text = command(Setting((Run("", RunFolder(Path()), odd, {}, {}, [], None),)))
    assert text is not None
    assert "'my module:$(rm -rf *)'" in text


def test_ranks_are_started_together_one_seed_at_a_time() -> None:
    settings = replace(plan(dataset="mnist5k"), ranks=2)
    text = command(setting_of(settings, (0, 1)))
    assert text is not None
    first, second = text.split(" && ")
    start = "torchrun --nproc-per-node 2 -m perdure run s-mnist --method clser --buffer 500"
    assert first == f"{start} --seeds 0 --dataset mnist5k --device cpu"
    assert second == f"{start} --seeds 1 --dataset mnist5k --device cpu"


def test_what_no_flags_say_has_no_command() -> None:
    settings = plan(dataset="mnist5k")
    values = {k: v for k, v in settings.values.items() if k != "stable_decay"}
    config = {**settings.deciding(), "values": values, "hash": "0", "seed": 0}
    assert command(Setting((Run("", RunFolder(Path()), config, {}, {}, [], None),))) is None


def test_a_method_that_is_not_here_is_written_out() -> None:
    settings = plan(dataset="mnist5k")
    config = {**settings.deciding(), "method": "gone:Away", "hash": "0", "seed": 0}
    text = command(Setting((Run("", RunFolder(Path()), config, {}, {}, [], None),)))
    assert text is not None
    assert "--method gone:Away" in text
    assert "--set batch=10 --set epochs=15 --set lr=0.1 " in text
