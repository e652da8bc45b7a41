"""Frozen parts of a network, which all networks of a learner share."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from perdure.state import State, get_state, load_state


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


def get_own_state(network: nn.Module, shared: frozenset[str]) -> State:
    """Return the state of a network without the shared tensors."""
    return {name: part for name, part in get_state(network).items() if name not in shared}


def load_own_state(network: nn.Module, state: State, shared: frozenset[str]) -> None:
    """Restore a state from `get_own_state`.

    Raises:
        ValueError: If the state contains tensors that are shared.
    """
    if unexpected := sorted(shared & state.keys()):
        raise ValueError(f"{unexpected[0]} is frozen here but was not when the state was saved")
    current = network.state_dict()
    load_state(network, {**state, **{name: current[name] for name in shared}})


def _fixed_modules(network: nn.Module) -> list[nn.Module]:
    """Return the modules in evaluation mode that belong to a frozen module in evaluation mode."""
    fixed: list[nn.Module] = []
    for module in network.modules():
        parameters = list(module.parameters())
        if parameters and not module.training and not any(p.requires_grad for p in parameters):
            fixed += [part for part in module.modules() if not part.training]
    return fixed
