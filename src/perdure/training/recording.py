"""Recording a step as a list of tensor operations that can be replayed: a CUDA graph for CPUs.

Most of the time of a small network's step goes into Python code, autograd and the allocation of
tensors. A replay executes only the operations themselves, forward and backward, on the memory that
the recorded step used, and so gives the same bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from perdure.processes import exempt_from_compiler

_Operation = Callable[[], object]

_aten = torch.ops.aten
_call = methodcaller("__call__")
WITH_OUT = frozenset(
    (
        *(_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor),
        *(_aten.addmm.default, _aten.mm.default, _aten.bmm.default),
        *(_aten.eq.Scalar, _aten.eq.Tensor, _aten.ne.Scalar, _aten.ne.Tensor),
        *(_aten.lt.Scalar, _aten.lt.Tensor, _aten.gt.Scalar, _aten.gt.Tensor),
        *(_aten.where.self, _aten.cat.default, _aten.stack.default),
        *(_aten.index_select.default, _aten.gather.default, _aten.scatter.value),
        *(_aten.sum.dim_IntList, _aten.logsumexp.default, _aten.bucketize.Tensor),
        *(_aten._log_softmax.default, _aten._log_softmax_backward_data.default),
        *(_aten.rand.generator, _aten.randperm.generator),
    )
)
"""Operations that the function of the same name in torch, called with the same arguments, executes
without allocating memory if it is given `out`."""
_OUT_NAMES = {
    _aten.mse_loss_backward.default: (_aten.mse_loss_backward.grad_input, ["grad_input"]),
    _aten.nll_loss_backward.default: (_aten.nll_loss_backward.grad_input, ["grad_input"]),
    _aten.nll_loss_forward.default: (_aten.nll_loss_forward.output, ["output", "total_weight"]),
    _aten.threshold_backward.default: (_aten.threshold_backward.grad_input, ["grad_input"]),
}
"""Other operations with a variant that writes to given tensors, and the names of these."""
_CONSTANT = _aten.lift_fresh.default
"""Called with each tensor that is created from values."""
_PLACEMENT = frozenset(("device", "layout", "pin_memory"))
_READS = (Tensor.numpy, Tensor.tolist, Tensor.__array__)
"""Methods that read values without an operation."""


class Recording:
    """The operations of a step that is executed inside a `with` block.

    Args:
        max_bytes: Largest total size of the results; steps with more cannot be replayed.

    Examples:
        >>> x, total = torch.ones(2), torch.zeros(2)
        >>> with Recording() as recording:
        ...     _ = total.add_(x * 2)
        >>> _ = x.fill_(5), recording.replay()
        >>> total
        tensor([12., 12.])
    """

    def __init__(self, max_bytes: int = 2**63) -> None:
        self.max_bytes = max_bytes
        self.problem = ""
        """Why the step cannot be replayed; empty if it can."""
        self.draws_globally = False
        """Whether the step draws from torch's global generator."""
        self.bytes = 0
        """Size of all results, which the recording keeps."""
        self._storages: set[int] = set()
        self._tensors: dict[object, Tensor] = {}
        self._calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []
        self._program: list[_Operation] = []
        self._modes = (_Functions(self), _Operations(self))

    def __enter__(self) -> Recording:
        for mode in self._modes:
            mode.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)  # type: ignore[no-untyped-call]
        if not self.problem and error[0] is None:
            self._compile()
        self._tensors, self._calls = {}, []  # the program keeps what it needs

    def replay(self) -> None:
        """Execute the operations again, on the current values of all tensors.

        Raises:
            ValueError: If the step cannot be replayed.
        """
        if self.problem:
            raise ValueError(self.problem)
        deque(map(_call, self._program), maxlen=0)

    def __len__(self) -> int:
        """Return the number of operations."""
        return len(self._program)

    def fail(self, problem: str) -> None:
        """Give up: the step cannot be replayed."""
        self.problem = self.problem or problem
        self._tensors, self._calls, self._program = {}, [], []

    def add(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Record an operation that has been executed."""
        tags = function.tags
        dynamic = torch.Tag.dynamic_output_shape in tags
        if function is _aten.index.Tensor:
            dynamic = any(t.dtype in (torch.bool, torch.uint8) for t in _tensors(args[1]))
        flat = result if isinstance(result, tuple | list) else (result,)
        if not all(value is None or isinstance(value, Tensor) for value in flat):
            self.fail(f"{function} returns a value to the host")
        elif dynamic:
            self.fail(f"the size of the result of {function} depends on values")
        elif any(t.layout is not torch.strided for t in _tensors((args, kwargs, result))):
            self.fail(f"{function} uses a sparse tensor")
        elif torch.Tag.inplace_view in tags:
            self.fail(f"{function} changes the shape of a tensor in place")
        else:
            args, kwargs = self._keep((args, kwargs))
            known, result = len(self._storages), self._keep(result)
            if len(self._storages) > known:
                self.bytes += sum(t.untyped_storage().nbytes() for t in _tensors(result))
            self._calls.append((function, args, kwargs, result))
            random = torch.Tag.nondeterministic_seeded in tags
            self.draws_globally |= random and kwargs.get("generator") is None
            if self.bytes > self.max_bytes:
                self.fail(f"the results of its operations take more than {self.max_bytes} bytes")

    def _keep(self, value: Any) -> Any:
        """Replace tensors with aliases, which keep their memory but not their autograd graph.

        With references to the tensors themselves, autograd would copy gradients.
        """
        if isinstance(value, Tensor):
            return self._alias(value)
        if isinstance(value, tuple | list):
            return type(value)(self._keep(part) for part in value)
        return {k: self._keep(v) for k, v in value.items()} if isinstance(value, dict) else value

    def _alias(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()._cdata
        self._storages.add(storage)
        place = storage, tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride()
        if place not in self._tensors:
            self._tensors[place] = tensor.detach()
        return self._tensors[place]

    def _compile(self) -> None:
        written: set[int] = set()
        for function, args, kwargs, _ in self._calls:
            named = dict(zip((a.name for a in function._schema.arguments), args, strict=False))
            for argument in function._schema.arguments:
                if argument.is_write:
                    written |= _memory({**named, **kwargs}.get(argument.name))
        constants = (args for function, args, *_ in self._calls if function is _CONSTANT)
        if written & _memory(list(constants)):
            self.fail("a constant is changed in place")
        for call in self._calls:
            self._program += self._operations(*call, written)

    def _operations(
        self,
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        written: set[int],
    ) -> list[_Operation]:
        """Return the calls that repeat an operation; none if nothing has to be done."""
        name = function._schema.name.removeprefix("aten::")
        if function._schema.is_mutable:
            fast = name.endswith("_") and (
                getattr(Tensor, name, None) or getattr(torch, name, None)
            )
            return [partial(fast or function, *args, **kwargs)]
        inputs, outputs = _memory((args, kwargs)), _memory(result)
        if outputs <= inputs:  # a view, which shows the current values
            return []
        random = torch.Tag.nondeterministic_seeded in function.tags
        constant = not (inputs or random) or name in ("ones_like", "zeros_like", "new_zeros")
        unchanged = not outputs & written
        if constant and unchanged:
            return []
        if function in _OUT_NAMES:
            variant, names = _OUT_NAMES[function]
            results = (result,) if isinstance(result, Tensor) else result
            return [partial(variant, *args, **kwargs, **dict(zip(names, results, strict=True)))]
        if not isinstance(result, Tensor):
            return [partial(_copy_all, result, partial(function, *args, **kwargs))]
        if name in ("_to_copy", "clone"):
            return [partial(result.copy_, args[0])]
        if name in ("zeros", "zeros_like", "new_zeros"):
            return [result.zero_]
        if name == "relu":
            return [partial(torch.clamp_min, args[0], 0, out=result)]
        if name == "slice_backward" and unchanged:  # the rest of the result stays zero
            return [partial(_aten.slice(result, *args[2:]).copy_, args[0])]
        if function in WITH_OUT:
            kept = {k: v for k, v in kwargs.items() if k not in _PLACEMENT}
            return [partial(getattr(torch, name), *args, **kept, out=result)]
        return [partial(_copy, result, partial(function, *args, **kwargs))]


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operations on tensors, including those of the backward pass."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = recording

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.recording.problem and func.namespace != "profiler":
            self.recording.add(func, args, kwargs or {}, result)
        return result


exempt_from_compiler(_Operations.__torch_dispatch__)


class _Functions(TorchFunctionMode):
    """Notices values that are read without an operation."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _READS:
            self.recording.fail(f"{func.__name__} returns values to the host")
        return func(*args, **(kwargs or {}))


def _copy(result: Tensor, function: Callable[[], Tensor]) -> None:
    result.copy_(function())


def _copy_all(results: Sequence[Tensor | None], function: Callable[[], Any]) -> None:
    for result, value in zip(results, function(), strict=True):
        if result is not None:
            result.copy_(value)


def _tensors(value: Any) -> Iterator[Tensor]:
    """Iterate over the tensors in arguments or results of an operation."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


def _memory(value: Any) -> set[int]:
    """Return which memory the tensors use."""
    return {tensor.untyped_storage()._cdata for tensor in _tensors(value)}
