"""Distributed training of one learner: each network's work on a batch is divided among the ranks.

All ranks read the same stream, draw the same random numbers and hold the same memory. When a
network is called on a batch, each rank computes the outputs of its own rows and gathers those of
all others. Everything that a method derives from the outputs (its loss, its decisions, what it
stores) is therefore equal on all ranks, and methods need no code for distributed training.

Two rules make the gradients correct. In the backward pass through the gathering, a rank keeps the
gradient of its own rows times the number of ranks N, and the gradient of every parameter is
averaged over the ranks. Rank k thus contributes N·Σ_{i in its rows} ∂L/∂z_i ∂z_i/∂θ, and the mean
over the ranks is ∂L/∂θ. A batch with fewer rows than ranks is computed entirely by every rank; its
gradients are equal, so averaging does not change them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import MethodType
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from perdure.learners import Learner, MultiBatchNetwork
from perdure.learners.multi_batch import one_by_one
from perdure.randomness import generator, global_state, set_global_state
from perdure.results import RunFolder
from perdure.state import to_host
from perdure.structures import length, logits_of, map_leaves
from perdure.training.checkpoint import Checkpointer, CheckpointStore
from perdure.training.loop import Run, TrainingError

P = ParamSpec("P")
T = TypeVar("T")


class RankLostError(TrainingError):
    """Another rank has exited or stopped responding."""

    occurred: ClassVar[bool] = False
    """Whether this process raised it, so that its failure is a consequence of another's."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        RankLostError.occurred = True


def divide(learner: Learner) -> None:
    """Divide the work of the learner's networks among the ranks of the process group.

    BatchNorm becomes SyncBatchNorm, which normalises by the whole batch and needs GPUs. Work is
    divided in training mode only; in evaluation mode each rank computes for itself.

    Args:
        learner: The learner, which must be equal on all ranks and receive equal batches.

    Raises:
        ValueError: If the network has BatchNorm that the ranks cannot share.
    """
    networks = learner.networks()
    modules = (module for network in networks for module in network.modules())
    if learner.device.type == "cpu" and any(isinstance(m, _BatchNorm) for m in modules):
        raise ValueError(
            "the network has BatchNorm, whose statistics processes can share only on GPUs; start "
            "one process, or choose a network without BatchNorm"
        )
    for network in networks:
        synchronise(network)
        part = _Part(learner.device)
        network.register_forward_pre_hook(part.select, with_kwargs=True)
        network.register_forward_hook(part.gather)
    for parameter in learner.network.parameters():
        if parameter.requires_grad:
            parameter.register_hook(_average)  # type: ignore[no-untyped-call]


def synchronise(network: nn.Module) -> None:
    """Replace every BatchNorm by one that computes its statistics over the batch of all ranks.

    Subclasses of BatchNorm must have a method `synchronised` that returns the replacement.
    """
    for module in network.modules():
        for name, norm in list(module.named_children()):
            if not isinstance(norm, _BatchNorm):
                continue
            if (synchronised := getattr(norm, "synchronised", None)) is not None:
                module.add_module(name, synchronised())
            elif type(norm) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
                convert = nn.SyncBatchNorm.convert_sync_batchnorm
                module.add_module(name, convert(norm))  # type: ignore[no-untyped-call]
            else:
                raise ValueError(
                    f"the network has a {type(norm).__name__}, which processes cannot share; "
                    "start one process"
                )
    if isinstance(network, MultiBatchNetwork):  # joined batches would be divided as one
        network.forward_batches = MethodType(one_by_one, network)  # type: ignore[method-assign]


class _Part:
    """This rank's part of a network's work: its own rows go in, the outputs of all rows come out.

    During the forward pass, the global generator (used by dropout) is the rank's own, derived from
    the learner's. With a shared one, different rows would get equal masks, and unequal parts would
    draw unequally often.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rows = 0
        """Rows of the current batch; 0 if it is not divided."""
        self._shared = self._own = torch.empty(0)
        """States of the generator before the forward pass, on all ranks and on this one."""

    def select(self, network: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return this rank's rows of the batch, as positional and keyword arguments."""
        rank, ranks = dist.get_rank(), dist.get_world_size()
        rows = length((positional, named)) if positional or named else 0
        self.rows = rows if network.training and rows >= ranks else 0
        if not self.rows:
            return None
        self._shared = global_state(self.device)
        key = int.from_bytes(hashlib.sha256(self._shared.numpy().tobytes()).digest()[:8])
        self._own = generator(key, f"rank {rank}", self.device).get_state()
        set_global_state(self._own, self.device)
        return map_leaves(lambda leaf: leaf.tensor_split(ranks)[rank], (positional, named))

    def gather(self, network: nn.Module, inputs: tuple[Any, ...], output: Any) -> Tensor | None:
        """Return the logits for all rows of the batch, given those for this rank's rows."""
        if not self.rows:
            return None
        drew = not self._own.equal(global_state(self.device))
        set_global_state(self._shared, self.device)
        if drew:  # the next pass draws other numbers
            torch.rand((), device=self.device)
        return _Gather.apply(logits_of(output), self.rows)  # type: ignore[no-any-return,no-untyped-call]


class _Gather(torch.autograd.Function):
    """The rows of all ranks, in order, on every rank."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, rows: int) -> Tensor:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        # Like tensor_split: the first ranks have one more row if the rows do not divide evenly.
        counts = [rows // ranks + (k < rows % ranks) for k in range(ranks)]
        ctx.own = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
        ctx.ranks = ranks
        # Parts may be unequal, so sum over the ranks: each has zeros in the rows of all others.
        whole = own.new_zeros(rows, *own.shape[1:])
        whole[ctx.own] = own
        with _communicating():
            dist.all_reduce(whole)
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0][ctx.own] * ctx.ranks, None


def _average(gradient: Tensor) -> Tensor:
    """Mean of a parameter's gradient over the ranks, bit for bit equal on all of them."""
    mean = gradient.clone(memory_format=torch.contiguous_format)
    with _communicating():
        dist.all_reduce(mean)
    return mean.div_(dist.get_world_size())


@contextmanager
def _communicating() -> Iterator[None]:
    """Raise a RankLostError if communication inside the block fails."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = re.sub(r"^\[[^]]*\] ", "", str(error).splitlines()[0]).split(". ")[0]
        raise RankLostError(f"lost contact with another rank ({reason})") from error


def from_rank_0(compute: Callable[[], T]) -> T:
    """Call a function on rank 0 only; every rank returns its result or raises its error."""
    answer: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            answer = [compute(), None]
        except (ValueError, OSError) as error:
            answer = [None, error]
    with _communicating():
        dist.broadcast_object_list(answer)
    value, failure = answer
    if failure is not None:
        raise failure
    return value  # type: ignore[no-any-return]


def from_all(value: T) -> list[T]:
    """Return the values of all ranks, in order, on every rank."""
    values: list[Any] = [None] * dist.get_world_size()
    with _communicating():
        dist.all_gather_object(values, value)
    return values


# -- run folder and checkpoints: rank 0 writes them for all ranks -----------------------------


def _on_rank_0(
    method: Callable[Concatenate[RunFolder, P], T],
) -> Callable[Concatenate[RunFolder, P], T]:
    """The method called on rank 0 only, for a folder that only rank 0 accesses."""

    def call(folder: RunFolder, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return from_rank_0(lambda: method(RunFolder(folder.path), *args, **kwargs))

    return call


class SharedFolder(RunFolder):
    """The run folder of a distributed run. All ranks call its methods; rank 0 accesses files."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder on rank 0 inside the block."""
        with RunFolder(self.path).locked() if dist.get_rank() == 0 else nullcontext():
            yield

    @property
    def complete(self) -> bool:
        """Whether the run is complete."""
        return from_rank_0(lambda: RunFolder(self.path).complete)

    refuse_if_locked = _on_rank_0(RunFolder.refuse_if_locked)
    check = _on_rank_0(RunFolder.check)
    read = _on_rank_0(RunFolder.read)
    finish = _on_rank_0(RunFolder.finish)

    def reopen(self, config: Mapping[str, Any]) -> None:
        """Reopen the folder. Raise a TrainingError if the ranks' configurations differ."""
        _check_equal(config)
        from_rank_0(lambda: RunFolder(self.path).reopen(config))

    def begin(self, config: Mapping[str, Any]) -> None:
        """Create the folder. Raise a TrainingError if the ranks' configurations differ."""
        _check_equal(config)
        from_rank_0(lambda: RunFolder(self.path).begin(config))

    def event(self, kind: str, **content: Any) -> None:
        """Append an event. Raise a TrainingError if the losses show that the ranks diverged.

        Ranks on different hardware may round differently; ranks that received different batches
        differ by far more.
        """
        losses = from_all(float(content.get("values", {}).get("loss", 0)))
        if any(abs(loss - losses[0]) > 1e-3 * abs(losses[0]) for loss in losses):
            raise TrainingError(
                "the ranks diverged: their losses differ, so they received different batches; a "
                "stream must supply the same batches to every process"
            )
        from_rank_0(lambda: RunFolder(self.path).event(kind, **content))


def _check_equal(config: Mapping[str, Any]) -> None:
    configs = from_all(dict(config))
    for rank, other in enumerate(configs):
        unequal = sorted(key for key in config if configs[0][key] != other[key])
        if unequal:
            raise TrainingError(
                f"the configuration of rank {rank} differs from that of rank 0: "
                f"{', '.join(unequal)}"
            )


class SharedCheckpointer(Checkpointer):
    """Checkpoints of a distributed run: rank 0 writes them, and reads them for all ranks."""

    def resume(self, runs: Sequence[Run]) -> bool:
        """Restore the runs on every rank from rank 0's newest checkpoint."""
        if not from_rank_0(lambda: super(SharedCheckpointer, self).resume(runs)):
            return False
        states = from_rank_0(lambda: [to_host(run.state_dict()) for run in runs])
        if dist.get_rank() > 0:
            for run, state in zip(runs, states, strict=True):
                run.load_state_dict(state)
        return True

    def checkpoint_due(self) -> bool:
        """Return whether a checkpoint is due; always False on ranks other than 0."""
        return dist.get_rank() == 0 and super().checkpoint_due()

    def on_checkpoint(self, runs: Sequence[Run]) -> None:
        """Copy the states of the runs on rank 0 and write them in the background."""
        if dist.get_rank() == 0:
            super().on_checkpoint(runs)

    def clear(self, *stores: CheckpointStore) -> None:
        """Remove all checkpoints, or those of some completed runs."""
        if dist.get_rank() == 0:
            super().clear(*stores)


def stop_on_rank_0(stop: Callable[[], int] | None) -> Callable[[], int] | None:
    """Restrict `stop` to rank 0; the other ranks end when they lose contact with it.

    Signals reach the ranks at different steps, and only rank 0 writes checkpoints.
    """
    return stop if dist.get_rank() == 0 else None
