"""Checks of arguments that the constructors of streams share."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any


def check_choices(choices: Sequence[Any], **values: Any) -> None:
    """Raise ValueError unless all arguments are among the choices.

    >>> check_choices((True, False), shuffle="off")
    Traceback (most recent call last):
    ValueError: shuffle is 'off'; expected True or False
    """
    for name, value in values.items():
        if value not in choices:
            *others, last = map(repr, choices)
            raise ValueError(f"{name} is {value!r}; expected {', '.join(others)} or {last}")


def as_count(name: str, value: Any, most: int | None = None, of: str = "") -> int:
    """An argument as an int; ValueError unless it is a whole number, 1 or more.

    `most` is the highest number that is allowed, and `of` says what it counts.

    >>> as_count("tasks", 1.5, 3, "classes")
    Traceback (most recent call last):
    ValueError: tasks is 1.5; expected a whole number, 1 to 3 (the number of classes)
    """
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = 0
    if number < 1 or (most is not None and number > most):
        limits = "1 or more" if most is None else f"1 to {most} (the number of {of})"
        raise ValueError(f"{name} is {value!r}; expected a whole number, {limits}")
    return number


def is_list(value: Any) -> bool:
    """Whether a value contains others and is not text."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes)
