"""Means and standard deviations over seeds, and how they compare with published figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from perdure.config import RunConfig
from perdure.evaluation import mean_std
from perdure.presets import Figure

TOLERANCE = 1.5
"""Percentage points by which a mean may miss a published one and still agree with it."""
PAPER_RUNS = 10
"""Runs behind each of the paper's figures; Table S3 has fewer."""
TABLE_S3_RUNS = 3


class Spread(NamedTuple):
    """A mean over seeds and its sample standard deviation.

    >>> str(Spread(91.234, 0.5, 10)), str(Spread(91.234, None, 1))
    ('91.23 ± 0.50', '91.23')
    """

    mean: float
    std: float | None
    """None for a single seed."""
    seeds: int

    @classmethod
    def over(cls, values: Sequence[float]) -> Spread:
        """The spread of one value per seed."""
        return cls(*mean_std(values), len(values))

    def text(self, digits: int = 2) -> str:
        """The spread as tables show it."""
        if self.std is None:
            return f"{self.mean:.{digits}f}"
        return f"{self.mean:.{digits}f} ± {self.std:.{digits}f}"

    def __str__(self) -> str:
        return self.text()

    @property
    def error(self) -> float | None:
        """The standard error of the mean; None for a single seed."""
        return None if self.std is None else self.std / math.sqrt(self.seeds)


def spread_text(spread: Spread | None, digits: int = 2) -> str:
    """A spread as tables show it; a dash if there is none."""
    return "–" if spread is None else spread.text(digits)


def signed(value: float, digits: int = 2) -> str:
    """A difference with its sign; the minus is a typographic one, not a hyphen.

    >>> signed(0.5), signed(-1.25, 1)
    ('+0.50', '−1.2')
    """
    return f"{value:+.{digits}f}".replace("-", "−")


def published_spread(figure: Figure) -> Spread:
    """A published figure in the same form as ours."""
    runs = int(figure.settings.get("runs", TABLE_S3_RUNS if figure.table == "S3" else PAPER_RUNS))
    return Spread(figure.mean, figure.std, 1 if figure.std is None else runs)


def published_texts(figures: Sequence[Figure]) -> list[str]:
    """Published figures as tables show them; several with the paper's table that each is from."""
    several = len(figures) > 1
    return [
        f"{published_spread(figure)}{f' (Table {figure.table})' if several else ''}"
        for figure in figures
    ]


class Verdict(NamedTuple):
    """How our mean compares with a published one.

    They agree if they differ by at most 1.5 percentage points or two standard errors of the
    difference, whichever is larger. For a single seed of ours, the published standard deviation
    stands in for the unknown one.
    """

    difference: float
    status: Literal["agrees", "above", "below"]


def verdict(ours: Spread, figure: Figure) -> Verdict:
    """Compare our result with a published figure."""
    theirs = published_spread(figure)
    error = theirs.std if ours.seeds == 1 else ours.error
    allowed = max(TOLERANCE, 2 * math.hypot(error or 0.0, theirs.error or 0.0))
    difference = ours.mean - theirs.mean
    if abs(difference) <= allowed:
        return Verdict(difference, "agrees")
    return Verdict(difference, "above" if difference > 0 else "below")


def figures_for(
    config: RunConfig, predictor: str, is_default: bool, table: str | None = None
) -> list[Figure]:
    """The published figures for a predictor of these settings, each mean once.

    Figures that do not name a network belong to the default predictor, which `predict` uses.
    """
    found = [
        figure
        for figure in config.published_figures(table)
        if figure.predictor == predictor or (figure.predictor is None and is_default)
    ]
    return list({figure.mean: figure for figure in reversed(found)}.values())[::-1]
