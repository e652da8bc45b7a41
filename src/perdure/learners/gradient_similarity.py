"""Similarity of loss gradients: the scores of gradient-based sample selection.

The score of a gradient g is c = max_i cos(g, G_i) + 1 over reference gradients G; the cosine with a
zero gradient is 0. Gradients of any network can be compared directly. If all parameters belong to
linear layers, inner products of gradients need no gradients: a linear layer's gradient is the outer
product of its input a and the derivative δ of the loss by its output, so the inner product of two
samples' gradients is the sum over layers of (δ·δ′)(a·a′ + 1), where the 1 is due to the bias.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from perdure.learners.multi_batch import is_per_sample
from perdure.records import Samples, join
from perdure.structures import Inputs, arguments, call, logits_of, map_leaves
from perdure.undo import save_parameters

_CHUNK_SIZE = 16
"""Per-sample gradients computed at a time; each is as large as the network."""

_MAX_PRODUCTS = 1024
"""Largest batch for which all inner products are computed; their number is quadratic in it."""

T = TypeVar("T")


class Scores(NamedTuple):
    """Scores of a batch."""

    batch: Tensor
    """Score of the batch's mean gradient: []."""
    per_sample: Callable[[], Tensor]
    """Computes the score of each sample: [n]."""


def compare_gradients(network: nn.Module, batch: Samples, reference: Samples) -> Scores:
    """Score a batch by the gradients of any network."""
    save_parameters(network)
    known = gradients(network, reference.inputs, reference.labels)

    def scores(x: Inputs, y: Tensor) -> Tensor:
        return score(gradient(network, x, y), known)

    x, y, _ = batch
    return Scores(scores(x, y), lambda: _map_samples(scores, x, y))


def has_only_linear_layers(network: nn.Module) -> bool:
    """Return whether all parameters belong to linear layers, each used once."""
    sequences = [m for m in network.modules() if isinstance(m, nn.Sequential)]
    layers = [layer for m in sequences for layer in m if isinstance(layer, nn.Linear)]
    linear = {id(p) for layer in layers for p in layer.parameters()}
    parameters = list(network.parameters())
    return (
        is_per_sample(network)
        and {id(p) for p in parameters} == linear
        and len(linear) == sum(len(list(layer.parameters())) for layer in layers)
        and all(p.requires_grad for p in parameters)
    )


def compare_linear_layers(network: nn.Module, batch: Samples, reference: Samples) -> Scores:
    """Score a batch with one pass; the network must satisfy `has_only_linear_layers`."""
    n = len(batch.labels)
    if n > _MAX_PRODUCTS:
        return compare_gradients(network, batch, reference)
    products = _inner_products(network, join(batch, reference))
    if products is None:
        return compare_gradients(network, batch, reference)
    norms = products.diagonal().sqrt()
    across = products[:n, n:]
    mean_norm = products[:n, :n].mean().clamp(min=0).sqrt()
    cosines = across.mean(0) / _product_of_norms(mean_norm, norms[n:])

    def per_sample() -> Tensor:
        return (across / _product_of_norms(norms[:n, None], norms[n:])).amax(1) + 1

    # The gradients of a batch may cancel except for rounding.
    return Scores(cosines.max().clamp(-1, 1) + 1, per_sample)


def _inner_products(network: nn.Module, samples: Samples) -> Tensor | None:
    """Return the inner products [n, n] of all samples' gradients.

    None if a layer receives more than one vector per sample.
    """
    inputs, outputs, biases = [], [], []

    def record(layer: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        inputs.append(arguments[0].detach())
        outputs.append(output)
        biases.append(layer.bias is not None)

    with ExitStack() as hooks, torch.enable_grad():
        for module in network.modules():
            if isinstance(module, nn.Linear):
                hooks.enter_context(module.register_forward_hook(record))
        loss = F.cross_entropy(call(network, samples.inputs), samples.labels, reduction="sum")
        derivatives = torch.autograd.grad(loss, outputs)
    if any(a.ndim != 2 for a in inputs):
        return None
    layers = zip(inputs, derivatives, biases, strict=True)
    return torch.stack([(delta @ delta.T) * (a @ a.T + bias) for a, delta, bias in layers]).sum(0)


def _product_of_norms(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).clamp(min=1e-16)


class Gradient(NamedTuple):
    """The gradient of a loss, or the gradients of n samples."""

    parts: dict[str, Tensor]
    """Flattened gradient of each parameter: [size] or [n, size]."""
    norm: Tensor
    """Euclidean norm over all parts: [] or [n]."""


def gradient(network: nn.Module, x: Inputs, y: Tensor) -> Gradient:
    """Compute the gradient of the mean cross-entropy over inputs x and labels y [n]."""
    parameters = {name: p.detach() for name, p in network.named_parameters() if p.requires_grad}

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(logits_of(functional_call(network, parameters, *arguments(x))), y)

    parts = {name: part.flatten() for name, part in grad(loss)(parameters).items()}
    norms = torch.stack([torch.linalg.vector_norm(part) for part in parts.values()])
    return Gradient(parts, torch.linalg.vector_norm(norms))


def gradients(network: nn.Module, x: Inputs, y: Tensor) -> Gradient:
    """Compute the gradient of each sample of inputs x and labels y [n]."""
    return _map_samples(lambda x, y: gradient(network, x, y), x, y)


def score(candidate: Gradient, reference: Gradient) -> Tensor:
    """Compute c = max_i cos(g, G_i) + 1; the cosine with a zero gradient is 0."""
    products = torch.stack([reference.parts[n] @ part for n, part in candidate.parts.items()])
    cosines = products.sum(0) / _product_of_norms(candidate.norm, reference.norm)
    return cosines.max() + 1


def _map_samples(function: Callable[[Inputs, Tensor], T], x: Inputs, y: Tensor) -> T:
    """Apply a function of batches to every sample as a batch of one."""
    mapped = vmap(function, randomness="different", chunk_size=_CHUNK_SIZE)
    return mapped(map_leaves(lambda leaf: leaf[:, None], x), y[:, None])
