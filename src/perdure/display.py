"""What a run looks like on a terminal, and in a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table

from perdure.claims import (
    accuracy_retained,
    calibration_error,
    distance_from_uniform,
    last_task_excess,
    over_seeds,
)
from perdure.presets import paper_figures
from perdure.training import Progress


def tell_user(message: str) -> None:
    """A line on stderr."""
    print(message, file=sys.stderr, flush=True)


class ProgressDisplay(AbstractContextManager["ProgressDisplay"]):
    """One bar per running seed on a terminal; else a line per finished task; or nothing."""

    def __init__(self, *, quiet: bool) -> None:
        console = Console(stderr=True)
        self.quiet = quiet
        self.live = console.is_terminal and not quiet
        self.tasks: dict[int, TaskID] = {}
        self.last: dict[int, tuple[int, float | None]] = {}
        self.resumed: set[int] = set()
        self.bars = Bars(
            TextColumn("seed {task.fields[seed]}"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[speed]}  {task.fields[left]}  {task.fields[accuracy]}"),
            console=console,
            transient=True,
            disable=not self.live,
        )

    def __enter__(self) -> ProgressDisplay:
        self.bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bars.stop()

    def __call__(self, seed: int, progress: Progress) -> None:
        """Show where the run with this seed stands."""
        if progress.since and seed not in self.resumed and not self.quiet:
            self.resumed.add(seed)
            self.bars.console.print(f"seed {seed} goes on from step {progress.since}")
        if self.live:
            self._draw(seed, progress)
        elif not self.quiet:
            self._print(seed, progress)

    def _draw(self, seed: int, progress: Progress) -> None:
        if seed not in self.tasks:
            self.tasks[seed] = self.bars.add_task(
                "", total=None, seed=seed, speed="", left="", accuracy=""
            )
        self.bars.update(
            self.tasks[seed],
            description=place_in_stream(progress),
            total=progress.total_steps,
            completed=progress.step,
            speed=f"{_speed(progress):.0f} steps/s",
            left=_time_left(progress),
            accuracy=_accuracy(progress),
        )
        if progress.step == progress.total_steps:
            self.bars.remove_task(self.tasks.pop(seed))

    def _print(self, seed: int, progress: Progress) -> None:
        """A line when the accuracy is new: a task has ended."""
        if progress.accuracy is None or self.last.get(seed) == (progress.task, progress.accuracy):
            return
        if self.last.get(seed, (-1, None))[1] == progress.accuracy:
            return
        self.last[seed] = (progress.task, progress.accuracy)
        tell_user(
            f"seed {seed}: {place_in_stream(progress)}  {_speed(progress):.0f} steps/s  "
            f"{_time_left(progress)}  {_accuracy(progress)}"
        )


def place_in_stream(progress: Progress) -> str:
    """Task and epoch, counted from one."""
    place = f"task {progress.task + 1}/{progress.tasks}"
    return (
        f"{place}, epoch {progress.epoch + 1}/{progress.epochs}" if progress.epochs > 1 else place
    )


def _speed(progress: Progress) -> float:
    return (progress.step - progress.since) / max(progress.seconds, 1e-9)


def _time_left(progress: Progress) -> str:
    if progress.total_steps is None or progress.step == progress.since:
        return ""
    return f"{clock_time((progress.total_steps - progress.step) / _speed(progress))} left"


def clock_time(seconds: float) -> str:
    """As a clock shows it.

    >>> clock_time(61.2), clock_time(7322)
    ('1:01', '2:02:02')
    """
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole:02}" if hours else f"{minutes}:{whole:02}"


def _accuracy(progress: Progress) -> str:
    return "" if progress.accuracy is None else f"accuracy {progress.accuracy:.2f} %"


def results_table(summary: Mapping[str, Any], *, published: bool) -> Table:
    """The summary of a setting; beside it the paper's figures, if the settings were published."""
    seeds = len(summary["seeds"])
    buffer_size = "" if summary["buffer_size"] is None else f", buffer {summary['buffer_size']}"
    title = (
        f"{summary['method']} on {summary['stream']}{buffer_size}, data {summary['data']}, "
        f"{seeds} seed{'s' if seeds > 1 else ''}: accuracy in percent"
    )
    table = Table(title=title, min_width=len(title))
    table.add_column("predictor")
    answers = list(summary["predictors"].values())
    kinds = {
        kind: heading
        for kind, heading in (("task_il", "Task-IL"), ("last_test", "last test alone"))
        if any(kind in found and found[kind]["mean"] is not None for found in answers)
    }
    for heading in ("Class-IL", *(["paper, Class-IL"] if published else []), *kinds.values()):
        table.add_column(heading, justify="right")
    for i, (name, found) in enumerate(summary["predictors"].items()):
        ours, *others = (
            spread(found[kind]["mean"], found[kind]["std"]) for kind in ("class_il", *kinds)
        )
        paper = [_paper(summary, name, first=i == 0)] if published else []
        table.add_row(name, ours, *paper, *others)
    return table


def comparison_table(title: str, summaries: Sequence[Mapping[str, Any]]) -> Table:
    """Several methods on one stream, by the predictor that each answers with."""
    table = Table(title=title, min_width=len(title))
    table.add_column("method")
    table.add_column("accuracy, percent", justify="right")
    for summary in summaries:
        answer = next(iter(summary["predictors"].values()))["class_il"]
        table.add_row(summary["method"], spread(answer["mean"], answer["std"]))
    return table


def analyses_table(runs: Sequence[Mapping[str, Any]]) -> Table:
    """The figures of analysed runs, over the seeds of each setting, of the predictor that answers.

    Each run holds its `config`, `result` and `analysis`.
    """
    figures: dict[str, Callable[[Mapping[str, Any]], float | None]] = {
        "calibration error": calibration_error,
        "last task's excess": last_task_excess,
        "distance from uniform": distance_from_uniform,
        "left under noise": accuracy_retained,
    }
    title = "The predictor that answers, over seeds; shares from 0 to 1"
    table = Table("stream", "method", "seeds", title=title, min_width=len(title))
    for name in figures:
        table.add_column(name, justify="right")
    settings: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for run in runs:
        config = run["config"]
        buffer_size = "" if config["buffer_size"] is None else f" {config['buffer_size']}"
        update = f", update {config['update']}" if "update" in config else ""
        name = f"{config['method']}{buffer_size}{update} ({config['hash']})"
        settings.setdefault((f"{config['stream']} ({config['data']})", name), []).append(run)
    for (stream, name), group in settings.items():
        row = [over_seeds(group, figure) for figure in figures.values()]
        cells = ["–" if s is None else spread(s.mean, s.std, digits=3) for s in row]
        table.add_row(stream, name, str(len(group)), *cells)
    return table


def spread(mean: float | None, std: float | None, digits: int = 2) -> str:
    """A mean with its standard deviation, where it has one.

    >>> spread(91.234, 0.5), spread(91.234, None), spread(None, None)
    ('91.23 ± 0.50', '91.23', '–')
    """
    if mean is None:
        return "–"
    return f"{mean:.{digits}f}" if std is None else f"{mean:.{digits}f} ± {std:.{digits}f}"


def _paper(summary: Mapping[str, Any], predictor: str, *, first: bool) -> str:
    asked = {
        "stream": summary["stream"],
        "method": summary["method"],
        "buffer_size": summary["buffer_size"],
    }
    figures = [f for f in paper_figures(**asked) if not f.settings]
    # Tables 1 to 3 give the predictor that answers, Table S1 all of them; GCIL's two disagree.
    tables = [f for f in figures if f.predictor is None and first]
    means = {f.mean for f in tables}
    named = [f for f in figures if f.predictor == predictor and f.mean not in means]
    return "; ".join(dict.fromkeys(spread(f.mean, f.std) for f in [*tables, *named])) or "–"
