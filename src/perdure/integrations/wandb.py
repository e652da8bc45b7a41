"""Weights & Biases: a callback that logs while `fit` trains, and `perdure run --wandb`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.integrations import missing
from perdure.integrations.trackers import OpenLog, ScalarLog
from perdure.results import RunFolder

try:
    import wandb
    from wandb import Settings  # fails if `wandb` is only a folder of logs
except ImportError:
    raise missing("wandb", "wandb") from None

if TYPE_CHECKING:
    from perdure.training import Run


class WandbLog(ScalarLog):
    """Logs losses, accuracies and the classes in memory to Weights & Biases.

    Args:
        target: The W&B run, as `wandb.init` returns it; by default, the current one.
        run: The perdure run to log. Required when several runs are trained together.

    Raises:
        ValueError: If there is no current W&B run.
    """

    def __init__(self, target: Any = None, run: Run | None = None) -> None:
        super().__init__(run)
        self.target = wandb.run if target is None else target
        if self.target is None:
            raise ValueError("no W&B run is active; call wandb.init first")

    def log(self, values: dict[str, float], step: int) -> None:
        """Log values; their x-axis is the training step."""
        self.target.log(values, step=step)

    def close(self) -> None:
        """Finish the W&B run."""
        self.target.finish()


def track(project: str) -> OpenLog:
    """Return a function that logs a run as a W&B run, which replaces an earlier log of it.

    Raises:
        ValueError: If W&B would upload the runs but has no API key.
    """
    if wandb.setup().settings.mode == "online" and not wandb.login(prompt=False):
        raise ValueError("--wandb has no API key; run `wandb login`, or set WANDB_MODE=offline")

    def start(run: RunFolder) -> WandbLog:
        stream, setting, seed = run.path.parts[-3:]
        target = wandb.init(
            project=project,
            id=f"{setting}-{seed}",
            name=f"{stream}/{setting}/{seed}",
            group=f"{stream}/{setting}",
            config=run.read("config.json", dict),
            reinit="create_new",
            settings=Settings(quiet=True),
        )
        return WandbLog(target)

    return start
