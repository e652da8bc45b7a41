"""Export of a predictor, with its normalisation, to ONNX or to a `torch.export` program."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from perdure.files import write_atomic

SUFFIXES = (".onnx", ".pt2")


class _Served(nn.Module):
    """A network with its normalisation: raw inputs to logits."""

    def __init__(self, network: nn.Module, normalise: Any) -> None:
        super().__init__()
        self.network = network
        self.normalise = normalise

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Return logits [n, classes]; arguments are those of the network."""
        raw = named or (inputs[0] if len(inputs) == 1 else inputs)
        return self.network(self.normalise(raw))  # type: ignore[no-any-return]


def export(path: Path, network: nn.Module, normalise: Any, example: Any) -> None:
    """Write a network with its normalisation to a file; see `Learner.export`."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} ends with {path.suffix!r}; expected {' or '.join(SUFFIXES)}")
    if path.suffix == ".onnx":
        _require_onnx()
    program = _trace(_Served(network, normalise), example)
    if path.suffix == ".onnx":
        content = _to_onnx(program, example)
    else:
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
        content = buffer.getvalue()
    write_atomic(path, content)


def _trace(served: _Served, example: Any) -> ExportedProgram:
    """Return the computation for batches of any size."""
    served = copy.deepcopy(served).cpu().requires_grad_(False).eval()
    # A batch of one would become a constant of the program.
    example = pytree.tree_map(lambda leaf: torch.cat([leaf[:1], leaf[:1]]).cpu(), example)
    shapes = pytree.tree_map(lambda _: {0: Dim("batch")}, example)
    positional, named, dynamic = _arguments(example, shapes)
    try:
        with torch.no_grad(), _quiet():
            return torch.export.export(served, positional, named, dynamic_shapes=dynamic)
    except Exception as error:  # the tracer raises errors of many types
        reason = _first_line(error)
        if "Constraints violated" in reason:
            reason = "it works for one batch size only; for example, len(x) is a constant there"
        raise ValueError(f"the network cannot be exported: {reason}") from error


def _arguments(example: Any, shapes: Any) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Return positional and named arguments of a network, and their dynamic dimensions."""
    if isinstance(example, Mapping):
        return (), dict(example), {"named": dict(shapes)}
    if isinstance(example, tuple | list):
        return tuple(example), {}, {"inputs": tuple(shapes)}
    return (example,), {}, {"inputs": (shapes,)}


def _to_onnx(program: ExportedProgram, example: Any) -> bytes:
    """Return an ONNX model with the inputs' names (`inputs` for a tensor) and output `logits`."""
    names = [str(name) for name in example] if isinstance(example, Mapping) else None
    if isinstance(example, Tensor):
        names = ["inputs"]
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
