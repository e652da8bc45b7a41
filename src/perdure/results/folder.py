"""The run folder: written by training, read by everything else.

RUNS/<stream>/<method>[-<buffer size>]-<hash>/seed-<n>/
    config.json            the settings, their hash, and facts about the stream
    result.json            accuracies
    models/<predictor>.safetensors
    learner.safetensors    the learner's final state, memory included
    timing.json            seconds, host, versions
    events.jsonl           metrics during training and evaluations
    manifest.json          checksums of all these
    checkpoints/           only while the run is unfinished: see training/checkpoint.py
    analysis.json          written by `perdure analyze`

Two runs with the same settings and seed write the same bytes to result.json, the models and
learner.safetensors. result.json is written last: a folder that has it is complete.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from perdure.config import RunConfig
from perdure.files import (
    MAX_EVENTS,
    DamagedError,
    append_line,
    differs,
    digest,
    digest_file,
    is_temporary,
    make_folder,
    read_bytes,
    read_manifest,
    to_json_bytes,
    write_atomic,
    write_json,
    write_manifest,
)
from perdure.learners import Learner
from perdure.lock import locked, refuse_if_locked
from perdure.state import get_state, write_file

LEARNER_FILE = "learner.safetensors"
ENCODER_FILE = "encoder.json"
MAX_NAME = 100
"""Bytes of a stream or method in the name of a folder; file systems accept 255 in all."""
T = TypeVar("T")


@dataclass(frozen=True)
class RunFolder:
    """The files of one run.

    Attributes:
        path: The folder.
    """

    path: Path

    @staticmethod
    def group(root: Path, config: RunConfig) -> Path:
        """The folder below `root` that holds the runs of these settings, one per seed."""
        size = [config.buffer.replace(" ", "")] if config.buffer else []
        name = "-".join([_file_name(config.method), *size, config.hash])
        return root / _file_name(config.stream) / name

    @classmethod
    def locate(cls, root: Path, config: RunConfig, seed: int) -> RunFolder:
        """The folder of a run below a folder of runs."""
        return cls(cls.group(root, config) / f"seed-{seed}")

    def locked(self) -> AbstractContextManager[None]:
        """Hold the folder's lock. Raises LockedError if another process has it."""
        return locked(self.path)

    def refuse_if_locked(self) -> None:
        """Raise LockedError if another process is writing here."""
        refuse_if_locked(self.path)

    @property
    def complete(self) -> bool:
        """Whether the run finished."""
        return (self.path / "result.json").is_file()

    @property
    def has_networks(self) -> bool:
        """Whether the learner's final state is available; records may be kept without it."""
        return (self.path / LEARNER_FILE).is_file()

    def begin(self, config: Mapping[str, Any]) -> None:
        """Create the folder with its configuration and no events, replacing earlier files."""
        self.reopen(config)
        write_atomic(self.path / "events.jsonl", b"")

    def reopen(self, config: Mapping[str, Any]) -> None:
        """Prepare the folder for a run that continues; its events are kept."""
        for folder in (self.path, self.path / "models"):
            make_folder(folder)
            for part in folder.glob(".*.tmp"):  # left by a process that was killed while writing
                if is_temporary(part.name):
                    part.unlink(missing_ok=True)
        for name in ("result.json", "manifest.json", "analysis.json", ENCODER_FILE):
            (self.path / name).unlink(missing_ok=True)
        write_json(self.path / "config.json", config)

    def event(self, kind: str, **content: Any) -> None:
        """Append an event."""
        line = json.dumps({"event": kind, **content}, sort_keys=True)
        append_line(self.path / "events.jsonl", line)

    def finish(
        self, learner: Learner, result: Mapping[str, Any], timing: Mapping[str, Any]
    ) -> None:
        """Write the networks, the timing and, last, the result."""
        names = ["config.json", "timing.json", "events.jsonl", LEARNER_FILE]
        if (self.path / ENCODER_FILE).is_file():
            names.append(ENCODER_FILE)
        for name, predictor in learner.predictors().items():
            names.append(f"models/{name}.safetensors")
            write_file(self.path / names[-1], get_state(predictor.module), {"predictor": name})
        learner.save(self.path / LEARNER_FILE)
        write_json(self.path / "timing.json", timing)
        files = {name: digest_file(self.path / name) for name in names}
        files["result.json"] = digest(to_json_bytes(result))
        write_manifest(self.path / "manifest.json", {"files": files})
        write_json(self.path / "result.json", result)

    def check(self, name: str, *, read: bool = True) -> None:
        """Raise DamagedError if a file of the finished run is not as it was written.

        A folder without a manifest is not checked. Unless `read`, only the size is compared.
        """
        manifest = self.path / "manifest.json"
        if not manifest.exists():
            return
        listed = read_manifest(manifest).get("files")
        expected = listed.get(name) if isinstance(listed, dict) else None
        path = self.path / name
        try:
            changed = expected is not None and differs(path, expected, read=read)
        except OSError as error:
            raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
        if changed:
            raise DamagedError(
                f"{path} was changed after the run wrote it; train the run again, or remove "
                "manifest.json to use the file as it is"
            )

    def check_artifacts(self, *, read: bool) -> None:
        """Check `learner.safetensors`, `models` and `encoder.json`; any of them may be missing.

        Raises:
            DamagedError: As `check`.
        """
        models = sorted((self.path / "models").glob("*.safetensors"))
        for path in (self.path / LEARNER_FILE, self.path / ENCODER_FILE, *models):
            if path.exists():
                self.check(path.relative_to(self.path).as_posix(), read=read)

    def read(self, name: str, kind: type[T]) -> T:
        """Read a JSON file into a typed record.

        Raises:
            ValueError: If the file is missing, damaged, or not of this kind.
        """
        path = self.path / name
        if path.exists():
            self.check(name)
        try:
            return msgspec.json.decode(read_bytes(path), type=kind)
        except FileNotFoundError:
            levels = ("", "*/", "*/*/")  # in the folder of a setting, a stream, or all runs
            patterns = [f"{level}seed-*/{name}" for level in levels]
            seeds = [found.parent for p in patterns for found in sorted(self.path.glob(p))]
            remedy = f"; pass the folder of one seed, such as {seeds[0]}" if seeds else ""
            raise ValueError(
                f"{path} is missing: {self.path} is not a finished run{remedy}"
            ) from None
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from None
        except DamagedError:
            raise
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise ValueError(f"{path} cannot be read: {error}") from None

    def events(self) -> Iterator[dict[str, Any]]:
        """The events in order. Raises ValueError if the file is damaged."""
        self.check("events.jsonl")
        for line in read_bytes(self.path / "events.jsonl", MAX_EVENTS).splitlines():
            yield msgspec.json.decode(line, type=dict[str, Any])


def _file_name(name: str) -> str:
    """A name that every file system accepts; a user's `module:name` becomes module.name.

    Long names are cut off: the hash of the settings tells folders apart.
    """
    safe = "".join(c if c.isalnum() or c in "-_." else "." for c in name)
    return safe.encode()[:MAX_NAME].decode(errors="ignore")  # omits part of a character
