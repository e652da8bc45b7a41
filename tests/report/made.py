"""Run folders with everything that a report reads, written without training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perdure.config import RunConfig, default_hyperparameters
from perdure.files import write_json
from perdure.results import Comparison, RunFolder, collect
from perdure.results.table import Section

NETWORKS = {
    "clser": ("stable", "plastic", "working"),
    "mean-er": ("mean", "working"),
}
TASKS = [f"classes {2 * i} to {2 * i + 1}" for i in range(5)]
SIGMAS = [0.0, 0.05, 0.1]


def config(
    stream: str,
    method: str,
    buffer_size: int | None,
    *,
    dataset: str | None = "mnist",
    network: str = "mlp",
    values: Mapping[str, float] | None = None,
    **others: Any,
) -> RunConfig:
    """The usual configuration of a method on a CPU, with other hyperparameters in `values`."""
    usual = default_hyperparameters(stream, method, buffer_size, dataset).values
    return RunConfig(
        stream=stream,
        method=method,
        buffer_size=buffer_size,
        hyperparameters={**usual, **(values or {})},
        network=network,
        dataset=dataset,
        **{"data_checksum": "0123456789abcdef", **others},
    )


def numbers(mean: float, tasks: int = 5) -> dict[str, Any]:
    """An accuracy matrix that ends with `mean` on every test."""
    first: list[float | None] = [10.0] * tasks
    matrix = [first]
    for moment in range(tasks):
        row = [mean + (tasks - 1 - moment)] * (moment + 1)
        matrix.append([*row, *[0.0] * (moment < tasks - 1), *[None] * (tasks - moment - 2)])
    last = matrix[-1][-1]
    return {"matrix": matrix, "mean": mean, "last_test": last, "forgetting": 100 - mean}


def result(means: Mapping[str, float], tests: Sequence[str] = TASKS) -> dict[str, Any]:
    """The content of `result.json`; `means` by network."""

    def whole(mean: float) -> dict[str, Any]:
        return {"matrix": [[10.0], [mean]], "mean": mean, "last_test": mean, "forgetting": None}

    return {
        "moments": ["start", *(tests if len(tests) > 1 else ["the stream"])],
        "tests": list(tests),
        "predictors": {
            name: {
                "class_il": numbers(mean) if len(tests) > 1 else whole(mean),
                "task_il": numbers(98.0) if len(tests) > 1 else None,
                "per_class": [mean] * 9 + [None],
            }
            for name, mean in means.items()
        },
        "complete": True,
        "steps": 1000,
        "totals": {},
    }


def analysis(names: Sequence[str], *, ece: float = 0.05) -> dict[str, Any]:
    """The content of `analysis.json`."""
    bins = [
        {"lower": 0.0, "upper": 0.5, "count": 0, "accuracy": None, "confidence": None},
        {"lower": 0.5, "upper": 1.0, "count": 10, "accuracy": 0.8, "confidence": 0.9},
    ]
    diagonal = [[90 if i == j else 1 for j in range(10)] for i in range(10)]
    of_each = {
        "calibration": {"ece": ece, "bins": bins},
        "flatness": {
            "sigmas": SIGMAS,
            "draws": 2,
            "samples": 100,
            "accuracy": [95.0, 80.0, 40.0],
            "accuracy_std": [0.0, 1.0, 2.0],
            "loss": [0.1, 0.5, 2.0],
            "loss_std": [0.0, 0.1, 0.2],
        },
        "task_probabilities": {
            "names": TASKS,
            "kind": "task",
            "mass": [0.1, 0.1, 0.1, 0.2, 0.5],
        },
        "confusion": {"classes": list(range(10)), "counts": diagonal},
    }
    alike = [[1.0 if i == j else 0.95 for j in range(len(names))] for i in range(len(names))]
    return {
        "format": 1,
        "predictors": dict.fromkeys(names, of_each),
        "agreement": {"predictors": list(names), "matrix": alike},
    }


def events(method: str) -> list[dict[str, Any]]:
    """The content of `events.jsonl`, one event per line."""
    evaluation = {"event": "evaluation", "class_il": {}}
    found: list[dict[str, Any]] = [{**evaluation, "step": 0, "task": -1}]
    for step in range(100, 1001, 100):
        values = {"loss": step / 1000}
        if method == "clser":
            values |= {"consistency": 0.1, "stable_used": 8.0, "plastic_used": 24.0}
        found.append({"event": "metrics", "step": step, "values": values})
        if method != "sgd":
            found.append({"event": "memory", "step": step, "classes": [step // 20] * 10})
        if step % 200 == 0:
            found.append({**evaluation, "step": step, "task": step // 200 - 1})
    if method == "clser":
        ages = {"edges": [1, 2, 4], "stable": [10, 40], "total": [100, 100]}
        found.append({"event": "ages", "step": 1000, **ages})
    return found


def make_run(
    root: Path,
    stream: str = "s-mnist",
    method: str = "clser",
    buffer_size: int | None = 500,
    *,
    seed: int = 0,
    mean: float = 92.0,
    analysed: bool = True,
    tests: Sequence[str] = TASKS,
    **settings: Any,
) -> Path:
    """Write a run's folder; each network after the first has half a point less."""
    its = config(stream, method, buffer_size, **settings)
    folder = RunFolder.locate(root, its, seed)
    names = NETWORKS.get(method, ("working",))
    folder.begin({**its.to_json(), "seed": seed, "data": its.dataset or "own"})
    write_json(
        folder.path / "result.json",
        result({name: mean - 0.5 * i for i, name in enumerate(names)}, tests),
    )
    write_json(
        folder.path / "timing.json",
        {"seconds": 75.0, "torch": "2.13.0", "processor": "AVX2", "host": "here"}
        | {"finished": "2026-01-02T03:04:05+00:00"},
    )
    lines = [json.dumps(event) for event in events(method)]
    (folder.path / "events.jsonl").write_text("\n".join(lines) + "\n")
    if analysed:
        write_json(folder.path / "analysis.json", analysis(names))
    return folder.path


def make_runs(root: Path, *, seeds: int = 3, **settings: Any) -> Path:
    """CLS-ER, Mean-ER, DER++, ER and SGD on s-mnist, with several seeds each."""
    means = {"clser": 92.0, "mean-er": 91.0, "derpp": 91.0, "er": 86.0, "sgd": 19.6}
    for method, mean in means.items():
        buffer_size = None if method == "sgd" else 500
        for seed in range(seeds):
            make_run(
                root,
                method=method,
                buffer_size=buffer_size,
                seed=seed,
                mean=mean + seed,
                **settings,
            )
    return root


def comparison(root: Path) -> Comparison:
    """The only comparison of the runs below a folder."""
    (found,) = collect([root]).comparisons
    return found


def section(root: Path) -> Section:
    """The only section of the runs below a folder."""
    (found,) = collect([root]).sections
    return found
