"""Find the published hyperparameters of a method on a stream, or a substitute."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from perdure.presets._toml import read


@dataclass(frozen=True)
class Preset:
    """Hyperparameters for a method on a stream.

    Attributes:
        method: The requested method.
        stream: The requested stream.
        buffer_size: The requested buffer size.
        values: The hyperparameters.
        source: Where they were published.
        notes: What was substituted, one sentence each; empty for an exact match.
    """

    method: str
    stream: str
    buffer_size: int | None
    values: Mapping[str, int | float]
    source: str
    notes: tuple[str, ...] = ()


class _Setting(NamedTuple):
    buffer_size: int | None
    values: Mapping[str, int | float]
    source: str


@dataclass(frozen=True)
class _Source:
    """A method whose hyperparameters are used, with names to change and values to set."""

    method: str
    rename: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, int | float] = field(default_factory=dict)


_PUBLISHED = frozenset(
    ("clser", "mean-er", "er", "sgd", "der", "derpp", "fdr", "gem", "agem", "gss", "mer", "icarl")
)
_SAME_AS = {"joint": "sgd"}
"""JOINT is SGD on all tasks at once."""
_FALLBACK_METHODS = {
    "mean-er": _Source("clser", rename={"stable_rate": "rate", "stable_decay": "decay"}),
    "der": _Source("derpp"),
    "derpp": _Source("der"),
    "fdr": _Source("er"),
    "gem": _Source("er"),
    "agem": _Source("er"),
    "gss": _Source("er"),
    "mer": _Source("er", fixed={"batch": 1}),
    "icarl": _Source("er"),
}
_FALLBACK_STREAMS = {
    "s-cifar100-5x20": "s-cifar10",
    "s-cifar100-10x10": "s-cifar10",
    "gcil-cifar100-uniform": "gcil-cifar100-longtail",
    "gcil-cifar100-longtail": "gcil-cifar100-uniform",
}


def find(method: str, stream: str, buffer_size: int | None) -> Preset | None:
    """The published hyperparameters, the closest substitute, or None.

    Tried in this order: this stream and buffer size; the published buffer size that is nearest
    in ratio (the smaller of two); a similar stream; a similar method, of which only the
    hyperparameters that both have are used. A substitute may therefore lack some.

    Args:
        method: A method's name.
        stream: A stream's name.
        buffer_size: Samples that the memory holds; None for methods without a memory.

    Raises:
        ValueError: If the buffer size is not positive.

    >>> find("clser", "s-mnist", 500).values["consistency_weight"]
    2.0
    >>> find("er", "s-mnist", 300).notes
    ('er has no published settings for s-mnist with buffer 300; using those for buffer 200',)
    >>> find("er", "my-stream", 300) is None
    True
    """
    if buffer_size is not None and buffer_size < 1:
        raise ValueError(
            f"buffer_size is {buffer_size}; expected a positive number, or None for no memory"
        )
    exact = _Source(_SAME_AS.get(method, method))
    methods = [exact, *([_FALLBACK_METHODS[method]] if method in _FALLBACK_METHODS else [])]
    streams = [stream, *([_FALLBACK_STREAMS[stream]] if stream in _FALLBACK_STREAMS else [])]
    for source, origin in itertools.product(methods, streams):
        setting = _nearest(_published(source.method).get(origin, ()), buffer_size)
        if setting is None:
            continue
        values = _values(method, setting, source)
        name, notes = method, []
        if source is not exact:
            name = source.method
            used = ", ".join(key for key in values if key not in source.fixed)
            fixed = "".join(f"; {key} is always {value}" for key, value in source.fixed.items())
            notes.append(
                f"{method} has no published settings for {stream}; using {used} of {name}{fixed}"
            )
        if origin != stream:
            notes.append(f"{name} has no published settings for {stream}; using those for {origin}")
        if setting.buffer_size != buffer_size:
            notes.append(
                f"{name} has no memory; buffer {buffer_size} is ignored"
                if setting.buffer_size is None
                else f"{name} has no published settings for {origin} with buffer {buffer_size}; "
                f"using those for buffer {setting.buffer_size}"
            )
        return Preset(method, stream, buffer_size, values, setting.source, tuple(notes))
    return None


def published_buffers(method: str, stream: str) -> tuple[int, ...]:
    """The buffer sizes with published hyperparameters, ascending.

    >>> published_buffers("clser", "mnist-360")
    (200, 500, 1000)
    >>> published_buffers("sgd", "mnist-360")
    ()
    """
    settings = _published(method).get(stream, ())
    return tuple(setting.buffer_size for setting in settings if setting.buffer_size is not None)


@cache
def _published(method: str) -> dict[str, list[_Setting]]:
    """The content of the method's file by stream, ascending by buffer size."""
    if method not in _PUBLISHED:
        return {}
    content = dict(read(method))
    source = content.pop("source")
    return {
        stream: [
            _Setting(None if key == "none" else int(key), values, table.get("source", source))
            for key, values in table.items()
            if key != "source"
        ]
        for stream, table in content.items()
    }


@cache
def _keys(method: str) -> frozenset[str]:
    """The names of the method's published hyperparameters."""
    settings = itertools.chain.from_iterable(_published(method).values())
    return frozenset(key for setting in settings for key in setting.values)


def _nearest(settings: Sequence[_Setting], buffer_size: int | None) -> _Setting | None:
    if buffer_size is None:
        return next((setting for setting in settings if setting.buffer_size is None), None)

    def ratio(setting: _Setting) -> float:
        published = setting.buffer_size or buffer_size
        return max(published, buffer_size) / min(published, buffer_size)

    return min(settings, key=ratio, default=None)


def _values(method: str, setting: _Setting, source: _Source) -> dict[str, int | float]:
    """The source's values that the method has, under the method's names."""
    known = _keys(_SAME_AS.get(method, method))
    renamed = {source.rename.get(key, key): value for key, value in setting.values.items()}
    return {key: value for key, value in {**renamed, **source.fixed}.items() if key in known}
