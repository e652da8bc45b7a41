"""The paper's analyses of a finished run, from its saved networks: `analysis.json`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from perdure.evaluation import (
    accuracies_of,
    agreement,
    calibration,
    confusion,
    flatness,
    predict,
    task_probabilities,
    training_samples,
)
from perdure.evaluation.calibration import BINS
from perdure.evaluation.flatness import DRAWS, SIGMAS
from perdure.evaluation.task_bias import groups_of
from perdure.randomness import generator
from perdure.results import RunFolder, write_json
from perdure.streams import Stream
from perdure.training.build import (
    Settings,
    load_run,
    read_dataset,
    settings_of,
    stream_of_run,
)

FORMAT = 1
FILE = "analysis.json"
TOLERANCE = {"fp32": 0.1, "bf16": 1.0}
"""How far, in percentage points, another machine's arithmetic may move an accuracy."""


@dataclass(frozen=True)
class AnalysisSettings:
    """What decides the numbers of an analysis, beside the run."""

    sigmas: tuple[float, ...] = SIGMAS
    """Strengths of the noise on the weights: standard deviations."""
    draws: int = DRAWS
    """Draws of that noise."""
    bins: int = BINS
    """Of the reliability diagram."""
    samples: int = 5000
    """Training samples that are looked at under noise."""
    seed: int = 0
    """Of the noise and of the choice of those samples."""

    def __post_init__(self) -> None:
        for name in ("draws", "bins", "samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 1 or more")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}; expected 0 or more")
        ordered = sorted(set(self.sigmas)) == list(self.sigmas)
        if not self.sigmas or not ordered or not all(0 <= s < float("inf") for s in self.sigmas):
            listed = ", ".join(f"{sigma:g}" for sigma in self.sigmas)
            raise ValueError(f"sigmas are {listed}; expected rising numbers from 0 on")

    def plain(self) -> dict[str, Any]:
        """As `analysis.json` has them."""
        return {**asdict(self), "sigmas": list(self.sigmas)}


def analyze(
    folder: str | Path,
    settings: AnalysisSettings | None = None,
    *,
    data_root: Path | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """Analyse a finished run and write `analysis.json` into its folder; returns its content.

    ValueError, and nothing written, if the folder is not a finished run's, its data are not
    there, or its networks do not score what its result says.
    """
    settings = settings or AnalysisSettings()
    run = RunFolder(Path(folder))
    content = _analysis(run, settings, data_root, device)
    write_json(run.path / FILE, content)
    return content


def analysis_of(folder: str | Path, settings: AnalysisSettings) -> dict[str, Any] | None:
    """The analysis that is there already, if it was made with these settings."""
    run = RunFolder(Path(folder))
    if not (run.path / FILE).is_file():
        return None
    try:
        content = run.read(FILE)
    except ValueError:
        return None
    alike = content.get("format") == FORMAT and content.get("settings") == settings.plain()
    return content if alike else None


def find_runs(places: Iterable[Path]) -> Iterator[Path]:
    """The folders at or below these places that hold a `config.json`, each once, in order."""
    seen: set[Path] = set()
    for place in places:
        if not place.is_dir():
            raise ValueError(f"{place} is not a folder; expected a run's, or one that holds runs")
        here = (place / "config.json").is_file()
        folders = [place] if here else sorted(c.parent for c in place.rglob("config.json"))
        for folder in folders:
            if folder.resolve() not in seen:
                seen.add(folder.resolve())
                yield folder


def _analysis(
    run: RunFolder, settings: AnalysisSettings, data_root: Path | None, device: str
) -> dict[str, Any]:
    config, result = run.read("config.json"), run.read("result.json")
    learner = load_run(run.path, device=device)
    place = None if data_root is None else str(data_root)
    its = replace(settings_of(config), device=device, data_root=place)
    stream = _stream(its, config)
    learned = len(result.get("moments", [])) - 1  # tasks; the first moment is before training
    seen = [i for i, test in enumerate(stream.tests) if test.since < learned]
    if not seen:
        raise ValueError("there are no tests of what it learned")
    tests = [stream.tests[i] for i in seen]
    batch = int(its.values["batch"])
    trained = training_samples(
        stream.tasks[:learned], settings.samples, batch=batch, seed=settings.seed
    ).to(device)
    scores, predictors = {}, {}
    for name, predictor in learner.predictors().items():
        found = predict(predictor, tests)
        noted = _noted(result, name, seen)
        _verify(name, accuracies_of(found, tests).class_il, noted, TOLERANCE[its.precision])
        labels = torch.cat([part.labels for part in found])
        scores[name] = torch.cat([part.scores for part in found]).float()
        noise = generator(settings.seed, "weight noise")
        curve = flatness(
            predictor, trained, sigmas=settings.sigmas, draws=settings.draws, noise=noise
        )
        groups, kind = groups_of(tests, labels)
        predictors[name] = {
            "calibration": asdict(calibration(scores[name], labels, bins=settings.bins)),
            "flatness": asdict(curve),
            "task_probabilities": asdict(task_probabilities(scores[name], groups, kind)),
            "confusion": asdict(confusion(scores[name], labels)),
        }
    return {
        "format": FORMAT,
        "predictors": predictors,
        "agreement": asdict(agreement(scores)),
        "settings": settings.plain(),
    }


def _stream(settings: Settings, config: Mapping[str, Any]) -> Stream:
    """The stream of a run, found to be the one that it learned from."""
    stream = stream_of_run(settings, read_dataset(settings), int(config["seed"]))
    if stream.checksum != config["stream_checksum"]:
        raise ValueError(
            f"{settings.stream} as it is made here is not the stream of the run: the data, or the "
            "code that composes them, have changed"
        )
    return stream


def _noted(result: Mapping[str, Any], predictor: str, tests: Sequence[int]) -> list[float]:
    """What the run's result says of a predictor on these tests, after the last task."""
    try:
        row = result["predictors"][predictor]["class_il"]["matrix"][-1]
        return [float(row[i]) for i in tests]
    except (KeyError, TypeError, IndexError):
        raise ValueError(f"result.json has no accuracies of {predictor}") from None


def _verify(
    predictor: str, found: Sequence[float], noted: Sequence[float], tolerance: float
) -> None:
    """ValueError unless a predictor scores on its tests what the run's result says."""
    for now, then in zip(found, noted, strict=True):
        if abs(now - then) > tolerance:
            raise ValueError(
                f"{predictor} scores {now:.2f} % where result.json has {then:.2f} %; the saved "
                "networks are not those that were evaluated: train the run again"
            )
