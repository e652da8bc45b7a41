"""Write the run folders in this folder: `python -m tests.archive.make`, once for each release.

Later versions must be able to read them, so those of earlier releases stay.
"""

from __future__ import annotations

import platform
from pathlib import Path

import torch

import perdure
from perdure.catalog import takes_buffer
from perdure.config import RunConfig
from perdure.experiment.resolve import resolve
from perdure.experiment.run import Job, PlannedRun
from perdure.training.loop import Interrupted

HERE = Path(__file__).parent
INTERRUPTED_AT = 15
METHODS = ("sgd", "clser", "mean-er", "derpp", "gem", "gss", "icarl")
"""One for each kind of memory and state."""


def settings(method: str) -> RunConfig:
    name = "tests.archive.small"
    size = 8 if takes_buffer(method) else None
    given = {"batch": 5, "epochs": 2}
    if method == "clser":
        given["window_ratio"] = 0  # the archived runs are older than this setting
    return resolve(f"{name}:stream", method, size, network=f"{name}:network", given=given)


def main() -> None:
    torch.set_num_threads(1)
    platform.node = lambda: "host"  # the name of this machine is nobody's business
    out = HERE / perdure.__version__
    for method in METHODS:
        Job((PlannedRun(settings(method), 0),), out).execute(lambda progress: None)
    steps = iter(range(1, 1000))
    try:
        Job((PlannedRun(settings("clser"), 1),), out).execute(
            lambda progress: None, lambda: 15 * (next(steps) == INTERRUPTED_AT)
        )
    except Interrupted:
        print(f"wrote {out}")


if __name__ == "__main__":
    main()
