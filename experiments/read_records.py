"""Print figures that the documentation mentions and that no table contains.

    python experiments/read_records.py

From results/runs and swings.jsonl: the share of its accuracy that each default predictor retains
under weak noise; the difference between accuracies in float32 (the analyses) and in bf16 (the
results); accuracy after the last phases of GCIL, and its regression on the classes of a phase; and
the effect of BatchNorm's statistics (`swings.py`).
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import numpy as np

from perdure.results import Collection, collect
from perdure.results.verdict import Spread

HERE = Path(__file__).parent
WEAK = 0.02
"""Up to this noise level, every network on S-CIFAR-10 is better than chance."""
CLASSES = (34, 40, 25, 30, 1, 38, 11, 20, 16, 28, 6, 50, 47, 3, 28, 39, 17, 15, 41, 17)
"""Classes in each phase of the fixed uniform stream of GCIL."""


def weak_noise(runs: Collection) -> None:
    """Share of the accuracy that is retained under noise up to WEAK, mean over the levels."""
    for run in runs.runs:
        if run.config.stream != "s-cifar10" or run.analysis is None:
            continue
        curve = run.analysis.predictors[next(iter(run.result.predictors))].flatness
        assert curve is not None
        accuracy = dict(zip(curve.sigmas, curve.accuracy, strict=True))
        noiseless = accuracy[0] or 0.0
        kept = [(accuracy[sigma] or 0.0) / noiseless for sigma in accuracy if 0 < sigma <= WEAK]
        print(f"retained under noise up to {WEAK}: {fmean(kept):.3f}  {run.place}")


def precision(runs: Collection) -> None:
    """The largest difference over all networks between accuracy in float32 and in bf16."""
    differences = {}
    for run in runs.runs:
        if run.config.stream != "s-cifar10" or run.analysis is None:
            continue
        for name, found in run.analysis.predictors.items():
            counts = found.confusion.counts
            exact = fmean(100 * row[i] / sum(row) for i, row in enumerate(counts))
            per_class = run.result.predictors[name].per_class or []
            recorded = fmean(value for value in per_class if value is not None)
            differences[f"{name} of {run.place}"] = abs(exact - recorded)
    name, largest = max(differences.items(), key=lambda item: item[1])
    count = len(differences)
    print(f"float32 and bf16 differ by at most {largest:.2f} over {count} networks ({name})")


def phases(runs: Collection) -> None:
    """GCIL: mean over the tests so far after each of the last phases, mean over seeds."""
    for setting in runs.settings:
        if setting.config.stream != "gcil-cifar100-uniform":
            continue
        matrices = [scores.matrix for scores in setting.scores(setting.predictors[0])]
        if setting.config.method == "joint":  # one phase
            continue
        tests = range(1, len(matrices[0]))  # row k is after phase k
        means = [fmean(fmean(v or 0.0 for v in rows[k][:k]) for rows in matrices) for k in tests]
        composed = setting.config.stream_seed or "fixed"
        print(
            f"{composed} stream, after phases {[*tests][-3:]}: "
            f"{[round(mean, 2) for mean in means[-3:]]}  {setting.label}"
        )
        if composed == "fixed":
            print(f"  slope over log(classes in the phase): {slope(means):.1f}")


def slope(means: list[float]) -> float:
    """Of accuracy over log(classes in the phase), phases 8 to 20, besides a linear trend."""
    later = range(7, len(CLASSES))
    factors = np.array([[np.log(CLASSES[k]), k, 1.0] for k in later])
    return float(np.linalg.lstsq(factors, np.array(means)[later], rcond=None)[0][0])


def swings() -> None:
    """Spread of the stable memory's accuracy over draws of statistics, and over further steps."""
    for line in (HERE / "swings.jsonl").read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        trucks = [draw["per_class"][9] for draw in found["draws"]]
        print(
            f"{found['run']}: ended at {found['as_it_ended']['mean']}, "
            f"settled {found['settled']['mean']}, trucks {min(trucks)} to {max(trucks)}"
        )
        kinds = {"draws": [draw["mean"] for draw in found["draws"]]}
        kinds |= {
            name: [look[name]["mean"] for look in found["steps"]] for name in ("running", "settled")
        }
        for name, means in kinds.items():
            print(f"  {name}: {Spread.over(means)}, {min(means)} to {max(means)}")


if __name__ == "__main__":
    collection = collect([HERE.parent / "results" / "runs"])
    weak_noise(collection)
    precision(collection)
    phases(collection)
    swings()
