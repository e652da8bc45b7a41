"""Export of a predictor, with its normalisation, to ONNX or to a `torch.export` program."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Iterator
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from perdure.files import write_atomic
from perdure.learners.checks import check_file
from perdure.structures import Inputs, arguments, call, map_leaves

SUFFIXES = (".onnx", ".pt2")
_LOGS = ("onnx", "export", "fx.experimental.symbolic_shapes")
"""Logs of torch in which the exporter writes."""


class _Served(nn.Module):
    """A network with its normalisation: raw inputs to logits.

    The arguments are those of the network, but raw. `forward` has their names as its signature,
    because the tracer does not support variable ones.
    """

    def __init__(self, network: nn.Module, normalise: Any, example: Inputs) -> None:
        super().__init__()
        self.network = network
        self.normalise = normalise

        def forward(*inputs: Any, **named: Any) -> Tensor:
            raw = inputs[0] if isinstance(example, Tensor) else named or inputs
            return call(self.network, self.normalise(raw))

        names = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in _parts(example)]
        forward.__signature__ = Signature(names)  # type: ignore[attr-defined]
        self.forward = forward


def _parts(inputs: Any) -> dict[str, Any]:
    """Return the arguments of a network by name: `inputs` for a tensor, `inputs_0`… for a tuple."""
    if isinstance(inputs, tuple):
        return {f"inputs_{i}": part for i, part in enumerate(inputs)}
    return dict(inputs) if isinstance(inputs, dict) else {"inputs": inputs}


def export(path: Path, network: nn.Module, normalise: Any, example: Inputs) -> None:
    """Write a network with its normalisation to a file; see `Learner.export`."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} ends with {path.suffix!r}; expected {' or '.join(SUFFIXES)}")
    check_file(path)
    if path.suffix == ".onnx":
        _require_onnx()
    example = map_leaves(lambda leaf: leaf.cpu(), example)
    network, normalise = copy.deepcopy((network, normalise))
    served = _Served(network, normalise, example).cpu().requires_grad_(False).eval()
    program = _trace(served, example)
    if path.suffix == ".onnx":
        content = _to_onnx(program, example)
    else:
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
        content = buffer.getvalue()
    write_atomic(path, content)


def _trace(served: _Served, example: Inputs) -> ExportedProgram:
    """Return the computation for batches of any size."""
    # A batch of one would become a constant of the program.
    two = map_leaves(lambda leaf: torch.cat([leaf[:1], leaf[:1]]), example)
    positional, named = arguments(two)
    dynamic = {
        name: map_leaves(lambda _: {0: Dim("batch")}, part) for name, part in _parts(two).items()
    }
    try:
        with torch.no_grad(), _quiet():
            return torch.export.export(served, positional, named, dynamic_shapes=dynamic)
    except Exception as error:  # the tracer raises errors of many types
        reason = _first_line(error)
        if "Constraints violated" in reason:
            reason = "it works for one batch size only; for example, len(x) is a constant there"
        elif "data-dependent" in reason:
            reason = (
                "its forward branches on values of tensors or reads them as Python numbers; "
                "compute with tensors instead, for example with torch.where"
            )
        raise ValueError(f"the network cannot be exported: {reason}") from error


def _to_onnx(program: ExportedProgram, example: Inputs) -> bytes:
    """Return an ONNX model with the output `logits`."""
    names = list(_input_names(example))
    try:
        with _quiet():
            exported = torch.onnx.export(
                program, input_names=names, output_names=["logits"], verbose=False
            )
    except Exception as error:  # the converter raises errors of many types
        raise ValueError(
            f"the network cannot be exported to ONNX, but perhaps to .pt2: {_first_line(error)}"
        ) from error
    assert exported is not None
    model = exported.model_proto
    symbol = model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == symbol:
                dim.dim_param = "batch"
    return bytes(model.SerializeToString())


def _input_names(example: Inputs) -> Iterator[str]:
    """Iterate over a name for each tensor; those inside an argument have its name as prefix."""
    for name, part in _parts(example).items():
        if isinstance(part, Tensor):
            yield name
        else:
            yield from (f"{name}_{inner.removeprefix('inputs_')}" for inner in _input_names(part))


def _first_line(error: BaseException) -> str:
    """Return the first line of the original error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next(filter(None, str(error).strip().splitlines()), type(error).__name__)


def _require_onnx() -> None:
    try:
        import onnxscript as onnxscript
    except ImportError:
        raise ValueError(
            'exporting to ONNX needs onnx and onnxscript: install them with `pip install "perdure'
            '[onnx]"`, or export to a file that ends with .pt2'
        ) from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide what the exporter logs, prints and warns of, which concerns its own internals."""
    logs = [logging.getLogger(f"torch.{name}") for name in _LOGS]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
