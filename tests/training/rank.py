"""The program of one rank in a test: started by torchrun with an output folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from perdure import ER, Learner
from perdure.config import RunConfig
from perdure.experiment.build import build_run, read_dataset
from perdure.experiment.resolve import resolve
from perdure.state import write_file
from perdure.training import Run, train
from perdure.training.distributed import divide

from . import toy

METHODS = ("clser", "er", "derpp", "gem", "gss", "mer", "icarl", "joint")
"""At least one for each way to compute a gradient, and for each kind of memory."""
OTHER_METHODS = ("sgd", "mean-er", "der", "er-ace", "fdr", "agem")
STEPS = 23
"""A little more than two tasks, so that methods with task boundaries see two."""
SEED = 1
"""A seed with which no unit is so close to zero that rounding decides its ReLU."""
UNEVEN = (1, 3, 5)
"""Batch sizes that two ranks cannot divide evenly, or at all."""


def config(method: str, ranks: int) -> RunConfig:
    given: dict[str, float] = {"batch": 80, "epochs": 1}
    if method not in ("sgd", "joint", "gem", "icarl"):
        given["memory_batch"] = 20
    if method == "mer":
        given |= {"beta": 0.5, "gamma": 0.3, "inner_steps": 2}
    return resolve("s-mnist", method, dataset="mnist5k", given=given, max_steps=STEPS, ranks=ranks)


def learn(method: str, ranks: int) -> tuple[Learner, dict[str, Any]]:
    """A trained learner and the result of its run."""
    chosen = config(method, ranks)
    run = build_run(chosen, read_dataset(chosen), SEED)
    train([run], max_steps=chosen.max_steps)
    return run.learner, run.record.result()


def uneven(batch: int, *, divided: bool) -> Learner:
    """A learner trained on batches of an odd size."""
    linear = torch.nn.Linear(16, 8)
    torch.nn.init.zeros_(linear.weight)
    torch.nn.init.zeros_(linear.bias)
    learner = ER(torch.nn.Sequential(torch.nn.Flatten(), linear), buffer_size=7, memory_batch=4)
    if divided:
        divide(learner)
    train([Run(learner, toy.split(), batch)])
    return learner


def dropped() -> dict[str, torch.Tensor]:
    """Batches of ones after dropout, and a draw from the global generator between them."""
    learner = toy.learner("er")
    learner.network = torch.nn.Sequential(torch.nn.Dropout(0.5))
    divide(learner)
    ones = torch.ones(9, 40)
    with learner.randomness():
        state = torch.get_rng_state()
        found = {"kept": learner.network(ones), "drawn": torch.rand(3)}
        found["next"] = learner.network(ones)
        torch.set_rng_state(state)
        return {**found, "repeated": learner.network(ones)}


def main(folder: Path, methods: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for method in methods:
        learner, result = learn(method, dist.get_world_size())
        write_file(folder / f"{method}-{rank}.safetensors", learner.state_dict(), {})
        (folder / f"{method}-{rank}.json").write_text(json.dumps(result))
    for batch in UNEVEN:
        learner = uneven(batch, divided=True)
        write_file(folder / f"uneven-{batch}-{rank}.safetensors", learner.state_dict(), {})
    write_file(folder / f"dropped-{rank}.safetensors", dropped(), {})
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
