"""What runs note of themselves, shown in TensorBoard while they go on.

Runs know nothing of it: their `events.jsonl` is read as it grows.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from perdure.results import RunFolder


class TensorBoardLog(AbstractContextManager["TensorBoardLog"]):
    """Losses, accuracies and the composition of the memory of some runs, below a folder.

    Without a folder nothing is logged. ValueError if there is one and TensorBoard is missing.
    """

    def __init__(self, folder: Path | None, runs: Iterable[RunFolder]) -> None:
        self.followed: list[_Followed] = []
        if folder is not None:
            _check_installed()
            self.followed = [_Followed(run, folder.joinpath(*run.path.parts[-3:])) for run in runs]

    def read(self) -> None:
        """Log what the runs in progress have noted since the last time."""
        for run in self.followed:
            if not run.source.complete:  # one that is may be about to be replaced
                run.read()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Log the rest."""
        for run in self.followed:
            run.read()
            run.close()


def _check_installed() -> None:
    try:
        importlib.import_module("torch.utils.tensorboard")
    except ImportError:
        raise ValueError(
            "--tensorboard needs the tensorboard package: `pip install tensorboard`, or install "
            "perdure with its extra, perdure[tensorboard]"
        ) from None


class _Followed:
    """One run's events, and how far they have been read."""

    def __init__(self, source: RunFolder, target: Path) -> None:
        self.source = source
        self.target = target
        self.position = 0
        self.writer: Any = None
        self.before: dict[str, float] = {"step": 0}

    def read(self) -> None:
        """Log the lines that were added, as far as they are whole."""
        path = self.source.path / "events.jsonl"
        if not path.is_file():
            return
        with path.open("rb") as file:
            if file.seek(0, 2) < self.position:  # begun anew
                self.close()
            file.seek(self.position)
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]
        self.position += len(whole)
        for line in whole.splitlines():
            self._log(json.loads(line))
        if self.writer is not None:
            self.writer.flush()

    def close(self) -> None:
        """Be as at the beginning."""
        if self.writer is not None:
            self.writer.close()
        self.writer = None
        self.position = 0
        self.before = {"step": 0}

    def _log(self, event: dict[str, Any]) -> None:
        step = event["step"]
        for name, value in self._values(event).items():
            if self.writer is None:
                from torch.utils.tensorboard import SummaryWriter

                # What an earlier log of the same run says is no longer shown.
                self.writer = SummaryWriter(self.target, purge_step=0)
            self.writer.add_scalar(name, value, step)

    def _values(self, event: dict[str, Any]) -> dict[str, float]:
        match event["event"]:
            case "totals":
                return self._means(event)
            case "evaluation":
                return {
                    f"accuracy/{predictor}/test {test}": accuracy
                    for predictor, row in event["class_il"].items()
                    for test, accuracy in enumerate(row)
                    if accuracy is not None
                }
            case "memory":
                return {f"memory/class {c}": count for c, count in enumerate(event["classes"])}
        return {}

    def _means(self, event: dict[str, Any]) -> dict[str, float]:
        """Totals are sums since the start: their means per step since the last line."""
        totals = {name: value for name, value in event.items() if name not in ("event", "step")}
        steps = event["step"] - self.before["step"]
        means = {
            f"per step/{name}": (value - self.before.get(name, 0)) / steps
            for name, value in totals.items()
            if steps
        }
        self.before = {**totals, "step": event["step"]}
        return means
