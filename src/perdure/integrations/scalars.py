"""Values that experiment trackers plot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.training.callbacks import Events


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
