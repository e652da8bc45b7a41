"""Streams that the command reads from files without a module of the user's."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

from perdure.streams.from_images import from_image_folder
from perdure.streams.from_table import from_table
from perdure.streams.stream import Stream

FILE_STREAMS: dict[str, Callable[..., Stream]] = {
    "images": from_image_folder,
    "table": from_table,
}
"""Constructors by the prefix of a stream's name: `images:FOLDER` or `table:FILE,target=COLUMN`."""
_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "images": ("augment", "normalise", "keep_together"),
    "table": (),
}
"""Arguments that cannot be written as text."""


def stream_from_files(kind: str, text: str) -> Stream:
    """Build a stream from `PATH,NAME=VALUE,…`, where the names are arguments of the constructor.

    Raises:
        ValueError: If an argument is unknown, missing or invalid, or the files cannot be used.
    """
    make = FILE_STREAMS[kind]
    path, *settings = text.split(",")
    names = [n for n in list(signature(make).parameters)[1:] if n not in _FUNCTIONS[kind]]
    values: dict[str, Any] = {}
    for setting in settings:
        name, sign, value = setting.partition("=")
        if not sign or name not in names:
            raise ValueError(f"{setting!r}; expected NAME=VALUE with one of {', '.join(names)}")
        values[name] = _value(name, value)
    required = [n for n in names if signature(make).parameters[n].default is Parameter.empty]
    for name in required:
        if name not in values:
            raise ValueError(f"{name} is missing; write {kind}:{path},{name}=…")
    return make(path, **values)


def _value(name: str, text: str) -> Any:
    """A number, a switch, a list separated by plus signs, or text."""
    if name in ("features", "categorical"):
        return text.split("+")
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
