"""What a grid looks like while it runs: one live view on a terminal, else a line per run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from perdure.display import place_in_stream, tell_user
from perdure.grid.standing import Course, Standing
from perdure.training.workers import Event


class GridView(AbstractContextManager["GridView"]):
    """Call it with the events of an engine."""

    def __init__(self, standing: Standing, *, quiet: bool) -> None:
        console = Console(stderr=True)
        self.standing = standing
        self.quiet = quiet
        self.live = console.is_terminal and not quiet
        self.bars = _Bars(
            _Name(),  # the one that gives way where there is little room
            BarColumn(20 if console.width >= 100 else 10, table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            transient=True,
            disable=not self.live,
        )
        self.bars.headline = self._sum()
        self.whole = self.bars.add_task(
            standing.plan.grid.name, total=standing.total, completed=standing.done, note=""
        )
        self.running: dict[int, TaskID] = {}
        self.shown: set[tuple[Course, str]] = set()
        """Where a job failed, of the tracebacks that were shown."""
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
            self.bars.headline = self._sum()
            self.bars.update(self.whole, completed=self.standing.done)

    def _sum(self) -> str:
        standing = self.standing
        return (
            f"{standing.done} of {standing.total} done, {standing.runs('running')} running, "
            f"{standing.runs('failed')} failed, {standing.time_left()}"
        )

    def _say(self, event: Event, course: Course) -> None:
        """What stays to be read; on a terminal only what went wrong."""
        if event.trace and (failure := (course, _frames(event.trace))) not in self.shown:
            self.shown.add(failure)
            self._print(event.trace.rstrip(), folded=False)
        if course.state == "failed" and len(course.runs) > 1:
            self._print(f"{course} failed and go on one by one: {course.reason}")
        elif course.state == "failed":
            self._print(f"perdure: {course} failed: {course.reason}")
        elif event.kind == "again":
            self._print(f"{course} failed and is tried again: {course.reason}")
        elif not (self.live or self.quiet):
            accuracy = None if course.last is None else course.last.accuracy
            shown = "" if accuracy is None else f": {accuracy:.2f} %"
            tell_user(f"{course}{shown}  [{self._sum()}]")

    def _print(self, text: str, *, folded: bool = True) -> None:
        if self.live:
            self.bars.console.print(Text(text), soft_wrap=not folded)
        else:
            tell_user(text)


def _frames(trace: str) -> str:
    """A traceback less its messages, in which attempts that fail at one place may differ."""
    return "\n".join(line for line in trace.splitlines() if line.startswith("  "))


class _Bars(Progress):
    """Bars below a headline, which is folded where the terminal is narrow, never cut."""

    headline = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield Text(self.headline, overflow="fold")
        yield from super().get_renderables()


class _Name(ProgressColumn):
    """The description of a task, as much of it as there is room for."""

    def render(self, task: Task) -> RenderableType:
        return _Elided(task.description)


class _Elided:
    """A name in one line, whose middle gives way."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, len(self.name)).with_maximum(options.max_width)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        yield Text(elided(self.name, options.max_width), no_wrap=True, overflow="crop")


def elided(name: str, width: int) -> str:
    """A name in so many characters, its seed at the end among them.

    >>> elided("er on s-mnist, buffer_size 200, lr 0.1, seed 12", 28)
    'er on s-mnist,… 0.1, seed 12'
    """
    if len(name) <= width:
        return name
    _, comma, seed = name.rpartition(", seed ")
    end = max((width - 1) // 2, len(comma and f"seed {seed}"))
    return f"{name[: max(width - 1 - end, 0)]}…{name[-end:]}"
