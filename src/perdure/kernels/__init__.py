"""Triton kernels for operations that torch computes in several passes over memory.

Modules here are imported only on a GPU, since Triton comes only with torch's GPU builds. Each
operation also has a plain torch implementation, next to its use, for other devices.
"""

from functools import cache
from importlib.util import find_spec


@cache
def has_triton() -> bool:
    """Return whether the kernels can be imported."""
    return find_spec("triton") is not None
