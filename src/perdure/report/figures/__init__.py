"""From runs to what the figures show: averages over seeds, CLS-ER beside the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from perdure.report.figures.accuracies import class_accuracy, overview, task_accuracy
from perdure.report.figures.analyses import (
    agreement,
    calibration,
    confusion,
    flatness,
    task_probabilities,
)
from perdure.report.figures.training import losses, memory, provided
from perdure.report.panels import Figure, slug
from perdure.report.runs import Setting, Setup

__all__ = ["figures", "overview"]

_MAKERS: Sequence[Callable[[Sequence[Setting]], Figure | None]] = (
    task_accuracy,
    class_accuracy,
    task_probabilities,
    calibration,
    flatness,
    confusion,
    agreement,
    losses,
    provided,
    memory,
)
"""In the order of a page: what was forgotten, what the networks are like, how they came to be."""


def figures(setup: Setup, buffer_size: int | None) -> list[Figure]:
    """All figures for one stream and one size of memory that the runs allow."""
    settings = [setting for setting in setup.comparison(buffer_size) if setting.predictors]
    name = slug(setup.name if buffer_size is None else f"{setup.name} {buffer_size}")
    made = [make(settings) for make in _MAKERS] if settings else []
    return [replace(f, name=f"{name}-{f.name}") for f in made if f is not None]
