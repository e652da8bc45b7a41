"""Streams from a user's files, written as text: `images:FOLDER` or `table:FILE,target=COLUMN`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from perdure.arguments import is_unicode
from perdure.data.spec import OnProgress
from perdure.streams.from_images import from_image_folder
from perdure.streams.from_table import from_table
from perdure.streams.stream import Stream

FILE_STREAMS: dict[str, Callable[..., Stream]] = {
    "images": from_image_folder,
    "table": from_table,
}
"""Constructors by the prefix of a stream's name."""
_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "images": ("augment", "normalise", "keep_together", "encoder", "on_progress"),
    "table": ("encoder",),
}
"""Arguments that cannot be written as text."""
_LISTS = ("features", "categorical")
"""Arguments that are lists, separated by plus signs."""


def file_options(kind: str) -> dict[str, inspect.Parameter]:
    """The options of a stream from files: arguments of the constructor that are written as text.

    >>> list(file_options("images"))
    ['size', 'grayscale', 'tasks', 'test_share', 'name', 'drop_last']
    """
    _, *arguments = inspect.signature(FILE_STREAMS[kind]).parameters.values()
    return {a.name: a for a in arguments if a.name not in _FUNCTIONS[kind]}


def stream_from_files(kind: str, text: str, *, on_progress: OnProgress | None = None) -> Stream:
    """Build a stream from `PATH,NAME=VALUE,…`, where the names are those of `file_options`.

    `on_progress` is called with the number of images read so far and the number of images.

    Raises:
        ValueError: If an option is unknown, missing or invalid, or the files cannot be used.
    """
    options = file_options(kind)
    path, *settings = text.split(",")
    if not path.strip():
        raise ValueError(f"the path is missing; write {kind}:PATH")
    if not is_unicode(text):
        raise ValueError("the path is not valid UTF-8, so a run cannot record it; rename it")
    values: dict[str, Any] = {}
    for setting in settings:
        name, sign, value = setting.partition("=")
        if not sign or name not in options:
            hint = "" if sign else " (commas separate options, so the path cannot contain any)"
            raise ValueError(
                f"{setting!r}; expected NAME=VALUE with one of {', '.join(options)}{hint}"
            )
        if name in values:
            raise ValueError(f"{name} is given twice")
        parts = value.split("+") if name in _LISTS else [value]
        if not all(map(str.strip, parts)):
            raise ValueError(f"{setting!r} has an empty value; fill it in, or omit {name}")
        values[name] = _value(name, value)
    for name, option in options.items():
        if option.default is option.empty and name not in values:
            raise ValueError(f"{name} is missing; write {kind}:{path},{name}=…")
    if kind == "images":
        values["on_progress"] = on_progress
    return FILE_STREAMS[kind](path, **values)


def _value(name: str, text: str) -> Any:
    """A number, a switch, a list separated by plus signs, height x width, or text."""
    if name in _LISTS:
        return text.split("+")
    if name in ("target", "keep_together", "test", "name"):  # text, also if it is a number
        return text
    if name == "size" and "x" in text:
        return tuple(_value("", side) for side in text.split("x"))
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
