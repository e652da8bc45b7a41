"""Jobs: one or more runs trained together in one process, from configuration to run folder."""

from __future__ import annotations

import contextlib
import errno
import logging
import platform
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import torch

from perdure.config import RunConfig
from perdure.experiment.build import build_engine, build_run, config_file, read_dataset
from perdure.experiment.pool import Failure
from perdure.files import DamagedError
from perdure.results.folder import ENCODER_FILE, RunFolder
from perdure.training.callbacks import Callback, EventLog, ProgressCheck
from perdure.training.checkpoint import Checkpointer, CheckpointStore, describe_environment
from perdure.training.distributed import SharedCheckpointer, SharedFolder, stop_on_rank_0
from perdure.training.loop import Position, Progress, TrainingError, train

_log = logging.getLogger(__name__)


class PlannedRun(NamedTuple):
    """A run to train."""

    config: RunConfig
    seed: int

    def folder(self, out: Path) -> RunFolder:
        """Its folder below the folder of all runs."""
        folder = RunFolder.locate(out, self.config, self.seed)
        return folder if self.config.ranks == 1 else SharedFolder(folder.path)

    def checkpoints(self, out: Path) -> CheckpointStore:
        """Its checkpoints."""
        config = self.config
        identity = {"method": config.method, "network": config.network, "settings": config.hash}
        return CheckpointStore(self.folder(out).path, {**identity, "seed": self.seed})


@dataclass(frozen=True)
class Job:
    """Runs to train together: one on a CPU, several on a GPU."""

    runs: tuple[PlannedRun, ...]
    out: Path
    resume: bool = False
    """Whether to reuse complete runs and to continue others from their checkpoints."""
    checkpoint_every: float = 60.0

    def split(self) -> list[Job]:
        """A job for each run. It resumes: what this job saved is not lost."""
        return [replace(self, runs=(run,), resume=True) for run in self.runs]

    def execute(
        self, report: Callable[[Progress], None], stop: Callable[[], int] | None = None
    ) -> None:
        """Train and evaluate the runs and write their folders.

        Args:
            report: Called with progress a few times a second at most.
            stop: Called after every step; when it returns a signal's number, a checkpoint is
                written and Interrupted raised.

        Raises:
            LockedError: If another process is writing to one of the folders.
        """
        config = self.runs[0].config  # the relevant settings are the same for all
        with contextlib.ExitStack() as stack:
            missing = []
            for planned in self.runs:
                folder = planned.folder(self.out)
                stack.enter_context(folder.locked())
                # Another process may have completed the run since this job was planned.
                if not (self.resume and is_usable(folder)):
                    missing.append((planned, folder))
            if not missing:
                return
            dataset, engine = read_dataset(config, stop=stop), build_engine(config)
            runs = [build_run(planned.config, dataset, planned.seed) for planned, _ in missing]
            environment = describe_environment(config.device)
            stores = [planned.checkpoints(self.out) for planned, _ in missing]
            kind = Checkpointer if config.ranks == 1 else SharedCheckpointer
            checkpointer = stack.enter_context(kind(stores, self.checkpoint_every, environment))
            resumed = self.resume and checkpointer.resume(runs)
            if not resumed:
                checkpointer.clear()
            logs = []
            for (planned, folder), run in zip(missing, runs, strict=True):
                content = config_file(planned.config, run)
                folder.reopen(content) if resumed else folder.begin(content)
                if run.stream.encoder is not None:
                    run.stream.encoder.save(folder.path / ENCODER_FILE)
                logs.append(EventLog(folder, run))
            # The published settings are known to start slowly on some streams.
            checks = [ProgressCheck()] if config.dataset is None else []
            failure = None
            try:
                train(
                    runs,
                    callbacks=[*logs, checkpointer, _Report(report), *checks],
                    max_steps=config.max_steps,
                    engine=engine,
                    stop=stop if config.ranks == 1 else stop_on_rank_0(stop),
                    initial_evaluation=config.initial_evaluation,
                )
            except TrainingError as error:
                if all(run.failure is not None for run in runs):
                    raise
                failure = error  # of some runs; the others are finished
            for reason in dict.fromkeys(engine.fallbacks()):
                _log.warning("%s; its steps were executed eagerly", reason)
            timing = {
                "seconds": checkpointer.seconds,
                "resumed": checkpointer.resumed,
                "side_by_side": len(runs),
                **environment,
                "python": platform.python_version(),
                "host": platform.node(),
                "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            for (_, folder), run, store in zip(missing, runs, stores, strict=True):
                if run.failure is not None:
                    continue
                for name, content in run.learner.histograms().items():
                    folder.event(name, step=run.step, **content)
                result = run.record.result()
                # A part of the stream is no evidence that the whole is the same.
                if config.max_steps is None and (checksum := run.data_checksum()):
                    result["data_checksum"] = checksum
                folder.finish(run.learner, result, timing)
                checkpointer.clear(store)
            if failure is not None:
                raise failure

    def explain(self, error: Exception) -> Failure:
        """Why the job failed with this error, and what to do about it."""
        if isinstance(error, torch.OutOfMemoryError):
            return Failure(
                f"the GPU does not have enough memory for {len(self.runs)} runs at a time; use a "
                f"smaller --side-by-side ({str(error).splitlines()[0]})"
            )
        if isinstance(error, TrainingError):
            step = self.runs[0].checkpoints(self.out).latest_step()
            kept = "" if step is None else f"; the checkpoint from step {step} is kept"
            return Failure(f"{error}{kept}")
        if isinstance(error, OSError) and error.errno == errno.ENOENT and error.filename:
            return Failure(f"{error.filename} no longer exists: its folder was removed")
        if isinstance(error, OSError) and error.filename:
            how = "the same command" + ("" if self.resume else " without --restart")
            return Failure(
                f"{error.filename}: {error.strerror}; fix this, then run {how} to continue from "
                "the last checkpoint"
            )
        if isinstance(error, OSError | ValueError):
            return Failure(str(error))
        if "daemonic processes are not allowed to have children" in str(error):
            return Failure(
                "a worker process cannot start others, such as those of a DataLoader; use "
                "--workers 1, or num_workers=0 in the DataLoader"
            )
        if "can't allocate memory" in str(error):
            return Failure("not enough memory for the run; use a smaller --buffer-size or network")
        trace = "".join(traceback.format_exception(error))
        return Failure(f"{type(error).__name__}: {error}", trace)


class _Report(Callback):
    """Passes progress on."""

    def __init__(self, report: Callable[[Progress], None]) -> None:
        self.report = report

    def on_progress(self, progress: Progress) -> None:
        self.report(progress)


def is_usable(folder: RunFolder) -> bool:
    """Whether the run is complete and undamaged, so that it need not be trained again.

    Networks may be missing. Only the sizes of the others are compared.
    """
    if not folder.complete:
        return False
    try:
        for name in ("config.json", "result.json"):
            folder.check(name)
        folder.check_artifacts(read=False)
    except DamagedError as error:
        _log.warning("%s (the run is trained again)", error)
        return False
    return True


def make_jobs(
    runs: Sequence[PlannedRun],
    out: Path,
    *,
    resume: bool,
    checkpoint_every: float = 60.0,
    side_by_side: int = 1,
) -> list[Job]:
    """Divide runs into jobs: groups of at most `side_by_side` that can train in one process.

    Only runs that have a checkpoint at a common position can resume together.
    """
    groups: list[tuple[list[PlannedRun], set[Position]]] = []
    for run in runs:
        positions = {Position()}
        if resume and side_by_side > 1:
            valid = run.checkpoints(out).valid(warn=False)
            positions = {checkpoint.position for checkpoint in valid} or positions
        for group, shared in groups:
            fits = len(group) < side_by_side and group[0].config.can_share_a_device(run.config)
            if fits and shared & positions:
                group.append(run)
                shared &= positions
                break
        else:
            groups.append(([run], positions))
    return [Job(tuple(group), out, resume, checkpoint_every) for group, _ in groups]
