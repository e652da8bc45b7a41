"""What a grid looks like while it runs: one live view on a terminal, else a line per run."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from remanence.display import clock_time, place_in_stream, tell_user
from remanence.grid.standing import Course, Standing
from remanence.training.workers import Event


class GridView(AbstractContextManager["GridView"]):
    """Call it with the events of an engine."""

    def __init__(self, standing: Standing, *, quiet: bool) -> None:
        console = Console(stderr=True)
        self.standing = standing
        self.quiet = quiet
        self.live = console.is_terminal and not quiet
        self.bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            disable=not self.live,
        )
        self.whole = self.bars.add_task(
            standing.plan.grid.name, total=standing.total, note=self._sum()
        )
        self.running: dict[int, TaskID] = {}
        self.summed = 0.0
        """When the sum was drawn last; over a thousand runs it is too dear for every event."""

    def __enter__(self) -> GridView:
        self.bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bars.stop()

    def __call__(self, event: Event) -> None:
        """Take in what happened, and show it."""
        course = self.standing.note(event)
        if self.live:
            self._draw(event, course)
        if event.kind not in ("begun", "progress"):
            self._say(event, course)

    def _draw(self, event: Event, course: Course) -> None:
        number = event.number
        if course.state == "running":
            if number not in self.running:
                self.running[number] = self.bars.add_task(str(course), total=None, note="begins")
            if course.last is not None:
                accuracy = course.last.accuracy
                shown = "" if accuracy is None else f", {accuracy:.2f} %"
                self.bars.update(
                    self.running[number],
                    total=course.last.total_steps,
                    completed=course.last.step,
                    note=place_in_stream(course.last) + shown,
                )
        elif number in self.running:
            self.bars.remove_task(self.running.pop(number))
        if event.kind != "progress" or time.monotonic() - self.summed > 0.5:
            self.summed = time.monotonic()
            self.bars.update(self.whole, completed=self.standing.done, note=self._sum())

    def _sum(self) -> str:
        standing = self.standing
        left = standing.seconds_left()
        return (
            f"{standing.done} of {standing.total} done, {standing.runs('running')} running, "
            f"{standing.runs('failed')} failed, "
            f"{'time left unknown' if left is None else f'{clock_time(left)} left'}"
        )

    def _say(self, event: Event, course: Course) -> None:
        """What stays to be read; on a terminal only what went wrong."""
        if course.state == "failed" and len(course.runs) > 1:
            self._print(f"{course} failed and go on one by one: {course.reason}")
        elif course.state == "failed":
            self._print(f"remanence: {course} failed: {course.reason}")
        elif event.kind == "again":
            self._print(f"{course} failed and is tried again: {course.reason}")
        elif not (self.live or self.quiet):
            accuracy = None if course.last is None else course.last.accuracy
            shown = "" if accuracy is None else f": {accuracy:.2f} %"
            tell_user(f"{course}{shown}  [{self._sum()}]")

    def _print(self, text: str) -> None:
        if self.live:
            self.bars.console.print(text, markup=False, highlight=False)
        else:
            tell_user(text)
