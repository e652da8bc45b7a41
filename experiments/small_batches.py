"""Accuracy of CLS-ER on a short stream against the size of its batches.

    python experiments/small_batches.py

One pass over scikit-learn's digits in four tasks of new classes, an MLP, a buffer of 200, plain SGD
and library defaults; five seeds. Prints one JSON line for each batch size and setting: accuracy in
percent of the default predictor and of the working network on all classes, and on the classes of
the last task.
"""

from __future__ import annotations

import json
import statistics
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from perdure import CLSER, ER, SGD, Learner

TASKS = ((0, 1, 2), (3, 4), (5, 6, 7), (8, 9))
BATCHES = (1, 2, 4, 8, 16, 32)
SEEDS = 5
SETTINGS: dict[str, tuple[type[Learner], dict[str, Any]]] = {
    "SGD": (SGD, {}),
    "ER": (ER, {"buffer_size": 200}),
    "CLS-ER": (CLSER, {"buffer_size": 200}),
    "CLS-ER, windows 0.02 and 0.01": (
        CLSER,
        {"buffer_size": 200, "stable_window": 0.02, "plastic_window": 0.01},
    ),
    "CLS-ER, windows 0.01 and 0.006": (
        CLSER,
        {"buffer_size": 200, "stable_window": 0.01, "plastic_window": 0.006},
    ),
}


def percent(right: Tensor) -> float:
    """Share of true values."""
    return 100 * float(right.float().mean())


def run(kind: type[Learner], given: dict[str, Any], batch: int, seed: int) -> list[float]:
    """Accuracies after one run, of both predictors: on all classes, on those of the last task."""
    draws = torch.Generator().manual_seed(seed)
    data = load_digits()
    inputs = torch.tensor(data.data / 16, dtype=torch.float32)
    labels = torch.tensor(data.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=draws)
    train, test = order[: len(order) * 4 // 5], order[len(order) * 4 // 5 :]
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    learner = kind(network, seed=seed, **given)
    for classes in TASKS:
        rows = train[torch.isin(labels[train], torch.tensor(classes))]
        for chosen in torch.split(rows, batch):
            learner.observe(inputs[chosen], labels[chosen])
    predictors = [*learner.predictors().values()]
    last = torch.isin(labels[test], torch.tensor(TASKS[-1]))
    found = []
    for predict in (predictors[0], predictors[-1]):
        right = predict(inputs[test]).argmax(1) == labels[test]
        found += [percent(right), percent(right[last])]
    return found


def main() -> None:
    """Print a line for each batch size and setting."""
    torch.set_num_threads(1)
    for batch in BATCHES:
        for name, (kind, given) in SETTINGS.items():
            runs = [run(kind, given, batch, seed) for seed in range(SEEDS)]
            columns = ("accuracy", "last_task", "working", "working_last_task")
            row: dict[str, Any] = {"batch": batch, "setting": name}
            for column, values in zip(columns, zip(*runs, strict=True), strict=True):
                row[column] = round(statistics.mean(values), 1)
            row["std"] = round(statistics.stdev(values[0] for values in runs), 1)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
