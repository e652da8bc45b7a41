"""Measure how the stable memory's accuracy fluctuates at the end of a run, and why.

The semantic memories use BatchNorm statistics of their last replay batches (with momentum 0.1,
about ten batches of 32). For a finished run of CLS-ER with its networks,

    python experiments/swings.py RUN --data DIR --device cuda

prints one JSON line. `draws`: the same weights with statistics from 50 other replay batches.
`steps`: training continues on the last task, and the memory is evaluated every 50 steps with its
own statistics (`running`) and with those of 100 replay batches with equal weights (`settled`).
Accuracies are means over tasks, and per class. The stored results are in swings.jsonl; the networks
of these runs were not kept.
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
from perdure.experiment.build import build_engine, build_stream, load_run, read_dataset
from perdure.learners import CLSER, Predictor
from perdure.results import read_run


def main() -> None:
    """Measure one run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--data")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--looks", type=int, default=8)
    given = parser.parse_args()

    try:
        run = read_run(given.run)
        learner = load_run(given.run, device=given.device)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    config = replace(run.config, device=given.device, data_root=given.data)
    if not isinstance(learner, CLSER):
        raise SystemExit(f"{given.run} is a run of {config.method}; expected clser")
    torch.manual_seed(0)  # for the batches of further steps
    stream = build_stream(config, read_dataset(config), run.seed)
    engine = build_engine(config)
    stable = learner.stable.network

    def accuracy_of(network: nn.Module) -> dict[str, object]:
        with engine.autocast():
            found = accuracies(Predictor(network, learner.normalise), stream.tests)
        mean = sum(found.class_il) / len(found.class_il)
        return {"mean": round(mean, 2), "per_class": found.per_class}

    @torch.no_grad()
    def after_replay(batches: int, momentum: float | None) -> nn.Module:
        """A copy of the stable memory with the statistics of other replay batches."""
        network = copy.deepcopy(stable)
        for part in network.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.momentum = momentum
                if momentum is None:
                    part.reset_running_stats()
        with engine.autocast():
            for _ in range(batches):
                past = learner.memory.draw(learner.memory_batch)
                assert past is not None
                network(learner.prepare(past)[0])
        return network

    as_it_ended = accuracy_of(stable)
    settled = accuracy_of(after_replay(100, None))
    draws = [accuracy_of(after_replay(50, 0.1)) for _ in range(given.draws)]
    samples = stream.tasks[-1].samples().to(given.device)
    batch, steps = config.batch, []
    for _ in range(given.looks):
        for _ in range(50):
            rows = torch.randint(len(samples.labels), (batch,), device=given.device)
            engine.step(learner, samples.rows(rows))
        engine.synchronize()
        steps.append(
            {"running": accuracy_of(stable), "settled": accuracy_of(after_replay(100, None))}
        )
    line = {"run": str(given.run), "as_it_ended": as_it_ended, "settled": settled}
    print(json.dumps({**line, "draws": draws, "steps": steps}))


if __name__ == "__main__":
    main()
