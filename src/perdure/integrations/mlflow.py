"""MLflow: a callback that logs while `fit` trains, and `perdure run --mlflow`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from perdure.files import digest_file
from perdure.integrations import missing
from perdure.integrations.trackers import OpenLog, ScalarLog
from perdure.results import RunFolder

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


_RUN, _EVENTS = "perdure.run", "perdure.events"
"""Tags: which perdure run was logged, and the checksum of its events."""


class _TrackedRun(MLflowLog):
    """The log of a run of `perdure run`, closed with the checksum of what it logged."""

    def __init__(self, client: mlflow.MlflowClient, run_id: str, source: RunFolder) -> None:
        super().__init__(run_id)
        self.client = client
        self.source = source

    def close(self) -> None:
        """End the MLflow run."""
        self.client.set_tag(self.run_id, _EVENTS, _checksum(self.source))
        self.client.set_terminated(self.run_id)


def track(experiment: str) -> OpenLog:
    """Return a function that logs a run as an MLflow run, unless an equal log of it exists.

    Raises:
        ValueError: If the experiment is not available.
    """
    # By default, MLflow waits for a server for minutes, and training with it.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    try:
        client = mlflow.MlflowClient()
        found = client.get_experiment_by_name(experiment)
        experiment_id = found.experiment_id if found else client.create_experiment(experiment)
    except Exception as error:  # MLflow's own, or those of the storage
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"--mlflow {experiment} is not available: {reason}") from None

    def start(run: RunFolder) -> MLflowLog | None:
        name = "/".join(run.path.parts[-3:])
        earlier = client.search_runs([experiment_id], f"tags.`{_RUN}` = '{name}'")
        if run.complete and any(r.data.tags.get(_EVENTS) == _checksum(run) for r in earlier):
            return None
        created = client.create_run(experiment_id, run_name=name, tags={_RUN: name})
        run_id: str = created.info.run_id
        for key, value in run.read("config.json", dict).items():
            client.log_param(run_id, key, str(value)[:500])
        return _TrackedRun(client, run_id, run)

    return start


def _checksum(run: RunFolder) -> str:
    found: str = digest_file(run.path / "events.jsonl")["sha256"]
    return found
