"""Engines: how training steps are executed."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from perdure.evaluation import Prequential
from perdure.learners import Learner
from perdure.memory import EpisodicMemory
from perdure.randomness import global_state
from perdure.records import Samples
from perdure.structures import layout, map_leaves
from perdure.training.recording import Recording

WARM_STEPS = 1
"""Identical eager steps before a capture, in which libraries choose their kernels."""
COMPILED_STEPS = 3
"""Further steps in which networks are compiled, if they are: a capture must not compile."""
MAX_RECORDED_BYTES = 2**26
"""Largest total size of the results in a step that is recorded, which keeps all of them."""


class Eager:
    """Executes the training steps of any number of learners as their methods are written.

    Args:
        device: Device of the learners.
        precision: "fp32", or "bf16" for autocast to bfloat16.
    """

    name = "eager"

    def __init__(self, device: torch.device | str = "cpu", precision: str = "fp32") -> None:
        self.device = torch.device(device)
        self.precision = precision

    def step(self, learner: Learner, batch: Samples) -> None:
        """Train the learner on one batch, which is valid and on the learner's device."""
        with learner.randomness(), self.autocast():
            learner.step(batch.inputs, batch.labels)

    def predict(self, learner: Learner, batch: Samples, predicted: Prequential) -> None:
        """Predict a batch with the default predictor and count the correct predictions.

        The learner, the batch and torch's global generators stay as they are. Nothing waits for
        the device.
        """
        predictor = next(iter(learner.predictors().values()))
        devices = [] if learner.device.type == "cpu" else [learner.device]
        # Networks may draw random numbers, or change their inputs in place, in evaluation mode.
        fork = torch.random.fork_rng(devices=devices)
        with learner.randomness(swap=False), fork, self.autocast():
            scores = predictor(map_leaves(Tensor.clone, batch.inputs))
        predicted.add(scores.argmax(dim=1) == batch.labels)

    def synchronize(self) -> None:
        """Wait until every submitted step has finished, so that learners may be read.

        A no-op here: reading a value from the default CUDA stream waits for it.
        """

    def autocast(self) -> AbstractContextManager[object]:
        """Context for forward passes in the engine's precision; evaluation uses it too."""
        if self.precision == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def fallbacks(self) -> list[str]:
        """Reasons why learners run eagerly although the engine could do better."""
        return []


class _Repeated:
    """Steps of one learner that consist of the same operations, which can be recorded."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.key: Hashable = None
        """What must agree for a step to consist of the same operations as the last one."""
        self.recorded_key: Hashable = None
        self.repeated = 0
        self.input: list[Tensor] = []
        """Batch of the recorded step, whose tensors a replay reads."""

    def advance(self, batch: Samples) -> bool:
        """Note the next step, and return whether it is like the recorded one."""
        inputs = batch.inputs
        kind = (inputs.dtype, inputs.shape) if isinstance(inputs, Tensor) else layout(inputs)
        rates = tuple(float(group["lr"]) for group in self.learner.optimizer.param_groups)
        key = kind, len(batch.labels), self.learner.host_state(), self.learner.grown, rates
        self.repeated = self.repeated + 1 if key == self.key else 0
        self.key = key
        return key == self.recorded_key

    def load(self, batch: Samples) -> None:
        for static, tensor in zip(self.input, batch.tensors(), strict=True):
            static.copy_(tensor)


class Recorded(Eager):
    """Replays the recorded operations of a step on a CPU, which gives the same bits as `Eager`.

    A recording is valid as long as a CUDA graph would be (see `Captured`). Other steps run eagerly,
    as do those that read values on the host and those of large networks, which would gain nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.learners: dict[int, _RecordedLearner] = {}

    def step(self, learner: Learner, batch: Samples) -> None:
        """Replay the learner's recording on the batch, or run the step eagerly if none is valid."""
        recorded = self.learners.get(id(learner))
        if recorded is None:
            recorded = self.learners[id(learner)] = _RecordedLearner(learner)
        recorded.step(batch)


class _RecordedLearner(_Repeated):
    """One learner with, after enough identical steps, the recording of a step."""

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner)
        self.eager_only = False
        self.recording: Recording | None = None

    def step(self, batch: Samples) -> None:
        if self.advance(batch) and self.recording is not None:
            self.load(batch)
            with self.learner.randomness(swap=self.recording.draws_globally):
                self.recording.replay()
            return
        with self.learner.randomness():
            self.eager_only |= not self.learner.capturable  # steps may show that it is not
            if self.repeated >= WARM_STEPS and not self.eager_only:
                self._record(batch.map(torch.clone))
            else:
                self.learner.step(batch.inputs, batch.labels)

    def _record(self, batch: Samples) -> None:
        with Recording(MAX_RECORDED_BYTES) as recording:
            self.learner.step(batch.inputs, batch.labels)
        self.eager_only = bool(recording.problem) or not self.learner.capturable
        if not self.eager_only:
            self.recording, self.recorded_key, self.input = recording, self.key, batch.tensors()


class Captured(Eager):
    """Runs every step as one CUDA graph, with a graph and a CUDA stream per learner.

    A graph replays fixed kernels on fixed addresses. It is valid only while `Learner.host_state`,
    the number of outputs and the shape of the batch stay the same. Other steps, for example before
    a memory holds a batch, after a network has grown or on a short last batch, run eagerly on the
    same CUDA stream, as do learners that cannot be captured.

    Args:
        device: CUDA device of the learners.
        precision: "fp32", or "bf16" for autocast to bfloat16.
        compiled: Whether to compile the networks with `torch.compile` before the capture.
    """

    name = "captured"

    def __init__(
        self, device: torch.device | str, precision: str, *, compiled: bool = False
    ) -> None:
        super().__init__(device, precision)
        self.compiled = compiled
        self.warm_steps = WARM_STEPS + COMPILED_STEPS * compiled
        self.learners: dict[int, _CapturedLearner] = {}
        self.drawing: torch.cuda.Stream | None = None
        """The stream on which the latest graph that may draw from the global generator runs."""

    def step(self, learner: Learner, batch: Samples) -> None:
        """Replay the learner's graph on the batch, or run the step eagerly if none is valid."""
        self._captured(learner).step(batch)

    def predict(self, learner: Learner, batch: Samples, predicted: Prequential) -> None:
        """Predict a batch between two steps of the learner, outside its graph."""
        stream = self._captured(learner).stream
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for tensor in batch.tensors():
                tensor.record_stream(stream)  # allocated on another stream
            super().predict(learner, batch, predicted)

    def _captured(self, learner: Learner) -> _CapturedLearner:
        captured = self.learners.get(id(learner))
        if captured is None:
            captured = self.learners[id(learner)] = _CapturedLearner(learner, self)
        return captured

    def synchronize(self) -> None:
        """Wait for the CUDA streams of all learners."""
        for captured in self.learners.values():
            captured.stream.synchronize()

    def fallbacks(self) -> list[str]:
        """Reasons why learners could not be captured."""
        return [captured.fallback for captured in self.learners.values() if captured.fallback]


class _CapturedLearner(_Repeated):
    """One learner with its CUDA stream and, after enough identical steps, its graph."""

    def __init__(self, learner: Learner, engine: Captured) -> None:
        super().__init__(learner)
        self.engine = engine
        self.stream = torch.cuda.Stream(engine.device)  # type: ignore[no-untyped-call]
        self.fallback = _obstacle(learner)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.added = 0
        """Number of samples that the graph presents to the memory."""
        self.draws_globally = True
        """Whether the graph may draw from torch's global generator."""

    def step(self, batch: Samples) -> None:
        self.stream.wait_stream(torch.cuda.current_stream(self.engine.device))
        with torch.cuda.stream(self.stream), self.learner.randomness(swap=False):
            for tensor in batch.tensors():
                tensor.record_stream(self.stream)  # allocated on another stream
            if self.advance(batch) and self.graph is not None and not self.draws_globally:
                self._replay(self.graph, batch)
                return
            with self.learner.randomness():
                self._first_steps(batch)

    def _first_steps(self, batch: Samples) -> None:
        """Run a step that is not known to be replayed without torch's global generator."""
        warm = self.repeated >= self.engine.warm_steps
        if warm and self.key != self.recorded_key and not self.fallback:
            self.fallback = _obstacle(self.learner)  # the first steps may have shown one
            if not self.fallback:
                with self._compiled():
                    self._capture(batch)
        if self.graph is not None and self.key == self.recorded_key:
            before = global_state(self.engine.device)
            self._replay(self.graph, batch)
            self.draws_globally = not before.equal(global_state(self.engine.device))
        elif self.repeated < WARM_STEPS:
            self._run_eagerly(batch)
        else:
            with self._compiled():
                self._run_eagerly(batch)

    def _replay(self, graph: torch.cuda.CUDAGraph, batch: Samples) -> None:
        self.load(batch)
        if self.draws_globally:
            # In torch 2.11, all graphs read the seed and the offset from the same two tensors.
            if self.engine.drawing is not None:
                self.stream.wait_stream(self.engine.drawing)
            self.engine.drawing = self.stream
        graph.replay()
        if self.learner.memory is not None:
            self.learner.memory.note_added(self.added)

    def _run_eagerly(self, batch: Samples) -> None:
        with self.engine.autocast():
            self.learner.step(batch.inputs, batch.labels)

    @contextlib.contextmanager
    def _compiled(self) -> Iterator[None]:
        """Run the learner's networks compiled inside the block, if the engine compiles.

        Evaluation stays eager: it has other shapes, and compiling for them would not pay off.
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
        """Record a step as a graph. Recording executes nothing and leaves the learner unchanged."""
        self.graph, self.draws_globally = None, True
        self.learner.optimizer.zero_grad(set_to_none=True)  # the graph allocates its own
        static = batch.map(torch.clone)
        graph = torch.cuda.CUDAGraph()
        for generator in self.learner.generators():
            graph.register_generator_state(generator)
        memory = self.learner.memory
        filled, presented = (0, 0) if memory is None else (memory.filled, memory.presented)
        collects = gc.isenabled()
        gc.disable()  # an old graph that is freed meanwhile would break the capture
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                self._run_eagerly(static)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            self.fallback = f"{type(self.learner).__name__} could not be captured: {reason}"
        else:
            self.graph, self.recorded_key, self.input = graph, self.key, static.tensors()
        finally:
            if collects:
                gc.enable()
            if memory is not None:
                self.added, memory.filled = memory.presented - presented, filled


def _obstacle(learner: Learner) -> str:
    """Return why steps of a learner cannot be captured; empty if nothing is known."""
    name = type(learner).__name__
    if not type(learner).capturable:
        return f"{name} is not capturable"
    if not learner.capturable:
        return f"{name} is not capturable with this network, for example because of dropout"
    memories = [part for part in vars(learner).values() if isinstance(part, EpisodicMemory)]
    if any(memory is not learner.memory for memory in memories):
        return f"{name} is not captured because it has several memories"
    if learner.memory is not None and not learner.memory.capturable:
        return f"{name} is not captured because the host reads its memory from a file"
    return ""
