"""Which published setting serves a method on a stream, with a buffer."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from perdure.presets._toml import read


@dataclass(frozen=True)
class Preset:
    """Hyperparameters for a method on a stream, and where they come from.

    Method, stream and buffer are those asked for; where the values were published for others,
    each note says so in a sentence. An exact match has no notes.
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
class _Kin:
    """A method whose settings stand in for those that another one lacks."""

    method: str
    rename: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, int | float] = field(default_factory=dict)


_PUBLISHED = frozenset(
    ("clser", "mean-er", "er", "sgd", "der", "derpp", "fdr", "gem", "agem", "gss", "mer", "icarl")
)
_DEFINED_BY = {"joint": "sgd"}
"""JOINT is SGD on all tasks at once: its values are SGD's by definition."""
_KIN_METHODS = {
    "mean-er": _Kin("clser", rename={"stable_rate": "rate", "stable_decay": "decay"}),
    "der": _Kin("derpp"),
    "derpp": _Kin("der"),
    "fdr": _Kin("er"),
    "gem": _Kin("er"),
    "agem": _Kin("er"),
    "gss": _Kin("er"),
    "mer": _Kin("er", fixed={"batch": 1}),
    "icarl": _Kin("er"),
}
_KIN_STREAMS = {
    "s-cifar100-5x20": "s-cifar10",
    "s-cifar100-10x10": "s-cifar10",
    "gcil-cifar100-uniform": "gcil-cifar100-longtail",
    "gcil-cifar100-longtail": "gcil-cifar100-uniform",
}


def find(method: str, stream: str, buffer_size: int | None) -> Preset | None:
    """The published setting, or the closest one that can stand in for it, or None.

    In this order: the stream with this buffer; with the published buffer nearest in ratio (the
    smaller of two equally near); a kin stream of the same method; a kin method, of whose values
    only those are taken that the method has a use for. Methods without a memory are asked for
    with buffer None, the others with a number.

    Every key of `values` is a hyperparameter of the method, but not every hyperparameter need be
    there: a stand-in knows nothing of what is the method's own.

    >>> find("clser", "s-mnist", 500).values["consistency_weight"]
    2.0
    >>> find("er", "s-mnist", 300).notes
    ('no published er setting for s-mnist with buffer 300: taken from buffer 200',)
    >>> find("er", "my-stream", 300) is None
    True
    """
    if buffer_size is not None and buffer_size < 1:
        raise ValueError(
            f"buffer is {buffer_size}; expected a positive number, or None for no buffer"
        )
    itself = _Kin(_DEFINED_BY.get(method, method))
    methods = [itself, *([_KIN_METHODS[method]] if method in _KIN_METHODS else [])]
    streams = [stream, *([_KIN_STREAMS[stream]] if stream in _KIN_STREAMS else [])]
    for kin, origin in itertools.product(methods, streams):
        setting = _nearest(_published(kin.method).get(origin, ()), buffer_size)
        if setting is None:
            continue
        values = _values(method, setting, kin)
        name, notes = method, []
        if kin is not itself:
            name = kin.method
            taken = ", ".join(key for key in values if key not in kin.fixed)
            fixed = "".join(f", {key} is always {value}" for key, value in kin.fixed.items())
            notes.append(f"no published {method} setting for {stream}: {taken} from {name}{fixed}")
        if origin != stream:
            notes.append(f"no published {name} setting for {stream}: taken from {origin}")
        if setting.buffer_size != buffer_size:
            notes.append(
                f"{name} keeps no memory: buffer {buffer_size} is not used"
                if setting.buffer_size is None
                else f"no published {name} setting for {origin} with buffer {buffer_size}: "
                f"taken from buffer {setting.buffer_size}"
            )
        return Preset(method, stream, buffer_size, values, setting.source, tuple(notes))
    return None


def published_buffers(method: str, stream: str) -> tuple[int, ...]:
    """The buffers for which a setting was published, ascending; none for a method without memory.

    >>> published_buffers("clser", "mnist-360")
    (200, 500, 1000)
    >>> published_buffers("sgd", "mnist-360")
    ()
    """
    settings = _published(method).get(stream, ())
    return tuple(setting.buffer_size for setting in settings if setting.buffer_size is not None)


@cache
def _published(method: str) -> dict[str, list[_Setting]]:
    """What the method's file holds, by stream, buffers ascending."""
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
    """The hyperparameters that the method's published settings name."""
    settings = itertools.chain.from_iterable(_published(method).values())
    return frozenset(key for setting in settings for key in setting.values)


def _nearest(settings: Sequence[_Setting], buffer_size: int | None) -> _Setting | None:
    if buffer_size is None:
        return next((setting for setting in settings if setting.buffer_size is None), None)

    def ratio(setting: _Setting) -> float:
        published = setting.buffer_size or buffer_size
        return max(published, buffer_size) / min(published, buffer_size)

    return min(settings, key=ratio, default=None)


def _values(method: str, setting: _Setting, kin: _Kin) -> dict[str, int | float]:
    """A kin's values under the method's own names; what the method does not know is left out."""
    known = _keys(_DEFINED_BY.get(method, method))
    renamed = {kin.rename.get(key, key): value for key, value in setting.values.items()}
    return {key: value for key, value in {**renamed, **kin.fixed}.items() if key in known}
