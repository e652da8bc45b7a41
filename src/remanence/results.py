"""The run folder: written once by training, read by everything after.

RUNS/<stream>/<method>[-<buffer>]-<8 hex>/seed-<n>/
    config.json            everything that decides the numbers, and its hash
    result.json            accuracies; with the two below, the same bytes for the same run
    models/<predictor>.safetensors
    learner.safetensors    the final state, memory included
    timing.json            seconds, host, versions
    events.jsonl           one line per evaluation and per look at the counters
    analysis.json          what `remanence analyze` found
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remanence.evaluation import mean_std
from remanence.learners import Learner
from remanence.state import take, write_file, write_whole


def settings_hash(settings: Mapping[str, Any]) -> str:
    """Eight hex digits of everything that decides a run's numbers, but the seed.

    >>> settings_hash({"lr": 0.1}) == settings_hash({"lr": 0.2})
    False
    """
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def write_json(path: Path, content: object) -> None:
    """Indented JSON in the order given, whole or not at all."""
    text = json.dumps(content, indent=1, allow_nan=False)
    write_whole(path, f"{text}\n".encode())


@dataclass(frozen=True)
class RunFolder:
    """One run's files."""

    path: Path

    @staticmethod
    def place(
        root: Path, stream: str, method: str, buffer: int | None, digest: str, seed: int
    ) -> RunFolder:
        """Where a run belongs below a folder of runs."""
        parts = [_plain(method), *([] if buffer is None else [str(buffer)]), digest]
        return RunFolder(root / _plain(stream) / "-".join(parts) / f"seed-{seed}")

    @property
    def complete(self) -> bool:
        """Whether the run has ended well: the result is written last."""
        return (self.path / "result.json").is_file()

    def begin(self, config: Mapping[str, Any]) -> None:
        """Make the folder, with its configuration and no events, replacing what was there."""
        (self.path / "models").mkdir(parents=True, exist_ok=True)
        for outdated in ("result.json", "analysis.json"):
            (self.path / outdated).unlink(missing_ok=True)
        write_json(self.path / "config.json", config)
        (self.path / "events.jsonl").write_bytes(b"")

    def event(self, kind: str, **content: Any) -> None:
        """Append a line to the events."""
        with (self.path / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": kind, **content}, sort_keys=True) + "\n")

    def finish(
        self, learner: Learner, result: Mapping[str, Any], timing: Mapping[str, Any]
    ) -> None:
        """Write what the run came to; the result last, since it says that all is there."""
        for name, predictor in learner.predictors().items():
            path = self.path / "models" / f"{name}.safetensors"
            write_file(path, take(predictor.module), {"predictor": name})
        learner.save(self.path / "learner.safetensors")
        write_json(self.path / "timing.json", timing)
        write_json(self.path / "result.json", result)

    def read(self, name: str) -> dict[str, Any]:
        """One of the JSON files. ValueError if it is missing or damaged."""
        path = self.path / name
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ValueError(f"{path} is missing: {self.path} is not a finished run") from None
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from None
        if not isinstance(content, dict):
            raise ValueError(f"{path} does not hold a JSON object")
        return content

    def events(self) -> Iterator[dict[str, Any]]:
        """The events in order."""
        with (self.path / "events.jsonl").open(encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)


def summary(
    runs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], seconds: float
) -> dict[str, Any]:
    """Mean and sample standard deviation over seeds, from each run's config and result.

    The content of the JSON line that `remanence run --json` ends with; accuracies in percent.
    """
    first = runs[0][0]

    def over_seeds(predictor: str, kind: str) -> dict[str, float | None]:
        found = [result["predictors"][predictor][kind] for _, result in runs]
        values = [numbers["mean"] for numbers in found if numbers is not None]
        if len(values) < len(runs):
            return {"mean": None, "std": None}
        mean, std = mean_std(values)
        return {"mean": mean, "std": std}

    return {
        "stream": first["stream"],
        "data": first["data"],
        "method": first["method"],
        "buffer": first["buffer"],
        "seeds": [config["seed"] for config, _ in runs],
        "predictors": {
            name: {kind: over_seeds(name, kind) for kind in ("class_il", "task_il")}
            for name in runs[0][1]["predictors"]
        },
        "seconds": seconds,
    }


def _plain(name: str) -> str:
    """A name that any file system takes; a user's `module:name` becomes module.name."""
    return "".join(c if c.isalnum() or c in "-_." else "." for c in name)
