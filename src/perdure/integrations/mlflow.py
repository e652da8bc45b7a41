"""MLflow: a callback that logs while `fit` trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.integrations import missing
from perdure.integrations.scalars import ScalarLog

try:
    import mlflow
except ImportError:
    raise missing("mlflow", "mlflow") from None

if TYPE_CHECKING:
    from perdure.training import Run


class MLflowLog(ScalarLog):
    """Logs losses, accuracies and the classes in memory to an MLflow run.

    Args:
        run_id: Id of the MLflow run; by default, the active one.
        run: The perdure run to log. Required when several runs are trained together.

    Raises:
        ValueError: If no id is given and no MLflow run is active.
    """

    def __init__(self, run_id: str | None = None, run: Run | None = None) -> None:
        super().__init__(run)
        if run_id is None:
            active = mlflow.active_run()
            if active is None:
                raise ValueError("no MLflow run is active; call mlflow.start_run first")
            run_id = active.info.run_id
        self.run_id = run_id

    def log(self, values: dict[str, float], step: int) -> None:
        """Log values at a training step."""
        mlflow.log_metrics(values, step=step, run_id=self.run_id)
