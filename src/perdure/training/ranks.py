"""The processes that torchrun starts: how they find each other, speak as one, and end together."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist

from perdure.training.distributed import RankLostError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

PATIENCE = timedelta(minutes=10)
"""How long a rank waits for the others: to start, and for their part of a step."""
LAST_WORDS = 3.0
"""Seconds that rank 0 waits, after a failure, for what another rank has to say."""
TERMINATED = 128 + signal.SIGTERM
"""Status of a rank that torchrun ended because another one had failed."""
_ENVIRONMENT = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


class Rank(NamedTuple):
    """This process among those that were started together."""

    number: int
    ranks: int
    local: int
    """Its number on this machine, and that of its GPU."""


def launched() -> Rank | None:
    """This process as torchrun started it; None where it was not, or alone."""
    if not all(name in os.environ for name in _ENVIRONMENT):
        return None
    try:
        number, ranks, local = (int(os.environ[name]) for name in _ENVIRONMENT[:3])
    except ValueError:
        return None
    return Rank(number, ranks, local) if ranks > 1 else None


def called_as() -> list[str]:
    """The words with which the command begins that started this process."""
    if launched() is None:
        return ["perdure"]
    here = os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"])
    return ["torchrun", "--nproc-per-node", here, "-m", "perdure"]


def leads() -> bool:
    """Whether this process is the one that writes and speaks."""
    rank = launched()
    return rank is None or rank.number == 0


def prepare(seeds: Sequence[int], device: str, engine: str | None) -> int:
    """How many ranks train one learner together: 1 without torchrun.

    ValueError for what they cannot do. Each takes the GPU of its number, if GPUs are asked for.
    """
    rank = launched()
    if rank is None:
        return 1
    if len(seeds) > 1:
        raise ValueError(
            f"torchrun's {rank.ranks} processes train one learner together: give one seed, not "
            f"{len(seeds)}; without torchrun seeds are trained side by side"
        )
    if engine not in (None, "eager"):
        raise ValueError(f"--engine {engine}: torchrun's processes run eager steps; leave it out")
    if device != "cpu" and torch.cuda.is_available():
        gpus = torch.cuda.device_count()
        if rank.local >= gpus:
            raise ValueError(
                f"process {rank.local} of this machine has no GPU of its own: there are {gpus}; "
                f"start at most {gpus} processes, or give --device cpu"
            )
        torch.cuda.set_device(rank.local)
    return rank.ranks


def as_one(command: Callable[[], int]) -> int:
    """The command's status, with torchrun's processes as one group: rank 0 speaks for all.

    The others are heard if they fail on their own. A rank that ends leaves the group at once, so
    that nobody waits for it, but stays until rank 0 has spoken: torchrun ends all when one ends.
    """
    rank = launched()
    if rank is None:
        return command()
    try:
        ends = _join(rank)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        print(f"perdure: rank {rank.number} did not find the others: {reason}", file=sys.stderr)
        return 1
    said = io.StringIO()
    if rank.number == 0:
        status = _status(command)
    else:
        with redirect_stdout(said), redirect_stderr(said):
            status = _status(command)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the last words are few
    try:
        ends.set(str(rank.number), json.dumps([status, RankLostError.raised, said.getvalue()]))
        dist.destroy_process_group()
        if rank.number == 0:
            if status in (0, TERMINATED) or RankLostError.raised:
                _repeat(ends, rank.ranks, LAST_WORDS if status else PATIENCE.total_seconds())
            ends.set("spoken", "")
        else:
            _wait(ends, "spoken", rank.ranks * LAST_WORDS)
    except RuntimeError:  # rank 0 has kept the words of all, and is gone
        print(said.getvalue(), end="", file=sys.stderr)
    return status


def _join(rank: Rank) -> Store:
    """Make the process group; returns where its ranks leave their last words."""
    # Its functions have the group that exists when it is imported as a default argument: imported
    # later, as torch.optim does, it would keep the group alive when we leave it.
    import torch.distributed.nn.functional
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(rendezvous("env://", timeout=PATIENCE))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(
        backend, store=store, rank=rank.number, world_size=rank.ranks, timeout=PATIENCE
    )
    return PrefixStore("ends", store)


def _status(command: Callable[[], int]) -> int:
    try:
        return command()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)


def _repeat(ends: Store, ranks: int, patience: float) -> None:
    """Say what ranks had to say that failed on their own, not by losing another."""
    for number in range(1, ranks):
        if not _wait(ends, str(number), patience):
            print(f"perdure: rank {number} ended without a word", file=sys.stderr)
            continue
        status, lost, words = json.loads(ends.get(str(number)))
        if status and not lost:
            print(f"perdure: rank {number} ended with status {status}:", file=sys.stderr)
            print(words, end="", file=sys.stderr)


def _wait(ends: Store, key: str, seconds: float) -> bool:
    """Whether the key was set within so many seconds."""
    deadline = time.monotonic() + seconds
    while not ends.check([key]):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
