"""How long runs take: speeds measured on this machine, and figures that ship with perdure."""

from __future__ import annotations

import logging
import tomllib
from functools import cache
from importlib import resources
from statistics import fmean

from perdure.config import RunConfig
from perdure.results.folder import RunFolder
from perdure.results.records import Result, Timing

_log = logging.getLogger(__name__)

Key = tuple[str, str, str, int | None]


class Speeds:
    """Seconds per step, evaluation included: as measured, else from rough figures shipped with us.

    A run's key is its device, stream, method and buffer size.
    """

    def __init__(self) -> None:
        self.measured: dict[Key, list[float]] = {}

    def add(self, config: RunConfig, steps: int, seconds: float) -> None:
        """Record a run; on a shared GPU, `seconds` is its share of the time."""
        if steps:
            self.measured.setdefault(self._key(config), []).append(seconds / steps)

    def add_run(self, config: RunConfig, folder: RunFolder) -> None:
        """Record a complete run, if its folder says how long it took."""
        try:
            seconds = folder.read("timing.json", Timing).share
            steps = folder.read("result.json", Result).steps
        except (ValueError, OSError):
            seconds = None
        if seconds is None:
            _log.warning("%s does not record how long the run took", folder.path)
        else:
            self.add(config, steps, seconds)

    def seconds(self, config: RunConfig, steps: int | None) -> float | None:
        """Expected duration of a run; None if nothing is known.

        Measured for this setting, else for other buffer sizes, else the shipped figure, scaled to
        this machine where both are known.
        """
        if steps is None:
            return None
        key = self._key(config)
        similar = [fmean(v) for other, v in self.measured.items() if other[:3] == key[:3]]
        measured = self.measured.get(key) or similar
        if measured:
            return fmean(measured) * steps
        shipped = _shipped(key)
        return None if shipped is None else shipped * self._scale() * steps

    def _scale(self) -> float:
        both = [(fmean(v), s) for k, v in self.measured.items() if (s := _shipped(k)) is not None]
        return sum(here for here, _ in both) / sum(there for _, there in both) if both else 1.0

    @staticmethod
    def _key(config: RunConfig) -> Key:
        return config.device, config.stream, config.method, config.buffer_size


def _shipped(key: Key) -> float | None:
    milliseconds = _shipped_speeds().get(key[0], {}).get(key[1], {}).get(key[2])
    return None if milliseconds is None else milliseconds / 1000


@cache
def _shipped_speeds() -> dict[str, dict[str, dict[str, float]]]:
    text = resources.files(__package__).joinpath("speeds.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
