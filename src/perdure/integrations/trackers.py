"""Logs in experiment trackers: the values they plot, and logs of the runs of a command.

A command's log is written from the `events.jsonl` of each run while it trains, by whichever process
shows the progress.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from perdure.results import RunFolder
from perdure.training.callbacks import Events

_log = logging.getLogger(__name__)


class ScalarLog(Events):
    """Base class of the callbacks that log losses, accuracies and the classes in memory."""

    def event(self, kind: str, **content: Any) -> None:
        """Log the values of an event."""
        values = scalars({"event": kind, **content})
        if values:
            self.log(values, content["step"])

    def log(self, values: dict[str, float], step: int) -> None:
        """Called with values by name. Subclasses pass them on."""
        raise NotImplementedError

    def flush(self) -> None:
        """Called after each group of values. No-op by default."""

    def close(self) -> None:
        """Called when `perdure run` has logged all values. No-op by default."""


def scalars(event: Mapping[str, Any]) -> dict[str, float]:
    """Return the values of an event of `events.jsonl` by name; empty if it has none to plot."""
    match event:
        case {"event": "metrics", "values": dict() as metrics}:
            return {f"train/{name}": value for name, value in metrics.items()}
        case {"event": "evaluation", "class_il": class_il}:
            return {
                f"accuracy/{predictor}/test {test}": accuracy
                for predictor, row in class_il.items()
                for test, accuracy in enumerate(row)
                if accuracy is not None
            }
        case {"event": "prequential", "accuracy": accuracy, "overall": overall}:
            return {"prequential/window": accuracy, "prequential/overall": overall}
        case {"event": "memory", "classes": counts}:
            return {f"memory/class {c}": count for c, count in enumerate(counts)}
    return {}


OpenLog = Callable[[RunFolder], ScalarLog | None]
"""Starts the log of a run, replacing an earlier one; None if there is nothing to log."""


class RunLogs(AbstractContextManager["RunLogs"]):
    """Logs metrics, accuracies and the classes in the memory of runs.

    A log that cannot be written is dropped with a warning, and training continues.

    Args:
        trackers: Start the log of a run in each tracker.
        runs: The runs to log.
    """

    def __init__(self, trackers: Iterable[OpenLog], runs: Iterable[RunFolder]) -> None:
        runs = list(runs)
        self._logs = [_RunLog(run, tracker) for tracker in trackers for run in runs]

    def update(self) -> None:
        """Log the events that runs in progress have written since the last call."""
        for log in list(self._logs):
            if not log.source.complete:  # a completed run may be about to be replaced
                self._try(log, log.update)

    def __exit__(self, *error: object) -> None:
        """Log the remaining events of all runs."""
        for log in list(self._logs):
            self._try(log, log.update)
            self._try(log, log.close)

    def _try(self, log: _RunLog, action: Callable[[], None]) -> None:
        """Stop logging a run whose log cannot be written; its training continues."""
        try:
            action()
        except Exception as error:  # trackers raise errors of their own
            if log in self._logs:
                self._logs.remove(log)
                reason = getattr(error, "strerror", None) or error
                _log.warning("log of %s: %s; logging stops", log.source.path, reason)


class _RunLog:
    """The log of one run, and how much of its events it covers."""

    def __init__(self, source: RunFolder, start: OpenLog) -> None:
        self.source = source
        self.start = start
        self.position = 0
        self.started = False
        self.target: ScalarLog | None = None

    def update(self) -> None:
        """Log the complete lines added since the last call."""
        path = self.source.path / "events.jsonl"
        if not path.is_file():
            return
        with path.open("rb") as file:
            if file.seek(0, 2) < self.position:  # the run was started over
                self.close()
            file.seek(self.position)
            added = file.read()
        complete = added[: added.rfind(b"\n") + 1]
        self.position += len(complete)
        for line in complete.splitlines():
            event = json.loads(line)
            if values := scalars(event):
                if not self.started:
                    self.target, self.started = self.start(self.source), True
                if self.target is not None:
                    self.target.log(values, event["step"])
        if self.target is not None:
            self.target.flush()

    def close(self) -> None:
        """Close the log; the next update starts from the first event."""
        target, self.target = self.target, None
        self.started, self.position = False, 0
        if target is not None:
            target.close()
