"""Processes started by torchrun: joining a group, reporting as one, and exiting together."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist

from perdure.training.distributed import RankLostError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

TIMEOUT = timedelta(minutes=10)
"""How long a rank waits for the others, at the start and in every step."""
REPORT_SECONDS = 3.0
"""How long rank 0 waits, after a failure, for the report of another rank."""
TERMINATED = 128 + signal.SIGTERM
"""Exit status of a rank that torchrun terminated because another one failed."""
_ENVIRONMENT = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


class Rank(NamedTuple):
    """This process among those that torchrun started."""

    number: int
    ranks: int
    """Number of all processes."""
    local: int
    """Number of this process on its machine, which is also the number of its GPU."""


def torchrun_rank() -> Rank | None:
    """Return the rank that torchrun gave this process; None without torchrun or with one rank."""
    if not all(name in os.environ for name in _ENVIRONMENT):
        return None
    try:
        number, ranks, local = (int(os.environ[name]) for name in _ENVIRONMENT[:3])
    except ValueError:
        return None
    return Rank(number, ranks, local) if ranks > 1 else None


def command_prefix() -> list[str]:
    """Return the words that start the current command: `perdure`, or `torchrun ... -m perdure`."""
    if torchrun_rank() is None:
        return ["perdure"]
    processes = os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"])
    return ["torchrun", "--nproc-per-node", processes, "-m", "perdure"]


def is_main_process() -> bool:
    """Return whether this is rank 0, or the only process."""
    rank = torchrun_rank()
    return rank is None or rank.number == 0


def setup_ranks(seeds: Sequence[int], device: str, engine: str | None) -> int:
    """Select the ranks' GPUs, and return how many ranks train one learner; 1 without torchrun.

    Raises:
        ValueError: If several ranks cannot train these seeds, or not with this device or engine.
    """
    rank = torchrun_rank()
    if rank is None:
        return 1
    if len(seeds) > 1:
        raise ValueError(
            f"torchrun's {rank.ranks} processes train one learner together: give one seed, not "
            f"{len(seeds)}, or start without torchrun"
        )
    if engine not in (None, "eager"):
        raise ValueError(f"--engine {engine} does not work with torchrun; omit it")
    if device != "cpu" and torch.cuda.is_available():
        gpus = torch.cuda.device_count()
        if rank.local >= gpus:
            raise ValueError(
                f"there is no GPU for process {rank.local} of this machine: it has {gpus}; start "
                f"at most {gpus} processes, or give --device cpu"
            )
        torch.cuda.set_device(rank.local)
    return rank.ranks


def run_distributed(command: Callable[[], int]) -> int:
    """Run a command on all of torchrun's processes and return its exit status.

    Rank 0 prints the output. The output of other ranks is shown only if they fail on their own.
    A rank that is done leaves the process group at once, so that no other waits for it, but exits
    only after rank 0 has printed everything: torchrun terminates all processes when one fails.
    Without torchrun, the command is simply called.
    """
    rank = torchrun_rank()
    if rank is None:
        return command()
    try:
        reports = _join_group(rank)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        print(f"perdure: rank {rank.number} cannot join the others: {reason}", file=sys.stderr)
        return 1
    output = io.StringIO()
    with contextlib.ExitStack() as stack:
        if rank.number > 0:
            stack.enter_context(contextlib.redirect_stdout(output))
            stack.enter_context(contextlib.redirect_stderr(output))
        try:
            status = command()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # reporting takes a few seconds at most
    try:
        report = [status, RankLostError.occurred, output.getvalue()]
        reports.set(str(rank.number), json.dumps(report))
        dist.destroy_process_group()
        if rank.number == 0:
            if status in (0, TERMINATED) or RankLostError.occurred:
                timeout = REPORT_SECONDS if status else TIMEOUT.total_seconds()
                _print_reports(reports, rank.ranks, timeout)
            reports.set("printed", "")
        else:
            _wait(reports, "printed", rank.ranks * REPORT_SECONDS)
    except RuntimeError:  # rank 0, which stores the reports, has exited
        print(output.getvalue(), end="", file=sys.stderr)
    return status


def _join_group(rank: Rank) -> Store:
    """Initialise the process group, and return a store for the ranks' final reports."""
    # The functions of this module take the current process group as a default argument when it is
    # imported. Imported later, as torch.optim does, it would keep a group alive that we left.
    import torch.distributed.nn.functional
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(rendezvous("env://", timeout=TIMEOUT))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(
        backend, store=store, rank=rank.number, world_size=rank.ranks, timeout=TIMEOUT
    )
    return PrefixStore("reports", store)


def _print_reports(reports: Store, ranks: int, timeout: float) -> None:
    """Print the output of ranks that failed on their own, not by losing contact with another."""
    for number in range(1, ranks):
        if not _wait(reports, str(number), timeout):
            print(f"perdure: rank {number} exited without a report", file=sys.stderr)
            continue
        status, lost_another, output = json.loads(reports.get(str(number)))
        if status and not lost_another:
            print(f"perdure: rank {number} failed with status {status}:", file=sys.stderr)
            print(output, end="", file=sys.stderr)


def _wait(store: Store, key: str, seconds: float) -> bool:
    """Wait until the key is set, and return whether it was within the time."""
    deadline = time.monotonic() + seconds
    while not store.check([key]):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
