"""How a grid stands while it runs: counts, and the time left from measured speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from perdure.display import clock_time
from perdure.grid.planning import Entry, Plan
from perdure.grid.speeds import Speeds, duration, note_run
from perdure.training import Progress
from perdure.training.seeds import Job
from perdure.training.workers import Event


@dataclass(eq=False)
class Course:
    """One job's way so far."""

    job: Job
    runs: list[tuple[Entry, int]]
    """Setting and seed of each of its runs."""
    state: str = "waiting"
    """waiting, running, done or failed."""
    begun: float = 0.0
    last: Progress | None = None
    """What was heard last of this attempt."""
    heard: float = 0.0
    """When that was."""
    reason: str = ""

    def seconds_left(self, now: float) -> float | None:
        """Of a running job, by its own speed; None before it is known."""
        if self.last is None or self.last.total_steps is None:
            return None
        steps = self.last.step - self.last.since
        if steps <= 0:
            return None
        left = (self.last.total_steps - self.last.step) * self.last.seconds / steps
        return max(left - (now - self.heard), 0.0)

    def __str__(self) -> str:
        (entry, seed), *others = self.runs
        return f"{entry.cell}, seed {seed}{f' and {len(others)} beside it' if others else ''}"


class TimeLeft(NamedTuple):
    """Until all jobs are done.

    >>> str(TimeLeft(61, 0)), str(TimeLeft(61, 2)), str(TimeLeft(0, 2))
    ('1:01 left', 'at least 1:01 left', 'time left unknown')
    """

    seconds: float
    unknown: int
    """Jobs of which nothing is known; they are not in the seconds."""

    def __str__(self) -> str:
        if self.unknown and self.seconds < 1:
            return "time left unknown"
        return f"{'at least ' if self.unknown else ''}{clock_time(self.seconds)} left"


class Standing:
    """The courses of all jobs; feed it the events of an engine."""

    def __init__(
        self,
        plan: Plan,
        jobs: Sequence[Job],
        speeds: Speeds,
        width: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan = plan
        self.entry = {id(entry.settings): entry for entry in plan.entries}
        self.courses = self.current = [self._course(job) for job in jobs]
        """All jobs, and those that the engine has now: its events count these."""
        self.speeds = speeds
        self.width = width
        self.clock = clock
        self.before = sum(len(entry.complete) for entry in plan.entries)
        """Runs that were there already."""
        self.total = sum(len(entry.seeds) for entry in plan.entries)

    def _course(self, job: Job) -> Course:
        return Course(job, [(self.entry[id(settings)], seed) for settings, seed in job.members])

    def separate(self) -> None:
        """Let every run of the groups that failed go on alone: one of them was at fault."""
        groups = [c for c in self.current if c.state == "failed" and len(c.runs) > 1]
        self.current = [
            self._course(course.job._replace(settings=settings, seeds=(seed,), beside=()))
            for course in groups
            for settings, seed in course.job.members
        ]
        self.courses = [c for c in self.courses if c not in groups] + self.current

    def note(self, event: Event) -> Course:
        """Take in an event; returns the course that it concerns."""
        course, now = self.current[event.number], self.clock()
        reason = event.reason
        if len(course.runs) == 1:  # its name has the seed already
            reason = reason.removeprefix(f"seed {course.runs[0][1]}: ")
        match event.kind:
            case "begun":
                course.state, course.begun, course.last = "running", now, None
            case "progress":
                course.last, course.heard = event.progress, now
            case "done":
                self._done(course)
            case "again":
                course.state, course.reason = "waiting", reason
            case "failed":
                course.state, course.reason = "failed", reason
        return course

    def _done(self, course: Course) -> None:
        for entry, seed in course.runs:
            folder = self.plan.folder(entry, seed)
            if not folder.complete:
                course.state = "failed"
                course.reason = f"it has ended, but {folder.path} holds no result"
                return
        course.state = "done"
        for entry, seed in course.runs:
            note_run(self.speeds, entry.settings, self.plan.folder(entry, seed))

    def runs(self, state: str) -> int:
        """How many runs are in this state, those that were there before not counted."""
        return sum(len(course.runs) for course in self.courses if course.state == state)

    @property
    def done(self) -> int:
        """Runs that are complete, now or before."""
        return self.before + self.runs("done")

    def time_left(self) -> TimeLeft:
        """Until all is done, as far as it is known."""
        left = self.expected()
        known = [seconds for seconds in left if seconds is not None]
        return TimeLeft(duration(known, self.width), len(left) - len(known))

    def expected(self) -> list[float | None]:
        """Seconds left of every job that is not done; None where nothing is known of it."""
        seconds = {
            id(entry): self.speeds.seconds(entry.settings, entry.steps)
            for entry in self.plan.entries
        }
        return [
            self._expected(course, [seconds[id(entry)] for entry, _ in course.runs])
            for course in self.courses
            if course.state in ("waiting", "running")
        ]

    def _expected(self, course: Course, seconds: list[float | None]) -> float | None:
        now = self.clock()
        if course.state == "running" and (left := course.seconds_left(now)) is not None:
            return left
        known = [part for part in seconds if part is not None]
        if len(known) < len(seconds):
            return None
        spent = now - course.begun if course.state == "running" else 0.0
        return max(sum(known) - spent, 0.0)
