"""Export of a predictor, with its normalisation, to ONNX or to a `torch.export` program."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from perdure.files import write_atomic
from perdure.structures import Inputs, arguments, call, map_leaves

SUFFIXES = (".onnx", ".pt2")


class _Served(nn.Module):
    """A network with its normalisation: raw inputs to logits."""

    def __init__(self, network: nn.Module, normalise: Any, *, is_tensor: bool) -> None:
        super().__init__()
        self.network = network
        self.normalise = normalise
        self.is_tensor = is_tensor
        """Whether the inputs are one tensor."""

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Return logits [n, classes]; the arguments are those of the network, but raw."""
        return call(self.network, self.normalise(inputs[0] if self.is_tensor else named or inputs))


def export(path: Path, network: nn.Module, normalise: Any, example: Inputs) -> None:
    """Write a network with its normalisation to a file; see `Learner.export`."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} ends with {path.suffix!r}; expected {' or '.join(SUFFIXES)}")
    if path.suffix == ".onnx":
        _require_onnx()
    served = _Served(network, normalise, is_tensor=isinstance(example, Tensor))
    program = _trace(copy.deepcopy(served).cpu().requires_grad_(False).eval(), example)
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
    two = map_leaves(lambda leaf: torch.cat([leaf[:1], leaf[:1]]).cpu(), example)
    positional, named = arguments(two)
    shapes = map_leaves(lambda _: {0: Dim("batch")}, two)
    dynamic = {"named": shapes} if named else {"inputs": arguments(shapes)[0]}
    if served.is_tensor:
        dynamic = {"inputs": (shapes,)}
    try:
        with torch.no_grad(), _quiet():
            return torch.export.export(served, positional, named, dynamic_shapes=dynamic)
    except Exception as error:  # the tracer raises errors of many types
        reason = _first_line(error)
        if "Constraints violated" in reason:
            reason = "it works for one batch size only; for example, len(x) is a constant there"
        raise ValueError(f"the network cannot be exported: {reason}") from error


def _to_onnx(program: ExportedProgram, example: Inputs) -> bytes:
    """Return an ONNX model with the output `logits`."""
    names = _input_names(example, "")
    try:
        with _quiet():
            exported = torch.onnx.export(
                program, input_names=names, output_names=["logits"], dynamo=True, verbose=False
            )
    except Exception as error:  # the converter raises errors of many types
        raise ValueError(
            f"the network cannot be exported to ONNX, but perhaps to .pt2: {_first_line(error)}"
        ) from error
    assert exported is not None
    return exported.model_proto.SerializeToString()


def _input_names(example: Inputs, prefix: str) -> list[str]:
    """Return a name for each tensor: `inputs`, the key in a dict, the position in a tuple."""
    if isinstance(example, Tensor):
        return [prefix or "inputs"]
    parts = example if isinstance(example, dict) else dict(enumerate(example))
    start = prefix or ("" if isinstance(example, dict) else "inputs")
    names = ((f"{start}_{key}" if start else key, part) for key, part in parts.items())
    return [name for key, part in names for name in _input_names(part, key)]


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
    """Hide the exporter's log messages and warnings, which concern its own internals."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
