"""Compare the accuracies of the MNIST runs on a GPU with those on a CPU.

    python experiments/compare_devices.py

Reads mnist_gpu.jsonl and ../results/mnist.jsonl, and prints one JSON line: the number of
settings, the mean difference in points, how many differ by more than two standard errors, and the
largest difference in standard errors.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent


class Accuracy(NamedTuple):
    """Accuracy of the default predictor."""

    mean: float
    error: float
    """Standard error."""


def accuracies(path: Path) -> dict[tuple[str, str, int | None], Accuracy]:
    """Accuracies by stream, method and buffer size, for runs with published settings."""
    found = {}
    for line in path.read_text().splitlines():
        row: dict[str, Any] = json.loads(line)
        if row.get("departures") or row.get("stream_seed"):
            continue
        spread = next(iter(row["predictors"].values()))["class_il"]
        error = spread["std"] / len(row["seeds"]) ** 0.5
        found[row["stream"], row["method"], row["buffer_size"]] = Accuracy(spread["mean"], error)
    return found


def main() -> None:
    """Print the comparison."""
    gpu = accuracies(HERE / "mnist_gpu.jsonl")
    cpu = accuracies(HERE.parent / "results" / "mnist.jsonl")
    differences = {key: gpu[key].mean - cpu[key].mean for key in gpu}
    sizes = [
        abs(differences[key]) / (gpu[key].error ** 2 + cpu[key].error ** 2) ** 0.5 for key in gpu
    ]
    found = {
        "settings": len(differences),
        "mean_difference": round(statistics.mean(differences.values()), 3),
        "beyond_two_standard_errors": sum(size > 2 for size in sizes),
        "largest_in_standard_errors": round(max(sizes), 2),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
