"""What a network accepts and returns: found with its first inputs, then checked in each batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from perdure.learners.checks import describe
from perdure.learners.predictor import Predictor
from perdure.randomness import global_state, set_global_state
from perdure.structures import Inputs, layout, leaves, length, logits_of, select, to_device
from perdure.undo import save_hooks
from perdure.user_code import describe_error, raised_in, warn_caller

_ROUNDING = 0.02
"""Share of the largest logit by which logits may differ because batches are rounded differently."""


class InputSpec(NamedTuple):
    """What a network accepts and returns, known after the first batch."""

    layout: str
    """Structure, dtypes and shapes of one sample."""
    classes: int
    """Number of logits."""
    smallest_batch: int = 1
    """2 if BatchNorm would have one value per channel in a batch of one, otherwise 1."""


def find_spec(predict: Predictor, inputs: Inputs, device: torch.device) -> InputSpec:
    """Find out what a network accepts and returns, with one sample in evaluation mode.

    Args:
        predict: The network with its normalisation.
        inputs: Raw inputs [n, ...], of which the first is used.
        device: Device of the network.

    Raises:
        ValueError: If the network does not accept the inputs or does not return logits for each.
    """
    one = to_device(select(inputs, slice(0, 1)), device)
    try:
        with _norms_with_single_values(predict.module) as norms:
            logits = predict(one)
    except Exception as error:  # a network may raise anything
        if raised_in(error, logits_of):  # about the output
            raise
        raise ValueError(
            f"the network does not accept inputs {layout(one)}: {describe_error(error)}"
        ) from error
    _check_logits(logits, 1)
    _check_rows(predict, inputs, device, logits)
    if logits.shape[1] > 1 and (logits >= 0).all() and abs(float(logits.sum()) - 1) < 1e-4:
        warn_caller("the network returns probabilities instead of logits; remove its softmax")
    return InputSpec(layout(one), logits.shape[1], 2 if norms else 1)


def _check_rows(predict: Predictor, inputs: Inputs, device: torch.device, alone: Tensor) -> None:
    """Warn if the logits of a sample in evaluation mode depend on what else is in its batch.

    Raises ValueError if the network does not return logits for each sample. Networks that are
    random in evaluation mode, or compute in low precision, are not compared.

    Args:
        predict: The network with its normalisation.
        inputs: Raw inputs [n, ...].
        device: Device of the network.
        alone: Logits [1, classes] of the first sample alone.
    """
    before = global_state(device)
    try:
        again = predict(to_device(select(inputs, torch.tensor([0])), device))
        random = not (again.equal(alone) and global_state(device).equal(before))
        pair = predict(to_device(select(inputs, torch.tensor([length(inputs) - 1, 0])), device))
    except Exception:  # it is reported if it also occurs with a batch to learn from
        return
    finally:
        set_global_state(before, device)
    _check_logits(pair, 2)
    precise = pair.dtype in (torch.float32, torch.float64)
    if random or not precise or torch.is_autocast_enabled(device.type):
        return
    low, high = (pair[1] - alone[0]).aminmax()  # equal differences change no prediction
    if high - low > _ROUNDING * alone.abs().max() + 1e-4:
        warn_caller(
            "the network mixes the samples of a batch, so what it predicts for one depends on "
            "the others; compute each row [n, ...] separately, for example with "
            "batch_first=True in recurrent and attention layers"
        )


def _check_logits(logits: Tensor, samples: int) -> None:
    """Raise ValueError unless this is a network's output for a number of samples."""
    if logits.ndim != 2 or len(logits) != samples:
        raise ValueError(
            f"the network returned {describe(logits)} for {samples} "
            f"sample{'s' * (samples > 1)}; expected logits [n, classes], a row for each sample"
        )


@contextmanager
def _norms_with_single_values(network: nn.Module) -> Iterator[list[nn.Module]]:
    """Collect the BatchNorm layers that receive a single value per channel inside the block.

    In training mode they cannot compute statistics of such a batch.
    """
    found: list[nn.Module] = []

    def inspect_input(norm: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs and inputs[0].numel() == inputs[0].shape[1]:
            found.append(norm)

    norms = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.training]
    for norm in norms:
        save_hooks(norm)
    with ExitStack() as hooks:
        for norm in norms:
            hooks.enter_context(norm.register_forward_pre_hook(inspect_input))
        yield found


def check_inputs(inputs: Inputs, spec: InputSpec | None, *, values: bool) -> None:
    """Raise ValueError unless inputs are like earlier ones and contain no infinite or NaN value."""
    if spec and (found := layout(inputs)) != spec.layout:
        raise ValueError(
            f"each input is {found}; earlier inputs were {spec.layout}, and shapes and dtypes must "
            "not change (pad sequences to a fixed length)"
        )
    for leaf in leaves(inputs) if values else ():
        if leaf.is_floating_point() and not leaf.isfinite().all():
            raise ValueError("inputs contain infinite or NaN values")


def check_size(inputs: Inputs, spec: InputSpec, what: str = "the batch") -> None:
    """Raise ValueError if the batch is too small for the network's BatchNorm layers."""
    if length(inputs) < spec.smallest_batch:
        raise ValueError(
            f"{what} has one sample, for which the network's BatchNorm layers cannot compute "
            "statistics; pass two or more samples at a time (another batch size, or "
            "drop_last=True for a stream or DataLoader), or use a network without BatchNorm"
        )
