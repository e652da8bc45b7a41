"""The run folder: written once by training, read by everything after.

RUNS/<stream>/<method>[-<buffer>]-<8 hex>/seed-<n>/
    config.json            everything that decides the numbers, and its hash
    result.json            accuracies; with the two below, the same bytes for the same run
    models/<predictor>.safetensors
    learner.safetensors    the final state, memory included
    timing.json            seconds, host, versions
    events.jsonl           one line per evaluation and per look at the counters
    manifest.json          the checksums of all these, so that an altered file is noticed
    checkpoints/           while the run is not finished: see training/checkpoint.py
    analysis.json          what `perdure analyze` found
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.evaluation import mean_std
from perdure.files import (
    DamagedError,
    digest,
    naming_errors,
    read_manifest,
    to_json_bytes,
    write_manifest,
)
from perdure.files import write_json as write_json
from perdure.learners import Learner
from perdure.lock import locked, refuse_if_locked
from perdure.state import get_state, write_file

NETWORKS = "learner.safetensors"


def settings_hash(settings: Mapping[str, Any]) -> str:
    """Eight hex digits of everything that decides a run's numbers, but the seed.

    >>> settings_hash({"lr": 0.1}) == settings_hash({"lr": 0.2})
    False
    """
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclass(frozen=True)
class RunFolder:
    """One run's files."""

    path: Path

    @staticmethod
    def place(
        root: Path, stream: str, method: str, buffer_size: int | None, digest: str, seed: int
    ) -> RunFolder:
        """Where a run belongs below a folder of runs."""
        parts = [_plain(method), *([] if buffer_size is None else [str(buffer_size)]), digest]
        return RunFolder(root / _plain(stream) / "-".join(parts) / f"seed-{seed}")

    def locked(self) -> AbstractContextManager[None]:
        """Inside, this process alone may write here. LockedError if another one is at work."""
        return locked(self.path)

    def refuse_if_locked(self) -> None:
        """LockedError if another process is at work here now."""
        refuse_if_locked(self.path)

    @property
    def complete(self) -> bool:
        """Whether the run has ended well: the result is written last."""
        return (self.path / "result.json").is_file()

    @property
    def has_networks(self) -> bool:
        """Whether the final state is there: records may be kept where networks are too large."""
        return (self.path / NETWORKS).is_file()

    def begin(self, config: Mapping[str, Any]) -> None:
        """Make the folder, with its configuration and no events, replacing what was there."""
        self.reopen(config)
        (self.path / "events.jsonl").write_bytes(b"")

    def reopen(self, config: Mapping[str, Any]) -> None:
        """Make the folder one of an unfinished run, its events left as they are."""
        (self.path / "models").mkdir(parents=True, exist_ok=True)
        for folder in (self.path, self.path / "models"):
            for part in folder.glob(".*.tmp"):  # of a process that was killed while it wrote
                part.unlink(missing_ok=True)
        for name in ("result.json", "manifest.json", "analysis.json"):
            (self.path / name).unlink(missing_ok=True)
        write_json(self.path / "config.json", config)

    def event(self, kind: str, **content: Any) -> None:
        """Append a line to the events."""
        path = self.path / "events.jsonl"
        with naming_errors(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": kind, **content}, sort_keys=True) + "\n")

    def finish(
        self, learner: Learner, result: Mapping[str, Any], timing: Mapping[str, Any]
    ) -> None:
        """Write what the run came to; the result last, since it says that all is there."""
        names = ["config.json", "timing.json", "events.jsonl", NETWORKS]
        for name, predictor in learner.predictors().items():
            names.append(f"models/{name}.safetensors")
            write_file(self.path / names[-1], get_state(predictor.module), {"predictor": name})
        learner.save(self.path / NETWORKS)
        write_json(self.path / "timing.json", timing)
        files = {name: digest((self.path / name).read_bytes()) for name in names}
        files["result.json"] = digest(to_json_bytes(result))
        write_manifest(self.path / "manifest.json", {"files": files})
        write_json(self.path / "result.json", result)

    def check(self, name: str) -> None:
        """DamagedError if a file of the finished run is not as it was written.

        Runs from before there were manifests have none, and are believed.
        """
        manifest = self.path / "manifest.json"
        if not manifest.exists():
            return
        listed = read_manifest(manifest).get("files")
        expected = listed.get(name) if isinstance(listed, dict) else None
        path = self.path / name
        try:
            found = digest(path.read_bytes())
        except OSError as error:
            raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
        if expected is not None and found != expected:
            raise DamagedError(
                f"{path} was altered after the run had written it; make the run again, or remove "
                "manifest.json to take it as it is"
            )

    def read(self, name: str) -> dict[str, Any]:
        """One of the JSON files. ValueError if it is missing, or not as it was written."""
        path = self.path / name
        if path.exists():
            self.check(name)
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
        """The events in order. ValueError if they are not as they were written."""
        self.check("events.jsonl")
        with (self.path / "events.jsonl").open(encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)


def seconds_taken(timing: Mapping[str, Any]) -> float | None:
    """What a run took, its share of a card it did not have alone; None if `timing` does not say."""
    taken, beside = timing.get("seconds"), timing.get("side_by_side", 1)
    known = isinstance(taken, int | float) and isinstance(beside, int) and beside > 0
    return taken / beside if known else None


def tests_overlap(result: Mapping[str, Any]) -> bool:
    """Whether each test holds those before it, as on GCIL: the last one alone holds all classes.

    Forgetting is not known of such a run, though it was tested after every task.
    """
    return len(result["moments"]) == len(result["tests"]) + 1 > 2 and all(
        found["class_il"] is not None and found["class_il"]["forgetting"] is None
        for found in result["predictors"].values()
    )


_CONDITIONS = ("max_steps", "validation", "stream_seed", "precision", "update")
_USUAL = (None, "fp32")
"""What a summary names if it is not as usual: two that differ only there are told apart."""


def summary(
    runs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], seconds: float | None
) -> dict[str, Any]:
    """Mean and sample standard deviation over seeds, from each run's config and result.

    The content of the JSON line that `perdure run --json` ends with; accuracies in percent.
    """
    first = runs[0][0]

    def over_seeds(predictor: str, kind: str, number: str) -> dict[str, float | None]:
        found = [result["predictors"][predictor][kind] for _, result in runs]
        values = [numbers.get(number) for numbers in found if numbers is not None]
        if len(values) < len(runs) or None in values:
            return {"mean": None, "std": None}
        mean, std = mean_std(values)
        return {"mean": mean, "std": std}

    def of(predictor: str) -> dict[str, dict[str, float | None]]:
        found = {kind: over_seeds(predictor, kind, "mean") for kind in ("class_il", "task_il")}
        if all(tests_overlap(result) for _, result in runs):
            found["last_test"] = over_seeds(predictor, "class_il", "last_test")
        return found

    return {
        "stream": first["stream"],
        "data": first["data"],
        "method": first["method"],
        "buffer_size": first["buffer_size"],
        **{name: first[name] for name in _CONDITIONS if first.get(name) not in _USUAL},
        "seeds": [config["seed"] for config, _ in runs],
        "predictors": {name: of(name) for name in runs[0][1]["predictors"]},
        "seconds": seconds,
    }


def _plain(name: str) -> str:
    """A name that any file system takes; a user's `module:name` becomes module.name."""
    return "".join(c if c.isalnum() or c in "-_." else "." for c in name)
