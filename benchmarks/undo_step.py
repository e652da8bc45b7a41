"""Cost of undoing failed steps: `observe` with and without the copies that it needs.

    python benchmarks/undo_step.py [METHOD ...]

Prints one JSON line per method, network and optimizer: microseconds of processor time per call of
`observe`, and what undoing adds. Both variants take turns, a few steps each, on the same learner,
so that other programs on the machine slow both down; the figures are medians over all steps and,
for the added share, the quartiles of the differences between neighbouring steps.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from perdure import networks
from perdure.catalog import METHODS, accepted
from perdure.learners import Learner
from perdure.records import Samples
from perdure.undo import Snapshot

SECONDS = 6.0
"""Time for each line."""


def build_network(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    shape = (1, 28, 28) if name == "mlp" else (3, 32, 32)
    torch.manual_seed(0)
    return getattr(networks, name)(shape, 10), shape


@contextmanager
def without_copies() -> Iterator[None]:
    """Let failed steps be final, as if `observe` made no copies."""
    take, restore, commit = Snapshot.take, Snapshot.restore, Snapshot.commit
    for name in ("take", "restore", "commit"):
        setattr(Snapshot, name, lambda self, **_: None)
    try:
        yield
    finally:
        Snapshot.take, Snapshot.restore, Snapshot.commit = take, restore, commit  # type: ignore[method-assign]


def measure(method: str, network: str, optimizer: str) -> dict[str, Any]:
    module, shape = build_network(network)
    cls = METHODS[method].learner
    possible = {"buffer_size": 500, "tasks": 5}
    arguments: dict[str, Any] = {n: v for n, v in possible.items() if n in accepted(cls)}
    if optimizer == "adam":
        arguments["optimizer"] = torch.optim.Adam(module.parameters(), lr=1e-4)
    learner: Learner = cls(module, **arguments)
    inputs = torch.randint(256, (600, *shape), dtype=torch.uint8)
    labels = torch.randint(10, (600,))
    learner.observe(inputs[:10], labels[:10])
    if learner.needs_boundaries:
        learner.end_task(Samples(inputs, labels))

    def seconds(step: int) -> float:
        start = step % 60 * 10
        began = time.thread_time()
        learner.observe(inputs[start : start + 10], labels[start : start + 10])
        return time.thread_time() - began

    for step in range(100):
        seconds(step)
    without: list[float] = []
    times: list[float] = []
    end, step = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        step += 1
        with without_copies():
            seconds(step)  # the first step of a turn finds other things in the caches
            without.append(seconds(step))
        seconds(step)
        times.append(seconds(step))
    usual = statistics.median(without)
    added = statistics.quantiles([a - b for a, b in zip(times, without, strict=True)])
    return {
        "method": method,
        "network": network,
        "optimizer": optimizer,
        "observe_us": round(1e6 * statistics.median(times)),
        "without_copies_us": round(1e6 * usual),
        "added_us": [round(1e6 * value, 1) for value in added],
        "added_percent": round(100 * added[1] / usual, 1),
        "steps": len(times),
    }


def main() -> None:
    torch.set_num_threads(1)
    methods = sys.argv[1:] or [name for name in METHODS if name != "joint"]
    for method in methods:
        for network, optimizer in (("mlp", "sgd"), ("mlp", "adam"), ("cnn", "sgd")):
            print(json.dumps(measure(method, network, optimizer)), flush=True)


if __name__ == "__main__":
    main()
