"""Frozen parts of a network, which all networks of a learner share."""

from __future__ import annotations

import copy

from torch import Tensor, nn


def training_mode(network: nn.Module) -> nn.Module:
    """Switch to training mode, except frozen modules in evaluation mode, and return the network.

    A module is frozen if it has parameters and none of them requires gradients.
    """
    fixed = _fixed_modules(network)
    network.train()
    for module in fixed:
        module.training = False
    return network


def copy_network(network: nn.Module) -> nn.Module:
    """Copy a network without copying what cannot change.

    The copy shares parameters that do not require gradients, and the buffers of frozen modules in
    evaluation mode, such as BatchNorm statistics.
    """
    shared: list[Tensor] = [p for p in network.parameters() if not p.requires_grad]
    shared += [b for module in _fixed_modules(network) for b in module.buffers(recurse=False)]
    return copy.deepcopy(network, {id(tensor): tensor for tensor in shared})


def shared_names(one: nn.Module, other: nn.Module) -> frozenset[str]:
    """Return the names of the parameters and buffers that two networks share."""
    tensors = other.state_dict(keep_vars=True)
    pairs = one.state_dict(keep_vars=True).items()
    return frozenset(name for name, tensor in pairs if tensor is tensors.get(name))


def _fixed_modules(network: nn.Module) -> list[nn.Module]:
    """Return the modules in evaluation mode that belong to a frozen module in evaluation mode."""
    fixed: list[nn.Module] = []
    for module in network.modules():
        parameters = list(module.parameters())
        if parameters and not module.training and not any(p.requires_grad for p in parameters):
            fixed += [part for part in module.modules() if not part.training]
    return fixed
