"""JSON files, and manifests: those that vouch for themselves and for files beside them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perdure.state import write_whole

FORMAT = 1
"""Of manifests, and so of what they list."""


class DamagedError(ValueError):
    """A file is not as it was written; the message names it."""


def as_json(content: object) -> bytes:
    """Indented JSON in the order given."""
    return f"{json.dumps(content, indent=1, allow_nan=False)}\n".encode()


def write_json(path: Path, content: object) -> None:
    """Write JSON whole or not at all."""
    write_whole(path, as_json(content))


def digest(content: bytes) -> dict[str, Any]:
    """What a manifest says of a file.

    >>> digest(b"abc")["bytes"]
    3
    """
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def write_manifest(path: Path, content: Mapping[str, Any]) -> None:
    """JSON that `read_manifest` can tell from any altered copy of it."""
    whole = {"format": FORMAT, **content}
    write_json(path, {**whole, "seal": _seal(whole)})


def read_manifest(path: Path) -> dict[str, Any]:
    """The content of a manifest. DamagedError if it is not as it was written.

    ValueError if it is, but by a version that writes other files than this one reads.
    """
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict) or content.pop("seal", None) != _seal(content):
            raise ValueError("its own checksum does not fit")
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: {error}") from None
    if content.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {content.get('format')}; this version reads format {FORMAT}"
        )
    return content


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
