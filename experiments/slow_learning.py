"""Accuracy of CLS-ER while its network still improves from step to step.

    python experiments/slow_learning.py

Three streams: scikit-learn's digits in four tasks of new classes, the same one class after another,
with one to sixteen passes over each task, and six clusters of log-normal features, one after
another, in a single pass. Batches of 32, an MLP, a buffer of 200 and library defaults; five seeds.
Prints one JSON line for each stream, optimizer and number of steps: the accuracy in percent of ER,
of CLS-ER and of the working network of CLS-ER, and the difference between the first two with its
standard error. The output is in slow_learning.jsonl, and docs/methods/clser.md discusses it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from perdure import CLSER, ER, Learner
from perdure.results.verdict import Spread

PASSES = (1, 2, 4, 8, 16)
SEEDS = 5
BATCH = 32
Create = Callable[[Iterable[nn.Parameter]], Optimizer]
OPTIMIZERS: dict[str, Create] = {
    "SGD, 0.1": lambda p: SGD(p, lr=0.1),
    "Adam, 0.003": lambda p: Adam(p, lr=0.003),
    "Adam, 0.001": lambda p: Adam(p, lr=0.001),
    "Adam, 0.0003": lambda p: Adam(p, lr=0.0003),
    "SGD, 0.01": lambda p: SGD(p, lr=0.01),
}


class Data(NamedTuple):
    """Samples, the rows of the training set in the order of the stream, and those of the test."""

    inputs: Tensor
    labels: Tensor
    train: list[Tensor]
    """One tensor of rows for each pass over a task."""
    test: Tensor


def digits(tasks: Iterable[tuple[int, ...]], passes: int, draws: torch.Generator) -> Data:
    """Scikit-learn's digits, a fifth of them for the test."""
    data = load_digits()
    inputs = torch.tensor(data.data / 16, dtype=torch.float32)
    labels = torch.tensor(data.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=draws)
    train, test = order[: len(order) * 4 // 5], order[len(order) * 4 // 5 :]
    rows = [train[torch.isin(labels[train], torch.tensor(classes))] for classes in tasks]
    shuffled = [
        row[torch.randperm(len(row), generator=draws)] for row in rows for _ in range(passes)
    ]
    return Data(inputs, labels, shuffled, test)


def clusters(passes: int, draws: torch.Generator) -> Data:
    """Six classes of 20 log-normal features; 48 steps for each of the passes."""
    train, test = 48 * BATCH * passes, 800
    labels = torch.randint(6, (train + test,), generator=draws)
    centres = torch.randn(6, 20, generator=draws)
    noise = torch.randn(len(labels), 20, generator=draws)
    inputs = (0.25 * centres[labels] + 0.35 * noise).exp()
    inputs = (inputs - inputs.mean(0)) / inputs.std(0)
    rows = [(labels[:train] == label).nonzero().flatten() for label in range(6)]
    return Data(inputs, labels, rows, torch.arange(train, train + test))


FOUR = ((0, 1, 2), (3, 4), (5, 6, 7), (8, 9))
STREAMS: dict[str, Callable[[int, torch.Generator], Data]] = {
    "digits, four tasks": lambda passes, draws: digits(FOUR, passes, draws),
    "digits, by class": lambda passes, draws: digits(((d,) for d in range(10)), passes, draws),
    "clusters, by class": clusters,
}


def run(
    method: Callable[..., Learner], stream: str, create: Create, passes: int, seed: int
) -> tuple[int, list[float]]:
    """The number of steps, and the accuracy of the default predictor and the working network."""
    data = STREAMS[stream](passes, torch.Generator().manual_seed(seed))
    torch.manual_seed(seed)
    outputs = int(data.labels.max()) + 1
    network = nn.Sequential(nn.Linear(data.inputs.shape[1], 64), nn.ReLU(), nn.Linear(64, outputs))
    optimizer = create(network.parameters())
    learner = method(network, optimizer=optimizer, buffer_size=200, seed=seed)
    steps = 0
    for rows in data.train:
        for chosen in torch.split(rows, BATCH):
            learner.observe(data.inputs[chosen], data.labels[chosen])
            steps += 1
    predictors = [*learner.predictors().values()]
    inputs, labels = data.inputs[data.test], data.labels[data.test]
    right = [predict(inputs).argmax(1) == labels for predict in (predictors[0], predictors[-1])]
    return steps, [100 * float(found.float().mean()) for found in right]


def main() -> None:
    """Print a line for each stream, optimizer and length."""
    torch.set_num_threads(1)
    for stream, (name, create), passes in itertools.product(STREAMS, OPTIMIZERS.items(), PASSES):
        er = [run(ER, stream, create, passes, seed)[1][0] for seed in range(SEEDS)]
        ours = [run(CLSER, stream, create, passes, seed) for seed in range(SEEDS)]
        steps = max(steps for steps, _ in ours)
        stable, working = zip(*(found for _, found in ours), strict=True)
        over = Spread.over([a - b for a, b in zip(stable, er, strict=True)])
        found = {"ER": er, "CLS-ER": stable, "working": working}
        row = {key: round(Spread.over(values).mean, 1) for key, values in found.items()}
        row |= {"over_er": round(over.mean, 1), "error": round(over.error or 0.0, 1)}
        print(json.dumps({"stream": stream, "optimizer": name, "steps": steps, **row}), flush=True)


if __name__ == "__main__":
    main()
