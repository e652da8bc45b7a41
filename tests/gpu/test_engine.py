"""Captured and eager steps on a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from perdure.evaluation import Prequential
from perdure.learners import (
    AGEM,
    CLSER,
    DER,
    DERPP,
    ER,
    ERACE,
    FDR,
    GEM,
    GSS,
    MER,
    SGD,
    ICaRL,
    Learner,
    MeanER,
)
from perdure.networks import ResNet18
from perdure.records import Samples
from perdure.streams import CIFAR10, CropFlip
from perdure.training.engine import Captured, Eager

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

BATCH = 16


@pytest.fixture(autouse=True)
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    yield
    torch.use_deterministic_algorithms(False)


@contextmanager
def no_waiting() -> Iterator[None]:
    """Raise an error if something in the block waits for the device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def build(kind: type[Learner], seed: int = 0, dropout: bool = False) -> Learner:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network: nn.Module = ResNet18(4, width=8)
    if dropout:
        network = nn.Sequential(network, nn.Dropout(0.2))
    network = network.cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    arguments: dict[str, object] = {}
    if kind is not SGD:
        arguments["buffer_size"] = 40
    if kind not in (SGD, GEM, ICaRL):
        arguments["memory_batch"] = BATCH
    if kind in (AGEM, GEM):
        arguments["tasks"] = 2
    return kind(network, augment=CropFlip(4), normalise=CIFAR10, seed=seed, lr=0.05, **arguments)  # type: ignore[arg-type]


def batches(count: int, last: int = BATCH) -> list[Samples]:
    draws = torch.Generator().manual_seed(7)
    sizes = [BATCH] * (count - 1) + [last]
    return [
        Samples(
            torch.randint(0, 256, (n, 3, 32, 32), generator=draws).byte().cuda(),
            torch.randint(0, 4, (n,), generator=draws).cuda(),
        )
        for n in sizes
    ]


def flat(state: object) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state.cpu()]
    if isinstance(state, dict):
        return [t for key in sorted(state) for t in flat(state[key])]
    return []


def trained(engine: Eager, learners: list[Learner], supply: list[Samples]) -> list[list[Tensor]]:
    for number, batch in enumerate(supply):
        for learner in learners:
            engine.step(learner, batch)
        if number == len(supply) // 2:
            engine.synchronize()
            for learner in learners:
                if learner.needs_boundaries:
                    learner.end_task(batch)
    engine.synchronize()
    return [flat(learner.state_dict()) for learner in learners]


@pytest.mark.parametrize("kind", [SGD, ER, MeanER, CLSER])
@pytest.mark.parametrize(
    ("precision", "dropout"), [("fp32", False), ("fp32", True), ("bf16", False)]
)
def test_captured_steps_equal_eager_steps_bit_for_bit(
    kind: type[Learner], precision: str, dropout: bool
) -> None:
    supply = batches(30, last=5)
    engine = Captured("cuda", precision)
    (eager,) = trained(Eager("cuda", precision), [build(kind, dropout=dropout)], supply)
    (captured,) = trained(engine, [build(kind, dropout=dropout)], supply)
    shares_draws = dropout and kind in (MeanER, CLSER)  # which a graph cannot repeat
    assert bool(engine.fallbacks()) == shares_draws
    assert (next(iter(engine.learners.values())).graph is None) == shares_draws
    assert len(eager) == len(captured)
    assert all(torch.equal(a, b) for a, b in zip(eager, captured, strict=True))


@pytest.mark.parametrize("kind", [ER, DERPP, CLSER])
@pytest.mark.parametrize("buffer_size", [200, 9000])
def test_a_graph_is_captured_while_the_memory_is_filling(
    kind: type[Learner], buffer_size: int
) -> None:
    supply = batches(30)
    results = []
    for engine in (Eager("cuda", "fp32"), Captured("cuda", "fp32")):
        learner = build(kind)
        learner.memory = learner.create_memory(buffer_size, seed=3, device="cuda")  # type: ignore[attr-defined]
        trained(engine, [learner], supply[:8])
        assert learner.memory.filled == min(buffer_size, 8 * BATCH)
        if isinstance(engine, Captured):
            (captured,) = engine.learners.values()
            graph = captured.graph
            assert graph is not None
        results.append(trained(engine, [learner], supply[8:])[0])
        assert learner.memory.filled == min(buffer_size, 30 * BATCH)
    assert captured.graph is graph  # also once the memory is full
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("kind", [ERACE, DER, DERPP, FDR, AGEM, GSS, MER, ICaRL])
def test_capturable_methods_are_captured_with_the_eager_result(
    kind: type[Learner],
) -> None:
    supply = batches(40)
    engine = Captured("cuda", "bf16")
    (eager,) = trained(Eager("cuda", "bf16"), [build(kind)], supply)
    (captured,) = trained(engine, [build(kind)], supply)
    if kind.capturable:
        assert engine.fallbacks() == []
        assert next(iter(engine.learners.values())).graph is not None
    assert all(torch.equal(a, b) for a, b in zip(eager, captured, strict=True))


@pytest.mark.parametrize("kind", [ER, CLSER, DERPP, ICaRL])
def test_grown_networks_are_captured_again(kind: type[Learner]) -> None:
    supply = batches(60)
    for batch in supply[30:]:
        batch.labels.add_(2)
    results = []
    for engine in (Eager("cuda", "fp32"), Captured("cuda", "fp32")):
        learner = build(kind)
        trained(engine, [learner], supply[:30])
        learner.grow(6)
        results.append(trained(engine, [learner], supply[30:])[0])
    assert isinstance(engine, Captured)
    (captured,) = engine.learners.values()
    assert captured.recorded_key == captured.key
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_methods_that_cannot_be_captured_run_eagerly() -> None:
    supply = batches(12)
    engine = Captured("cuda", "fp32")
    (eager,) = trained(Eager("cuda", "fp32"), [build(GEM)], supply)
    (captured,) = trained(engine, [build(GEM)], supply)
    assert "GEM" in engine.fallbacks()[0]
    assert all(torch.equal(a, b) for a, b in zip(eager, captured, strict=True))


@pytest.mark.parametrize(("kind", "dropout"), [(CLSER, False), (ER, True)])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_results_do_not_depend_on_other_learners_on_the_gpu(
    precision: str, kind: type[Learner], dropout: bool
) -> None:
    supply = batches(30)
    (alone,) = trained(Captured("cuda", precision), [build(kind, 1, dropout)], supply)
    several = trained(
        Captured("cuda", precision), [build(kind, s, dropout) for s in range(4)], supply
    )
    assert all(torch.equal(a, b) for a, b in zip(alone, several[1], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(alone, several[2], strict=True))


def test_bf16_is_close_to_fp32() -> None:
    supply = batches(12)
    exact, rounded = (build(CLSER) for _ in range(2))
    trained(Captured("cuda", "fp32"), [exact], supply)
    trained(Captured("cuda", "bf16"), [rounded], supply)
    assert rounded.totals()["loss"] == pytest.approx(exact.totals()["loss"], rel=0.05)
    for a, b in zip(exact.network.parameters(), rounded.network.parameters(), strict=True):
        assert (a - b).norm() <= 0.5 * a.norm() + 0.1


def test_optimizers_that_cannot_be_captured_run_eagerly_with_the_same_result() -> None:
    def adam() -> Learner:
        network = ResNet18(4, width=8).cuda()
        return ER(
            network,
            buffer_size=40,
            memory_batch=BATCH,
            optimizer=torch.optim.Adam(network.parameters()),
        )

    torch.manual_seed(0)
    first = adam()
    torch.manual_seed(0)
    second = adam()
    supply = batches(15)
    engine = Captured("cuda", "fp32")
    (a,) = trained(Eager("cuda", "fp32"), [first], supply)
    (b,) = trained(engine, [second], supply)
    assert engine.fallbacks()
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_learner_saved_between_captured_steps_resumes_bit_for_bit() -> None:
    supply = batches(40)
    (whole,) = trained(Captured("cuda", "fp32"), [build(CLSER)], supply)
    first = build(CLSER)
    trained(Captured("cuda", "fp32"), [first], supply[:25])
    second = build(CLSER, seed=5)
    second.load_state_dict(first.state_dict())
    (rest,) = trained(Captured("cuda", "fp32"), [second], supply[25:])
    assert all(torch.equal(a, b) for a, b in zip(whole, rest, strict=True))


@pytest.mark.parametrize("kind", [ER, CLSER])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_predicting_before_each_step_changes_nothing(kind: type[Learner], precision: str) -> None:
    supply = batches(30, last=5)
    (expected,) = trained(Captured("cuda", precision), [build(kind, dropout=True)], supply)
    engine, learner = Captured("cuda", precision), build(kind, dropout=True)
    predicted = Prequential(100, "cuda")
    engine.predict(learner, supply[0], Prequential(100, "cuda"))  # libraries are loaded
    for batch in supply:
        with no_waiting():
            engine.predict(learner, batch, predicted)
        engine.step(learner, batch)
    engine.synchronize()
    # A graph cannot repeat the draws that the networks of CLS-ER share.
    assert (next(iter(engine.learners.values())).graph is None) == (kind is CLSER)
    found = flat(learner.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    read = predicted.read()
    assert read is not None
    assert (read.samples, 0 <= read.accuracy <= 100) == (29 * BATCH + 5, True)


def test_captured_and_eager_learners_predict_alike() -> None:
    supply, found = batches(30, last=5), []
    for engine in (Eager("cuda"), Captured("cuda", "fp32")):
        learner, predicted = build(ER), Prequential(100, "cuda")
        for batch in supply:
            engine.predict(learner, batch, predicted)
            engine.step(learner, batch)
        engine.synchronize()
        found.append(predicted.read())
    assert found[0] == found[1]
