"""The processes of the command: their cores, their start and their end."""

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


def leave_out_compiler() -> None:
    """Keep optimizers from importing torch's compiler, a second of computing in every process.

    For processes of the command, which compile no optimizer; not for those of users.
    """
    from torch.optim import Optimizer

    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        exempt_from_compiler(getattr(Optimizer, name))


def exempt_from_compiler(function: Any) -> None:
    """Let a function that the compiler must leave alone be called without importing the compiler.

    On the first call, torch imports it to make a version of the function that is left alone.
    """
    original = getattr(function, "__wrapped__", None)
    if original is not None and not hasattr(original, "__dynamo_disable"):
        setattr(original, "__dynamo_disable", original)  # where torch keeps that version
