"""Accuracy of CLS-ER on short streams against the size of their batches.

    python experiments/small_batches.py digits
    python experiments/small_batches.py class-by-class
    python experiments/small_batches.py choose --data DIR [--results experiments/FILE.jsonl]

`digits`: one pass over scikit-learn's digits in four tasks of new classes, an MLP, a buffer of 200,
plain SGD and library defaults; five seeds. Prints one JSON line for each batch size and setting:
accuracy in percent of the default predictor and of the working network on all classes, and on the
classes of the last task. `class-by-class`: the same with ten tasks of one class each, and with
standardised inputs, with which a network learns a class in fewer steps.

`choose`: CLS-ER with shorter windows, and with the default ones, against ER on the data sets used
to choose the defaults; an MLP, SGD and Adam, three seeds. DIR is that of benchmarks/own_data.py.
Appends runs that are missing to the results and prints a table for each group of streams.
docs/log/windows.md has the outcome.
"""

from __future__ import annotations

import argparse
import itertools
import json
import runpy
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from perdure import CLSER, ER, SGD, Learner
from perdure.results.verdict import Spread

HERE = Path(__file__).parent
BENCHMARK = runpy.run_path(str(HERE.parent / "benchmarks" / "own_data.py"))
TASKS = ((0, 1, 2), (3, 4), (5, 6, 7), (8, 9))
ONE_BY_ONE = tuple((label,) for label in range(10))
BATCHES = (1, 2, 4, 8, 16, 32)
SEEDS = 5
SETTINGS: dict[str, tuple[type[Learner], dict[str, Any]]] = {
    "SGD": (SGD, {}),
    "ER": (ER, {"buffer_size": 200}),
    "CLS-ER": (CLSER, {"buffer_size": 200}),
    "CLS-ER, windows 0.05 and 0.03": (CLSER, {"buffer_size": 200, "window_ratio": None}),
    "CLS-ER, windows 0.02 and 0.01": (
        CLSER,
        {"buffer_size": 200, "stable_window": 0.02, "plastic_window": 0.01, "window_ratio": None},
    ),
    "CLS-ER, windows 0.01 and 0.006": (
        CLSER,
        {"buffer_size": 200, "stable_window": 0.01, "plastic_window": 0.006, "window_ratio": None},
    ),
}


# -- digits ---------------------------------------------------------------------------------


def percent(right: Tensor) -> float:
    """Share of true values."""
    return 100 * float(right.float().mean())


def run(
    kind: type[Learner],
    given: dict[str, Any],
    batch: int,
    seed: int,
    tasks: tuple[tuple[int, ...], ...],
    standardise: bool,
) -> list[float]:
    """Accuracies after one run, of both predictors: on all classes, on those of the last task."""
    draws = torch.Generator().manual_seed(seed)
    data = load_digits()
    inputs = torch.tensor(data.data / 16, dtype=torch.float32)
    labels = torch.tensor(data.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=draws)
    train, test = order[: len(order) * 4 // 5], order[len(order) * 4 // 5 :]
    if standardise:
        deviation, mean = torch.std_mean(inputs[train], dim=0, correction=0)
        inputs = (inputs - mean) / torch.where(deviation > 0, deviation, 1)
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    learner = kind(network, seed=seed, **given)
    for classes in tasks:
        rows = train[torch.isin(labels[train], torch.tensor(classes))]
        for chosen in torch.split(rows, batch):
            learner.observe(inputs[chosen], labels[chosen])
    predictors = [*learner.predictors().values()]
    last = torch.isin(labels[test], torch.tensor(tasks[-1]))
    found = []
    for predict in (predictors[0], predictors[-1]):
        right = predict(inputs[test]).argmax(1) == labels[test]
        found += [percent(right), percent(right[last])]
    return found


def digits(tasks: tuple[tuple[int, ...], ...], *, standardise: bool) -> None:
    """Print a line for each batch size and setting."""
    for batch in BATCHES:
        for name, (kind, given) in SETTINGS.items():
            runs = [run(kind, given, batch, seed, tasks, standardise) for seed in range(SEEDS)]
            columns = ("accuracy", "last_task", "working", "working_last_task")
            row: dict[str, Any] = {"batch": batch, "setting": name}
            for column, values in zip(columns, zip(*runs, strict=True), strict=True):
                row[column] = round(statistics.mean(values), 1)
            row["std"] = round(statistics.stdev(values[0] for values in runs), 1)
            print(json.dumps(row), flush=True)


# -- data sets used to choose the defaults --------------------------------------------------


class Case(NamedTuple):
    """A run, apart from the seed."""

    group: str
    data: str
    kind: str
    optimizer: str
    batch: int
    memory_batch: int
    steps: int
    setting: float | str
    """"er", "default", or what the windows of 0.05 and 0.03 are multiplied by.

    "batch" is the default rule for batches of fewer than 16, whatever the memory batch.
    """


STREAMS = [*itertools.product(("texture", "fashion-mnist"), ("classes", "drift", "recurring"))]
SCALES: dict[int, tuple[float, ...]] = {
    1: (1, 1 / 4, 1 / 8, 1 / 16, 1 / 32),
    2: (1, 1 / 4, 1 / 8, 1 / 16),
    4: (1, 1 / 2, 1 / 4, 1 / 8),
    8: (1, 1 / 2, 1 / 4),
    16: (1, 1 / 2),
    32: (1,),
}
CHOICE_SEEDS = 3
MARGIN = 2.0
"""Points below ER from which a case is a miss, beyond two standard errors."""


def cases() -> Iterator[Case]:
    """All cases: 1,600 samples, 600 steps, longer streams, and memory batches other than 32."""
    sizes: list[tuple[str, int, int, int, tuple[float | str, ...]]] = []
    for batch in BATCHES:
        small = ("default",) if batch < 16 else ()
        sizes.append(("1,600 samples", batch, 32, 1600 // batch, (*SCALES[batch], *small)))
        sizes.append(("600 steps", batch, 32, 600, (*SCALES[batch], *small)))
    for batch, steps in ((8, 400), (4, 1600), (1, 6400)):
        sizes.append(("longer", batch, 32, steps, (1, batch / 16, "default")))
    for batch, memory_batch, steps in ((8, 8, 200), (4, 4, 400), (2, 8, 400), (32, 128, 100)):
        alone = ("batch",) if batch == memory_batch else ()
        sizes.append(("memory batch", batch, memory_batch, steps, (1, "default", *alone)))
    for group, batch, memory_batch, steps, settings in sizes:
        for (data, kind), optimizer in itertools.product(STREAMS, ("sgd", "adam")):
            if group == "longer" and kind == "drift":
                continue
            if group == "longer" and batch == 1 and (data, kind) != ("texture", "classes"):
                continue
            for setting in ("er", *settings):
                yield Case(group, data, kind, optimizer, batch, memory_batch, steps, setting)


def train(data: Path, case: Case, seed: int) -> list[float]:
    """Accuracy of both predictors after a run: mean over the test sets, and on the last one."""
    stream = BENCHMARK["make_stream"](data, case.data, case.kind)
    torch.manual_seed(seed)
    network = BENCHMARK["mlp"](stream.tasks[0].inputs, stream.classes)
    method = "er" if case.setting == "er" else "clser"
    given: dict[str, Any] = {}
    if isinstance(case.setting, float | int):
        windows = {"stable_window": 0.05 * case.setting, "plastic_window": 0.03 * case.setting}
        given = {**windows, "window_ratio": None}
    elif case.setting == "batch":
        given = {"window_ratio": 16 / case.memory_batch}
    buffer = 500 if case.data == "fashion-mnist" else 200
    like = BENCHMARK["Case"](case.data, case.kind, case.steps, "mlp", case.optimizer)
    learner = BENCHMARK["build"](like, method, network, buffer, seed, given)
    learner.memory_batch = case.memory_batch
    for samples in BENCHMARK["batches"](stream, case.steps, seed, case.batch):
        learner.observe(samples.inputs, samples.labels)
    predictors = [*learner.predictors().values()]
    found = []
    for predict in (predictors[0], predictors[-1]):
        right = []
        for test in stream.tests:
            scores = torch.cat([predict(x) for x in torch.split(test.inputs, 500)])
            right.append(percent(scores.argmax(1) == test.labels))
        found += [round(statistics.mean(right), 3), round(right[-1], 3)]
    return found


def choose(data: Path, results: Path) -> None:
    """Make the runs that are missing and print a line for each batch size and setting."""
    found = {tuple(row[:-1]): row[-1] for row in BENCHMARK["read"](results)}
    with results.open("a") as file:
        for seed, case in itertools.product(range(CHOICE_SEEDS), cases()):
            if (*case, seed) not in found:
                found[*case, seed] = train(data, case, seed)
                file.write(json.dumps([*case, seed, found[*case, seed]]) + "\n")
                file.flush()
    rows: dict[tuple[Any, ...], list[Case]] = {}
    for case in cases():
        if case.setting != "er":
            group = (case.group, case.batch, case.memory_batch, case.setting)
            rows.setdefault(group, []).append(case)
    print(
        "group, batch, memory batch, setting: cases, ER, over ER, worst, misses, last task, others"
    )
    for group, own in rows.items():
        er, gains, misses, last, others = [], [], 0, [], []
        for case in own:
            runs = [found[*case, seed] for seed in range(CHOICE_SEEDS)]
            rival = [found[*case._replace(setting="er"), seed][0] for seed in range(CHOICE_SEEDS)]
            over = Spread.over([own[0] - other for own, other in zip(runs, rival, strict=True)])
            er.append(statistics.mean(rival))
            gains.append(over.mean)
            misses += over.mean + 2 * (over.error or 0.0) < -MARGIN
            if case.kind != "drift":
                lag = [own[1] - own[3] for own in runs]
                last.append(statistics.mean(lag))
                # Five test sets, of which the last has a fifth of the weight.
                all_tasks = [own[0] - own[2] for own in runs]
                others.append((5 * statistics.mean(all_tasks) - last[-1]) / 4)
        print(
            *group,
            f"{len(own)} cases",
            f"{statistics.mean(er):.1f}",
            f"{statistics.mean(gains):+.2f}",
            f"{min(gains):+.1f}",
            f"{misses} misses",
            f"{statistics.mean(last):+.1f}",
            f"{statistics.mean(others):+.1f}",
            sep=" | ",
        )


def main() -> None:
    """Run one of the three."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("digits", "class-by-class", "choose"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--results", type=Path, default=HERE / "small_batches_choice.jsonl")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.what == "digits":
        digits(TASKS, standardise=False)
    elif arguments.what == "class-by-class":
        digits(ONE_BY_ONE, standardise=True)
    elif arguments.data is None:
        parser.error("choose needs --data")
    else:
        choose(arguments.data, arguments.results)


if __name__ == "__main__":
    main()
