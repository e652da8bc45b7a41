"""Why averages lag on streams of 100 steps with Adam, and whether a later start of them helps.

    python experiments/short_streams.py lag --data DIR
    python experiments/short_streams.py delay --data DIR [--results experiments/short_streams.jsonl]

DIR is that of benchmarks/own_data.py. Both use the data sets used to choose the defaults only.

`lag` prints the accuracy of CLS-ER's networks next to that of the working network some steps
earlier. `delay` compares CLS-ER with ER when averaging starts after n0 updates: a memory copies the
working network until then, and its n-th update has the weight
max(1 / (1 + window · max(0, n - 1 - n0)), 1 - decay). It appends runs that are missing to the
results and prints a table. docs/log/windows.md has the outcome.
"""

from __future__ import annotations

import argparse
import copy
import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import perdure
from perdure.learners.predictor import Predictor
from perdure.memory import SemanticMemory

HERE = Path(__file__).parent
BENCHMARK = runpy.run_path(str(HERE.parent / "benchmarks" / "own_data.py"))
CASES = [case for case in BENCHMARK["cases"](("fashion-mnist", "texture")) if case.steps == 100]
EARLIER = (0, 2, 4, 6, 10)
VARIANTS: dict[str, tuple[int, dict[str, float]]] = {
    "n0=0": (0, {}),
    "n0=25": (25, {}),
    "n0=50": (50, {}),
    "n0=100": (100, {}),
    "w=0.03": (0, {"stable_window": 0.03, "plastic_window": 0.018}),
    "w=0.02": (0, {"stable_window": 0.02, "plastic_window": 0.012}),
    "w=0.01": (0, {"stable_window": 0.01, "plastic_window": 0.006}),
}


def accuracy(predictor: Predictor, stream: Any) -> float:
    """Mean accuracy over the tests of a stream, in percent."""
    right = [(predictor(part.x).argmax(1) == part.y).float().mean() for part in stream.tests]
    return 100 * float(torch.stack(right).mean())


def lag(data: Path, seeds: range, lr: float) -> None:
    """Print accuracies of CLS-ER on texture, and of its working network some steps before."""
    for case in CASES:
        if case.data != "texture" or case.optimizer != "adam":
            continue
        stream = BENCHMARK["make_stream"](data, case.data, case.kind)
        found: dict[str, list[float]] = {}
        for seed in seeds:
            torch.manual_seed(seed)
            network = BENCHMARK["mlp"](stream.tasks[0].x, stream.classes)
            optimizer = torch.optim.Adam(network.parameters(), lr=lr)
            learner = perdure.CLSER(network, buffer_size=200, optimizer=optimizer, seed=seed)
            batches = list(BENCHMARK["batches"](stream, case.steps, seed))
            networks = {}
            for left, (inputs, labels) in zip(reversed(range(len(batches))), batches, strict=True):
                learner.observe(inputs, labels)
                if left in EARLIER:
                    networks[left] = copy.deepcopy(network)
            found.setdefault("stable", []).append(accuracy(learner.predictors()["stable"], stream))
            for left in EARLIER:
                earlier = Predictor(networks[left], learner.normalise)
                found.setdefault(f"{left} earlier", []).append(accuracy(earlier, stream))
        print(case.kind, f"lr {lr:g}", {k: round(float(np.mean(v)), 1) for k, v in found.items()})


def delay(data: Path, seeds: range, results: Path) -> None:
    """Make the runs that are missing and print the table."""
    n0 = 0

    def weight(self: SemanticMemory, step: Tensor, counted_steps: Tensor | None) -> Tensor:
        assert self.window is not None
        assert self.rate == 1
        averaged = (self.updates - n0).clamp(min=0) * self.window
        self.updates += 1
        return (1 / (1 + averaged)).clamp(min=1 - self.decay)

    published = SemanticMemory._weight
    SemanticMemory._weight = weight  # type: ignore[method-assign]
    rows = BENCHMARK["read"](results)
    done = {_key(row) for row in rows}
    with results.open("a") as file:
        for variant, (start, given) in {"er": (0, {}), **VARIANTS}.items():
            n0 = start
            for case in CASES:
                for seed in seeds:
                    method = "er" if variant == "er" else "clser"
                    row = {**case._asdict(), "method": method, "seed": seed, "variant": variant}
                    if _key(row) not in done:
                        row["accuracy"] = BENCHMARK["train"](data, case, method, seed, given)[
                            "accuracy"
                        ]
                        rows.append(row)
                        file.write(json.dumps(row) + "\n")
                        file.flush()
    SemanticMemory._weight = published  # type: ignore[method-assign]
    er = [row for row in rows if row["variant"] == "er"]
    for variant in VARIANTS:
        own = [row for row in rows if row["variant"] == variant]
        table = BENCHMARK["summary"]([*er, *({**row, "method": "derpp"} for row in er), *own])
        parts = {
            name: [by for c, by in table.items() if c.optimizer == name] for name in ("adam", "sgd")
        }
        difference, is_miss = BENCHMARK["difference"], BENCHMARK["is_miss"]
        gains = {k: np.mean([difference(by, "er")[0] for by in v]) for k, v in parts.items()}
        worst = {r: min(difference(by, r)[0] for by in table.values()) for r in BENCHMARK["RIVALS"]}
        missed = sum(is_miss(by, r) for by in table.values() for r in BENCHMARK["RIVALS"])
        print(
            f"{variant}: {len(table)} cases, over ER {np.mean(list(gains.values())):+.2f}",
            *(f"{name} {gain:+.2f}" for name, gain in gains.items()),
            *(f"worst against {name} {value:+.2f}" for name, value in worst.items()),
            f"{missed} misses",
            sep=", ",
        )


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    names = ("data", "kind", "steps", "network", "optimizer", "method", "seed", "variant")
    return tuple(row[name] for name in names)


def main() -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("lag", "delay"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=HERE / "short_streams.jsonl")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.what == "lag":
        for lr in (1e-3, 3e-3):
            lag(arguments.data, range(arguments.seeds), lr)
    else:
        delay(arguments.data, range(arguments.seeds), arguments.results)


if __name__ == "__main__":
    main()
