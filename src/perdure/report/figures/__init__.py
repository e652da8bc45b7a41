"""Compute what figures show: averages over seeds, methods side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from perdure.report.charts import Figure
from perdure.report.figures.accuracy import class_accuracy, overview, task_accuracy
from perdure.report.figures.analyses import (
    agreement,
    calibration,
    confusion,
    flatness,
    task_probabilities,
)
from perdure.report.figures.training import losses, memory, prequential, replay_sources
from perdure.results.table import Comparison, Setting, slug

__all__ = ["figures", "overview"]

_FIGURES: Sequence[Callable[[Sequence[Setting]], Figure | None]] = (
    prequential,
    task_accuracy,
    class_accuracy,
    task_probabilities,
    calibration,
    flatness,
    confusion,
    agreement,
    losses,
    replay_sources,
    memory,
)
"""In the order of the page."""


def figures(comparison: Comparison, buffer: str) -> list[Figure]:
    """The figures for one capacity of the memory that the runs have the data for."""
    settings = [s for s in comparison.by_method(buffer).values() if s.predictors]
    name = slug(f"{comparison.name} {buffer}")
    found = [make(settings) for make in _FIGURES] if settings else []
    return [replace(f, name=f"{name}-{f.name}") for f in found if f is not None]
