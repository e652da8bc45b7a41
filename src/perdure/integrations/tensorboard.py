"""TensorBoard logs of runs."""

from __future__ import annotations

from pathlib import Path

from perdure.integrations import missing
from perdure.integrations.trackers import OpenLog, ScalarLog
from perdure.results import RunFolder

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError:
    raise missing("tensorboard", "tensorboard") from None


class TensorBoardLog(ScalarLog):
    """Logs losses, accuracies and the classes in memory for TensorBoard.

    Args:
        folder: Where to write the log. TensorBoard hides what an earlier log there contains.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.writer = SummaryWriter(folder, purge_step=0)

    def log(self, values: dict[str, float], step: int) -> None:
        """Log values at a training step."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Write all values to disk."""
        self.writer.flush()

    def close(self) -> None:
        """Close the log."""
        self.writer.close()


def track(folder: Path) -> OpenLog:
    """Return a function that logs a run below a folder, at its place in the folder of runs."""

    def start(run: RunFolder) -> TensorBoardLog:
        return TensorBoardLog(folder.joinpath(*run.path.parts[-3:]))

    return start
