"""Checkpoints: the complete state of a run, written while it continues to train.

<run folder>/checkpoints/
    <number>.safetensors    the state of the run
    <number>.json           manifest: checksums, step, identity of the run, environment

A checkpoint exists once its manifest does. The last two are kept until the run is complete.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import platform
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta

from perdure.files import (
    MAX_EVENTS,
    DamagedError,
    differs,
    digest,
    is_temporary,
    make_folder,
    open_regular,
    read_manifest,
    write_atomic,
    write_manifest,
)
from perdure.results.records import Count
from perdure.state import State, as_bytes, read_file, to_host
from perdure.training.callbacks import Callback
from perdure.training.loop import Interrupted, Position, Run

KEEP_LAST = 2
_NAME = re.compile(r"([0-9]{1,18})\.(json|safetensors)")

_log = logging.getLogger(__name__)


class Digest(msgspec.Struct, frozen=True):
    """The result of `digest`."""

    bytes: Annotated[int, Meta(ge=0, le=MAX_EVENTS)]
    sha256: str


class Checkpoint(msgspec.Struct, frozen=True):
    """The manifest of an undamaged checkpoint."""

    number: int
    step: Count
    position: Position
    seconds: Annotated[float, Meta(ge=0, le=1e12)]
    """Training time up to the checkpoint, in all processes."""
    resumed: list[Count]
    """Steps from which the run had been resumed."""
    events: Digest
    """Size and checksum of `events.jsonl` at the checkpoint."""
    environment: dict[str, Any]


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        folder: The run folder; it must exist before a checkpoint is added.
        identity: What the run is: method, network, seed, hash of the configuration. Checkpoints
            with another identity are refused.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.path = folder / "checkpoints"
        self.events = folder / "events.jsonl"
        self.identity = dict(identity)
        self.seed = self.identity.get("seed")  # for messages

    def numbers(self) -> list[int]:
        """Numbers of all checkpoints, damaged ones included, newest first."""
        if self.path.is_symlink():
            return []
        names = (_NAME.fullmatch(path.name) for path in self.path.glob("*.json"))
        return sorted((int(name[1]) for name in names if name), reverse=True)

    def latest_step(self) -> int | None:
        """Step of the newest checkpoint with a readable manifest; None if there is none."""
        for number in self.numbers():
            with contextlib.suppress(ValueError, LookupError, TypeError, OverflowError):
                return int(read_manifest(self.path / f"{number}.json")["step"])
        return None

    def valid(self, *, warn: bool = True) -> Iterator[Checkpoint]:
        """Yield the undamaged checkpoints, newest first; log a warning for each damaged one.

        Raises:
            ValueError: If an undamaged checkpoint belongs to another run or format.
        """
        for number in self.numbers():
            try:
                yield self._checked(number)
            except DamagedError as error:
                if warn:
                    _log.warning("seed %s: %s; trying the previous checkpoint", self.seed, error)

    def _checked(self, number: int) -> Checkpoint:
        path, state = self.path / f"{number}.json", self.path / f"{number}.safetensors"
        manifest = read_manifest(path)
        identity = manifest.get("identity")
        if identity != self.identity:
            found = identity if isinstance(identity, dict) else {}
            unequal = [key for key, value in self.identity.items() if found.get(key) != value]
            raise ValueError(
                f"{path} is a checkpoint of {', '.join(f'{k} {found.get(k)!r}' for k in unequal)}; "
                f"expected {', '.join(f'{k} {self.identity[k]!r}' for k in unequal)}"
            )
        try:
            if differs(state, manifest.get("state")):
                raise DamagedError(f"{state} is damaged: its checksum does not match its manifest")
            return msgspec.convert({**manifest, "number": number}, Checkpoint)
        except OSError as error:
            raise DamagedError(f"{state} cannot be read: {error.strerror}") from None
        except msgspec.ValidationError as error:
            raise DamagedError(f"{path} is not the manifest of a checkpoint: {error}") from None

    def resume_from(self, run: Run, checkpoint: Checkpoint) -> None:
        """Restore the run, its events and this store to their state at the checkpoint."""
        path = self.path / f"{checkpoint.number}.safetensors"
        state, _ = read_file(path)
        try:
            run.load_state_dict(state)
        except ValueError as error:
            raise ValueError(f"{path}: {error}; use --restart to start over") from None
        except (LookupError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
            raise ValueError(f"{path} does not contain the state of a run: {error}") from None
        self._truncate_events(checkpoint)
        # Those after it are damaged, or missing for another run of the group.
        self._remove(lambda number: number > checkpoint.number)

    def _truncate_events(self, checkpoint: Checkpoint) -> None:
        content = b""
        with contextlib.suppress(OSError):
            content = self._read_events(checkpoint.events.bytes)
        if digest(content) != msgspec.structs.asdict(checkpoint.events):
            _log.warning(
                *("seed %s: %s was altered; its events before step %s are discarded", self.seed),
                *(self.events, checkpoint.step),
            )
            content = b""
        write_atomic(self.events, content)

    def add(self, state: State, facts: Mapping[str, Any], events: int) -> None:
        """Write a checkpoint, then remove those that are no longer needed.

        `facts` are the fields of `Checkpoint`, `events` the size of `events.jsonl` with the state.
        """
        make_folder(self.path)
        number = max(self.numbers(), default=0) + 1
        content = as_bytes(state, {"run": self.identity})
        digests = {"events": digest(self._read_events(events)), "state": digest(content)}
        write_atomic(self.path / f"{number}.safetensors", content)
        manifest = {"identity": self.identity, **facts, **digests}
        write_manifest(self.path / f"{number}.json", manifest)
        self._remove(lambda old: old <= number - KEEP_LAST)

    def _read_events(self, size: int) -> bytes:
        """Read the first bytes of the events, and flush the file to disk."""
        if not size:  # the file may not exist
            return b""
        with os.fdopen(open_regular(self.events, os.O_RDONLY), "rb") as file:
            with contextlib.suppress(OSError):  # some systems cannot flush a file being read
                os.fsync(file.fileno())
            return file.read(size)

    def clear(self) -> None:
        """Remove all checkpoints, and the folder if it holds nothing else."""
        with contextlib.suppress(OSError):
            self._remove(lambda number: True)
            self.path.rmdir()

    def _remove(self, chosen: Callable[[int], bool]) -> None:
        """Remove the chosen checkpoints and what a killed process left; no other file."""
        if self.path.is_symlink() or not self.path.is_dir():
            return
        for path in self.path.iterdir():
            ours = _NAME.fullmatch(path.name)
            if is_temporary(path.name) or (ours and chosen(int(ours[1]))):
                path.unlink(missing_ok=True)


class Checkpointer(Callback):
    """Writes checkpoints of a group of runs, in a thread, while training continues.

    Checkpoints are written at regular intervals and at the end of every task. Runs on streams
    that cannot be resumed are not saved. Use it as a context manager: leaving the block waits for
    the checkpoint being written.

    Args:
        stores: The checkpoints of each run, in the order in which the runs are trained.
        interval: Seconds between two checkpoints.
        environment: The result of `describe_environment`. A warning is logged when a run is
            resumed in another environment.
    """

    def __init__(
        self,
        stores: Sequence[CheckpointStore],
        interval: float = 60.0,
        environment: Mapping[str, Any] | None = None,
    ) -> None:
        self.stores = stores
        self.interval = interval
        self.environment = dict(environment or {})
        self.resumed: list[int] = []
        """Steps from which the runs have been resumed."""
        self._started = time.monotonic()
        self._seconds_before = 0.0
        self._next = self._started + interval
        self._writer: threading.Thread | None = None
        self._last_warning = ""

    @property
    def seconds(self) -> float:
        """Training time so far, including earlier processes."""
        return self._seconds_before + time.monotonic() - self._started

    def resume(self, runs: Sequence[Run]) -> bool:
        """Restore all runs, just created, from the newest checkpoint that they have in common.

        Returns:
            Whether there was one.

        Raises:
            ValueError: If a checkpoint belongs to another run.
        """
        limit = 1 if len(runs) == 1 else None  # a single run needs only its newest checkpoint
        found = [
            {c.position: c for c in itertools.islice(store.valid(), limit)} for store in self.stores
        ]
        shared = set.intersection(*map(set, found))
        if not shared:
            if any(store.numbers() for store in self.stores):
                seeds = ", ".join(str(run.seed) for run in runs)
                _log.warning("seed %s: no usable checkpoint; starting from the beginning", seeds)
            return False
        for run, store, by_position in zip(runs, self.stores, found, strict=True):
            checkpoint = by_position[max(shared)]
            store.resume_from(run, checkpoint)
            changes = [
                f"{name} was {checkpoint.environment.get(name)}, now {value}"
                for name, value in self.environment.items()
                if checkpoint.environment.get(name) != value
            ]
            if changes:
                _log.warning(
                    "seed %s: the environment has changed since the checkpoint (%s); results may "
                    "differ in the last digits from those of an uninterrupted run",
                    *(run.seed, "; ".join(changes)),
                )
            self._seconds_before = checkpoint.seconds
            self.resumed = [*checkpoint.resumed, checkpoint.step]
        return True

    def checkpoint_due(self) -> bool:
        """Return whether the interval is over and the last checkpoint has been written."""
        writing = self._writer is not None and self._writer.is_alive()
        return time.monotonic() >= self._next and not writing

    def on_checkpoint(self, runs: Sequence[Run]) -> None:
        """Copy the states of the runs and write them in the background."""
        if not all(task.resumable for run in runs for task in run.stream.tasks):
            self._next = math.inf
            return
        self.wait()
        self._next = time.monotonic() + self.interval
        copies = []
        for run, store in zip(runs, self.stores, strict=True):
            if run.failure is not None:
                continue
            facts = {
                "step": run.step,
                "position": list(run.position),
                "seconds": self.seconds,
                "resumed": self.resumed,
                "environment": self.environment,
            }
            events = store.events.stat().st_size if store.events.is_file() else 0
            copies.append((store, to_host(run.state_dict()), facts, events))
        self._writer = threading.Thread(target=self._write, args=(copies,), daemon=True)
        self._writer.start()

    def _write(self, copies: list[tuple[CheckpointStore, State, dict[str, Any], int]]) -> None:
        for store, state, facts, events in copies:
            try:
                store.add(state, facts, events)
            except OSError as error:
                self._warn(store, f"{error.filename or store.path}: {error.strerror}")
            except (TypeError, ValueError) as error:
                self._warn(store, f"the state of the run is not serialisable: {error}")
                self._next = math.inf

    def _warn(self, store: CheckpointStore, reason: str) -> None:
        if reason != self._last_warning:  # a full disk causes the same warning every minute
            self._last_warning = reason
            _log.warning(
                "seed %s: cannot write a checkpoint (%s); training continues", store.seed, reason
            )

    def wait(self) -> None:
        """Wait until the last checkpoint has been written."""
        if self._writer is not None:
            self._writer.join()

    def clear(self, *stores: CheckpointStore) -> None:
        """Remove all checkpoints, or those of some completed runs."""
        self.wait()
        for store in stores or self.stores:
            store.clear()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, Interrupted) or not isinstance(error, KeyboardInterrupt | SystemExit):
            self.wait()


def describe_environment(device: str) -> dict[str, Any]:
    """Versions, processor and threads: what results may depend on besides the configuration."""
    return {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "processor": (
            torch.backends.cpu.get_cpu_capability()
            if device == "cpu"
            else torch.cuda.get_device_name(device)
        ),
    }
