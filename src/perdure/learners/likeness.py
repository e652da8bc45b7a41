"""How alike the loss gradients of samples are: the scores of gradient-based selection.

A score is c = max_i cos(g, G_i) + 1 over reference gradients G, a cosine being 0 where a gradient
vanishes. For any network the gradients themselves are compared. Where all weights are those of
linear layers they need not be: the gradient of such a layer is the outer product of its input a and
the loss's derivative δ by its output, so that of two samples' gradients the inner product is
(δ·δ′)(a·a′ + 1), the 1 being that of the bias, added up over the layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from perdure.learners.passes import per_sample
from perdure.records import Samples

AT_ONCE = 16
"""Gradients are as large as the network: this many are held beside those of the reference."""

T = TypeVar("T")


class Scores(NamedTuple):
    """Of a batch compared with a reference."""

    batch: Tensor
    """The score of the batch's mean gradient: []."""
    each: Callable[[], Tensor]
    """Computes the scores of its samples: [n]."""


def of_any(network: nn.Module, batch: Samples, reference: Samples) -> Scores:
    """Scores from the gradients of any network."""
    known = gradients(network, reference.inputs, reference.labels)

    def each() -> Tensor:
        return _of_each(
            lambda x, y: score(gradient(network, x, y), known), batch.inputs, batch.labels
        )

    return Scores(score(gradient(network, batch.inputs, batch.labels), known), each)


def is_linear(network: nn.Module) -> bool:
    """Whether all parameters are weights and biases of linear layers, each used once."""
    uses = [m for m in network.modules() if isinstance(m, nn.Sequential)]
    layers = [layer for m in uses for layer in m if isinstance(layer, nn.Linear)]
    theirs = {id(p) for layer in layers for p in layer.parameters()}
    everything = list(network.parameters())
    return (
        per_sample(network)
        and {id(p) for p in everything} == theirs
        and len(theirs) == sum(len(list(layer.parameters())) for layer in layers)
        and all(p.requires_grad for p in everything)
    )


def of_linear_layers(network: nn.Module, batch: Samples, reference: Samples) -> Scores:
    """The same scores, of a network for which `is_linear` holds, from one pass over all samples."""
    n = len(batch.labels)
    products = _inner_products(
        network,
        torch.cat([batch.inputs, reference.inputs]),
        torch.cat([batch.labels, reference.labels]),
    )
    if products is None:
        return of_any(network, batch, reference)
    lengths = products.diagonal().clamp(min=0).sqrt()
    across = products[:n, n:]
    as_one = across.mean(0) / _both(products[:n, :n].mean().clamp(min=0).sqrt(), lengths[n:])

    def each() -> Tensor:
        return (across / _both(lengths[:n, None], lengths[n:])).amax(1) + 1

    return Scores(as_one.max() + 1, each)


def _inner_products(network: nn.Module, x: Tensor, y: Tensor) -> Tensor | None:
    """Those of all pairs of the samples' gradients, [n, n]; None if a layer sees sequences."""
    inputs, outputs, biases = [], [], []

    def note(layer: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        inputs.append(arguments[0].detach())
        outputs.append(output)
        biases.append(layer.bias is not None)

    hooks = [
        module.register_forward_hook(note)
        for module in network.modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        with torch.enable_grad():
            loss = F.cross_entropy(network(x), y, reduction="sum")
            derivatives = torch.autograd.grad(loss, outputs)
    finally:
        for hook in hooks:
            hook.remove()
    if any(a.ndim != 2 for a in inputs):
        return None
    layers = zip(inputs, derivatives, biases, strict=True)
    return torch.stack([(delta @ delta.T) * (a @ a.T + bias) for a, delta, bias in layers]).sum(0)


def _both(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).clamp(min=1e-16)


class Gradient(NamedTuple):
    """A gradient, or in tensors of one dimension more the gradients of several samples."""

    parts: dict[str, Tensor]
    """By parameter, flat: [size] or [n, size]."""
    length: Tensor
    """The Euclidean norm over all parts: [] or [n]."""


def gradient(network: nn.Module, x: Tensor, y: Tensor) -> Gradient:
    """The gradient of the mean cross-entropy over x [n, ...] and y [n]."""
    parameters = {name: p.detach() for name, p in network.named_parameters() if p.requires_grad}

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(functional_call(network, parameters, (x,)), y)

    parts = {name: part.flatten() for name, part in grad(loss)(parameters).items()}
    lengths = torch.stack([torch.linalg.vector_norm(part) for part in parts.values()])
    return Gradient(parts, torch.linalg.vector_norm(lengths))


def gradients(network: nn.Module, x: Tensor, y: Tensor) -> Gradient:
    """The gradient of each sample of x [n, ...] and y [n]."""
    return _of_each(lambda x, y: gradient(network, x, y), x, y)


def score(candidate: Gradient, reference: Gradient) -> Tensor:
    """The score c = max_i cos(g, G_i) + 1, a cosine being 0 where a gradient vanishes."""
    products = torch.stack([reference.parts[n] @ part for n, part in candidate.parts.items()])
    cosines = products.sum(0) / (candidate.length * reference.length).clamp(min=1e-16)
    return cosines.max() + 1


def _of_each(function: Callable[[Tensor, Tensor], T], x: Tensor, y: Tensor) -> T:
    """The function of batches that hold one sample each, the results put together."""
    each = vmap(function, randomness="different", chunk_size=AT_ONCE)
    return each(x[:, None], y[:, None])
