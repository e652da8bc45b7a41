"""One learner on several processes: every network's work on a batch is divided among the ranks.

All ranks read the same stream, make the same draws and keep the same memory. When a network is
called on a batch, each rank runs it on its own rows and gathers the outputs of all, so everything
a method computes from them (its loss, its choices, what it stores) is the same on every rank, and
a method needs to know nothing of this.

Gradients come out right by two rules. Backward through the gathering, a rank keeps the gradient
of its own rows, times the number of ranks; and the gradient of every parameter is averaged over
the ranks. So rank k contributes N·Σ_{i in its rows} ∂L/∂z_i ∂z_i/∂θ, and the mean over N ranks is
∂L/∂θ. A batch too small to be divided is computed whole by everybody, and its gradient, being
the same everywhere, is its own mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from perdure.learners import Learner, MultiBatchNetwork
from perdure.learners.multi_batch import one_by_one
from perdure.randomness import derive
from perdure.training.loop import TrainingError

T = TypeVar("T")


class RankLostError(TrainingError):
    """Another rank has ended, or has not answered for long."""

    raised: ClassVar[bool] = False
    """Whether this process has met it: then its failure is the consequence of another's."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        RankLostError.raised = True


def divide(learner: Learner, seed: int = 0) -> None:
    """Let the ranks of the process group share the work of the learner's networks.

    Every rank must hold an equal learner and show it equal batches. BatchNorm becomes
    SyncBatchNorm, which normalises by the whole batch; it needs GPUs. Networks are divided in
    training mode only: in evaluation mode each rank computes for itself.
    """
    networks = learner.networks()
    if learner.device.type == "cpu" and any(map(_has_batch_norm, networks)):
        raise ValueError(
            "the network has BatchNorm, whose statistics several processes can share on GPUs only; "
            "start one process, or choose a network without BatchNorm"
        )
    for network in networks:
        synchronise(network)
        share = _Share(learner.device, seed)
        network.register_forward_pre_hook(share.take)
        network.register_forward_hook(share.gather)
    for parameter in learner.network.parameters():
        if parameter.requires_grad:
            parameter.register_hook(_average)  # type: ignore[no-untyped-call]


def synchronise(network: nn.Module) -> None:
    """Let every BatchNorm in the network take its statistics over the batch of all ranks.

    A layer that does more than BatchNorm, as ours do, offers `synchronised` for it.
    """
    for module in network.modules():
        for name, norm in list(module.named_children()):
            if not isinstance(norm, _BatchNorm):
                continue
            synchronised = getattr(norm, "synchronised", None)
            if synchronised is not None:
                module.add_module(name, synchronised())
            elif type(norm) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
                convert = nn.SyncBatchNorm.convert_sync_batchnorm
                module.add_module(name, convert(norm))  # type: ignore[no-untyped-call]
            else:
                raise ValueError(
                    f"the network has a {type(norm).__name__}, which several processes cannot "
                    "share; start one process"
                )
    if isinstance(network, MultiBatchNetwork):  # joined batches would be divided as one
        network.forward_batches = MethodType(one_by_one, network)  # type: ignore[method-assign]


def _has_batch_norm(network: nn.Module) -> bool:
    return any(isinstance(module, _BatchNorm) for module in network.modules())


class _Share:
    """A rank's part in one network's work: its rows go in, the rows of all come out.

    Inside, the global generator (dropout draws from it) is the rank's own: drawn from a shared
    one, other rows would get the same masks, and ranks with fewer rows would fall behind.
    """

    def __init__(self, device: torch.device, seed: int) -> None:
        self.device = device
        rank_seed = derive(seed, f"rank {dist.get_rank()}")
        self.random = torch.Generator(device=device).manual_seed(rank_seed).get_state()
        self.rows = 0
        """Of the batch that is being computed; 0 if it is not divided."""

    def take(self, network: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor] | None:
        """This rank's rows of the batch."""
        divided = network.training and inputs and len(inputs[0]) >= dist.get_world_size()
        self.rows = len(inputs[0]) if divided else 0
        if not self.rows:
            return None
        self._swap_randomness()
        return (inputs[0].tensor_split(dist.get_world_size())[dist.get_rank()],)

    def gather(self, network: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """The outputs for all rows of the batch, from the outputs for this rank's."""
        if not self.rows:
            return None
        self._swap_randomness()
        return _Gather.apply(output, self.rows)  # type: ignore[no-any-return,no-untyped-call]

    def _swap_randomness(self) -> None:
        own = self.random
        if self.device.type == "cpu":
            self.random = torch.get_rng_state()
            torch.set_rng_state(own)
        else:
            self.random = torch.cuda.get_rng_state(self.device)
            torch.cuda.set_rng_state(own, self.device)


class _Gather(torch.autograd.Function):
    """Rows of every rank in order, on every rank."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, rows: int) -> Tensor:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        # As tensor_split divides: the first ranks have a row more where it does not come out even.
        counts = [rows // ranks + (k < rows % ranks) for k in range(ranks)]
        ctx.own = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
        ctx.ranks = ranks
        # A sum in which all other ranks have zeros in a rank's rows: the shares may be unequal.
        whole = own.new_zeros(rows, *own.shape[1:])
        whole[ctx.own] = own
        with _in_touch():
            dist.all_reduce(whole)
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0][ctx.own] * ctx.ranks, None


def _average(gradient: Tensor) -> Tensor:
    """A parameter's gradient as the mean over the ranks, the same bits on each."""
    mean = gradient.clone(memory_format=torch.contiguous_format)
    with _in_touch():
        dist.all_reduce(mean)
    return mean.div_(dist.get_world_size())


@contextmanager
def _in_touch() -> Iterator[None]:
    """Inside, a failure to reach the other ranks is said to be one."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = re.sub(r"^\[[^]]*\] ", "", str(error).splitlines()[0]).split(". ")[0]
        raise RankLostError(f"another rank cannot be reached any more ({reason})") from error


def from_rank_0(make: Callable[[], T]) -> T:
    """What `make` returns on rank 0, or the error that it raises there, on every rank."""
    answer: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            answer = [make(), None]
        except (ValueError, OSError) as error:
            answer = [None, error]
    with _in_touch():
        dist.broadcast_object_list(answer)
    value, failure = answer
    if failure is not None:
        raise failure
    return value  # type: ignore[no-any-return]


def from_all(value: T) -> list[T]:
    """The values of all ranks, in their order, on every rank."""
    values: list[Any] = [None] * dist.get_world_size()
    with _in_touch():
        dist.all_gather_object(values, value)
    return values
