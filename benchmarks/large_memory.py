"""A memory in a file: time of a step and resident memory with images of 224 x 224 pixels.

    python benchmarks/large_memory.py DIR [SIZE]

Prints one JSON line. ER with a tiny network has a memory of SIZE (10GB by default) in a temporary
file in the folder, and takes turns with one that holds 500 images in main memory; times are wall
clock, medians over blocks of 10 steps. "cold" is the time to draw 32 images that the system has to
read from the disk, "warm" of those that it has in memory. Linux only.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from perdure.learners import ER
from perdure.memory import storage
from perdure.records import Samples

SHAPE, BATCH, DRAWN, BLOCKS, FILL = (3, 224, 224), 10, 32, 30, 500
MADV_PAGEOUT = 21


def build(**arguments: str | int | Path) -> ER:
    """Return a learner whose memory is full."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 7, stride=8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )
    learner = ER(network, lr=0.01, memory_batch=DRAWN, **arguments)  # type: ignore[arg-type]
    samples = Samples(*images(FILL))
    learner.observe(samples.inputs[:BATCH], samples.labels[:BATCH])
    while not learner.memory.full:
        learner.memory.add(samples)
    return learner


def images(count: int) -> tuple[Tensor, Tensor]:
    """Return random images and labels."""
    return torch.randint(256, (count, *SHAPE), dtype=torch.uint8), torch.randint(10, (count,))


def milliseconds(function: Callable[[], object], repeats: int = 1) -> float:
    """Return the time of a call."""
    began = time.perf_counter()
    for _ in range(repeats):
        function()
    return 1000 * (time.perf_counter() - began) / repeats


def resident() -> dict[str, int]:
    """Return the resident megabytes of this process: its own, and pages of files."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith("Rss")}
    return {"own": found["RssAnon"] // 1000, "files": found["RssFile"] // 1000}


def drop_pages(memory: Tensor) -> None:
    """Let the system forget the pages of a tensor in a file."""
    os.sync()
    start = -(-memory.data_ptr() // 4096) * 4096
    storage._advise(start, memory.nbytes // 4096 * 4096 - 4096, MADV_PAGEOUT)


def main() -> None:
    """Measure."""
    torch.set_num_threads(1)
    folder, size = sys.argv[1], (sys.argv[2:] or ["10GB"])[0]
    empty = resident()
    began = time.perf_counter()
    learner = build(buffer_bytes=size, memory_folder=folder)
    filled = time.perf_counter() - began
    full = resident()
    small = build(buffer_size=500)
    batch = images(BATCH)
    times: dict[str, list[float]] = {"file": [], "main memory, 500 images": []}
    for _ in range(BLOCKS):
        for name, each in zip(times, (learner, small), strict=True):
            times[name].append(milliseconds(lambda each=each: each.observe(*batch), 10))  # type: ignore[misc]
    stored = learner.memory.contents()
    assert stored is not None
    drop_pages(stored.inputs)
    dropped = resident()
    cold = [milliseconds(lambda: learner.memory.draw(DRAWN)) for _ in range(50)]
    state = learner.memory.selection.get_state()
    warm = []
    for _ in range(2):  # the same rows twice
        learner.memory.selection.set_state(state)
        warm = [milliseconds(lambda: learner.memory.draw(DRAWN)) for _ in range(50)]
    result = {
        "images": learner.memory.filled,
        "fill_seconds": round(filled, 1),
        "step_ms": {name: round(statistics.median(found), 2) for name, found in times.items()},
        "draw_ms": {
            "cold": round(statistics.median(cold), 2),
            "warm": round(statistics.median(warm), 2),
        },
        "resident_mb": {"empty": empty, "full": full, "dropped": dropped},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
