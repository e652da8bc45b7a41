"""Weights & Biases: a callback that logs while `fit` trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.integrations import missing
from perdure.integrations.scalars import ScalarLog

try:
    import wandb
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
