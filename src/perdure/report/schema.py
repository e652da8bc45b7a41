"""What the files of a run must look like before anything is made of them.

A pattern is a type (float: a finite number, int, str, bool), a list with the pattern of its items,
a mapping with the patterns of its keys (`str` as key: any; with a question mark: may be missing),
a tuple of alternatives, or None. Keys that a pattern does not name do not matter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Pattern = Any

CONFIG: Pattern = {
    "stream": str,
    "method": str,
    "buffer_size": (int, None),
    "values": {str: float},
    "network": str,
    "dataset": (str, None),
    "data_checksum": str,
    "data": str,
    "hash": str,
    "seed": int,
    "published": bool,
    "notes": [str],
    "stream_seed?": (int, str, None),
    "validation?": (float, None),
    "max_steps?": (int, None),
    "update?": (str, None),
    "ranks?": int,
    "device?": str,
    "precision?": str,
    "engine?": str,
    "deterministic?": bool,
}
_PERCENT: Pattern = (float, None)
_NUMBERS: Pattern = (
    {
        "matrix": [[_PERCENT]],
        **dict.fromkeys(("mean", "last_test", "forgetting"), _PERCENT),
    },
    None,
)
RESULT: Pattern = {
    "moments": [str],
    "tests": [str],
    "predictors": {
        str: {"class_il": _NUMBERS, "task_il": _NUMBERS, "per_class": ([_PERCENT], None)}
    },
    "complete": bool,
    "steps": int,
}
_BIN: Pattern = {
    **dict.fromkeys(("lower", "upper", "count"), float),
    **dict.fromkeys(("accuracy", "confidence"), (float, None)),
}
ANALYSIS: Pattern = {
    "predictors": {
        str: {
            "calibration": {"ece": float, "bins": [_BIN]},
            "flatness?": (
                {
                    "sigmas": [float],
                    **{key: [(float, None)] for key in ("accuracy", "accuracy_std")},
                    **{key: [(float, None)] for key in ("loss", "loss_std")},
                },
                None,
            ),
            "task_probabilities": {"names": [str], "kind": str, "mass": [float]},
            "confusion": {"classes": [(str, int)], "counts": [[float]]},
        }
    },
    "agreement": {"predictors": [str], "matrix": [[float]]},
    "settings?": {str: (float, [float])},
}
EVENTS: Mapping[str, Pattern] = {
    "totals": {"step": int, str: (float, str)},
    "memory": {"step": int, "classes": [float]},
    "ages": {"step": int, "edges": [float], "stable": [float], "total": [float]},
}
_LARGEST = 1e300
"""Beyond it sums and squares would not be finite."""
_NAMES = {float: "a finite number", int: "a whole number", str: "text", bool: "true or false"}


def require(value: object, pattern: Pattern, where: str = "it") -> None:
    """ValueError that names the place if the value is not as the pattern says.

    >>> require({"mean": "high"}, {"mean": float}, "result")
    Traceback (most recent call last):
    ...
    ValueError: result.mean is "high"; expected a finite number
    """
    if not _fits(value, pattern, where):
        raise ValueError(f"{where} is {_short(value)}; expected {_expected(pattern)}")


def _fits(value: object, pattern: Pattern, where: str) -> bool:
    """Whether the value itself fits; its parts raise for themselves."""
    if isinstance(pattern, tuple):
        return any(_fits(value, each, where) for each in pattern)
    if isinstance(pattern, list):
        if isinstance(value, list):
            for number, item in enumerate(value):
                require(item, pattern[0], f"{where}[{number}]")
        return isinstance(value, list)
    if isinstance(pattern, Mapping):
        if isinstance(value, dict):
            _keys(value, pattern, where)
        return isinstance(value, dict)
    if pattern is None or value is None:
        return pattern is value
    if isinstance(value, bool):
        return pattern is bool
    if isinstance(value, int | float):
        fits = pattern is float or (pattern is int and isinstance(value, int))
        return fits and -_LARGEST < value < _LARGEST
    return pattern is str and isinstance(value, str)


def _keys(value: Mapping[str, object], pattern: Mapping[Any, Pattern], where: str) -> None:
    for key in pattern:
        if isinstance(key, str) and not key.endswith("?") and key not in value:
            raise ValueError(f"{where} has no {_short(key)}")
    for key, item in value.items():
        for known in (key, f"{key}?", str):
            if known in pattern:
                require(item, pattern[known], f"{where}.{key}")
                break


def _expected(pattern: Pattern) -> str:
    if isinstance(pattern, tuple):
        return " or ".join(_expected(each) for each in pattern)
    if isinstance(pattern, list):
        return "a list"
    if isinstance(pattern, Mapping):
        return "an object"
    return "null" if pattern is None else _NAMES[pattern]


def _short(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:37]}..."
