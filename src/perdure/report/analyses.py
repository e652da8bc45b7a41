"""Analyses that runs lack, made where their networks and data are there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from perdure.analysis import analyze
from perdure.report.reading import with_analysis
from perdure.report.runs import Collection, Run


def complete(
    collection: Collection, data: Path | None, tell: Callable[[str], None]
) -> tuple[Collection, dict[str, str]]:
    """The collection with every analysis that can be had; and by place, why others cannot."""
    missing: dict[str, str] = {}
    without = sum(run.analysis is None for run in collection.runs)
    made = 0

    def analysed(run: Run) -> Run:
        nonlocal made
        if run.analysis is not None:
            return run
        made += 1
        tell(f"analysing {run.place} ({made} of {without})")
        try:
            analyze(run.folder.path, data_root=data)
        except (ValueError, OSError) as error:
            missing[run.place] = str(error).replace(str(run.folder.path), run.place)
            return run
        return with_analysis(run)

    setups = tuple(
        replace(
            setup,
            settings=tuple(
                replace(setting, runs=tuple(analysed(run) for run in setting.runs))
                for setting in setup.settings
            ),
        )
        for setup in collection.setups
    )
    return replace(collection, setups=setups), missing
