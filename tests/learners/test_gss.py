"""GSS: scores by definition, replacement probabilities, and a reference implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor, nn
from torch.nn import functional as F

from perdure.learners import gradient_similarity as similarity
from perdure.learners.gss import GSS
from perdure.memory import GradientBuffer
from perdure.networks import MLP, ResNet18
from perdure.randomness import generator
from perdure.records import Samples

CLASSES, SEED = 3, 7


def conv_network() -> nn.Module:
    """A small network with BatchNorm and dropout after one training-mode pass."""
    torch.manual_seed(1)
    layers = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(0.5))
    network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * 9, CLASSES)).double()
    network(torch.rand(10, 1, 5, 5, dtype=torch.float64))
    return network


def mlp_network() -> nn.Module:
    torch.manual_seed(1)
    return MLP(25, CLASSES, hidden=8).double()


def stream(steps: int, batch: int = 6) -> Iterator[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(2)
    for step in range(steps):
        inputs = torch.rand(batch, 1, 5, 5, dtype=torch.float64, generator=random)
        # Labels drift, so that gradients of new batches differ from those of the memory.
        yield inputs, (torch.randint(2, (batch,), generator=random) + step // 5) % CLASSES


def reference_gradient(network: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Compute the flat gradient of the mean loss by autograd, in evaluation mode."""
    network.eval()
    parameters = list(network.parameters())
    parts = torch.autograd.grad(F.cross_entropy(network(inputs), labels), parameters)
    network.train()
    return torch.cat([part.flatten() for part in parts])


def reference_gradients(network: nn.Module, inputs: Tensor, labels: Tensor) -> list[Tensor]:
    return [
        reference_gradient(network, inputs[i : i + 1], labels[i : i + 1])
        for i in range(len(labels))
    ]


def reference_score(candidate: Tensor, reference: list[Tensor]) -> float:
    return max(float(candidate @ g / (candidate.norm() * g.norm())) for g in reference) + 1


@pytest.mark.parametrize(
    ("build", "compare"),
    [
        (conv_network, similarity.compare_gradients),
        (mlp_network, similarity.compare_gradients),
        (mlp_network, similarity.compare_linear_layers),
    ],
)
def test_scores_equal_a_loop_over_samples(
    build: type[nn.Module], compare: Callable[[nn.Module, Samples, Samples], similarity.Scores]
) -> None:
    network = build()
    (x, y), (kept_x, kept_y) = stream(2, batch=20)  # more than one chunk
    before = {name: value.clone() for name, value in network.state_dict().items()}
    network.eval()
    scores = compare(network, Samples(x, y), Samples(kept_x, kept_y))
    each = scores.per_sample().tolist()
    expected = reference_gradients(network, kept_x, kept_y)
    assert each == pytest.approx(
        [reference_score(g, expected) for g in reference_gradients(network, x, y)], rel=1e-10
    )
    assert float(scores.batch) == pytest.approx(
        reference_score(reference_gradient(network, x, y), expected), rel=1e-10
    )
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])


def test_gradients_equal_a_loop_over_samples() -> None:
    network = conv_network().eval()
    ((x, y),) = stream(1, batch=20)
    found, expected = similarity.gradients(network, x, y), reference_gradients(network, x, y)
    torch.testing.assert_close(torch.cat(list(found.parts.values()), 1), torch.stack(expected))
    torch.testing.assert_close(found.norm, torch.stack([g.norm() for g in expected]))


def test_networks_of_linear_layers_are_recognised() -> None:
    assert similarity.has_only_linear_layers(MLP(4, 3))
    assert not similarity.has_only_linear_layers(ResNet18(3, width=4))
    shared = nn.Linear(4, 4)
    assert not similarity.has_only_linear_layers(nn.Sequential(shared, nn.ReLU(), shared))
    assert not similarity.has_only_linear_layers(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)))
    partly = MLP(4, 3)
    partly[1].requires_grad_(False)
    assert not similarity.has_only_linear_layers(partly)


def test_linear_layers_over_sequences_use_gradients() -> None:
    network = nn.Sequential(nn.Linear(4, 6), nn.Flatten(), nn.Linear(18, 3))
    batch, reference = (Samples(torch.rand(n, 3, 4), torch.arange(n) % 3) for n in (5, 4))
    found = similarity.compare_linear_layers(network, batch, reference)
    expected = similarity.compare_gradients(network, batch, reference)
    torch.testing.assert_close(found.batch, expected.batch)
    torch.testing.assert_close(found.per_sample(), expected.per_sample())


def test_linear_layers_need_no_gradients_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similarity, "compare_gradients", None)
    batch, reference = (Samples(torch.rand(n, 4), torch.arange(n) % 3) for n in (5, 4))
    assert len(similarity.compare_linear_layers(MLP(4, 3), batch, reference).per_sample()) == 5


def test_large_batches_need_no_products_of_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similarity, "_MAX_PRODUCTS", 4)
    monkeypatch.setattr(similarity, "_inner_products", None)
    network = MLP(4, 3)
    batch, reference = (Samples(torch.rand(n, 4), torch.arange(n) % 3) for n in (5, 4))
    found = similarity.compare_linear_layers(network, batch, reference)
    expected = similarity.compare_gradients(network, batch, reference)
    torch.testing.assert_close(found.per_sample(), expected.per_sample())


def test_samples_without_gradient_replace_nothing() -> None:
    network = nn.Linear(3, 3)
    with torch.no_grad():
        network.weight.copy_(1e4 * torch.eye(3))  # sure of every sample
    learner = GSS(network, buffer_size=3)
    for _ in range(3):
        learner.observe(torch.eye(3), torch.arange(3))
    assert learner.totals()["considered"] == 0


def test_filling_a_memory_exactly_draws_nothing() -> None:
    memory = GradientBuffer(6)
    before = memory.insertion.get_state()
    for _ in range(2):
        memory.add(Samples(torch.rand(3, 2), torch.arange(3)), torch.ones(3), torch.tensor(True))
    assert memory.full
    assert torch.equal(memory.insertion.get_state(), before)


def test_zero_gradient_has_cosine_zero() -> None:
    nothing = similarity.Gradient({"w": torch.zeros(4)}, torch.tensor(0.0))
    some = similarity.Gradient({"w": torch.ones(2, 4)}, torch.full((2,), 2.0))
    assert float(similarity.score(nothing, some)) == 1


@pytest.mark.parametrize("classes", [3, 5, 7])
def test_gradients_that_cancel_except_for_rounding_have_a_score(classes: int) -> None:
    network = nn.Sequential(nn.Linear(4, classes))
    for parameter in network.parameters():
        nn.init.zeros_(parameter)
    batch = Samples(torch.ones(classes, 4), torch.arange(classes))
    reference = Samples(torch.eye(4), torch.arange(4) % classes)
    found = similarity.compare_linear_layers(network, batch, reference)
    assert 0 <= float(found.batch) <= 2


def test_residual_network_can_be_scored() -> None:
    torch.manual_seed(0)
    learner = GSS(ResNet18(CLASSES, channels=1, width=4), buffer_size=8, seed=SEED)
    for inputs, labels in stream(4):
        learner.observe(inputs.float(), labels)
    assert learner.memory.scores[:8].isfinite().all()


def test_scores_have_full_precision_under_autocast() -> None:
    scores = []
    for mixed in (False, True):
        torch.manual_seed(0)
        learner = GSS(ResNet18(CLASSES, channels=1, width=4), buffer_size=12, seed=SEED)
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            for inputs, labels in stream(2):
                learner.select(Samples(inputs.float(), labels))
        scores.append(learner.memory.scores)
    assert torch.equal(*scores)


def test_frozen_and_shared_parameters_are_supported() -> None:
    torch.manual_seed(0)
    shared = nn.Linear(25, 25)
    network = nn.Sequential(nn.Flatten(), shared, nn.ReLU(), shared, nn.Linear(25, CLASSES))
    network[-1].weight.requires_grad_(False)
    learner = GSS(network.double(), buffer_size=8, seed=SEED)
    for batch in stream(6):
        learner.observe(*batch)
    assert learner.memory.filled == 8


def full_memory(scores: list[float], seed: int = 0) -> GradientBuffer:
    memory = GradientBuffer(len(scores), seed=seed)
    rows = Samples(torch.zeros(len(scores), 1), torch.arange(len(scores)))
    memory.add(rows, torch.tensor(scores), torch.tensor(False))
    return memory


@pytest.mark.parametrize("trials", [4_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_replacement_probabilities(trials: int) -> None:
    stored, candidate = [0.1, 0.4, 0.9, 1.6, 0.0], 0.7
    memory = full_memory(stored)
    newcomer = Samples(torch.ones(1, 1), torch.tensor([9]))
    counts = [0] * 6
    for _ in range(trials):
        memory.add(newcomer, torch.tensor([candidate]), torch.tensor(True))
        contents = memory.contents()
        assert contents is not None
        hit = (contents.labels == 9).nonzero().flatten().tolist()
        assert len(hit) <= 1
        counts[hit[0] if hit else 5] += 1
        for row in hit:
            assert float(memory.scores[row]) == pytest.approx(candidate)
            memory.scores[row] = stored[row]
            contents.labels[row] = row
    chances = [s / sum(stored) * (s / (s + candidate)) for s in stored]
    assert counts[4] == 0  # samples with score 0 are never replaced
    expected = [*chances[:4], 1 - sum(chances)]
    observed = [*counts[:4], counts[5]]
    assert chisquare(observed, [trials * p for p in expected]).pvalue > 1e-3


def test_replacement_probabilities_of_a_batch() -> None:
    stored, trials = [0.2, 0.8, 1.5], 4_000
    memory = full_memory(stored)
    newcomers = Samples(torch.ones(5, 1), torch.arange(10, 15))
    candidates = torch.tensor([0.3, 0.6, 0.9, 1.2, 1.5])
    counts = torch.zeros(3, 6)
    for _ in range(trials):
        memory.add(newcomers, candidates, torch.tensor(True))
        contents = memory.contents()
        assert contents is not None
        for row in range(3):
            label = int(contents.labels[row])
            counts[row, label - 10 if label >= 10 else 5] += 1
        memory.scores[:3] = torch.tensor(stored)
        contents.labels.copy_(torch.arange(3))
    for row, s in enumerate(stored):
        # The last winner keeps the row, so no later sample may have won it.
        wins = [s / sum(stored) * (s / (s + float(c))) for c in candidates]
        after = [1.0] * 6
        for i in reversed(range(5)):
            after[i] = after[i + 1] * (1 - wins[i])
        chances = [*(wins[i] * after[i + 1] for i in range(5)), after[0]]
        expected = [trials * p for p in chances]
        assert chisquare(counts[row].tolist(), expected).pvalue > 1e-3


def test_samples_that_may_not_replace_fill_free_rows_only() -> None:
    memory = GradientBuffer(4)
    inputs = torch.arange(6.0)[:, None]
    memory.add(Samples(inputs, torch.arange(6)), torch.linspace(0.5, 1, 6), torch.tensor(False))
    contents = memory.contents()
    assert contents is not None
    assert contents.labels.tolist() == [0, 1, 2, 3]
    torch.testing.assert_close(memory.scores[:4], torch.linspace(0.5, 1, 6)[:4].double())
    memory.add(Samples(inputs + 9, torch.arange(6)), torch.zeros(6), torch.tensor(False))
    assert contents.inputs.flatten().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("inner_steps", [1, 3])
@pytest.mark.parametrize("buffer_size", [20, 4])
def test_60_steps_match_reference_implementation(inner_steps: int, buffer_size: int) -> None:
    lr, memory_batch, gss_batch = 0.2, 4, 5
    reference = mlp_network()
    learner = GSS(
        mlp_network(),
        buffer_size=buffer_size,
        memory_batch=memory_batch,
        gss_batch=gss_batch,
        inner_steps=inner_steps,
        lr=lr,
        seed=SEED,
    )
    selection, insertion = generator(SEED, "replay"), generator(SEED, "gradient selection")
    memory: list[tuple[Tensor, Tensor, float]] = []  # input, label, score
    opened = 0

    def drawn(count: int) -> list[tuple[Tensor, Tensor, float]]:
        rows = torch.randperm(len(memory), generator=selection) if memory else torch.arange(0)
        return [memory[i] for i in rows[:count].tolist()]

    for inputs, labels in stream(60):
        learner.observe(inputs, labels)
        for _ in range(inner_steps):
            past = drawn(memory_batch)
            x = torch.stack([*inputs, *(x for x, _, _ in past)])
            y = torch.stack([*labels, *(label for _, label, _ in past)])
            slopes = torch.autograd.grad(
                F.cross_entropy(reference(x), y), list(reference.parameters())
            )
            with torch.no_grad():
                for parameter, slope in zip(reference.parameters(), slopes, strict=True):
                    parameter.sub_(lr * slope)
        past = drawn(gss_batch)
        if past:
            given = [reference_gradient(reference, x[None], y[None]) for x, y, _ in past]
            scores = [
                reference_score(g, given) for g in reference_gradients(reference, inputs, labels)
            ]
            considered = reference_score(reference_gradient(reference, inputs, labels), given) < 1
            opened += considered
        else:
            scores, considered = [0.1] * len(labels), True
        full = len(memory) == buffer_size
        newcomers = list(zip(inputs, labels, scores, strict=True))
        free = buffer_size - len(memory)
        memory += newcomers[:free]
        if free >= len(newcomers) or (full and not considered):
            continue
        choices, acceptances = torch.rand(2, 6, dtype=torch.float64, generator=insertion).tolist()
        stored = [s for _, _, s in memory]
        for i in range(free, len(newcomers)):
            reach, row = stored[0], 0
            while reach <= choices[i] * sum(stored):
                row += 1
                reach += stored[row]
            if considered and acceptances[i] < stored[row] / (stored[row] + scores[i]):
                memory[row] = newcomers[i]
    for own, expected in zip(learner.network.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-8, atol=1e-10)
    contents = learner.memory.contents()
    assert contents is not None
    torch.testing.assert_close(contents.inputs, torch.stack([x for x, _, _ in memory]))
    assert contents.labels.tolist() == [int(y) for _, y, _ in memory]
    assert learner.memory.scores[:buffer_size].tolist() == pytest.approx([s for _, _, s in memory])
    assert int(learner.steps) == 60
    assert learner.totals()["considered"] == opened
    assert 3 < opened < 57  # both branches were taken


def test_scoring_changes_neither_modes_nor_statistics() -> None:
    network = conv_network()
    learner = GSS(network, buffer_size=5, seed=SEED)
    network.get_submodule("3").eval()  # a user may keep a layer in evaluation mode
    batches = [Samples(*batch) for batch in stream(3)]
    learner.select(batches[0])
    before = {name: value.clone() for name, value in network.state_dict().items()}
    random = torch.get_rng_state()
    learner.select(batches[1])
    assert torch.equal(torch.get_rng_state(), random)  # dropout was off
    assert [module.training for module in network.children()] == [True] * 3 + [False] + [True] * 2
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])


def test_memory_stores_bytes_and_is_bounded() -> None:
    learner = GSS(MLP(25, CLASSES), buffer_size=4, memory_batch=4)
    for step in range(6):
        inputs = torch.full((6, 1, 5, 5), 40 * step, dtype=torch.uint8)
        before = inputs.clone()
        learner.observe(inputs, torch.arange(6) % CLASSES)
        assert torch.equal(inputs, before)
        contents = learner.memory.contents()
        assert contents is not None
        assert contents.inputs.dtype == torch.uint8
        assert len(contents.labels) == 4


@pytest.mark.parametrize("name", ["memory_batch", "gss_batch", "inner_steps"])
def test_invalid_counts_are_rejected(name: str) -> None:
    counts = {"memory_batch": 1, "gss_batch": 1, "inner_steps": 1, name: 0}
    with pytest.raises(ValueError, match=f"{name} is 0"):
        GSS(nn.Linear(2, 2), buffer_size=5, **counts)  # type: ignore[arg-type]
