"""How the time of a step grows: with the buffer, the batch, the classes and the stream.

    python benchmarks/scaling.py [--quick] [buffer] [batch] [classes] [stream] [methods]

Prints one JSON line with the parts named, by default all: for ER and CLS-ER with a small MLP on one
core, milliseconds of processor time per call of `observe`, and how many times as long that is as
for the first setting. The settings take turns, a block of steps each, and the ratio is the median
over the turns, so that a busy machine affects all alike. A sample is 16 floats and a label, 72
bytes; ten million take 720 MB. The part "methods" compares two sizes of the memory for every
method whose step does not use all of it (as GEM's) and that can be filled quickly (unlike iCaRL's).
`--quick` has smaller memories, shorter streams and fewer turns.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch

from perdure import catalog, networks
from perdure.memory import GradientBuffer
from perdure.records import Samples
from perdure.state import as_bytes

METHODS = ("er", "clser")
ALL_METHODS = ("er", "er-ace", "der", "derpp", "fdr", "agem", "gss", "mer", "mean-er", "clser")
PARTS = ("buffer", "batch", "classes", "stream", "methods")
FEATURES, CLASSES, BATCH, MEMORY_BATCH = 16, 10, 10, 32
BUFFER_SIZES = (500, 5_000, 50_000, 500_000, 10_000_000)
TWO_SIZES = (500, 2_000_000)
BATCHES = (1, 4, 16, 64, 256, 1024)
CLASS_COUNTS = (10, 100, 1_000, 10_000)
STREAM_LENGTHS = (1_000, 10_000, 100_000)
TURNS = 101
BLOCK_SECONDS = 0.02
FILL = 100_000
"""Samples that are stored at a time to fill a memory."""


class Stepper:
    """A learner and the batches that it observes.

    Args:
        method: Name of the method.
        buffer_size: Samples that the memory holds.
        batch: New samples per step.
        memory_batch: Samples replayed per step.
        classes: Number of classes.
    """

    def __init__(
        self,
        method: str,
        buffer_size: int = 500,
        batch: int = BATCH,
        memory_batch: int = MEMORY_BATCH,
        classes: int = CLASSES,
    ) -> None:
        torch.manual_seed(0)
        network = networks.mlp((FEATURES,), classes)
        learner = catalog.find_learner(method)
        tasks: dict[str, Any] = {"tasks": 1} if "tasks" in catalog.accepted(learner) else {}
        arguments: dict[str, Any] = {"buffer_size": buffer_size, "memory_batch": memory_batch}
        self.learner = learner(network, lr=0.001, **arguments, **tasks)
        self.inputs = torch.rand(60 * batch, FEATURES)
        self.labels = torch.randint(classes, (60 * batch,))
        self.batch = batch
        self.step(1)
        self.fill(buffer_size, classes)
        self.step(20)
        self.steps = max(1, min(50, round(BLOCK_SECONDS / (self.seconds(5) / 5))))

    def fill(self, buffer_size: int, classes: int) -> None:
        """Fill the memory with random samples, as directly as the method allows."""
        memory: Any = self.learner.memory
        while not memory.full:
            count = buffer_size if self.learner.needs_boundaries else min(FILL, buffer_size)
            samples = Samples(torch.rand(count, FEATURES), torch.randint(classes, (count,)))
            if self.learner.needs_boundaries:
                self.learner.end_task(samples)
            elif memory.stored_logits() is not None:
                memory.add(samples._replace(logits=torch.rand(count, classes)))
            elif isinstance(memory, GradientBuffer):
                memory.add(samples, torch.rand(count), torch.tensor(False))
            else:
                memory.add(samples)

    def step(self, count: int) -> None:
        """Observe batches."""
        for number in range(count):
            rows = slice(number % 60 * self.batch, (number % 60 + 1) * self.batch)
            self.learner.observe(self.inputs[rows], self.labels[rows])

    def seconds(self, count: int) -> float:
        """Return the processor time of this many steps."""
        began = time.process_time()
        self.step(count)
        return time.process_time() - began


def compare(steppers: Mapping[int, Stepper], turns: int) -> dict[str, dict[str, float]]:
    """Let learners take turns; return the time of a step and its ratio to the first's."""
    times: dict[int, list[float]] = {key: [] for key in steppers}
    for _ in range(turns):
        for key, stepper in steppers.items():
            times[key].append(1000 * stepper.seconds(stepper.steps) / stepper.steps)
    first = next(iter(times.values()))
    return {
        str(key): {
            "ms": round(statistics.median(found), 4),
            "fastest_ms": round(min(found), 4),
            "ratio": round(statistics.median(a / b for a, b in zip(found, first, strict=True)), 3),
        }
        for key, found in times.items()
    }


def stream_lengths(method: str, lengths: tuple[int, ...], turns: int) -> dict[str, Any]:
    """Compare learners after streams of several lengths, with the size of their states."""
    steppers = {}
    for length in lengths:
        steppers[length] = Stepper(method)
        steppers[length].step(length - int(steppers[length].learner.steps))
    found: dict[str, Any] = compare(steppers, turns)
    for length, stepper in steppers.items():
        found[str(length)]["state_bytes"] = len(as_bytes(stepper.learner.state_dict(), {}))
    return found


def measure(part: str, method: str, turns: int, quick: bool) -> dict[str, Any]:
    """Compare the settings of one part."""
    if part == "stream":
        return stream_lengths(method, (100, 1_000) if quick else STREAM_LENGTHS, turns)
    if part == "batch":
        return compare({n: Stepper(method, 2000, n, n) for n in BATCHES}, turns)
    if part == "classes":
        return compare({n: Stepper(method, classes=n) for n in CLASS_COUNTS}, turns)
    sizes = TWO_SIZES if part == "methods" else BUFFER_SIZES[:-1] if quick else BUFFER_SIZES
    return compare({size: Stepper(method, size) for size in sizes}, turns)


def main() -> None:
    """Measure the parts."""
    torch.set_num_threads(1)
    quick = "--quick" in sys.argv[1:]
    parts = [word for word in sys.argv[1:] if word != "--quick"] or PARTS
    if unknown := set(parts) - set(PARTS):
        raise SystemExit(f"unknown part {min(unknown)}; choose from {', '.join(PARTS)}")
    turns = 7 if quick else TURNS
    result: dict[str, Any] = {"torch": torch.__version__, "turns": turns}
    for part in parts:
        methods = ALL_METHODS if part == "methods" else METHODS
        result[part] = {method: measure(part, method, turns, quick) for method in methods}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
