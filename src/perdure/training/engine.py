"""How a step is executed. The loop knows engines only by this protocol, methods not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from perdure.learners import Learner
from perdure.records import Samples

WARM_STEPS = 3
"""Equal steps run eagerly before a capture: libraries choose their kernels in them."""


class Engine(Protocol):
    """Takes learners further, step by step."""

    name: str

    def step(self, learner: Learner, batch: Samples) -> None:
        """Let the learner learn from a batch that was checked with its dataset."""

    def wait(self) -> None:
        """Return when every step asked for has been taken: the learners may be looked at."""

    def arithmetic(self) -> AbstractContextManager[object]:
        """The precision of forward passes, for evaluation too."""

    def refusals(self) -> list[str]:
        """Why learners are not executed as fast as the engine can."""


class Eager:
    """Operation by operation, as the method is written."""

    name = "eager"

    def __init__(self, device: torch.device | str = "cpu", precision: str = "fp32") -> None:
        self.device = torch.device(device)
        self.precision = precision

    def step(self, learner: Learner, batch: Samples) -> None:
        """Let the learner learn from a batch that was checked with its dataset."""
        with learner.randomness(), self.arithmetic():
            learner.step(batch.inputs, batch.labels)

    def wait(self) -> None:
        """Nothing to wait for: reading a value waits for it."""

    def arithmetic(self) -> AbstractContextManager[object]:
        """Float32, or bfloat16 where autocast allows it."""
        if self.precision == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def refusals(self) -> list[str]:
        """None: every learner can be executed as it is written."""
        return []


class Captured(Eager):
    """The whole step as a CUDA graph, one graph and one CUDA stream for each learner.

    A graph replays fixed kernels on fixed addresses, so it serves only while the host would
    decide the same (`Learner.host_state`) on batches of the same size. Other steps (a memory
    that is still filling, a last short batch) run eagerly on the same CUDA stream, and so does
    a learner that cannot be captured at all.
    """

    name = "captured"

    def __init__(
        self, device: torch.device | str, precision: str, *, compiled: bool = False
    ) -> None:
        super().__init__(device, precision)
        self.compiled = compiled
        # The compiler, too, must have done its work before a capture.
        self.warm_steps = 2 * WARM_STEPS if compiled else WARM_STEPS
        self.lanes: dict[int, _Lane] = {}

    def step(self, learner: Learner, batch: Samples) -> None:
        """Replay the learner's graph on the batch, or run the step eagerly where none serves."""
        lane = self.lanes.get(id(learner))
        if lane is None:
            lane = self.lanes[id(learner)] = _Lane(learner, self)
        lane.step(batch)

    def wait(self) -> None:
        """Until all lanes are empty."""
        for lane in self.lanes.values():
            lane.stream.synchronize()

    def refusals(self) -> list[str]:
        """Why learners that run eagerly could not be captured."""
        return [lane.refusal for lane in self.lanes.values() if lane.refusal]


class _Lane:
    """One learner's CUDA stream and, once its steps repeat themselves, its graph."""

    def __init__(self, learner: Learner, engine: Captured) -> None:
        self.learner = learner
        self.engine = engine
        self.stream = torch.cuda.Stream(engine.device)  # type: ignore[no-untyped-call]
        self.refusal = "" if learner.capturable else f"{type(learner).__name__} is not capturable"
        self.graph: torch.cuda.CUDAGraph | None = None
        self.captured_key: Hashable = None
        self.key: Hashable = None
        self.repeated = 0
        self.input: Samples | None = None

    def step(self, batch: Samples) -> None:
        self.stream.wait_stream(torch.cuda.current_stream(self.engine.device))
        with torch.cuda.stream(self.stream), self.learner.randomness():
            for tensor in (batch.inputs, batch.labels):
                tensor.record_stream(self.stream)  # made on another stream: keep it until used
            key = self._key(batch)
            self.repeated = self.repeated + 1 if key == self.key else 0
            self.key = key
            warm = self.repeated >= self.engine.warm_steps
            if warm and key != self.captured_key and not self.refusal:
                with self._compiled():
                    self._capture(batch)
            if self.graph is not None and self.input is not None and key == self.captured_key:
                self.input.inputs.copy_(batch.inputs)
                self.input.labels.copy_(batch.labels)
                self.graph.replay()
            elif self.repeated < WARM_STEPS:
                self._eagerly(batch)
            else:
                with self._compiled():
                    self._eagerly(batch)

    def _key(self, batch: Samples) -> Hashable:
        rates = tuple(float(group["lr"]) for group in self.learner.optimizer.param_groups)
        return tuple(batch.inputs.shape), self.learner.host_state(), rates

    def _eagerly(self, batch: Samples) -> None:
        with self.engine.arithmetic():
            self.learner.step(batch.inputs, batch.labels)

    @contextlib.contextmanager
    def _compiled(self) -> Iterator[None]:
        """Inside, the learner's networks run compiled if the engine asks for it.

        Not outside: evaluation has other shapes, for which compiling would not pay.
        """
        networks = self.learner.networks() if self.engine.compiled else []
        for network in networks:
            network.compile()
        try:
            yield
        finally:
            for network in networks:
                network._compiled_call_impl = None

    def _capture(self, batch: Samples) -> None:
        """Record a step. Nothing is executed, so the learner stays as it is."""
        self.graph = None
        self.learner.optimizer.zero_grad(set_to_none=True)  # gradients belong to the graph
        self.input = Samples(batch.inputs.clone(), batch.labels.clone())
        graph = torch.cuda.CUDAGraph()
        for generator in self.learner.generators():
            graph.register_generator_state(generator)
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                self._eagerly(self.input)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            self.refusal = f"{type(self.learner).__name__} could not be captured: {reason}"
        else:
            self.graph, self.captured_key = graph, self.key
