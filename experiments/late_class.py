"""How long CLS-ER takes to recognise a class that first appears late in a stream.

    python experiments/late_class.py

Three streams: the shipped digits (mnist5k), where nines are missing at first, with SGD at 0.1 and
with Adam at 0.001, and ten Gaussian clusters in 20 dimensions, of which the last one is missing,
with SGD at 0.1. The new class first appears after 300, 1,000 or 3,000 steps and is then a quarter
of every batch; the remaining samples are of the other nine classes throughout. Batches of 32,
samples drawn at random, an MLP, a buffer of 500; three seeds. The settings are ER, CLS-ER with
library defaults (windows of 0.05 and 0.03), and CLS-ER with windows of 0.01 and 0.006.

Writes one JSON line for each stream, setting and number of steps before and after the class
appeared to late_class.jsonl, or to the file given by --results: recall of the new class and
accuracy on all classes in percent, of the default predictor and of the working network, with the
standard deviations of the default predictor. Prints a Markdown table of the means (recall /
accuracy). Takes about two minutes on one core. docs/methods/clser.md discusses the results.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from perdure import CLSER, ER, Learner
from perdure.data import load
from perdure.results.verdict import Spread

HERE = Path(__file__).parent
BEFORE = (300, 1000, 3000)
"""Steps before the new class appears."""
AFTER = (25, 50, 100, 200, 400)
"""Steps with the new class after which the networks are tested."""
SEEDS = 3
BATCH = 32
NEW = BATCH // 4
"""Samples of the new class in a batch."""
LATE = 9
"""The new class, which is the last one."""
Create = Callable[[Iterable[nn.Parameter]], Optimizer]


class Data(NamedTuple):
    """Samples of ten classes."""

    inputs: Tensor
    labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor


class Setting(NamedTuple):
    """A method with its arguments."""

    method: Callable[..., Learner]
    arguments: dict[str, float]


class Found(NamedTuple):
    """Results in percent of a predictor."""

    recall: float
    """Of the new class."""
    accuracy: float
    """On all classes."""


SETTINGS = {
    "ER": Setting(ER, {}),
    "CLS-ER": Setting(CLSER, {}),
    "CLS-ER, windows 0.01 and 0.006": Setting(
        CLSER, {"stable_window": 0.01, "plastic_window": 0.006}
    ),
}


def digits(draws: torch.Generator) -> Data:
    """The shipped digits, 4,000 for training and 1,000 for the test; the same for all seeds."""
    data = load("mnist5k")
    train, test = (part.inputs.flatten(1) / 255 for part in (data.train, data.test))
    return Data(train, data.train.labels.long(), test, data.test.labels.long())


def clusters(draws: torch.Generator) -> Data:
    """Overlapping Gaussian clusters, the same number of samples and classes as the digits."""
    centres = torch.randn(10, 20, generator=draws)
    labels = torch.arange(10).repeat(500)
    inputs = centres[labels] + 1.2 * torch.randn(len(labels), 20, generator=draws)
    return Data(inputs[:4000], labels[:4000], inputs[4000:], labels[4000:])


STREAMS: dict[str, tuple[Callable[[torch.Generator], Data], Create]] = {
    "digits, SGD, 0.1": (digits, lambda p: SGD(p, lr=0.1)),
    "digits, Adam, 0.001": (digits, lambda p: Adam(p, lr=0.001)),
    "clusters, SGD, 0.1": (clusters, lambda p: SGD(p, lr=0.1)),
}


def batches(data: Data, before: int, draws: torch.Generator) -> Iterator[Tensor]:
    """Rows of each batch of a stream."""
    old, new = ((data.labels == LATE) == late for late in (False, True))
    for step in range(before + max(AFTER)):
        parts = ((old, BATCH),) if step < before else ((old, BATCH - NEW), (new, NEW))
        yield torch.cat([draw(rows.nonzero().flatten(), size, draws) for rows, size in parts])


def draw(rows: Tensor, size: int, draws: torch.Generator) -> Tensor:
    """Some rows at random, with replacement."""
    return rows[torch.randint(len(rows), (size,), generator=draws)]


def evaluate(learner: Learner, data: Data) -> tuple[Found, Found]:
    """Results of the default predictor and of the working network."""
    predictors = [*learner.predictors().values()]
    found = []
    for predict in (predictors[0], predictors[-1]):
        right = (predict(data.test_inputs).argmax(1) == data.test_labels).float()
        recall = right[data.test_labels == LATE].mean()
        found.append(Found(100 * float(recall), 100 * float(right.mean())))
    return found[0], found[1]


def run(stream: str, setting: Setting, before: int, seed: int) -> list[tuple[Found, Found]]:
    """Results at each of the steps after the new class appeared."""
    create_data, create_optimizer = STREAMS[stream]
    draws = torch.Generator().manual_seed(seed)
    data = create_data(draws)
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(data.inputs.shape[1], 64), nn.ReLU(), nn.Linear(64, 10))
    learner = setting.method(
        network,
        optimizer=create_optimizer(network.parameters()),
        buffer_size=500,
        seed=seed,
        **setting.arguments,
    )
    found = []
    for step, rows in enumerate(batches(data, before, draws), start=1):
        learner.observe(data.inputs[rows], data.labels[rows])
        if step - before in AFTER:
            found.append(evaluate(learner, data))
    return found


def measure() -> Iterator[dict[str, Any]]:
    """One record for each stream, setting and number of steps before and after the new class."""
    for stream, before, (name, setting) in itertools.product(STREAMS, BEFORE, SETTINGS.items()):
        runs = [run(stream, setting, before, seed) for seed in range(SEEDS)]
        for after, found in zip(AFTER, zip(*runs, strict=True), strict=True):
            case = {"stream": stream, "setting": name, "before": before, "after": after}
            own, working = zip(*found, strict=True)
            yield case | {
                **{key: round(value.mean, 1) for key, value in spreads(own).items()},
                **{f"{key}_std": round(value.std or 0.0, 1) for key, value in spreads(own).items()},
                **{f"working_{key}": round(v.mean, 1) for key, v in spreads(working).items()},
            }


def spreads(found: Iterable[Found]) -> dict[str, Spread]:
    """Mean and standard deviation over seeds of each result."""
    columns = zip(*found, strict=True)
    return {key: Spread.over(values) for key, values in zip(Found._fields, columns, strict=True)}


def table(records: Iterable[dict[str, Any]]) -> str:
    """Recall of the new class / accuracy on all classes, with a row for each point of a stream."""
    rows: dict[tuple[str, int, int], list[str]] = {}
    for record in records:
        row = rows.setdefault((record["stream"], record["before"], record["after"]), [])
        row.append(f"{record['recall']} / {record['accuracy']}")
        if record["setting"] != "ER":
            row.append(f"{record['working_recall']} / {record['working_accuracy']}")
    names = ["stream", "before", "after"]
    for name in SETTINGS:
        names += [name] if name == "ER" else [name, "its working network"]
    lines = [names, ["---"] * len(names), *([*map(str, key), *row] for key, row in rows.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Write the records and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--results", type=Path, default=HERE / "late_class.jsonl")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    records = []
    with arguments.results.open("w") as file:
        for record in measure():
            records.append(record)
            file.write(json.dumps(record) + "\n")
            file.flush()
    print(table(records))


if __name__ == "__main__":
    main()
