"""Memory and time of CLS-ER with a trained and with a frozen backbone, on one CPU core.

    python benchmarks/frozen_backbone.py

The network is the paper's ResNet-18 on images of 32 x 32 with batches of 8 + 8. Frozen means that
all but the last block and the head are. Prints one JSON line per variant.
"""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from perdure.learners import CLSER
from perdure.networks import ResNet18


def learner(*, frozen: bool) -> CLSER:
    torch.manual_seed(0)
    network = ResNet18(10)
    if frozen:
        for part in (network.stem, network.blocks[:-1]):
            part.requires_grad_(False).eval()
    return CLSER(network, buffer_size=100, memory_batch=8)


def milliseconds(function: Callable[[], object], repeats: int) -> float:
    """Median processor time of a call, without the first two."""
    times = []
    for _ in range(repeats + 2):
        began = time.process_time()
        function()
        times.append(time.process_time() - began)
    return 1000 * statistics.median(times[2:])


def megabytes(trained: CLSER) -> float:
    """Size of the distinct parameters and buffers of all networks."""
    tensors = {
        tensor.data_ptr(): tensor.nbytes
        for network in trained.networks()
        for tensor in itertools.chain(network.parameters(), network.buffers())
    }
    return sum(tensors.values()) / 1e6


def main() -> None:
    torch.set_num_threads(1)
    inputs = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8)
    for frozen in (False, True):
        trained = learner(frozen=frozen)
        step = milliseconds(partial(trained.observe, inputs, torch.arange(8)), 6)
        with tempfile.TemporaryDirectory() as folder:
            trained.save(Path(folder) / "learner")
            file = (Path(folder) / "learner").stat().st_size
        print(
            json.dumps(
                {
                    "frozen": frozen,
                    "networks_mb": round(megabytes(trained), 1),
                    "file_mb": round(file / 1e6, 1),
                    "step_ms": round(step, 1),
                    "update_ms": round(milliseconds(trained.consolidate, 18), 2),
                }
            )
        )


if __name__ == "__main__":
    main()
