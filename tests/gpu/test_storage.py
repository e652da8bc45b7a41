"""Memories of networks on a GPU whose inputs are in host memory or in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from perdure.learners import AGEM, CLSER, DERPP, ER, FDR, GEM, GSS, ICaRL, Learner
from perdure.memory import Reservoir, Storage
from perdure.memory.episodic import draw_rows
from perdure.randomness import generator
from perdure.records import Samples
from perdure.training.engine import Captured, Eager

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(autouse=True)
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def build(kind: type[Learner], **arguments: Any) -> Learner:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Flatten(), nn.Linear(3 * 8 * 8, 32), nn.ReLU(), nn.Linear(32, 4)
        network = nn.Sequential(*layers).cuda()
    if kind in (AGEM, GEM):
        arguments["tasks"] = 2
    return kind(network, lr=0.05, buffer_size=40, **arguments)  # type: ignore[call-arg]


def batches(count: int) -> list[Samples]:
    draws = torch.Generator().manual_seed(7)
    return [
        Samples(
            torch.randint(0, 256, (16, 3, 8, 8), generator=draws).byte().cuda(),
            torch.randint(0, 4, (16,), generator=draws).cuda(),
        )
        for _ in range(count)
    ]


def flat(state: object) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state.cpu()]
    if isinstance(state, dict):
        return [tensor for key in sorted(state) for tensor in flat(state[key])]
    return []


def train(engine: Eager, learner: Learner, supply: list[Samples]) -> list[Tensor]:
    for number, batch in enumerate(supply):
        engine.step(learner, batch)
        if number == len(supply) // 2 and learner.needs_boundaries:
            engine.synchronize()
            learner.end_task(batch)
    engine.synchronize()
    return flat(learner.state_dict())


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.mark.parametrize("kind", [ER, CLSER, DERPP, FDR, AGEM, GSS, ICaRL])
def test_host_memory_is_captured_with_the_same_result(kind: type[Learner]) -> None:
    supply, engine = batches(30), Captured("cuda", "fp32")
    expected = train(Captured("cuda", "fp32"), build(kind), supply)
    assert same(train(engine, build(kind, memory_device="cpu"), supply), expected)
    assert engine.fallbacks() == []
    assert next(iter(engine.learners.values())).graph is not None


@pytest.mark.parametrize("kind", [ER, CLSER, DERPP, FDR, AGEM, GEM, GSS, ICaRL])
def test_files_run_eagerly_with_the_same_result(kind: type[Learner], tmp_path: Path) -> None:
    supply, engine = batches(30), Captured("cuda", "fp32")
    expected = train(Eager("cuda"), build(kind), supply)
    assert same(train(engine, build(kind, memory_folder=tmp_path), supply), expected)
    assert engine.fallbacks() != []


@pytest.mark.parametrize("place", ["host", "file"])
def test_observe_and_resume(place: str, tmp_path: Path) -> None:
    where: dict[str, Any] = {"memory_folder": tmp_path}
    if place == "host":
        where = {"memory_device": "cpu"}
    supply = batches(12)
    plain, learner = build(CLSER), build(CLSER, **where)
    for batch in supply[:8]:
        plain.observe(batch.inputs, batch.labels)
        learner.observe(batch.inputs, batch.labels)
    state = learner.state_dict()
    assert state["memory"]["stored"]["inputs"].device.type == "cpu"
    other = build(CLSER, **where)
    other.load_state_dict(state)
    with pytest.raises(ValueError, match="label"):
        other.observe(supply[0].inputs, supply[0].labels + 4)
    for batch in supply[8:]:
        plain.observe(batch.inputs, batch.labels)
        other.observe(batch.inputs, batch.labels)
    assert same(flat(other.state_dict()), flat(plain.state_dict()))


def test_inputs_in_host_memory_take_none_of_the_gpu() -> None:
    rows, size = 1000, 3 * 64 * 64
    supply = Samples(
        torch.randint(0, 256, (rows, 3, 64, 64)).byte(), torch.arange(rows, device="cuda")
    )
    before = torch.cuda.memory_allocated()
    memory = Reservoir(rows, device="cuda", storage=Storage("cpu"))
    for start in range(0, rows, 100):
        memory.add(supply.slice(start, start + 100))
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() - before < rows * size // 4
    drawn = memory.draw(50)
    assert drawn is not None
    assert drawn.inputs.is_cuda
    assert drawn.inputs.cpu().equal(supply.inputs[drawn.labels.cpu()])
    del memory
    torch.cuda.synchronize()


def test_draws_from_a_filling_memory_are_captured_and_uniform() -> None:
    size, count, stored = 100, 8, torch.zeros((), dtype=torch.int64, device="cuda")
    eager, captured = generator(1, "replay", "cuda"), generator(1, "replay", "cuda")
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(captured)
    stored.fill_(10)
    with torch.cuda.graph(graph):
        rows = draw_rows(10, count, captured, stored=stored, size=size)
    counts = torch.zeros(size, dtype=torch.int64)
    for filled in (10, 11, 50, 100):
        stored.fill_(filled)
        for _ in range(100):
            graph.replay()
            expected = draw_rows(filled, count, eager, stored=stored, size=size)
            assert rows.equal(expected)
            assert len(set(rows.tolist())) == count
            assert int(rows.max()) < filled
            counts += torch.bincount(rows.cpu(), minlength=size) if filled == 100 else 0
    assert stats.chisquare(counts.tolist()).pvalue > 0.001


@pytest.mark.parametrize("filled", [8193, 10**9])
def test_drawing_from_large_memories_is_captured(filled: int) -> None:
    eager, captured = generator(1, "replay", "cuda"), generator(1, "replay", "cuda")
    expected = [draw_rows(filled, 64, eager).tolist() for _ in range(20)]
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(captured)
    with torch.cuda.graph(graph):
        rows = draw_rows(filled, 64, captured)
    found = []
    for _ in range(20):
        graph.replay()
        found.append(rows.tolist())
    assert found == expected
    assert all(len(set(each)) == 64 and 0 <= min(each) <= max(each) < filled for each in found)
