"""Figures of docs/log that no table has, from the records that are kept.

    python experiments/read_records.py

reads results/runs and swings.jsonl and prints, line by line: how much of its accuracy each
answering network keeps under weak noise; how far float32 answers (the analyses) are from those in
bf16 (the results); accuracy after the last phases of GCIL; and what BatchNorm's statistics move
(`swings.py`).
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

HERE = Path(__file__).parent
RUNS = HERE.parent / "results" / "runs"
WEAK = 0.02
"""Up to this noise no network on S-CIFAR-10 is reduced to guessing."""


def read(path: Path) -> Any:
    """A JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def weak_noise() -> None:
    """The share of its accuracy that is left under noise up to WEAK, mean over the strengths."""
    for path in sorted(RUNS.glob("s-cifar10/*/*/analysis.json")):
        answering = next(iter(read(path.with_name("result.json"))["predictors"]))
        curve = read(path)["predictors"][answering]["flatness"]
        accuracy = dict(zip(curve["sigmas"], curve["accuracy"], strict=True))
        left = [accuracy[sigma] / accuracy[0] for sigma in accuracy if 0 < sigma <= WEAK]
        print(f"left under noise up to {WEAK}: {fmean(left):.3f}  {path.parent.relative_to(RUNS)}")


def precision() -> None:
    """The largest difference, over all networks, between accuracy in float32 and in bf16."""
    apart = {}
    for path in RUNS.glob("s-cifar10/*/*/analysis.json"):
        result = read(path.with_name("result.json"))["predictors"]
        for name, found in read(path)["predictors"].items():
            counts = found["confusion"]["counts"]
            exact = fmean(100 * row[i] / sum(row) for i, row in enumerate(counts))
            apart[path.parent, name] = abs(exact - fmean(result[name]["per_class"]))
    (run, name), most = max(apart.items(), key=lambda item: item[1])
    where = f"{name} of {run.relative_to(RUNS)}"
    print(f"float32 against bf16: at most {most:.2f} apart over {len(apart)} networks ({where})")


def phases() -> None:
    """GCIL: mean over the tests seen, after each of the last phases, mean over seeds."""
    for method in sorted((RUNS / "gcil-cifar100-uniform").iterdir()):
        results = [read(path)["predictors"] for path in sorted(method.glob("*/result.json"))]
        matrices = [next(iter(found.values()))["class_il"]["matrix"] for found in results]
        last = range(len(matrices[0]) - 3, len(matrices[0]))  # row k is after phase k
        means = [fmean(fmean(matrix[k][:k]) for matrix in matrices) for k in last]
        print(f"after phases {[*last]}: {[round(mean, 2) for mean in means]}  {method.name}")


def swings() -> None:
    """Spread of the stable memory's accuracy over draws of statistics, and over further steps."""
    for line in (HERE / "swings.jsonl").read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        trucks = [draw["per_class"][9] for draw in found["draws"]]
        print(
            f"{found['run']}: ended {found['as_it_ended']['mean']}, "
            f"settled {found['settled']['mean']}, trucks {min(trucks)} to {max(trucks)}"
        )
        kinds = {"draws": [draw["mean"] for draw in found["draws"]]}
        kinds |= {
            name: [look[name]["mean"] for look in found["steps"]] for name in ("running", "settled")
        }
        for name, means in kinds.items():
            print(
                f"  {name}: {fmean(means):.2f} ± {stdev(means):.2f}, {min(means)} to {max(means)}"
            )


if __name__ == "__main__":
    weak_noise()
    precision()
    phases()
    swings()
