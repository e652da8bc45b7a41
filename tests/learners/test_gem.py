"""GEM: the projection against brute force, the step against a reference implementation."""

from __future__ import annotations

import copy
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor, nn
from torch.nn import functional as F

from perdure.learners.gem import GEM
from perdure.memory import TaskBuffer
from perdure.records import Samples

from .toy import batches, learn, network, task

Array = NDArray[np.float64]


def nearest_by_brute_force(g: Array, past: Array) -> Array:
    """Find the point nearest to g with past @ z ≥ 0, among the projections onto all faces."""
    best, distance = np.zeros_like(g), np.inf
    for size in range(len(past) + 1):
        for face in combinations(range(len(past)), size):
            rows = past[list(face)]
            z = g - np.linalg.pinv(rows) @ (rows @ g) if face else g
            if (past @ z).min() >= -1e-9 and float(np.linalg.norm(z - g)) < distance:
                best, distance = z, float(np.linalg.norm(z - g))
    return best


@settings(max_examples=60)
@given(st.integers(1, 4), st.integers(0, 10_000))
def test_projection_is_the_nearest_feasible_gradient(tasks: int, seed: int) -> None:
    draws = np.random.default_rng(seed)
    g, past = 100 * draws.normal(size=6), 100 * draws.normal(size=(tasks, 6))
    learner = GEM(network(), buffer_size=10, tasks=5, gamma=0)
    found = learner.project(torch.from_numpy(g), torch.from_numpy(past)).numpy()
    assert (past @ found).min() > -0.1  # products are about 10,000; ε allows this much
    np.testing.assert_allclose(found, nearest_by_brute_force(g, past), atol=0.01)


@settings(max_examples=60)
@given(st.integers(1, 4), st.integers(0, 10_000), st.sampled_from([0.0, 0.5, 1.0]))
def test_margin_and_regularisation_match_the_published_programme(
    tasks: int, seed: int, gamma: float
) -> None:
    draws = np.random.default_rng(seed)
    g, past = draws.normal(size=6), draws.normal(size=(tasks, 6))
    past[0] *= -np.sign(past[0] @ g)  # at least one conflict
    learner = GEM(network(), buffer_size=10, tasks=5, gamma=gamma)
    found = learner.project(torch.from_numpy(g), torch.from_numpy(past)).numpy()
    np.testing.assert_allclose(found, g + past.T @ dual_by_least_squares(g, past, gamma), atol=1e-8)


def dual_by_least_squares(g: Array, past: Array, gamma: float) -> Array:
    """Solve the programme as non-negative least squares in u = v − γ."""
    tasks = len(past)
    rows = np.vstack([past.T, np.sqrt(1e-3) * np.eye(tasks)])
    wanted = -np.concatenate([g, np.zeros(tasks)]) - rows @ np.full(tasks, gamma)
    shift: Array = nnls(rows, wanted)[0]
    return gamma + shift


def test_gradient_without_conflict_is_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quadprog.solve_qp", None)
    g = torch.tensor([1.0, 2.0, 0.0])
    past = torch.tensor([[1.0, 0.0, 5.0], [0.0, 0.0, 1.0]])
    learner = GEM(network(), buffer_size=10, tasks=5)
    assert learner.project(g, past) is g
    assert learner.totals() == {"projected": 0}


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e18])
def test_diverged_gradient_is_not_an_error(value: float) -> None:
    g = torch.tensor([-1.0, 2.0, 0.0])
    past = torch.tensor([[1.0, 0.0, 0.0], [value, 0.0, 1.0], [value, 0.0, 1.0]])
    assert GEM(network(), buffer_size=10, tasks=5).project(g, past).shape == g.shape


@pytest.mark.parametrize(("new", "old"), [(-torch.inf, 1.0), (-1.0, 1e200)])
def test_products_that_are_not_finite_are_not_solved(new: float, old: float) -> None:
    g, past = torch.tensor([new, 0.0]).double(), torch.tensor([[old, 0.0]]).double()
    assert GEM(network(), buffer_size=10, tasks=5).project(g, past) is g


def test_step_matches_reference_implementation() -> None:
    learner = GEM(network(), buffer_size=30, tasks=3, gamma=0.5, lr=0.05, seed=1)
    for number, classes in enumerate([(0, 1), (2, 3)]):
        learn(learner, task(classes, seed=number))
    for x, y in batches(task((0, 3), seed=9, count=60)):
        expected = copy.deepcopy(learner.network)
        memory = learner.memory.contents()
        assert memory is not None
        assert memory.labels[:10].max() < 2 <= memory.labels[10:].min()
        past = np.stack([gradient(expected, *each) for each in batches(memory)])
        g = gradient(expected, x, y)
        if (past @ g).min() < 0:
            g = g + past.T @ dual_by_least_squares(g, past, 0.5)
        weights = nn.utils.parameters_to_vector(expected.parameters()).detach()
        learner.observe(x, y)
        found = nn.utils.parameters_to_vector(learner.network.parameters()).detach()
        assert torch.allclose(found, weights - 0.05 * torch.from_numpy(g).float(), atol=1e-5)
    assert learner.totals()["projected"] > 0


def gradient(module: nn.Module, x: Tensor, y: Tensor) -> Array:
    module.zero_grad()
    F.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
    return np.concatenate(
        [p.grad.double().flatten() for p in module.parameters() if p.grad is not None]
    )


def test_only_parameters_of_the_optimizer_are_projected() -> None:
    module = network()
    before = copy.deepcopy(module[0].state_dict())
    learner = GEM(
        module, buffer_size=20, tasks=2, optimizer=torch.optim.SGD(module[2].parameters(), lr=0.1)
    )
    learn(learner, task((0, 1), seed=0))
    learn(learner, task((2, 3), seed=1))
    assert learner.totals()["projected"] > 0
    assert all(torch.equal(value, before[name]) for name, value in module[0].state_dict().items())
    reference = learner.reference()
    assert reference is not None
    assert reference.shape == (2, 16 * 4 + 4)


def test_parameters_without_influence_stay_the_same() -> None:
    module = network()
    module.register_parameter("unused", nn.Parameter(torch.ones(3)))
    learner = GEM(module, buffer_size=20, tasks=2)
    learn(learner, task((0, 1), seed=0))
    learn(learner, task((2, 3), seed=1))
    assert learner.totals()["projected"] > 0
    assert module.state_dict()["unused"].equal(torch.ones(3))


def test_optimizer_receives_the_projected_gradient() -> None:
    module = network()
    learner = GEM(
        module, buffer_size=20, tasks=2, optimizer=torch.optim.Adam(module.parameters(), lr=0.01)
    )
    learn(learner, task((0, 1), seed=0))
    received: list[Array] = []

    def record(*_: object) -> None:
        received.append(np.concatenate([p.grad.flatten() for p in module.parameters()]))  # type: ignore[union-attr]

    learner.optimizer.register_step_pre_hook(record)
    for x, y in batches(task((2, 3), seed=1)):
        reference, g = learner.reference(), learner.gradient(x, y)
        assert reference is not None
        projected = learner.project(g, reference)
        learner.observe(x, y)
        np.testing.assert_allclose(received.pop(), projected, atol=1e-6)
    assert learner.totals()["projected"] > 0


def test_memory_holds_an_equal_random_share_of_each_task() -> None:
    memory = TaskBuffer(20, tasks=3, seed=0)
    for number, size in enumerate([50, 4, 50]):
        rows = torch.arange(size, dtype=torch.float32)[:, None]
        memory.add(Samples(rows, torch.full((size,), number)))
    assert memory.counts == {0: 6, 1: 4, 2: 6}
    stored = memory.contents()
    assert stored is not None
    assert stored.labels.tolist() == [0] * 6 + [1] * 4 + [2] * 6
    first, _, last = (part.flatten().tolist() for part in torch.split(stored.inputs, [6, 4, 6]))
    assert len(set(first)) == len(set(last)) == 6
    assert first != last
    assert first != sorted(first)[:6]


def test_every_sample_is_kept_with_equal_probability() -> None:
    counts = torch.zeros(10)
    for seed in range(600):
        memory = TaskBuffer(3, tasks=1, seed=seed)
        memory.add(Samples(torch.zeros(10, 1), torch.arange(10)))
        counts[memory.draw(3).labels] += 1  # type: ignore[union-attr]
    assert ((counts - 180).abs() < 5 * (600 * 0.3 * 0.7) ** 0.5).all()


def test_additional_task_is_rejected() -> None:
    learner = GEM(network(), buffer_size=20, tasks=1)
    samples = task((0, 1), seed=0)
    learner.end_task(samples)
    before = learner.memory.state_dict()
    with pytest.raises(ValueError, match="task 2 has ended"):
        learner.end_task(samples)
    assert learner.memory.state_dict()["counts"] == before["counts"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"buffer_size": 4, "tasks": 5}, "buffer_size is 4"),
        ({"buffer_size": 4, "tasks": 0}, "tasks is 0"),
        ({"buffer_size": 4, "tasks": 2, "gamma": -1}, "gamma is -1"),
        ({"buffer_size": 4, "tasks": 2, "gamma": float("nan")}, "gamma is nan"),
    ],
)
def test_invalid_arguments_are_rejected(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GEM(network(), **arguments)  # type: ignore[arg-type]


def test_state_with_other_memory_size_is_rejected() -> None:
    learner = GEM(network(), buffer_size=20, tasks=4)
    learner.end_task(task((0, 1), seed=0))
    for other in (GEM(network(), buffer_size=20, tasks=2), GEM(network(), buffer_size=24, tasks=4)):
        with pytest.raises(ValueError, match="does not fit"):
            other.load_state_dict(learner.state_dict())
