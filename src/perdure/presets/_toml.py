"""The TOML files of this package."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any


@cache
def read(name: str) -> dict[str, Any]:
    """The content of `<name>.toml`; cached, so callers must not modify it."""
    file = resources.files("perdure.presets").joinpath(f"{name}.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))
