"""Checks of arguments."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any


def plain_int(value: Any) -> Any:
    """Return a whole number, also one of numpy or torch, as an int; other values as they are."""
    try:
        return value if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return value


def is_whole(value: Any) -> bool:
    """Return whether a value is an int, and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def as_whole(name: str, value: Any) -> int:
    """Return an argument as an int; ValueError unless it is a whole number."""
    number = plain_int(value)
    if not is_whole(number):
        raise ValueError(f"{name} is {value!r}; expected a whole number")
    return int(number)


def as_count(name: str, value: Any, most: int | None = None, of: str = "") -> int:
    """Return an argument as an int; ValueError unless it is a whole number, 1 or more.

    `most` is the highest number that is allowed, and `of` says what it counts.

    >>> as_count("tasks", 1.5, 3, "classes")
    Traceback (most recent call last):
    ValueError: tasks is 1.5; expected a whole number, 1 to 3 (the number of classes)
    """
    number = plain_int(value)
    if not is_whole(number) or number < 1 or (most is not None and number > most):
        limits = "1 or more" if most is None else f"1 to {most} (the number of {of})"
        raise ValueError(f"{name} is {value!r}; expected a whole number, {limits}")
    return int(number)


def is_number(value: object) -> bool:
    """Return whether a value is a real number, also one of numpy."""
    return isinstance(value, Real)


def is_list(value: Any) -> bool:
    """Return whether a value is iterable and is not text.

    >>> import numpy as np
    >>> is_list((1, 2)), is_list("text"), is_list(np.array(1))
    (True, False, False)
    """
    if isinstance(value, str | bytes):
        return False
    try:
        iter(value)
    except TypeError:  # also of arrays without dimensions, although they are Iterable
        return False
    return True


def as_list(name: str, value: Any, expected: str) -> list[Any]:
    """Return an iterable argument as a list; ValueError for text, dicts and anything else.

    >>> as_list("features", "km", "a list of columns")
    Traceback (most recent call last):
    ValueError: features is 'km'; expected a list of columns
    """
    if not is_list(value) or isinstance(value, Mapping):
        raise ValueError(f"{name} is {value!r}; expected {expected}")
    return list(value)


def is_unicode(text: str) -> bool:
    r"""Return whether a text can be written as UTF-8, unlike the name of a file in Latin-1.

    >>> is_unicode("caf\u00e9"), is_unicode("caf\udce9")
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_weights(**values: float) -> None:
    """Raise ValueError unless all arguments are finite numbers that are not negative."""
    for name, value in values.items():
        if not (is_number(value) and 0 <= value < float("inf")):
            raise ValueError(f"{name} is {value!r}; expected a finite number, 0 or more")


def check_callable(name: str, value: object) -> None:
    """Raise ValueError unless an optional argument is None or can be called."""
    if value is not None and not callable(value):
        raise ValueError(f"{name} is {value!r}; expected a function, or None")


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
