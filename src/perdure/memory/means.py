"""Class means in a network's feature space, which answer in place of its last layer."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NEVER = -1e4
"""The score of a class without a mean: finite, yet no softmax gives it a share."""


class NearestMean(nn.Module):
    """A frozen copy of a network that answers with the nearest class mean in its feature space.

    Scores are negative Euclidean distances between unit vectors: from −2 to 0, and `NEVER` for
    classes that have no mean.
    """

    means: Tensor
    """[classes, features], of unit length."""
    known: Tensor
    """[classes]: which of the means are there."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        weight = _last_linear(network).weight
        self.network = copy.deepcopy(network).requires_grad_(False)
        self.register_buffer("means", torch.zeros_like(weight, dtype=torch.float32))
        self.register_buffer("known", torch.zeros_like(weight[:, 0], dtype=torch.bool))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Scores [n, classes] of normalised images."""
        mode = "donot_use_mm_for_euclid_dist"  # which would lose small distances to rounding
        distances = torch.cdist(self.features(x), self.means, compute_mode=mode)
        return torch.where(self.known, -distances, NEVER)

    def features(self, x: Tensor) -> Tensor:
        """φ(x): what the network's last linear layer is given, scaled to unit length."""
        caught: list[Tensor] = []
        head = _last_linear(self.network)
        with head.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0])):
            self.network(x)
        if not caught or caught[-1].shape != (len(x), head.in_features):
            raise ValueError(
                "the network's last linear layer is not given one vector for each image, so there "
                "are no features to take means of"
            )
        return F.normalize(caught[-1].float(), dim=1)


def _last_linear(network: nn.Module) -> nn.Linear:
    linear = [module for module in network.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError(
            "the network has no nn.Linear layer, whose input could serve as an image's features"
        )
    return linear[-1]
