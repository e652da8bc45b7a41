"""Several batches through one network, as if they came one after the other, in few passes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Passes:
    """What a network says of each of several batches.

    On a network with BatchNorm a batch is more than its samples: each has statistics of its own,
    and the running ones follow in the order given. One pass over all batches gives the same where
    each output depends on its own input alone, or where the network offers `forward_each`, which
    keeps the batches apart by itself.

    >>> first, second = Passes(nn.Linear(4, 3))(torch.rand(2, 4), torch.rand(5, 4))
    >>> first.shape, second.shape
    (torch.Size([2, 3]), torch.Size([5, 3]))
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.per_sample = per_sample(network)

    def __call__(self, *batches: Tensor) -> Sequence[Tensor]:
        """The logits of each batch."""
        if self.per_sample:
            sizes = [len(batch) for batch in batches]
            return self.network(torch.cat(batches)).split(sizes)  # type: ignore[no-any-return]
        together = getattr(self.network, "forward_each", None)
        return [self.network(x) for x in batches] if together is None else together(*batches)


_PER_SAMPLE = (
    *(nn.Flatten, nn.Identity, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.LayerNorm, nn.GroupNorm, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
    *(nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU),
)


def per_sample(network: nn.Module) -> bool:
    """Whether each output certainly depends on its own input alone: no BatchNorm, no dropout.

    Certain only for sequences of known layers; a module of the user's own may do anything.
    """
    return all(
        type(module) in _PER_SAMPLE
        or (isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward)
        for module in network.modules()
    )
