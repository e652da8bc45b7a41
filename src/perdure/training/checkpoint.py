"""Checkpoints: all that a run needs to go on exactly, written while it goes on.

<run folder>/checkpoints/
    <number>.safetensors    the state of the run
    <number>.json           its manifest: checksum, step, what it is a checkpoint of, where made

A checkpoint is there when its manifest is. The last two are kept until the run is finished.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from perdure.files import DamagedError, digest, read_manifest, write_atomic, write_manifest
from perdure.results import RunFolder
from perdure.state import State, as_bytes, read_file, to_host
from perdure.training.environment import differences
from perdure.training.loop import Interrupted, Position, Run

KEPT = 2

_log = logging.getLogger(__name__)


class Checkpoint(NamedTuple):
    """One that lies on the disk and is whole."""

    number: int
    step: int
    position: Position
    seconds: float
    """Spent on the run until then."""
    resumed: list[int]
    """The steps from which the run had gone on until then."""
    events: dict[str, Any]
    """Size and checksum of the events then."""
    environment: dict[str, Any]


class Shelf:
    """The checkpoints of one run."""

    def __init__(self, run: RunFolder, about: Mapping[str, Any]) -> None:
        self.run = run
        self.path = run.path / "checkpoints"
        self.about = dict(about)
        """What a checkpoint must be of to belong here: method, network, settings, seed."""

    def numbers(self) -> list[int]:
        """The checkpoints that are there, whole or not, the newest first."""
        names = (path.stem for path in self.path.glob("*.json"))
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)

    def latest_step(self) -> int | None:
        """The step of the newest checkpoint, as its manifest says; None if there is none."""
        for number in self.numbers():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                return int(read_manifest(self._manifest(number))["step"])
        return None

    def whole(self, *, warn: bool = True) -> Iterator[Checkpoint]:
        """The checkpoints that are as they were written, the newest first.

        ValueError if one is, but belongs to another run or version.
        """
        for number in self.numbers():
            try:
                yield self._checked(number)
            except DamagedError as error:
                if warn:
                    _log.warning("seed %s: %s; trying the checkpoint before it", self._seed, error)

    def _checked(self, number: int) -> Checkpoint:
        path = self._manifest(number)
        manifest = read_manifest(path)
        found = manifest.get("of")
        if found != self.about:
            theirs = found if isinstance(found, dict) else {}
            unlike = [f"{k} {theirs.get(k)!r}" for k, v in self.about.items() if theirs.get(k) != v]
            raise ValueError(
                f"{path} is a checkpoint of {', '.join(unlike)}; expected "
                f"{', '.join(f'{k} {v!r}' for k, v in self.about.items() if theirs.get(k) != v)}"
            )
        state = self._state(number)
        try:
            content = state.read_bytes()
        except OSError as error:
            raise DamagedError(f"{state} cannot be read: {error.strerror}") from None
        if digest(content) != manifest.get("state"):
            raise DamagedError(f"{state} was altered or cut short")
        try:
            return Checkpoint(
                number,
                int(manifest["step"]),
                Position(*(int(n) for n in manifest["position"])),
                float(manifest["seconds"]),
                [int(step) for step in manifest["resumed"]],
                dict(manifest["events"]),
                dict(manifest["environment"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DamagedError(f"{path} is not a checkpoint's manifest: {error}") from None

    def take_up(self, run: Run, checkpoint: Checkpoint) -> None:
        """Let the run, its folder and this shelf be what they were at the checkpoint."""
        path = self._state(checkpoint.number)
        state, _ = read_file(path)
        try:
            run.load_state_dict(state)
        except ValueError as error:
            raise ValueError(f"{path}: {error}; start again without --resume") from None
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise ValueError(f"{path} does not hold the state of a run: {error}") from None
        self._cut_events(checkpoint)
        for number in self.numbers():
            if number > checkpoint.number:  # damaged, or not shared by the group
                self._remove(number)

    def _cut_events(self, checkpoint: Checkpoint) -> None:
        path = self.run.path / "events.jsonl"
        size = int(checkpoint.events["bytes"])
        try:
            with path.open("rb") as file:
                kept = file.read(size)
        except OSError:
            kept = b""
        if digest(kept) != checkpoint.events:
            _log.warning(
                "seed %s: %s was altered; it begins anew at step %s",
                *(self._seed, path, checkpoint.step),
            )
            kept = b""
        write_atomic(path, kept)

    def add(self, state: State, facts: Mapping[str, Any]) -> None:
        """Write a checkpoint, then let go of those that are no longer kept."""
        self.path.mkdir(exist_ok=True)
        number = max(self.numbers(), default=0) + 1
        events = self.run.path / "events.jsonl"
        with events.open("rb") as file:
            written = digest(file.read(facts["events"]))
            with contextlib.suppress(OSError):  # not every system flushes what is open to read
                os.fsync(file.fileno())
        content = as_bytes(state, {"run": self.about})
        write_atomic(self._state(number), content)
        write_manifest(
            self._manifest(number),
            {"of": self.about, **facts, "events": written, "state": digest(content)},
        )
        for old in self.path.iterdir():
            if not old.stem.isdecimal() or int(old.stem) <= number - KEPT:
                old.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove them all."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _remove(self, number: int) -> None:
        self._manifest(number).unlink(missing_ok=True)
        self._state(number).unlink(missing_ok=True)

    def _manifest(self, number: int) -> Path:
        return self.path / f"{number}.json"

    def _state(self, number: int) -> Path:
        return self.path / f"{number}.safetensors"

    @property
    def _seed(self) -> object:
        return self.about.get("seed")


class Checkpoints:
    """The keeper of a group of runs: states are taken between steps and written in a thread."""

    def __init__(
        self, shelves: Sequence[Shelf], every: float, environment: Mapping[str, Any]
    ) -> None:
        self.shelves = shelves
        self.every = every
        """Seconds from one to the next; those at the ends of tasks come on top."""
        self.environment = dict(environment)
        self.resumed: list[int] = []
        self.began = time.monotonic()
        self.spent_before = 0.0
        self.next = self.began + every
        self.thread: threading.Thread | None = None
        self.complaint = ""

    @property
    def seconds(self) -> float:
        """Spent on the runs so far, in this process and before it."""
        return self.spent_before + time.monotonic() - self.began

    def restore(self, runs: Sequence[Run]) -> bool:
        """Let all runs go on from the newest checkpoint that they share; False if there is none."""
        enough = 1 if len(runs) == 1 else None  # alone, a run needs no other than its newest
        found = [
            {c.position: c for c in itertools.islice(shelf.whole(), enough)}
            for shelf in self.shelves
        ]
        shared = set(found[0]).intersection(*found[1:])
        if not shared:
            if any(shelf.numbers() for shelf in self.shelves):
                seeds = ", ".join(str(run.seed) for run in runs)
                _log.warning("seed %s: no checkpoint can be used; starting again", seeds)
            return False
        for run, shelf, by_position in zip(runs, self.shelves, found, strict=True):
            checkpoint = by_position[max(shared)]
            shelf.take_up(run, checkpoint)
            if changed := differences(checkpoint.environment, self.environment):
                _log.warning(
                    "seed %s: not where the checkpoint was made (%s); the last digits may differ "
                    "from those of an uninterrupted run",
                    *(run.seed, "; ".join(changed)),
                )
            self.spent_before = checkpoint.seconds
            self.resumed = [*checkpoint.resumed, checkpoint.step]
        return True

    def due(self) -> bool:
        """Whether the interval is over, and the last checkpoint written."""
        return time.monotonic() >= self.next and not (self.thread and self.thread.is_alive())

    def keep(self, runs: Sequence[Run]) -> None:
        """Take the states of the runs and write them in the background."""
        self.wait()
        self.next = time.monotonic() + self.every
        taken = []
        for run, shelf in zip(runs, self.shelves, strict=True):
            facts = {
                "step": run.step,
                "position": list(run.position),
                "seconds": self.seconds,
                "resumed": self.resumed,
                "environment": self.environment,
                "events": _size(shelf.run.path / "events.jsonl"),
            }
            taken.append((shelf, to_host(run.state_dict()), facts))
        self.thread = threading.Thread(target=self._write, args=(taken,), daemon=True)
        self.thread.start()

    def _write(self, taken: list[tuple[Shelf, State, dict[str, Any]]]) -> None:
        for shelf, state, facts in taken:
            try:
                shelf.add(state, facts)
            except OSError as error:
                self._complain(shelf, f"{error.filename or shelf.path}: {error.strerror}")
            except (TypeError, ValueError) as error:
                self._complain(shelf, f"the run's state cannot be written ({error})")
                self.next = math.inf

    def _complain(self, shelf: Shelf, what: str) -> None:
        if what != self.complaint:  # a disk that is full is full every minute
            self.complaint = what
            _log.warning(
                "seed %s goes on without a new checkpoint: %s", shelf.about.get("seed"), what
            )

    def wait(self) -> None:
        """Until what was taken last is on the disk."""
        if self.thread is not None:
            self.thread.join()

    def clear(self) -> None:
        """The runs are finished: remove their checkpoints."""
        self.wait()
        for shelf in self.shelves:
            shelf.clear()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Interrupted) or not isinstance(error, KeyboardInterrupt | SystemExit):
            self.wait()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # whoever writes to it next will say so
        return 0
