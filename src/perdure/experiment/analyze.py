"""The paper's analyses of a finished run, computed from its saved networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from perdure.config import MAX_NUMBER
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
from perdure.evaluation.accuracy import count_rows
from perdure.evaluation.flatness import DRAWS, SIGMAS
from perdure.evaluation.probabilities import BINS, groups_of
from perdure.experiment.build import (
    build_stream,
    load_run,
    load_user_stream,
    read_dataset,
    refuse_user_code,
)
from perdure.experiment.progress import analysis_progress
from perdure.files import write_json
from perdure.learners import Learner
from perdure.randomness import generator
from perdure.results.folder import RunFolder
from perdure.results.records import Analysis, RunRecord, read_run
from perdure.streams.from_files import FILE_STREAMS

FORMAT = 1
TOLERANCE = {"fp32": 0.1, "bf16": 1.0}
"""Percentage points by which an accuracy may differ on another machine."""


@dataclass(frozen=True)
class AnalysisSettings:
    """What an analysis depends on besides the run.

    Attributes:
        sigmas: Standard deviations of the noise on the weights, ascending.
        draws: Draws of that noise.
        bins: Bins of the reliability diagram.
        samples: Training samples that are evaluated under noise.
        seed: Seed of the noise and of the choice of samples.
    """

    sigmas: tuple[float, ...] = SIGMAS
    draws: int = DRAWS
    bins: int = BINS
    samples: int = 5000
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("draws", "bins", "samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 1 or more")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}; expected 0 or more")
        ascending = sorted(set(self.sigmas)) == list(self.sigmas)
        if not self.sigmas or not ascending or not all(0 <= s <= MAX_NUMBER for s in self.sigmas):
            listed = ", ".join(f"{sigma:g}" for sigma in self.sigmas)
            raise ValueError(f"sigmas are {listed}; expected ascending numbers from 0")

    def to_json(self) -> dict[str, Any]:
        """The settings as `analysis.json` contains them."""
        return {**asdict(self), "sigmas": list(self.sigmas)}


def analyze(
    folder: str | Path,
    settings: AnalysisSettings | None = None,
    *,
    data_root: Path | None = None,
    device: str = "cpu",
    trust_code: bool = False,
    progress: bool = False,
) -> Analysis:
    """Analyse a finished run and write `analysis.json` to its folder.

    `progress` shows on stderr how far it is.

    Raises:
        ValueError: If the folder is not a finished run, its data is missing, it names code that is
            not trusted, or its networks do not reproduce the accuracies of its result. Nothing is
            written then.
    """
    run = read_run(Path(folder))
    if not trust_code:
        refuse_user_code(run.config, run.folder.path)
    run.folder.check_artifacts(read=True)
    learner = load_run(run.folder.path, device=device, trust_code=trust_code)
    if run.config.stream.partition(":")[0] in FILE_STREAMS:
        load_user_stream(run.config.stream, progress=progress)  # it is kept for what follows
    content = _compute(run, learner, settings or AnalysisSettings(), data_root, device, progress)
    write_json(Path(folder) / "analysis.json", content)
    return RunFolder(Path(folder)).read("analysis.json", Analysis)


def has_analysis(run: RunRecord, settings: AnalysisSettings) -> bool:
    """Whether the run has an analysis with these settings."""
    found = run.analysis
    return found is not None and (found.format, found.settings) == (FORMAT, settings.to_json())


def _compute(
    run: RunRecord,
    learner: Learner,
    settings: AnalysisSettings,
    data_root: Path | None,
    device: str,
    progress: bool,
) -> dict[str, Any]:
    root = None if data_root is None else str(data_root)
    config = replace(run.config, device=device, data_root=root)
    stream = build_stream(config, read_dataset(config, progress=progress), run.seed)
    if stream.checksum != run.facts.stream_checksum:
        raise ValueError(
            f"{config.stream} is not the stream of the run any more: its data or the code that "
            "composes it has changed"
        )
    learned = len(run.result.moments) - 1  # tasks; the first evaluation is before training
    seen = [i for i, test in enumerate(stream.tests) if test.since < learned]
    if not seen:
        raise ValueError("the run has no tests of what it learned")
    tests = [stream.tests[i] for i in seen]
    trained = training_samples(
        stream.tasks[:learned], settings.samples, batch=config.batch, seed=settings.seed
    ).to(device)
    scores, predictors = {}, {}
    tested = count_rows(tests, load=True)
    assert tested is not None  # with `load`
    noisy = len(settings.sigmas) * settings.draws * len(trained.labels)
    total = len(learner.predictors()) * (tested + noisy)
    with analysis_progress(str(run.folder.path), total, shown=progress) as on_scored:
        for name, predictor in learner.predictors().items():
            found = predict(predictor, tests, on_scored=on_scored)
            accuracies = accuracies_of(found, tests).class_il
            _verify(run, name, dict(zip(seen, accuracies, strict=True)))
            labels = torch.cat([part.labels for part in found])
            scores[name] = torch.cat([part.scores for part in found]).float()
            curve = flatness(
                predictor,
                trained,
                sigmas=settings.sigmas,
                draws=settings.draws,
                noise=generator(settings.seed, "weight noise"),
                on_scored=on_scored,
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
        "settings": settings.to_json(),
    }


def _verify(run: RunRecord, predictor: str, accuracies: Mapping[int, float]) -> None:
    """Raise ValueError unless the run recorded these accuracies by test after its last task."""
    found = run.result.predictors.get(predictor)
    row = [] if found is None or found.class_il is None else found.class_il.matrix[-1]
    for test, now in accuracies.items():
        then = row[test] if test < len(row) else None
        if then is None:
            raise ValueError(f"result.json has no accuracies of {predictor}")
        if abs(now - then) > TOLERANCE[run.config.precision]:
            raise ValueError(
                f"the accuracy of {predictor} is {now:.2f} % but {then:.2f} % in result.json: the "
                "saved networks are not those that were evaluated; train the run again"
            )
