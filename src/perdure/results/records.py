"""Run folders as typed records, with every file checked once when it is read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta, Struct

from perdure.config import RunConfig
from perdure.evaluation import (
    Agreement,
    Calibration,
    Confusion,
    Flatness,
    TaskProbabilities,
    incremental_accuracy,
)
from perdure.files import DamagedError
from perdure.results.folder import RunFolder

Number = Annotated[float, Meta(ge=-1e100, le=1e100)]
"""Sums and squares of such numbers stay finite."""
Count = Annotated[int, Meta(ge=0, le=2**62)]
MAX_SIZE = 2**40
"""Largest size of a tensor's dimension."""
Percent = Number | None
Matrix = list[list[Percent]]
T = TypeVar("T")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters other than tabs and ends of lines."""


class Facts(Struct, frozen=True, kw_only=True):
    """What `config.json` records in addition to the settings."""

    hash: str
    seed: Count
    data: str
    """Name of the data as results show it."""
    version: str = ""
    """The version of perdure."""
    source: str = ""
    """Hash of the source of a user's own stream, network and method, if there are any."""
    stream_checksum: str = ""
    shape: list[Any] | dict[str, Any] = []
    """Shape of one input; for a dict or tuple of tensors, a dict or list of shapes."""
    classes: Count = 0
    class_names: list[str] = []
    """Names of the classes, if the stream has them."""
    tasks: Count = 0
    augment: str = ""
    normalise: str = ""
    """How the stream prepares inputs, as `repr` shows it."""
    stream_name: str = ""
    """Name that the stream has given itself."""
    architecture: str = ""
    """Class and layers of the network."""
    parameters: Count = 0

    def __post_init__(self) -> None:
        _check_sizes(self.shape)


def _check_sizes(shape: object, depth: int = 0) -> None:
    """Raise ValueError unless this is a nested list or dict of a tensor's sizes."""
    if not isinstance(shape, list | dict) or len(shape) > 64 or depth > 8:
        raise ValueError(f"shape is {str(shape)[:40]}; expected sizes")
    if isinstance(shape, list) and all(type(size) is int for size in shape):
        if not all(0 <= size <= MAX_SIZE for size in shape):
            raise ValueError(f"shape has sizes outside 0 to {MAX_SIZE}")
        return
    for part in shape.values() if isinstance(shape, dict) else shape:
        _check_sizes(part, depth + 1)


class Scores(Struct, frozen=True, kw_only=True):
    """Accuracies of one predictor, in percent.

    `matrix` has a row for each evaluation (before training, then after each task) and a column
    for each test.
    """

    matrix: Matrix
    mean: Percent
    last_test: Percent = None
    forgetting: Percent = None
    backward_transfer: Percent = None
    forward_transfer: Percent = None

    @property
    def incremental(self) -> Percent:
        """Average incremental accuracy; None where forgetting is undefined."""
        return None if self.forgetting is None else incremental_accuracy(self.matrix)


class PredictorResult(Struct, frozen=True, kw_only=True):
    """What one predictor scored."""

    class_il: Scores | None
    task_il: Scores | None
    per_class: list[Percent] | None = None


class PrequentialResult(Struct, frozen=True, kw_only=True):
    """Accuracies of predictions made before learning, in percent."""

    window: Annotated[int, Meta(ge=1)]
    samples: int
    accuracy: Number
    """On the last `window` samples."""
    overall: Number


class Result(Struct, frozen=True, kw_only=True):
    """The content of `result.json`."""

    moments: list[str]
    """When evaluations took place: "start", then the names of the tasks that had ended."""
    tests: list[str]
    predictors: dict[str, PredictorResult]
    """By name; the first is the one that `predict` uses."""
    complete: bool
    """Whether the whole stream was learned."""
    steps: Count
    totals: dict[str, Number] = {}
    prequential: PrequentialResult | None = None
    data_checksum: str = ""
    """Of the batches and tests, for a stream whose data are known only after they were read."""

    def __post_init__(self) -> None:
        if not self.predictors:
            raise ValueError("no predictors")
        for name, found in self.predictors.items():
            for scores in filter(None, (found.class_il, found.task_il)):
                _check_shape(scores.matrix, (len(self.moments), len(self.tests)), name)

    @property
    def tests_overlap(self) -> bool:
        """Whether each test contains the earlier ones, as on GCIL.

        Forgetting is undefined for such a run, although it was tested after every task.
        """
        return len(self.moments) == len(self.tests) + 1 > 2 and all(
            found.class_il is not None and found.class_il.forgetting is None
            for found in self.predictors.values()
        )


class Timing(Struct, frozen=True, kw_only=True):
    """The content of `timing.json`."""

    seconds: Number | None = None
    side_by_side: Annotated[int, Meta(ge=1)] = 1
    processor: str | None = None
    torch: str | None = None
    host: str | None = None
    finished: str | None = None
    resumed: list[Count] = []
    """Steps from which the run continued after an interruption."""

    @property
    def share(self) -> float | None:
        """Seconds the run took; on a shared GPU its share of them."""
        return None if self.seconds is None else self.seconds / self.side_by_side


class PredictorAnalysis(Struct, frozen=True, kw_only=True):
    """The analyses of one predictor."""

    calibration: Calibration
    task_probabilities: TaskProbabilities
    confusion: Confusion
    flatness: Flatness | None = None


class Analysis(Struct, frozen=True, kw_only=True):
    """The content of `analysis.json`."""

    predictors: dict[str, PredictorAnalysis]
    agreement: Agreement
    settings: dict[str, Number | list[Number]] = {}
    format: int = 1

    def __post_init__(self) -> None:
        for name, found in self.predictors.items():
            classes = len(found.confusion.classes)
            _check_shape(found.confusion.counts, (classes, classes), f"confusion of {name}")
            bias, curve = found.task_probabilities, found.flatness
            _check_shape([bias.mass], (1, len(bias.names)), f"task probabilities of {name}")
            if curve is not None:
                rows = [curve.accuracy, curve.accuracy_std, curve.loss, curve.loss_std]
                _check_shape(rows, (4, len(curve.sigmas)), f"flatness of {name}")
        networks = len(self.agreement.predictors)
        _check_shape(self.agreement.matrix, (networks, networks), "agreement")


class MetricsEvent(Struct, frozen=True, tag="metrics", tag_field="event"):
    """Means of the learner's metrics since the previous such event."""

    step: Count
    values: dict[str, Number]


class MemoryEvent(Struct, frozen=True, tag="memory", tag_field="event"):
    """Samples of each class in the episodic memory."""

    step: Count
    classes: list[Number]


class AgesEvent(Struct, frozen=True, tag="ages", tag_field="event"):
    """How often either semantic memory provided the replay logits, by the sample's age."""

    step: Count
    edges: list[Number]
    stable: list[Number]
    total: list[Number]


class PrequentialEvent(Struct, frozen=True, tag="prequential", tag_field="event"):
    """Accuracies of predictions made before learning: in the sliding window, and overall."""

    step: int
    samples: int
    accuracy: Number
    overall: Number


class EvaluationEvent(Struct, frozen=True, tag="evaluation", tag_field="event"):
    """Class-IL accuracies of every predictor after a task."""

    step: Count
    task: int
    class_il: dict[str, list[Percent]]


Event = MetricsEvent | MemoryEvent | AgesEvent | EvaluationEvent | PrequentialEvent
_KINDS = [kind.__struct_config__.tag for kind in get_args(Event)]
"""Learners may write events of further kinds."""


def _check_shape(matrix: Sequence[Any], shape: tuple[int, int], what: str) -> None:
    rows, columns = shape
    if len(matrix) != rows or any(len(row) != columns for row in matrix):
        raise ValueError(f"{what} is not {rows} by {columns}")


@dataclass(frozen=True)
class RunRecord:
    """A finished run.

    Attributes:
        place: Where the run is, relative to the folder that was read.
        folder: Its files.
        config: Its settings; `data_checksum` is that of `result` if it was not known before.
        facts: What else `config.json` records.
        result: Its accuracies.
        timing: Its duration and machine.
        events: Its events; empty if they cannot be used.
        analysis: Its analyses, if there are any.
        remarks: Problems with optional files, one sentence each.
    """

    place: str
    folder: RunFolder
    config: RunConfig
    facts: Facts
    result: Result
    timing: Timing
    events: tuple[Event, ...] = ()
    analysis: Analysis | None = None
    remarks: tuple[str, ...] = ()

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.facts.seed

    @property
    def default_analysis(self) -> PredictorAnalysis | None:
        """The analysis of the network that `predict` uses."""
        found = {} if self.analysis is None else self.analysis.predictors
        return found.get(next(iter(self.result.predictors)))


@dataclass(frozen=True)
class SkippedFolder:
    """A folder that contributes no numbers, and the reason."""

    place: str
    state: Literal["unfinished", "damaged", "duplicate", "unknown"]
    reason: str


def read_run(path: Path, place: str | None = None) -> RunRecord:
    """Read a finished run, which messages and tables call by its place, by default its path.

    Raises:
        ValueError: If the folder is not a finished run, or a file it needs is damaged.
    """
    folder, remarks = RunFolder(path), list[str]()
    config, facts = folder.read("config.json", RunConfig), folder.read("config.json", Facts)
    result = folder.read("result.json", Result)
    if not config.data_checksum:
        config = replace(config, data_checksum=result.data_checksum)
    try:
        folder.check_artifacts(read=False)
    except DamagedError as error:
        remarks.append(_relative(error, path))
    return RunRecord(
        str(path) if place is None else place,
        folder,
        config,
        facts,
        result,
        timing=_optional(folder, "timing.json", Timing, remarks) or Timing(),
        events=_events(folder, remarks),
        analysis=_optional(folder, "analysis.json", Analysis, remarks),
        remarks=tuple(remarks),
    )


def read_runs(roots: Iterable[Path]) -> tuple[list[RunRecord], list[SkippedFolder]]:
    """Read every run below these folders; folders that cannot be used are listed with a reason.

    Raises:
        ValueError: If a root is not a folder, or no run is found.
    """
    roots = list(roots)
    runs: list[RunRecord] = []
    skipped: list[SkippedFolder] = []
    for root in roots:
        if not root.is_dir():
            problem = "is not a folder" if root.exists() else "does not exist"
            raise ValueError(f"{root} {problem}; name a folder that `perdure run` has written")
        for path in _candidates(root):
            place = path.relative_to(root.parent).as_posix() if path != root else root.name
            found = _read_or_skip(path, printable(place or str(root)))
            if isinstance(found, RunRecord):
                runs.append(found)
            else:
                skipped.append(found)
    if not runs and all(folder.state == "unknown" for folder in skipped):
        where = " and ".join(map(str, roots))
        raise ValueError(f"{where} contains no runs; create some with `perdure run --out DIR`")
    return runs, skipped


def printable(name: str) -> str:
    r"""Text that can be encoded, even if it is not valid UTF-8, and that controls no terminal.

    >>> printable(os.fsdecode(b"r\xfcns")) == "r\ufffdns"
    True
    >>> printable("\x1b[2J") == "\ufffd[2J"
    True
    """
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return _CONTROL.sub("\ufffd", text)


def _candidates(root: Path) -> Iterator[Path]:
    """Folders that hold a run's files, and folders with other files and no run below them."""
    found: list[Path] = []
    others: list[Path] = []
    for here, folders, files in os.walk(root):
        path = Path(here)
        if {"config.json", "result.json"} & set(files):
            found.append(path)
            folders.clear()
        elif files and path != root:
            others.append(path)
        folders.sort()
    inside = {parent for path in found for parent in path.parents}
    yield from sorted([*found, *(path for path in others if path not in inside)])


def _read_or_skip(path: Path, place: str) -> RunRecord | SkippedFolder:
    folder = RunFolder(path)
    if not any(os.path.lexists(path / name) for name in ("config.json", "result.json")):
        return SkippedFolder(place, "unknown", "contains no run")
    try:
        if not folder.complete:
            folder.read("config.json", RunConfig)
            reason = "has no result.json: the run is in progress, was interrupted, or failed"
            return SkippedFolder(place, "unfinished", reason)
        return read_run(path, place)
    except (ValueError, OSError) as error:
        return SkippedFolder(place, "damaged", _relative(error, path))


def _optional(folder: RunFolder, name: str, kind: type[T], remarks: list[str]) -> T | None:
    """A file that a run may lack; if it cannot be used, a remark says why."""
    if not (folder.path / name).is_file():
        return None
    try:
        return folder.read(name, kind)
    except ValueError as error:
        remarks.append(f"{_relative(error, folder.path)} (ignored)")
        return None


def _events(folder: RunFolder, remarks: list[str]) -> tuple[Event, ...]:
    """The events of known kinds; none if a single line is damaged."""
    if not (folder.path / "events.jsonl").is_file():
        return ()
    try:
        known = (event for event in folder.events() if event.get("event") in _KINDS)
        return tuple(msgspec.convert(event, Event) for event in known)
    except (OSError, ValueError, RecursionError) as error:
        remarks.append(f"events.jsonl cannot be read: {_relative(error, folder.path)} (ignored)")
        return ()


def _relative(error: Exception, folder: Path) -> str:
    """An error's text without the path of the folder."""
    return printable(str(error).replace(f"{folder}{os.sep}", ""))
