"""Cost of checkpoints: the time of one as a share of the interval between two.

    python benchmarks/checkpoints.py

The cost is the processor time of the pause, in which the training loop waits for its state to be
copied, and of writing in the background, as if no other core were available.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import torch

from perdure import CLSER, Stream, from_tensors
from perdure.networks import mlp, resnet18
from perdure.training import Run
from perdure.training.checkpoint import Checkpointer, CheckpointStore

EVERY = 60.0
REPEATS = 7


def stream(shape: tuple[int, ...], size: int) -> Stream:
    draws = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (size, *shape), generator=draws, dtype=torch.uint8)
    return from_tensors(inputs, torch.arange(size) % 10)


def measure(name: str, network: torch.nn.Module, shape: tuple[int, ...], buffer_size: int) -> None:
    """One line: the pause, the writing, the file, and their share of an interval."""
    learner = CLSER(network, buffer_size=buffer_size, memory_batch=8)
    run = Run(learner, stream(shape, buffer_size))
    learner.memory.add(run.stream.tasks[0].samples())
    pauses, writings = [], []
    with tempfile.TemporaryDirectory() as place:
        store = CheckpointStore(Path(place), {})
        checkpointer = Checkpointer([store], EVERY)
        for _ in range(REPEATS):
            began, spent = time.thread_time(), time.process_time()
            checkpointer.on_checkpoint([run])
            pauses.append(time.thread_time() - began)
            checkpointer.wait()
            writings.append(time.process_time() - spent - pauses[-1])
        size = max(path.stat().st_size for path in store.path.iterdir())
    pause, writing = statistics.median(pauses), statistics.median(writings)
    share = 100 * (pause + writing) / EVERY
    print(
        f"{name:28} {size / 1e6:7.1f} MB   pause {1e3 * pause:6.1f} ms   "
        f"writing {1e3 * writing:6.1f} ms   {share:.2f} % of {EVERY:g} s"
    )


def main() -> None:
    torch.set_num_threads(1)
    measure("CLS-ER, MLP, buffer 500", mlp((1, 28, 28), 10), (1, 28, 28), 500)
    measure("CLS-ER, ResNet-18, buffer 500", resnet18((3, 32, 32), 10), (3, 32, 32), 500)
    measure("CLS-ER, ResNet-18, buffer 5120", resnet18((3, 32, 32), 10), (3, 32, 32), 5120)


if __name__ == "__main__":
    main()
