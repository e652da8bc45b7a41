"""Trials of a study, as Optuna returns them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from optuna.trial import FrozenTrial, TrialState


def make_trial(
    number: int,
    params: Mapping[str, float],
    *,
    by_seed: Sequence[float] = (),
    reason: str | None = None,
) -> FrozenTrial:
    """A trial that is complete, failed with a reason, or still running."""
    state, attributes = TrialState.RUNNING, dict[str, object]()
    if by_seed:
        state, attributes = TrialState.COMPLETE, {"by_seed": by_seed}
    elif reason is not None:
        state, attributes = TrialState.FAIL, {"reason": reason}
    start = datetime(2025, 1, 1)
    return FrozenTrial(
        number=number,
        state=state,
        value=sum(by_seed) / len(by_seed) if by_seed else None,
        datetime_start=start,
        datetime_complete=None if state == TrialState.RUNNING else start,
        params=dict(params),
        distributions={},
        user_attrs=attributes,
        system_attrs={},
        intermediate_values={},
        trial_id=number,
    )
