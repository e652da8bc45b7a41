"""How long runs take: as measured, else by rough figures that are kept here."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from statistics import fmean

from perdure.results import RunFolder, seconds_taken
from perdure.training import Settings

_log = logging.getLogger(__name__)


class Speeds:
    """Seconds per step of the settings of a grid, evaluation included."""

    def __init__(self) -> None:
        self.measured: dict[tuple[str, str, str, int | None], list[float]] = {}

    def note(self, settings: Settings, steps: int, seconds: float) -> None:
        """A run of so many steps has taken so long, its share of a card it did not have alone."""
        if steps:
            self.measured.setdefault(_key(settings), []).append(seconds / steps)

    def seconds(self, settings: Settings, steps: int | None) -> float | None:
        """What a run may take; None if nothing is known of it.

        By its own setting, else by the method with other buffers on this stream, else by the kept
        figure, scaled to this machine by what both know.
        """
        if steps is None:
            return None
        key = _key(settings)
        own = self.measured.get(key) or [
            speed
            for other, found in self.measured.items()
            if other[:3] == key[:3]
            for speed in found
        ]
        if own:
            return fmean(own) * steps
        kept = _kept(key)
        return None if kept is None else kept * self._scale() * steps

    def _scale(self) -> float:
        both = [
            (fmean(v), kept) for k, v in self.measured.items() if (kept := _kept(k)) is not None
        ]
        return sum(here for here, _ in both) / sum(kept for _, kept in both) if both else 1.0


def note_run(speeds: Speeds, settings: Settings, folder: RunFolder) -> None:
    """Take in what a complete run says of its speed."""
    seconds = seconds_of(folder)
    if seconds is None:
        _log.warning("%s says nothing of how long it took", folder.path)
    else:
        speeds.note(settings, folder.read("result.json")["steps"], seconds)


def seconds_of(folder: RunFolder) -> float | None:
    """What a complete run took; None if that is lost.

    No accuracy depends on it, so a run is not made again for its sake.
    """
    try:
        return seconds_taken(folder.read("timing.json"))
    except (ValueError, OSError):
        return None


def duration(seconds: Sequence[float], width: int) -> float:
    """How long jobs of these lengths take, `width` at a time and well packed."""
    return max(sum(seconds) / width, *seconds) if seconds else 0.0


def _key(settings: Settings) -> tuple[str, str, str, int | None]:
    kind = settings.device.partition(":")[0]
    return kind, settings.stream, settings.method, settings.buffer_size


def _kept(key: tuple[str, str, str, int | None]) -> float | None:
    milliseconds = _figures().get(key[0], {}).get(key[1], {}).get(key[2])
    return None if milliseconds is None else milliseconds / 1000


@cache
def _figures() -> dict[str, dict[str, dict[str, float]]]:
    text = resources.files(__package__).joinpath("speeds.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
