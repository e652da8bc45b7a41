"""Time of one step of each method relative to one step of ER.

    python benchmarks/method_step.py [--gpu]

On a CPU: the MLP on images of MNIST's size, batches of 10 from the stream and from the memory, a
full buffer of 500 and, for methods that need task boundaries, the last of five tasks. With `--gpu`:
ResNet-18 on 32 x 32 images, batches of 32, captured in bf16. The methods are measured in turn, so
that other load affects all of them alike. Prints one JSON line of medians.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch

from perdure.catalog import METHODS, accepted, find_learner
from perdure.learners import Learner
from perdure.networks import MLP, ResNet18
from perdure.records import Samples
from perdure.training.engine import Captured, Eager

BUFFER, TASKS, ROUNDS = 500, 5, 9


def prepared(kind: type[Learner], samples: Samples, batch: int, engine: Eager) -> Learner:
    """A learner in its last task with a full memory."""
    device = samples.inputs.device
    network = ResNet18(10) if engine.name == "captured" else MLP(784, 10)
    network = network.to(device)
    if engine.name == "captured":
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    possible = {"buffer_size": BUFFER, "memory_batch": batch, "gss_batch": batch, "tasks": TASKS}
    arguments = {name: value for name, value in possible.items() if name in accepted(kind)}
    learner = kind(network, lr=1e-4, **arguments)  # type: ignore[arg-type]
    for number in range(TASKS):
        mine = (samples.labels // 2 == number).nonzero()[:, 0]
        for rows in torch.split(mine[: 20 * batch], batch):
            engine.step(learner, samples.rows(rows))
        engine.synchronize()
        if learner.needs_boundaries and number < TASKS - 1:
            learner.end_task(samples.rows(mine[:BUFFER]))
    return learner


def timed(step: Callable[[], object], steps: int, wait: Callable[[], None]) -> float:
    wait()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return 1000 * (time.perf_counter() - began) / steps


def main() -> None:
    gpu = "--gpu" in sys.argv
    device, batch, shape = ("cuda", 32, (3, 32, 32)) if gpu else ("cpu", 10, (1, 28, 28))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randint(0, 256, (5000, *shape), dtype=torch.uint8, device=device)
    samples = Samples(inputs, torch.arange(5000, device=device) % 10)
    last = samples.rows((samples.labels // 2 == TASKS - 1).nonzero()[:batch, 0])
    names = [name for name, method in METHODS.items() if not method.joined]
    engines: dict[str, Eager] = {
        name: Captured("cuda", "bf16") if gpu else Eager() for name in names
    }
    learners = {name: prepared(find_learner(name), samples, batch, engines[name]) for name in names}
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(ROUNDS):
        for name in names:
            engine, learner = engines[name], learners[name]
            steps = 5 if turn == 0 or name in ("gem", "gss") else 40
            ms = timed(lambda e=engine, x=learner: e.step(x, last), steps, engine.synchronize)  # type: ignore[misc]
            if turn:
                found[name].append(ms)
    middle = {name: statistics.median(values) for name, values in found.items()}
    times = {name: round(ms / middle["er"], 2) for name, ms in middle.items()}
    print(json.dumps({"device": device, "er_ms": round(middle["er"], 3), "times_er": times}))


if __name__ == "__main__":
    main()
