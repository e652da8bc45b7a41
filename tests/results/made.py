"""Run records without training, and the folders that hold them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from perdure.config import RunConfig, default_hyperparameters
from perdure.evaluation import Agreement, Calibration, Confusion, Flatness, TaskProbabilities
from perdure.files import write_json
from perdure.results import Collection, RunFolder, RunRecord, Setting
from perdure.results.records import (
    Analysis,
    Event,
    Facts,
    MetricsEvent,
    PredictorAnalysis,
    PredictorResult,
    Result,
    Scores,
    Timing,
)
from perdure.results.table import group

NETWORKS = {"clser": ("stable", "plastic", "working"), "mean-er": ("mean", "working")}
EVENTS: tuple[Event, ...] = (MetricsEvent(100, {"loss": 0.5}), MetricsEvent(200, {"loss": 0.25}))


def config(
    method: str = "clser",
    *,
    stream: str = "s-mnist",
    dataset: str | None = "mnist",
    buffer_size: int | None = 500,
    network: str = "mlp",
    data_checksum: str = "0123456789abcdef",
    hyperparameters: Mapping[str, float] | None = None,
    **settings: Any,
) -> RunConfig:
    """The usual configuration of a method, with other hyperparameters where they are given."""
    size = None if method in ("sgd", "joint") else buffer_size
    usual = default_hyperparameters(stream, method, size, dataset).values
    return RunConfig(
        stream=stream,
        dataset=dataset,
        data_checksum=data_checksum,
        network=network,
        method=method,
        buffer_size=size,
        hyperparameters={**usual, **(hyperparameters or {})},
        **settings,
    )


def scores(mean: float, tests: int = 2, **others: float | None) -> Scores:
    """Scores with this mean on every test."""
    matrix: list[list[float | None]] = [[mean] * tests for _ in range(tests + 1)]
    values = {"mean": mean, "last_test": mean, "forgetting": 1.0, **others}
    return Scores(matrix=matrix, **values)


def record(
    method: str = "clser",
    seed: int = 0,
    *,
    accuracy: float | Mapping[str, float] = 80.0,
    complete: bool = True,
    analysis: Analysis | None = None,
    overlap: bool = False,
    **settings: Any,
) -> RunRecord:
    """A run whose networks have this Class-IL accuracy."""
    its = config(method, **settings)
    names = NETWORKS.get(method, ("working",))
    means = accuracy if isinstance(accuracy, Mapping) else dict.fromkeys(names, accuracy)
    others: dict[str, float | None] = {"forgetting": None, "last_test": 70.0} if overlap else {}
    result = Result(
        moments=["start", "first", "second"],
        tests=["first", "second"],
        predictors={
            name: PredictorResult(
                class_il=scores(mean, 2, **others), task_il=None if overlap else scores(98.0)
            )
            for name, mean in means.items()
        },
        complete=complete,
        steps=200,
    )
    facts = Facts(hash=its.hash, seed=seed, data=its.dataset or its.stream)
    folder = RunFolder.locate(Path("runs"), its, seed)
    timing = Timing(seconds=60.0, side_by_side=2)
    return RunRecord(
        str(folder.path), folder, its, facts, result, timing, EVENTS, analysis=analysis
    )


def analysis(
    name: str,
    *,
    ece: float = 0.1,
    accuracy: Sequence[float] = (90.0, 45.0),
    loss: Sequence[float] | None = None,
    sigmas: Sequence[float] = (0.0, 0.1),
    mass: Sequence[float] = (0.5, 0.5),
    kind: Literal["task", "class"] = "task",
    agreement: float = 0.9,
) -> Analysis:
    """An analysis of the network of this name, and of the agreement of stable and plastic."""
    stds: list[float | None] = [*accuracy]
    found = PredictorAnalysis(
        calibration=Calibration(ece=ece, bins=[]),
        task_probabilities=TaskProbabilities(
            names=[str(i) for i in range(len(mass))], kind=kind, mass=[*mass]
        ),
        confusion=Confusion(classes=[], counts=[]),
        flatness=Flatness(
            sigmas=[*sigmas],
            draws=2,
            samples=100,
            accuracy=[*accuracy],
            accuracy_std=stds,
            loss=stds if loss is None else [*loss],
            loss_std=stds,
        ),
    )
    matrix = [[1.0, agreement], [agreement, 1.0]]
    pair = Agreement(predictors=["stable", "plastic"], matrix=matrix)
    return Analysis(predictors={name: found}, agreement=pair)


def setting(*runs: RunRecord) -> Setting:
    """The only setting of these runs."""
    (found,) = group(runs).settings
    return found


def collection(*runs: RunRecord) -> Collection:
    """These runs, grouped."""
    return group(runs)


def write(root: Path, run: RunRecord) -> Path:
    """Write a run to its folder below `root`."""
    folder = RunFolder.locate(root, run.config, run.seed)
    folder.begin({**run.config.to_json(), **msgspec.to_builtins(run.facts)})
    write_json(folder.path / "result.json", msgspec.to_builtins(run.result))
    write_json(folder.path / "timing.json", msgspec.to_builtins(run.timing))
    for event in run.events:
        content = msgspec.to_builtins(event)
        folder.event(content.pop("event"), **content)
    if run.analysis is not None:
        write_json(folder.path / "analysis.json", msgspec.to_builtins(run.analysis))
    return folder.path


def change(file: Path, path: Sequence[str | int], value: object) -> None:
    """Replace a value somewhere in a JSON file."""
    content = json.loads(file.read_text())
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    file.write_text(json.dumps(content))
