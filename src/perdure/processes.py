"""Processes that end with the process that started them, and the cores that they may use."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import threading
from multiprocessing.connection import wait
from typing import Any


def cores() -> int:
    """Cores that this process may use; batch systems often grant fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def call_with_parent(module: str, function: str, *args: Any) -> None:
    """Call a function in a child process that exits when its parent does.

    The function is given by name because importing its module may take long: the parent is
    watched before.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    getattr(importlib.import_module(module), function)(*args)
