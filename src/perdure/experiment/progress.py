"""Progress of jobs: counts, time left, and a live view on terminals (a log elsewhere)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bars
from rich.table import Column
from rich.text import Text

from perdure.data.progress import progress_bar
from perdure.experiment.plan import Plan, PlannedSetting
from perdure.experiment.pool import Event, OnEvent
from perdure.experiment.run import Job
from perdure.experiment.speeds import Speeds
from perdure.results.records import printable
from perdure.training.loop import Interrupted, Progress
from perdure.training.signals import graceful_stop

LOG_SECONDS = 60.0
"""Seconds between two lines of a log within a task, an evaluation or an analysis."""
Backend = Callable[[Sequence[Job], OnEvent], None]
"""Executes jobs on this machine or on a cluster; raises Interrupted if asked to stop."""


def print_status(message: str) -> None:
    """Print a line to stderr, without control characters that a name may contain."""
    print(printable(message), file=sys.stderr, flush=True)


def clock_time(seconds: float) -> str:
    """A duration as a clock shows it.

    >>> clock_time(61.2), clock_time(7322)
    ('1:01', '2:02:02')
    """
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole:02}" if hours else f"{minutes}:{whole:02}"


@dataclass(eq=False)
class JobStatus:
    """The state of one job."""

    job: Job
    runs: list[tuple[PlannedSetting, int]]
    """Setting and seed of each run."""
    name: str
    state: Literal["waiting", "running", "done", "failed"] = "waiting"
    started: float = 0.0
    last: Progress | None = None
    """The last progress of the current attempt."""
    updated: float = 0.0
    """When that arrived."""
    reason: str = ""
    """Why the last attempt failed."""

    def seconds_left(self, now: float) -> float | None:
        """Time left according to the job's own speed; None if that is unknown."""
        left = None if self.last is None else _seconds_left(self.last)
        return None if left is None else max(left - (now - self.updated), 0.0)


class TimeLeft(NamedTuple):
    """Time until all jobs are done.

    >>> str(TimeLeft(61, 0)), str(TimeLeft(61, 2)), str(TimeLeft(0, 2))
    ('1:01 left', 'at least 1:01 left', 'time left unknown')
    """

    seconds: float
    unknown: int
    """Jobs of unknown duration, which are not included."""

    def __str__(self) -> str:
        if self.unknown and self.seconds < 1:
            return "time left unknown"
        return f"{'at least ' if self.unknown else ''}{clock_time(self.seconds)} left"


class GridProgress:
    """The state of all jobs of a plan, of which `width` run at a time, updated by events."""

    def __init__(
        self,
        plan: Plan,
        jobs: Sequence[Job],
        speeds: Speeds,
        width: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan = plan
        self.settings = {setting.config.hash: setting for setting in plan.settings}
        self.jobs = self.current = [self._status(job) for job in jobs]
        """All jobs, and those being executed now, by whose positions events refer to them."""
        self.speeds = speeds
        self.width = width
        self.clock = clock
        self.reused = sum(len(setting.complete) for setting in plan.settings)
        """Runs that were complete at the start."""
        self.total = sum(len(setting.seeds) for setting in plan.settings)

    def _status(self, job: Job) -> JobStatus:
        runs = [(self.settings[run.config.hash], run.seed) for run in job.runs]
        (setting, seed), *others = runs
        name = f"seed {seed}" if len(self.settings) == 1 else f"seed {seed} of {setting.label}"
        return JobStatus(job, runs, f"{name} and {len(others)} more" if others else name)

    def split_failed_groups(self) -> None:
        """Make the runs of failed groups the current jobs, one by one: only one may be at fault."""
        groups = [s for s in self.current if s.state == "failed" and len(s.runs) > 1]
        self.current = [self._status(job) for group in groups for job in group.job.split()]
        self.jobs = [status for status in self.jobs if status not in groups] + self.current

    def update(self, event: Event) -> JobStatus:
        """Record an event and return the state of its job."""
        status, now = self.current[event.number], self.clock()
        if event.failure is not None:
            status.reason = event.failure.reason
            if len(status.runs) == 1:  # its name contains the seed
                status.reason = status.reason.removeprefix(f"seed {status.runs[0][1]}: ")
        match event.kind:
            case "started":
                status.state, status.started, status.last = "running", now, None
            case "progress":
                status.last, status.updated = event.progress, now
            case "done":
                self._done(status)
            case "retry":
                status.state = "waiting"
            case "failed":
                status.state = "failed"
        return status

    def _done(self, status: JobStatus) -> None:
        folders = [(s, s.folder(self.plan.out, seed)) for s, seed in status.runs]
        for _, folder in folders:
            if not folder.complete:
                status.state, status.reason = "failed", f"{folder.path} contains no result"
                return
        status.state = "done"
        for setting, folder in folders:
            self.speeds.add_run(setting.config, folder)

    def count(self, state: str) -> int:
        """Runs in this state, except those that were complete at the start."""
        return sum(len(status.runs) for status in self.jobs if status.state == state)

    @property
    def done(self) -> int:
        """Complete runs."""
        return self.reused + self.count("done")

    @property
    def failed(self) -> dict[str, list[int]]:
        """Seeds of the failed runs, by the label of their setting."""
        seeds: dict[str, list[int]] = {}
        for status in self.jobs:
            if status.state == "failed":
                for setting, seed in status.runs:
                    seeds.setdefault(setting.label, []).append(seed)
        return seeds

    def time_left(self) -> TimeLeft:
        """Time until all jobs are done, as far as it is known."""
        expected = [self._expected(s) for s in self.jobs if s.state in ("waiting", "running")]
        known = [seconds for seconds in expected if seconds is not None]
        seconds = max(sum(known) / self.width, *known) if known else 0.0
        return TimeLeft(seconds, len(expected) - len(known))

    def _expected(self, status: JobStatus) -> float | None:
        now = self.clock()
        if status.state == "running" and (left := status.seconds_left(now)) is not None:
            return left
        seconds = [self.speeds.seconds(s.config, s.steps) for s, _ in status.runs]
        known = [part for part in seconds if part is not None]
        if len(known) < len(seconds):
            return None
        spent = now - status.started if status.state == "running" else 0.0
        return max(sum(known) - spent, 0.0)

    def __str__(self) -> str:
        return (
            f"{self.done} of {self.total} done, {self.count('running')} running, "
            f"{self.count('failed')} failed, {self.time_left()}"
        )


def run_jobs(
    progress: GridProgress,
    backend: Backend,
    *,
    quiet: bool = False,
    by_task: bool = False,
    on_event: OnEvent = lambda event: None,
) -> None:
    """Execute the jobs of a plan under a live view; groups that fail are split and tried again.

    Shows failures only if quiet. A log has a line per task or, unless `by_task`, one per run.

    Raises:
        Interrupted: If asked to stop.
    """
    with (
        _View(progress, quiet=quiet, by_task=by_task) as view,
        graceful_stop(view.announce_stop) as stop,
    ):

        def handle(event: Event) -> None:
            with suppress(OSError):  # the terminal is gone, or the disk of the log is full
                view.show(event)
            on_event(event)

        while progress.current:
            backend([status.job for status in progress.current], handle)
            progress.split_failed_groups()
    if stop():
        raise Interrupted(stop())


@contextmanager
def analysis_progress(
    name: str, total: int, *, shown: bool = True
) -> Iterator[Callable[[int], None]]:
    """Show how much of an analysis is done: a bar on a terminal, a line a minute elsewhere.

    Yields a function to call with the number of samples that were evaluated since the last call.
    """
    done, started = 0, time.monotonic()
    logged = started
    with progress_bar(TaskProgressColumn(), shown=shown, transient=True) as bar:
        task = bar.add_task(f"analysing {escape(printable(name))}", total=total)

        def advance(samples: int) -> None:
            nonlocal done, logged
            done += samples
            bar.update(task, completed=done)
            now = time.monotonic()
            if shown and bar.disable and now - logged > LOG_SECONDS:
                logged = now
                left = clock_time((total - done) * (now - started) / done)
                print_status(f"{name}: {100 * done / total:.0f} % analysed  {left} left")

        yield advance


class _View(AbstractContextManager["_View"]):
    """Bars for the running jobs on a terminal, or lines in a log."""

    def __init__(self, progress: GridProgress, *, quiet: bool, by_task: bool) -> None:
        console = Console(stderr=True)
        self.progress = progress
        self.quiet = quiet
        self.by_task = by_task
        self.live = console.is_terminal and not quiet
        self.bars = _Bars(
            _Name(),
            BarColumn(20 if console.width >= 100 else 10, table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            transient=True,
            disable=not self.live,
        )
        self.overall: TaskID | None = None
        if progress.total > 1:
            self.overall = self.bars.add_task(progress.plan.name, total=progress.total, note="")
        self.running: dict[int, TaskID] = {}
        self.logged: dict[JobStatus, float] = {}
        """Seconds of the current attempt at each job at its last line in a log."""
        self.traces: set[tuple[JobStatus, str]] = set()
        """Tracebacks that were shown, by job and frames."""
        self.evaluation_logged = time.monotonic()
        """When a line about an evaluation was last printed."""
        self.summarised = 0.0
        """When the summary was last updated; with a thousand runs it is slow."""

    def __enter__(self) -> _View:
        self._summarise()
        self.bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bars.stop()

    def show(self, event: Event) -> None:
        """Update the state of a job and show it."""
        before = self.progress.current[event.number].last
        status = self.progress.update(event)
        if self.live:
            self._draw(event, status)
        if event.kind == "progress":
            if not self.quiet:
                self._log_progress(status, before, event.progress)
        elif event.kind != "started":
            self._log_end(event, status)

    def announce_stop(self) -> None:
        """Print that the jobs stop after their current steps, which may take long."""
        if not self.quiet:
            with suppress(OSError):
                self._print(
                    "perdure: stopping after the current step; a second signal or Ctrl-C stops at "
                    "once without saving"
                )

    def _draw(self, event: Event, status: JobStatus) -> None:
        number = event.number
        if status.state == "running":
            if number not in self.running:
                self.running[number] = self.bars.add_task(status.name, total=None, note="starting")
            if (last := status.last) is not None:
                shown = f", {_evaluation(last)}" if last.evaluation else _accuracy(last, ", ")
                note = _details(last) if self.by_task else _position(last) + shown
                self.bars.update(
                    self.running[number], total=last.total_steps, completed=last.step, note=note
                )
        elif number in self.running:
            self.bars.remove_task(self.running.pop(number))
        if event.kind != "progress" or time.monotonic() - self.summarised > 0.5:
            self._summarise()

    def _summarise(self) -> None:
        self.summarised = time.monotonic()
        if self.overall is not None:
            self.bars.headline = str(self.progress)
            self.bars.update(self.overall, completed=self.progress.done, note="")

    def _log_progress(self, status: JobStatus, before: Progress | None, now: Progress) -> None:
        if now.since and before is None:
            self._print(f"Resuming {status.name} from step {now.since}")
        if now.evaluation is not None:
            late = time.monotonic() - self.evaluation_logged > LOG_SECONDS
            if self.by_task and not self.live and late:
                self.evaluation_logged = time.monotonic()
                print_status(f"{status.name}: {_details(now)}")
            return
        if before is None:  # a new attempt, whose time starts at zero
            self.logged.pop(status, None)
        silent = now.seconds - self.logged.get(status, 0.0)
        first = before is None and now.accuracy is not None
        due = now.task_ended or first or silent > LOG_SECONDS
        if self.by_task and not self.live and due:
            self.logged[status] = now.seconds
            print_status(f"{status.name}: {_details(now)}")

    def _log_end(self, event: Event, status: JobStatus) -> None:
        """Print failures, and completed runs in a log."""
        if event.failure is not None and event.failure.trace:
            # The messages of attempts that fail at the same place may differ.
            lines = event.failure.trace.splitlines()
            frames = "\n".join(line for line in lines if line.startswith("  "))
            if (status, frames) not in self.traces:
                self.traces.add((status, frames))
                self._print(event.failure.trace.rstrip(), fold=False)
        if status.state == "failed" and len(status.runs) > 1:
            self._print(f"{status.name} failed; running them one by one: {status.reason}")
        elif status.state == "failed":
            self._print(f"perdure: {status.name} failed: {status.reason}")
        elif event.kind == "retry":
            self._print(f"{status.name} failed; trying again: {status.reason}")
        elif not (self.live or self.quiet or self.by_task):
            accuracy = "" if status.last is None else _accuracy(status.last, ": ")
            print_status(f"{status.name}{accuracy}  [{self.progress}]")

    def _print(self, text: str, *, fold: bool = True) -> None:
        if self.live:
            self.bars.console.print(Text(text), soft_wrap=not fold)
        else:
            print_status(text)


def _position(progress: Progress) -> str:
    """Task and epoch, counted from one."""
    task = f"task {progress.task + 1}/{progress.tasks}"
    epoch = f", epoch {progress.epoch + 1}/{progress.epochs}"
    return task + epoch if progress.epochs > 1 else task


def _accuracy(progress: Progress, before: str) -> str:
    """The accuracy on the tests, or else the prequential one."""
    found = progress.prequential if progress.accuracy is None else progress.accuracy
    return "" if found is None else f"{before}{found:.2f} %"


def _evaluation(progress: Progress) -> str:
    """How far an evaluation is; the samples of every network count."""
    assert progress.evaluation is not None
    done, total = progress.evaluation
    return f"evaluating {100 * done / total:.0f} %" if total else f"evaluating, {done} samples"


def _details(progress: Progress) -> str:
    steps = progress.step - progress.since
    if progress.evaluation is not None:
        return f"{_position(progress)}  {_evaluation(progress)}"
    left = _seconds_left(progress)
    time_left = "" if left is None else f"  {clock_time(left)} left"
    parts = [f"{_position(progress)}{_speed(steps, progress.seconds)}{time_left}"]
    if progress.accuracy is not None:
        parts.append(f"accuracy {progress.accuracy:.2f} %")
    if progress.prequential is not None:
        parts.append(f"prequential {progress.prequential:.2f} %")
    return "  ".join(parts)


def _speed(steps: int, seconds: float) -> str:
    """Steps per second, or seconds per step, after two spaces; empty before the first step.

    >>> _speed(300, 2.0), _speed(12, 8.0), _speed(2, 5.0), _speed(0, 9.0)
    ('  150 steps/s', '  1.5 steps/s', '  2.5 s/step', '')
    """
    if not steps:
        return ""
    speed = steps / max(seconds, 1e-9)
    if speed < 1:
        return f"  {1 / speed:.1f} s/step"
    return f"  {speed:.0f} steps/s" if speed >= 10 else f"  {speed:.1f} steps/s"


def _seconds_left(progress: Progress) -> float | None:
    """Time left at the speed so far; None before the first step or if the length is unknown."""
    steps = progress.step - progress.since
    if progress.total_steps is None or steps <= 0:
        return None
    return (progress.total_steps - progress.step) * progress.seconds / steps


class _Bars(Bars):
    """Bars below a headline that is folded on narrow terminals."""

    headline = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        if self.headline:
            yield Text(self.headline, overflow="fold")
        yield from super().get_renderables()


class _Name(ProgressColumn):
    """The name of a task on one line, cut off where space is scarce."""

    def render(self, task: Task) -> Text:
        return Text(task.description, no_wrap=True, overflow="ellipsis")
