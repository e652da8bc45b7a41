"""Forward passes over several batches at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from perdure.structures import Inputs, call, concatenate, length


@runtime_checkable
class MultiBatchNetwork(Protocol):
    """A network that can process several batches in one pass and keep them separate."""

    def forward_batches(self, *batches: Tensor) -> Sequence[Tensor]:
        """Return the logits of each batch, as one forward pass per batch in order would.

        Args:
            *batches: Normalised inputs [n, ...] of each batch.
        """


class MultiBatchForward:
    """Computes the logits of several batches, in a single pass where that gives the same result.

    With BatchNorm, the result depends on how samples are grouped: each batch has its own
    statistics, and the running statistics are updated in order. A single pass is therefore used
    only for networks that process every sample independently and for `MultiBatchNetwork`s.

    Args:
        network: Network to call.

    Examples:
        >>> first, second = MultiBatchForward(nn.Linear(4, 3))(torch.rand(2, 4), torch.rand(5, 4))
        >>> first.shape, second.shape
        (torch.Size([2, 3]), torch.Size([5, 3]))
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.per_sample = is_per_sample(network)

    def __call__(self, *batches: Inputs) -> Sequence[Tensor]:
        """Return the logits of each batch of network inputs."""
        if self.per_sample:
            sizes = [length(batch) for batch in batches]
            return torch.split(call(self.network, concatenate(batches)), sizes)
        tensors = all(isinstance(batch, Tensor) for batch in batches)
        if tensors and isinstance(self.network, MultiBatchNetwork):
            return self.network.forward_batches(*batches)
        return one_by_one(self.network, *batches)


def one_by_one(network: nn.Module, *batches: Inputs) -> Sequence[Tensor]:
    """Return the logits of each batch, with one forward pass per batch."""
    return [call(network, batch) for batch in batches]


_PER_SAMPLE_LAYERS = (
    *(nn.Flatten, nn.Identity, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.LayerNorm, nn.GroupNorm, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
    *(nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU),
)


def is_per_sample(network: nn.Module) -> bool:
    """Return whether the network certainly processes every sample independently.

    True only for sequences of known layers without BatchNorm or dropout; other modules may do
    anything.
    """
    return all(
        type(module) in _PER_SAMPLE_LAYERS
        or (isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward)
        for module in network.modules()
    )
