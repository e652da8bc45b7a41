"""Sizes in bytes as text."""

from __future__ import annotations

import re

_UNITS = {"": 1, "B": 1, "BYTES": 1, **{f"{p}B": 1000**k for k, p in enumerate("KMGT", 1)}}
_UNITS |= {f"{p}IB": 1024**k for k, p in enumerate("KMGT", 1)}


def parse_bytes(value: int | str) -> int:
    """Return a number of bytes, given as a number or as text such as "64MB" or "1.5 GiB".

    Raises:
        ValueError: If the value is neither, or less than one byte.

    Examples:
        >>> parse_bytes("64MB"), parse_bytes("1 KiB"), parse_bytes(100)
        (64000000, 1024, 100)
    """
    number = 0.0
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", value.strip(), re.ASCII)
        if match and match[2].upper() in _UNITS:
            number = float(match[1]) * _UNITS[match[2].upper()]
    if not 1 <= number < 2**63:
        raise ValueError(
            f"buffer_bytes is {value!r}; expected a number of bytes, or text such as '64MB'"
        )
    return int(number)


def format_bytes(count: int) -> str:
    """Return a number of bytes as text that `parse_bytes` reads back.

    Examples:
        >>> format_bytes(64_000_000), format_bytes(1_234_567), parse_bytes("12 bytes")
        ('64 MB', '1234567 bytes', 12)
    """
    for unit in ("TB", "GB", "MB", "KB"):
        if count % (_UNITS[unit] // 10) == 0 and count >= _UNITS[unit]:
            return f"{count / _UNITS[unit]:g} {unit}"
    return f"{count} bytes"
