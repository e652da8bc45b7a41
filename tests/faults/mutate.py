"""Changes to files: to their bytes, and to the values of the JSON or TOML in them."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from random import Random
from typing import Any

ODD: list[Any] = [
    *(None, True, 0, -1, 1, 2**31, 2**63, -(2**63), 10**30, 10**400, 0.5, -0.0, 1e39, 1e308),
    *(math.inf, -math.inf, math.nan, "", "x", "a:b", "\ud800", "é\x00\n```", "../../x", "NaN"),
    *([], {}, [[]], [None], {"": 1}, [1, "x"], "9" * 5000, ["x"] * 50),
]
TOKENS = [
    b"",
    b"\x00",
    b"\xff\xff\xff\xff",
    b"1e999",
    b"[" * 3000,
    b'"\\ud800"',
    b"\n",
    b"-",
    b"inf",
]


def bytes_of(content: bytes, random: Random) -> bytes:
    """Content with a few bytes flipped, removed, repeated or replaced."""
    changed = bytearray(content)
    for _ in range(random.choice([1, 1, 2, 5])):
        start = random.randrange(len(changed) + 1)
        end = min(len(changed), start + random.choice([1, 2, 8, 100]))
        kind = random.randrange(5)
        if kind == 0 and start < len(changed):
            changed[start] ^= 1 << random.randrange(8)
        elif kind == 1:
            del changed[start:end]
        elif kind == 2:
            changed[start:start] = changed[start:end] * random.choice([1, 3])
        elif kind == 3:
            changed[start:end] = random.choice(TOKENS)
        else:
            del changed[start:]
    return bytes(changed)


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a structure with each of its keys."""
    entries = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in entries:
        yield node, key
        if isinstance(value, dict | list):
            yield from places(value)


def structure(content: Any, random: Random) -> Any:
    """A structure with one or two values replaced, removed, renamed or added."""
    changed = copy.deepcopy(content)
    for _ in range(random.choice([1, 1, 2])):
        found = list(places(changed))
        if not found:
            return random.choice(ODD)
        node, key = random.choice(found)
        kind = random.randrange(8)
        if kind == 0:
            del node[key]
        elif kind == 1 and isinstance(node, dict):
            node[random.choice(["x", "\ud800", "é", "__class__", "lr"])] = node.pop(key)
        elif kind == 2 and isinstance(node, list):
            node.append(copy.deepcopy(node[key]))
        elif kind == 3:
            node[key] = copy.deepcopy(random.choice(found))[0]
        else:
            node[key] = copy.deepcopy(random.choice(ODD))
    return changed


def json_file(content: bytes, random: Random) -> bytes:
    """A JSON file, or one with a value per line, with a change to its values or its bytes."""
    if not random.randrange(4):
        return bytes_of(content, random)
    lines = content.splitlines() if content.count(b"\n{") else [content]
    number = random.randrange(len(lines))
    lines[number] = json.dumps(structure(json.loads(lines[number]), random)).encode()
    return b"\n".join([*lines, b""])
