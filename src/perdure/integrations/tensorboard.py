"""TensorBoard logs of runs, updated while they train.

The log is written from the `events.jsonl` of each run, by whichever process shows the progress.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from perdure.results import RunFolder


class TensorBoardLog(AbstractContextManager["TensorBoardLog"]):
    """Logs metrics, accuracies and the classes in the memory of runs.

    Args:
        folder: Where to write the log; None to log nothing.
        runs: The runs to log.

    Raises:
        ValueError: If a folder is given and TensorBoard is not installed.
    """

    def __init__(self, folder: Path | None, runs: Iterable[RunFolder]) -> None:
        self._runs: list[_RunLog] = []
        if folder is not None:
            try:
                importlib.import_module("torch.utils.tensorboard")
            except ImportError:
                raise ValueError(
                    "--tensorboard needs the tensorboard package: install it with `pip install "
                    "tensorboard`, or install perdure[tensorboard]"
                ) from None
            self._runs = [_RunLog(run, folder.joinpath(*run.path.parts[-3:])) for run in runs]

    def update(self) -> None:
        """Log the events that runs in progress have written since the last call."""
        for run in self._runs:
            if not run.source.complete:  # a completed run may be about to be replaced
                run.update()

    def __exit__(self, *error: object) -> None:
        """Log the remaining events of all runs."""
        for run in self._runs:
            run.update()
            run.close()


class _RunLog:
    """The log of one run, and how much of its events it covers."""

    def __init__(self, source: RunFolder, target: Path) -> None:
        self.source = source
        self.target = target
        self.position = 0
        self.writer: Any = None

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
            self._log(json.loads(line))
        if self.writer is not None:
            self.writer.flush()

    def close(self) -> None:
        """Close the log; the next update starts from the first event."""
        if self.writer is not None:
            self.writer.close()
        self.writer = None
        self.position = 0

    def _log(self, event: dict[str, Any]) -> None:
        for name, value in _scalars(event).items():
            if self.writer is None:
                from torch.utils.tensorboard import SummaryWriter

                # Hide what an earlier log of the same run contains.
                self.writer = SummaryWriter(self.target, purge_step=0)
            self.writer.add_scalar(name, value, event["step"])


def _scalars(event: dict[str, Any]) -> dict[str, float]:
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
