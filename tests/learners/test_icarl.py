"""iCaRL: herding, loss, classifier and memory shares, each against its definition."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from perdure.learners.icarl import ICaRL
from perdure.memory.exemplars import NO_MEAN_SCORE, ExemplarSet, NearestMeanClassifier, herd
from perdure.records import Samples

from .toy import batches, learn, network, task


def unit(vectors: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / lengths


@settings(max_examples=40)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 10_000), st.booleans())
def test_herding_is_greedy(size: int, count: int, seed: int, scaled: bool) -> None:
    draws = torch.Generator().manual_seed(seed)
    features = torch.randn(size, 3, dtype=torch.float64, generator=draws)
    features = unit(features) if scaled else features
    found = herd(features, count).tolist()
    assert len(found) == len(set(found)) == min(size, count)
    mean = features.sum(0) / size
    for k in range(1, len(found) + 1):

        def distance(row: int, before: tuple[int, ...] = tuple(found[: k - 1])) -> float:
            return float(
                (mean - sum(features[i] for i in (*before, row)) / (len(before) + 1)).norm()
            )

        others = [distance(row) for row in range(size) if row not in found[: k - 1]]
        assert distance(found[k - 1]) == pytest.approx(min(others), abs=1e-9)


def test_features_are_the_last_input_of_the_last_linear_layer() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            self.head(torch.ones(1, 3))
            return self.head(inputs)  # type: ignore[no-any-return]

    inputs = torch.randn(5, 3)
    torch.testing.assert_close(NearestMeanClassifier(Twice()).features(inputs), unit(inputs))


def test_classes_share_the_memory_and_lose_their_last_exemplars() -> None:
    memory = ExemplarSet(11)
    history: list[dict[int, Tensor]] = []
    for classes, expected in [((0, 1), [6, 5]), ((2,), [4, 4, 3]), ((3, 4), [3, 2, 2, 2, 2])]:
        draws = torch.Generator().manual_seed(len(history))
        labels = torch.tensor(classes).repeat(30)
        memory.add(Samples(torch.randn(len(labels), 3, generator=draws), labels), unit)
        assert list(memory.counts.values()) == expected
        assert memory.filled == 11
        assert all((own.labels == c).all() for c, own in memory.groups().items())
        history.append({c: own.inputs.clone() for c, own in memory.groups().items()})
    for earlier, later in pairwise(history):
        for label, before in earlier.items():
            assert later[label].equal(before[: len(later[label])])


def test_exemplars_of_a_recurring_class_come_from_old_and_new_samples() -> None:
    memory = ExemplarSet(4)
    old, new = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [0.6, 0.8]])
    memory.add(Samples(old, torch.tensor([5])), unit)
    memory.add(Samples(new, torch.tensor([5, 5])), unit)
    everything = torch.cat([old, new])
    assert memory.groups()[5].inputs.equal(everything[herd(everything, 3)])


def test_last_classes_have_no_exemplars_if_the_buffer_is_too_small() -> None:
    learner = ICaRL(network(), buffer_size=3)
    samples = task((0, 1, 2, 3), seed=0)
    learn(learner, samples)
    assert learner.memory.counts == {0: 1, 1: 1, 2: 1, 3: 0}
    assert learner.predict(samples.inputs).max() == 2
    learner.observe(samples.inputs, samples.labels)
    assert int(learner.nonfinite_step) == 0


def test_classifier_is_the_nearest_mean_of_exemplars() -> None:
    learner = ICaRL(network(), buffer_size=9)
    learn(learner, task((0, 1), seed=0))
    learn(learner, task((3,), seed=1))
    inputs = task((0, 1, 2, 3), seed=5, count=40).inputs
    body = learner.network[:2]  # type: ignore[index]
    with torch.no_grad():
        features = unit(body(inputs))
        scores = torch.full((40, 4), NO_MEAN_SCORE)
        for label, exemplars in learner.memory.groups().items():
            mean = unit(unit(body(exemplars.inputs)).mean(0))
            scores[:, label] = -(features - mean).norm(dim=1)
    found = learner.predictors()["nearest_mean"](inputs)
    assert torch.allclose(found, scores, atol=1e-6)
    assert learner.predict(inputs).equal(scores.argmax(1))
    assert learner.predict_proba(inputs)[:, 2].max() == 0
    assert learner.predict_proba(inputs).isfinite().all()


def test_herding_uses_unit_length_features() -> None:
    learner = ICaRL(network(), buffer_size=8)
    samples = task((0, 1), seed=0)
    learn(learner, samples)
    for label, exemplars in learner.memory.groups().items():
        own = samples.inputs[samples.labels == label]
        with torch.no_grad():
            features = unit(learner.network[:2](own))  # type: ignore[index]
        assert exemplars.inputs.equal(own[herd(features, 4)])


def test_loss_matches_the_paper() -> None:
    learner = ICaRL(network(), buffer_size=8, weight_decay=0.01, lr=0.05)
    learn(learner, task((0, 1), seed=0))
    previous = copy.deepcopy(learner.network).double()
    x, y = batches(task((2,), seed=1))[0]
    learner.observe(x, y)  # now q and the network differ
    working = copy.deepcopy(learner.network).double()
    past = copy.deepcopy(learner.memory).draw(10)
    assert past is not None
    assert len(past.labels) == 8
    inputs, labels = torch.cat([x, past.inputs]).double(), torch.cat([y, past.labels])
    with torch.no_grad():
        q = previous(inputs).sigmoid()
    g = working(inputs).sigmoid()
    loss = torch.zeros((), dtype=torch.float64)
    for i, label in enumerate(labels.tolist()):
        for c in (0, 1):  # old classes: distillation, also on their own exemplars
            loss = loss - q[i, c] * g[i, c].log() - (1 - q[i, c]) * (1 - g[i, c]).log()
        loss = loss - (g[i, 2].log() if label == 2 else (1 - g[i, 2]).log())  # new class
    loss = loss / len(labels)  # class 3 has not occurred and is not trained
    loss.backward()  # type: ignore[no-untyped-call]
    before = learner.totals()["loss"]
    learner.observe(x, y)
    assert learner.totals()["loss"] - before == pytest.approx(float(loss.detach()), rel=1e-5)
    for found, p in zip(learner.network.parameters(), working.parameters(), strict=True):
        assert p.grad is not None
        expected = p.detach() - 0.05 * (p.grad + 0.01 * p.detach())
        assert torch.allclose(found.double(), expected, atol=1e-6)


def test_recurring_class_is_learned_from_labels() -> None:
    learner = ICaRL(network(), buffer_size=8, weight_decay=0)
    learn(learner, task((0, 1), seed=0))
    x = torch.full((4, 8), 0.5)
    assert learner.predictors()["working"](x).sigmoid()[0, 0] < 0.6
    for _ in range(200):
        learner.observe(x, torch.zeros(4, dtype=torch.int64))
    assert learner.predictors()["working"](x).sigmoid()[0, 0] > 0.9


def test_network_predicts_until_a_task_has_ended() -> None:
    learner = ICaRL(network(), buffer_size=8)
    samples = task((0, 1), seed=0)
    learner.observe(*batches(samples)[0])
    answers = learner.predictors()
    with torch.no_grad():
        logits = learner.network(samples.inputs)
    assert list(answers) == ["nearest_mean", "working"]
    assert all(answer(samples.inputs).equal(logits) for answer in answers.values())


def test_classifier_is_unchanged_during_a_task() -> None:
    learner = ICaRL(network(), buffer_size=8)
    learn(learner, task((0, 1), seed=0))
    samples = task((2, 3), seed=1)
    before = learner.predictors()["nearest_mean"](samples.inputs)
    outputs = learner.predictors()["working"](samples.inputs)
    for x, y in batches(samples)[:3]:
        learner.observe(x, y)
    assert learner.predictors()["nearest_mean"](samples.inputs).equal(before)
    assert not learner.predictors()["working"](samples.inputs).equal(outputs)


class Backwards(nn.Module):
    """The last linear layer is not the classification layer."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 4)
        self.into = nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.into(x).relu())  # type: ignore[no-any-return]


class Tokens(nn.Module):
    """The last layer receives several vectors per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x.view(-1, 2, 4)).mean(1)  # type: ignore[no-any-return]


def test_networks_without_features_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"no nn\.Linear"):
        ICaRL(nn.Sequential(nn.Conv1d(1, 4, 8), nn.Flatten()), buffer_size=8)
    samples = task((0, 1), seed=0)
    for unfit, message in ((Backwards(), "4 outputs"), (Tokens(), "one feature vector")):
        learner = ICaRL(unfit, buffer_size=8)
        with pytest.raises(ValueError, match=message):
            learner.observe(samples.inputs, samples.labels)


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(ValueError, match="weight_decay is -1"):
        ICaRL(network(), buffer_size=8, weight_decay=-1)
    with pytest.raises(ValueError, match="buffer_size is 0"):
        ICaRL(network(), buffer_size=0)


def test_given_optimizer_keeps_its_weight_decay() -> None:
    module = network()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, weight_decay=0.2)
    ICaRL(module, buffer_size=8, weight_decay=0.5, optimizer=optimizer)
    assert optimizer.param_groups[0]["weight_decay"] == 0.2


def test_state_with_another_weight_decay_is_rejected() -> None:
    learner = ICaRL(network(), buffer_size=8, weight_decay=0.5)
    with pytest.raises(ValueError, match="weight_decay"):
        ICaRL(network(), buffer_size=8).load_state_dict(learner.state_dict())


def test_state_of_the_module_contains_the_classifier() -> None:
    learner = ICaRL(network(), buffer_size=8)
    samples = task((0, 1), seed=0)
    learn(learner, samples)
    predictor = learner.predictors()["nearest_mean"]
    again = NearestMeanClassifier(network(seed=3))
    again.load_state_dict(predictor.module.state_dict())
    assert again(samples.inputs).equal(predictor(samples.inputs))
