"""Time of many small learners side by side on a GPU: CLS-ER and the MLP on a MNIST stream.

    python benchmarks/gpu_small.py --data DIR [--stream p-mnist] [--learners 40] [--steps 1200]

Prints one JSON line: seconds until the untrained networks are evaluated and until step 100,
milliseconds per step and learner in the second half of the steps, and seconds of the last
evaluation.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from perdure.experiment.build import build_engine, build_run, read_dataset
from perdure.experiment.resolve import resolve
from perdure.training.callbacks import Callback
from perdure.training.loop import Run, train


class Clock(Callback):
    """Notes when the last learner of a group has taken a step or was evaluated."""

    def __init__(self, last: Run, steps: set[int]) -> None:
        self.last, self.steps = last, steps
        self.began = time.perf_counter()
        self.seconds: dict[int, float] = {}
        self.evaluated: list[float] = []

    def _now(self) -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - self.began

    def on_step(self, run: Run) -> None:
        """Note the time of some steps."""
        if run is self.last and run.step in self.steps:
            self.seconds[run.step] = self._now()

    def on_task(self, run: Run, task: int) -> None:
        """Note the time of evaluations."""
        if run is self.last:
            self.evaluated.append(self._now())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--stream", default="s-mnist")
    parser.add_argument("--learners", type=int, default=40)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    steps = options.steps
    config = resolve(
        *(options.stream, "clser", 500),
        data_root=options.data,
        device=options.device,
        max_steps=steps,
    )
    dataset, engine = read_dataset(config), build_engine(config)
    runs = [build_run(config, dataset, seed) for seed in range(options.learners)]
    clock = Clock(runs[-1], {100, steps // 2, steps})
    train(runs, callbacks=[clock], max_steps=steps, engine=engine)
    training = clock.seconds[steps] - clock.seconds[steps // 2]
    found = {
        "stream": options.stream,
        "learners": options.learners,
        "evaluated_s": round(clock.evaluated[0], 2),
        "step_100_s": round(clock.seconds[100], 2),
        "ms_per_learner_step": round(1000 * training / (steps - steps // 2) / len(runs), 4),
        "last_evaluation_s": round(clock.evaluated[-1] - clock.seconds[steps], 2),
        "fallbacks": engine.fallbacks()[:1],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
