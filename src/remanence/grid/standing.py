"""How a grid stands while it runs: counts, and the time left from measured speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from remanence.grid.planning import Entry, Plan
from remanence.grid.speeds import Speeds, duration
from remanence.training import Progress
from remanence.training.seeds import Job
from remanence.training.workers import Event


@dataclass
class Course:
    """One job's way so far."""

    entry: Entry
    job: Job
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
        first, *others = self.job.seeds
        seeds = f"seeds {first} to {others[-1]}" if others else f"seed {first}"
        return f"{self.entry.cell}, {seeds}"


class Standing:
    """The courses of all jobs; feed it the events of an engine."""

    def __init__(
        self,
        plan: Plan,
        jobs: Sequence[tuple[Entry, Job]],
        speeds: Speeds,
        width: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan = plan
        self.courses = [Course(entry, job) for entry, job in jobs]
        self.speeds = speeds
        self.width = width
        self.clock = clock
        self.before = sum(len(entry.complete) for entry in plan.entries)
        """Runs that were there already."""
        self.total = len(plan.entries) * len(plan.seeds)

    def note(self, event: Event) -> Course:
        """Take in an event; returns the course that it concerns."""
        course, now = self.courses[event.number], self.clock()
        match event.kind:
            case "begun":
                course.state, course.begun, course.last = "running", now, None
            case "progress":
                course.last, course.heard = event.progress, now
            case "done":
                self._done(course, now)
            case "again":
                course.state, course.reason = "waiting", event.reason
            case "failed":
                course.state, course.reason = "failed", event.reason
        return course

    def _done(self, course: Course, now: float) -> None:
        folder = self.plan.folder(course.entry, course.job.seeds[0])
        if not folder.complete:
            course.state = "failed"
            course.reason = f"it has ended, but {folder.path} holds no result"
            return
        course.state = "done"
        timing, steps = folder.read("timing.json"), folder.read("result.json")["steps"]
        self.speeds.note(course.entry.settings, steps, timing["seconds"] / len(course.job.seeds))

    def runs(self, state: str) -> int:
        """How many runs are in this state, those that were there before not counted."""
        return sum(len(course.job.seeds) for course in self.courses if course.state == state)

    @property
    def done(self) -> int:
        """Runs that are complete, now or before."""
        return self.before + self.runs("done")

    def seconds_left(self) -> float | None:
        """Until all is done; None while nothing is known."""
        left = [
            self._expected(course)
            for course in self.courses
            if course.state in ("waiting", "running")
        ]
        known = [seconds for seconds in left if seconds is not None]
        if not known:
            return None if left else 0.0
        typical = fmean(known)
        return duration([typical if s is None else s for s in left], self.width)

    def _expected(self, course: Course) -> float | None:
        now = self.clock()
        if course.state == "running" and (left := course.seconds_left(now)) is not None:
            return left
        seconds = self.speeds.seconds(course.entry.settings, course.entry.steps)
        if seconds is None:
            return None
        spent = now - course.begun if course.state == "running" else 0.0
        return max(seconds * len(course.job.seeds) - spent, 0.0)
