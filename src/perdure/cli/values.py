"""What flags take: how their values are read, shown in the help, and refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

from tyro.conf import UseAppendAction, arg
from tyro.constructors import PrimitiveConstructorSpec

T = TypeVar("T")

MOST_THREADS = 256
"""Far more, and the system would not give them: torch ends the process without a word."""


def _value(
    read: Callable[[str], T], metavar: str, expected: str, choices: tuple[str, ...] | None = None
) -> PrimitiveConstructorSpec[T]:
    """How a flag's value is read, and what to say if it cannot be."""

    def instance(words: list[str]) -> T:
        try:
            return read(words[0])
        except ValueError:
            raise ValueError(f"{words[0]!r} is not {expected}") from None

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=instance,
        is_instance=lambda value: True,
        str_from_instance=lambda value: [str(value)],
        choices=choices,
    )


# Where nothing is the default, the help shows what a flag takes and not that it is None.
Count = Annotated[int, _value(int, "N", "a whole number")]
Share = Annotated[float, _value(float, "X", "a number")]
Seconds = Annotated[float, _value(float, "S", "a number")]
Whole = Annotated[int | None, _value(int, "N", "a whole number"), arg(help_behavior_hint="")]
Real = Annotated[float | None, _value(float, "X", "a number"), arg(help_behavior_hint="")]
Precision = Annotated[
    str | None,
    _value(str, "{fp32,bf16}", "a precision", ("fp32", "bf16")),
    arg(help_behavior_hint=""),
]
Steps = Annotated[
    str | None,
    _value(str, "{eager,captured,compiled}", "an engine", ("eager", "captured", "compiled")),
    arg(help_behavior_hint=""),
]
Several = Annotated[tuple[str, ...], UseAppendAction]
"""A flag that may be given several times, one value each."""
Name = Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")]
Switch = Annotated[bool, arg(help_behavior_hint="")]
Folder = Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")]


def cores() -> int:
    """How many this process may use; fewer than the machine has under a batch system."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def at_least_one(flag: str, value: int) -> int:
    """The value of a flag that counts something. ValueError below 1."""
    if value < 1:
        raise ValueError(f"{flag} is {value}; expected 1 or more")
    return value


def thread_count(value: int) -> int:
    """The value of --threads. ValueError for what no machine can give."""
    if at_least_one("--threads", value) > MOST_THREADS:
        raise ValueError(f"--threads is {value}; expected at most {MOST_THREADS}")
    return value


def above_zero(flag: str, value: float) -> float:
    """The value of a flag that measures something. ValueError unless above 0 and finite."""
    if not 0 < value < float("inf"):
        raise ValueError(f"{flag} is {value:g}; expected a number above 0")
    return value


def writable(folder: Path, flag: str = "--out") -> None:
    """Find out before hours of work whether its results can be kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(f"{flag} {folder} cannot be written: {error.strerror}") from None
