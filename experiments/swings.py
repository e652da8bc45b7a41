"""How far the stable memory's accuracy swings at the end of a run, and whether BatchNorm makes it.

The semantic memories answer with BatchNorm statistics of their own last replay batches (momentum
0.1: some ten batches of 32). For a finished run of CLS-ER that was kept with its networks:

    python experiments/swings.py RUN --data DIR --device cuda

prints one JSON line. `draws`: the same weights, statistics from 50 other replay batches each time.
`steps`: training goes on with the last task, and every 50 steps the memory is asked with its own
statistics (`running`) and with those of 100 replay batches, equally weighted (`settled`).
Accuracies are the mean over tasks and, beside it, those of each class. The lines behind
docs/results.md are in swings.jsonl; the networks of these runs were not kept.
"""

from __future__ import annotations

import argparse
import copy
import json
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from perdure.evaluation import accuracies
from perdure.learners import CLSER, Predictor
from perdure.results import RunFolder
from perdure.training.build import (
    build_engine,
    load_run,
    read_dataset,
    settings_of,
    stream_of_run,
)


def main() -> None:
    """Look at one run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--data")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--looks", type=int, default=8)
    given = parser.parse_args()

    try:
        config = RunFolder(given.run).read("config.json")
        learner = load_run(given.run, device=given.device)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    its = replace(settings_of(config), device=given.device, data_root=given.data)
    if not isinstance(learner, CLSER):
        raise SystemExit(f"{given.run} is a run of {its.method}; expected clser")
    torch.manual_seed(0)  # of the batches that training goes on with
    stream = stream_of_run(its, read_dataset(its), int(config["seed"]))
    engine = build_engine(its)
    stable = learner.stable.network

    def accuracy_of(network: nn.Module) -> dict[str, object]:
        with engine.arithmetic():
            found = accuracies(Predictor(network, learner.normalise), stream.tests)
        mean = sum(found.class_il) / len(found.class_il)
        return {"mean": round(mean, 2), "per_class": found.per_class}

    @torch.no_grad()
    def after_replay(batches: int, momentum: float | None) -> nn.Module:
        """A copy of the stable memory whose statistics are those of other replay batches."""
        network = copy.deepcopy(stable)
        for part in network.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.momentum = momentum
                if momentum is None:
                    part.reset_running_stats()
        with engine.arithmetic():
            for _ in range(batches):
                past = learner.memory.draw(learner.memory_batch)
                assert past is not None
                network(learner.prepare(past)[0])
        return network

    as_it_ended = accuracy_of(stable)
    settled = accuracy_of(after_replay(100, None))
    draws = [accuracy_of(after_replay(50, 0.1)) for _ in range(given.draws)]
    samples = stream.tasks[-1].samples().to(given.device)
    batch, steps = int(its.values["batch"]), []
    for _ in range(given.looks):
        for _ in range(50):
            rows = torch.randint(len(samples.labels), (batch,), device=given.device)
            engine.step(learner, samples.rows(rows))
        engine.wait()
        steps.append(
            {"running": accuracy_of(stable), "settled": accuracy_of(after_replay(100, None))}
        )
    line = {"run": str(given.run), "as_it_ended": as_it_ended, "settled": settled}
    print(json.dumps({**line, "draws": draws, "steps": steps}))


if __name__ == "__main__":
    main()
