"""Time eight learners on a GPU with a CUDA graph each, and with one graph for all.

    python experiments/one_graph.py

Prints milliseconds per step and learner, both ways by turns in one process. The learners and their
step are those of benchmarks/gpu_step.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from gpu_step import (  # type: ignore[import-not-found]
    BATCH,
    build,
    milliseconds,
    random_images,
)

from perdure.learners import CLSER
from perdure.records import Samples
from perdure.training.engine import Captured

LEARNERS, STEPS, TURNS = 8, 250, 2


def learners(samples: Samples) -> list[CLSER]:
    """Return learners with full memories."""
    group = [build(seed, 500) for seed in range(LEARNERS)]
    for learner in group:
        learner.memory.add(samples.slice(0, 500))
    return group


def separate(samples: Samples) -> Callable[[], None]:
    """Return a step of all learners with a graph each."""
    group, engine = learners(samples), Captured("cuda", "bf16")
    order = torch.Generator().manual_seed(0)

    def step() -> None:
        for learner in group:
            rows = torch.randint(len(samples.labels), (BATCH,), generator=order)
            engine.step(learner, samples.rows(rows.cuda(non_blocking=True)))

    return step


def joint(samples: Samples) -> Callable[[], None]:
    """Return a step of all learners in one graph, with a branch for each."""
    group = learners(samples)
    inputs = [samples.slice(i * BATCH, (i + 1) * BATCH).map(torch.clone) for i in range(LEARNERS)]
    main, *branches = (torch.cuda.Stream() for _ in range(LEARNERS + 1))  # type: ignore[no-untyped-call]

    def train(learner: CLSER, batch: Samples) -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            learner.step(batch.inputs, batch.labels)

    with torch.cuda.stream(main):
        for _ in range(3):
            for learner, batch in zip(group, inputs, strict=True):
                train(learner, batch)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    for learner in group:
        learner.optimizer.zero_grad(set_to_none=True)  # the graph allocates its own
        for generator in learner.generators():
            graph.register_generator_state(generator)
    with torch.cuda.graph(graph, stream=main):
        for learner, batch, branch in zip(group, inputs, branches, strict=True):
            branch.wait_stream(main)
            with torch.cuda.stream(branch):
                train(learner, batch)
        for branch in branches:
            main.wait_stream(branch)

    def step() -> None:
        for batch in inputs:
            rows = torch.randint(len(samples.labels), (BATCH,), device="cuda")
            batch.inputs.copy_(samples.inputs[rows])
            batch.labels.copy_(samples.labels[rows])
        graph.replay()

    return step


def main() -> None:
    """Print a line for each turn."""
    torch.backends.cudnn.benchmark = True
    samples = random_images(10_000)
    steps = {"separate_ms": separate(samples), "one_graph_ms": joint(samples)}
    for _ in range(TURNS):
        print(json.dumps({n: milliseconds(s, STEPS, 20) / LEARNERS for n, s in steps.items()}))


if __name__ == "__main__":
    main()
