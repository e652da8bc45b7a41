"""Growing the classification head of a learner's networks when new classes arrive.

Everything that grows is a tensor with one row per class, except stored logits, which have one
column per class. A tensor grows by replacing its data: parameters stay the same objects, so that
optimizers, learning-rate schedulers and memories keep referring to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from perdure.learners.predictor import Predictor
from perdure.randomness import generator
from perdure.state import State
from perdure.undo import on_failure

if TYPE_CHECKING:
    from perdure.learners.learner import Learner


MAX_ADDED = 10_000
"""Most classes that the labels of a batch may add; more are probably not class numbers."""


class Head(NamedTuple):
    """The classification head of a network."""

    name: str
    """Name of the module in its network; empty if it is the network."""
    module: nn.Linear

    @property
    def classes(self) -> int:
        """Number of outputs."""
        return self.module.out_features

    def __str__(self) -> str:
        return f"the layer {self.name!r}" if self.name else "the network's only layer"


def find_head(network: nn.Module, name: str | None) -> Head:
    """Return the linear layer with this name, by default the last one of the network.

    Raises:
        ValueError: If there is none, or if it cannot grow.
    """
    modules = dict(network.named_modules())
    if name is None:
        linear = [each for each, module in modules.items() if isinstance(module, nn.Linear)]
        if not linear:
            raise ValueError("the network has no nn.Linear layer, so it cannot grow")
        name = linear[-1]
    module = modules.get(name)
    if not isinstance(module, nn.Linear):
        found = "does not exist" if module is None else f"is a {type(module).__name__}"
        raise ValueError(f"head is {name!r}, which {found}; expected the name of an nn.Linear")
    head = Head(name, module)
    _check_head(network, head)
    return head


def _check_head(network: nn.Module, head: Head) -> None:
    own = dict(head.module.named_parameters(recurse=False))
    if any(nn.parameter.is_lazy(p) for p in own.values()):
        raise ValueError(f"{head} has no size yet; pass a batch through the network first")
    if "weight" not in own or (head.module.bias is not None and "bias" not in own):
        raise ValueError(f"{head} computes its weights from others, so it cannot grow")
    if not all(p.requires_grad for p in own.values()):
        raise ValueError(f"{head} is frozen, so it cannot grow")
    owned = {id(p) for p in own.values()}
    uses = [name for name, p in network.named_parameters(remove_duplicate=False) if id(p) in owned]
    if len(uses) > len(own):
        raise ValueError(f"{head} shares its weights with another layer, so it cannot grow")


def check_outputs(head: Head, outputs: int) -> None:
    """Raise ValueError unless the head has as many outputs as the network."""
    if head.classes != outputs:
        raise ValueError(
            f"the network returns {outputs} logits but {head} has {head.classes} outputs, so it is "
            "not the classification head; name that one with the argument head"
        )


def _larger_tensors(
    learner: Learner, heads: list[nn.Linear], classes: int, scale: float
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield every tensor that grows with its larger data; the first head is the network's own.

    New weights are drawn with the standard deviation `scale`. The row of a class depends on the
    seed, the class and the scale only, so all networks get the same. That of the old weights keeps
    a new class from starting with much smaller gradients.
    """
    bound = scale * math.sqrt(3)
    for head in heads:
        for name, parameter in head.named_parameters(recurse=False):
            rows = parameter.new_zeros(classes - len(parameter), *parameter.shape[1:]).cpu()
            if name == "weight":
                for number, row in enumerate(rows, len(parameter)):
                    draws = generator(learner._seed, f"weight of class {number}")
                    row.uniform_(-bound, bound, generator=draws)
            yield parameter, torch.cat([parameter.data, rows.to(parameter.data)])
    zeros = [*_optimizer_state(learner.optimizer, heads[0]), *learner.per_class()]
    for tensor in zeros:
        rows = tensor.new_zeros(classes - len(tensor), *tensor.shape[1:])
        yield tensor, torch.cat([tensor.data, rows])
    logits = None if learner.memory is None else learner.memory.stored_logits()
    if learner.memory is not None and logits is not None:
        if learner.memory.buffer_bytes is not None:
            raise ValueError(
                "the memory stores logits within buffer_bytes, so it has no room for more; create "
                "the learner with buffer_size instead"
            )
        # A sample that was stored before a class arrived does not belong to it. The new class
        # gets the score of the class that the network found least likely.
        lowest = logits.amin(dim=1, keepdim=True).expand(-1, classes - logits.shape[1])
        yield logits, torch.cat([logits, lowest], dim=1)


def _optimizer_state(optimizer: Optimizer, head: nn.Linear) -> Iterator[Tensor]:
    """Yield the state of the head's parameters: momentum, Adam's moments."""
    for parameter in head.parameters(recurse=False):
        for key, value in optimizer.state.get(parameter, {}).items():
            if not isinstance(value, Tensor) or not value.ndim:  # a number of steps
                continue
            if value.shape != parameter.shape:
                raise ValueError(
                    f"{type(optimizer).__name__} has a state {key!r} of shape "
                    f"{tuple(value.shape)}, for which growing is not defined"
                )
            yield value


def _replace_data(tensor: Tensor, data: Tensor) -> None:
    """Replace the data of a tensor by data of another shape, and discard its gradient."""
    if tensor.requires_grad:
        tensor.grad = None
        # A graph that the user still holds keeps the node that accumulates gradients of the old
        # shape; autograd creates a new one only if the dtype changes.
        other = torch.float32 if data.dtype == torch.float64 else torch.float64
        tensor.data = data.new_empty(0, dtype=other)
    tensor.data = data


def grow_heads(
    learner: Learner, classes: int, outputs: int | None = None, example: Any = None
) -> Callable[[], None]:
    """Enlarge the head of all networks of a learner, its optimizer state and its memories.

    Args:
        learner: Learner to grow.
        classes: Number of outputs, more than now.
        outputs: Number of logits that the network returns now, if known.
        example: One raw input with which to check that old outputs are the same afterwards.

    Returns:
        A function that undoes the growth.

    Raises:
        ValueError: If the learner cannot grow; it is left unchanged.
    """
    head = find_head(learner.network, learner.head)
    before, spec, grown = head.classes, learner._input_spec, learner.grown
    if outputs is not None:
        check_outputs(head, outputs)
    copies = (network.get_submodule(head.name) for network in learner.networks())
    heads = [each for each in copies if isinstance(each, nn.Linear)]
    # That of the classes known from the start, so that growing in several steps is the same.
    known = head.module.weight.detach()[: before - grown]
    scale = float(known.double().square().mean().sqrt())
    if not math.isfinite(scale):  # training has diverged
        scale = 1 / math.sqrt(head.module.in_features)
    larger = list(_larger_tensors(learner, heads, classes, scale))
    smaller = [(tensor, tensor.data) for tensor, _ in larger]

    def replace(size: int, tensors: list[tuple[Tensor, Tensor]]) -> None:
        for tensor, data in tensors:
            _replace_data(tensor, data)
        for each in heads:
            each.out_features = size
        learner.grown = grown + size - before
        if spec is not None:
            learner._input_spec = spec._replace(classes=size)

    undo = partial(replace, before, smaller)
    old = None if example is None else _outputs(learner, example)
    on_failure(undo)
    try:
        replace(classes, larger)
        if old is not None and not _kept(old, _outputs(learner, example), classes):
            raise ValueError("other layers follow it or depend on its size")
    except BaseException as error:
        undo()
        if not isinstance(error, RuntimeError | ValueError | TypeError | LookupError):
            raise
        raise ValueError(
            f"{head} cannot grow: the network's outputs for the old classes would change ({error})"
        ) from error
    return undo


def _outputs(learner: Learner, example: Any) -> list[Tensor]:
    return [Predictor(network, learner.normalise)(example) for network in learner.networks()]


def _kept(old: list[Tensor], new: list[Tensor], classes: int) -> bool:
    """Return whether new outputs have all classes and are those of before for the old ones."""
    return all(
        after.shape[1] == classes
        and torch.allclose(after[:, : before.shape[1]], before, 1e-3, 1e-4, equal_nan=True)
        for before, after in zip(old, new, strict=True)
    )


def grow_to_fit(learner: Learner, state: State) -> Callable[[], None] | None:
    """Grow a learner to the size of a state that was saved after growth from the same head.

    Returns:
        A function that undoes the growth; None if there was none.
    """
    added = int(state["growth"]["added"])
    if not added:
        return None
    head = find_head(learner.network, learner.head)
    weight = state["network"].get(f"{head.name}.weight".lstrip("."))
    classes = 0 if weight is None else len(weight)
    if classes <= head.classes or classes - added != head.classes - learner.grown:
        return None  # loading the state then reports what does not fit
    return grow_heads(learner, classes)
