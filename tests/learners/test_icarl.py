"""iCaRL: herding, loss, classifier and shares, each against its definition; its state."""

from __future__ import annotations

import copy
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from perdure.learners.icarl import ICaRL
from perdure.learners.sgd import SGD
from perdure.memory.exemplars import NO_MEAN_SCORE, ExemplarSet, NearestMeanClassifier, herd
from perdure.records import Samples


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def task(classes: tuple[int, ...], seed: int, count: int = 200) -> Samples:
    """Noisy points about some of four centres."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes)[torch.randint(len(classes), (count,), generator=draws)]
    noise = torch.randn(count, 8, generator=draws)
    return Samples(0.5 + torch.eye(4).repeat(1, 2)[labels] + 0.3 * noise, labels)


def batches(samples: Samples) -> list[tuple[Tensor, Tensor]]:
    inputs, labels, _ = samples
    return list(zip(torch.split(inputs, 10), torch.split(labels, 10), strict=True))


def learn(learner: ICaRL | SGD, samples: Samples) -> None:
    for x, y in batches(samples):
        learner.observe(x, y)
    learner.end_task(samples)


def unit(vectors: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / lengths


@settings(max_examples=40)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 10_000), st.booleans())
def test_herding_takes_the_greedily_best_exemplars(
    size: int, count: int, seed: int, scaled: bool
) -> None:
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


def test_exemplars_share_the_memory_and_are_cut_from_their_ends() -> None:
    memory = ExemplarSet(11)
    history: list[dict[int, Tensor]] = []
    for classes, expected in [((0, 1), [6, 5]), ((2,), [4, 4, 3]), ((3, 4), [3, 2, 2, 2, 2])]:
        draws = torch.Generator().manual_seed(len(history))
        labels = torch.tensor(classes).repeat(30)
        memory.add(Samples(torch.randn(len(labels), 3, generator=draws), labels), unit)
        assert list(memory.counts.values()) == expected
        assert memory.filled == 11
        assert all((own.labels == c).all() for c, own in memory.by_class().items())
        history.append({c: own.inputs.clone() for c, own in memory.by_class().items()})
    for earlier, later in pairwise(history):
        for label, before in earlier.items():
            assert later[label].equal(before[: len(later[label])])


def test_a_class_that_comes_again_is_herded_from_old_and_new_samples() -> None:
    memory = ExemplarSet(4)
    old, new = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [0.6, 0.8]])
    memory.add(Samples(old, torch.tensor([5])), unit)
    memory.add(Samples(new, torch.tensor([5, 5])), unit)
    everything = torch.cat([old, new])
    assert memory.by_class()[5].inputs.equal(everything[herd(everything, 3)])


def test_more_classes_than_exemplars_leave_the_last_without() -> None:
    learner = ICaRL(network(), buffer_size=3)
    samples = task((0, 1, 2, 3), seed=0)
    learn(learner, samples)
    assert learner.memory.counts == {0: 1, 1: 1, 2: 1, 3: 0}
    assert learner.predict(samples.inputs).max() == 2
    learner.observe(samples.inputs, samples.labels)
    assert int(learner.nonfinite_step) == 0


def test_the_classifier_is_the_nearest_mean_of_exemplars() -> None:
    learner = ICaRL(network(), buffer_size=9)
    learn(learner, task((0, 1), seed=0))
    learn(learner, task((3,), seed=1))
    inputs = task((0, 1, 2, 3), seed=5, count=40).inputs
    body = learner.network[:2]  # type: ignore[index]
    with torch.no_grad():
        features = unit(body(inputs))
        scores = torch.full((40, 4), NO_MEAN_SCORE)
        for label, exemplars in learner.memory.by_class().items():
            mean = unit(unit(body(exemplars.inputs)).mean(0))
            scores[:, label] = -(features - mean).norm(dim=1)
    found = learner.predictors()["nearest_mean"](inputs)
    assert torch.allclose(found, scores, atol=1e-6)
    assert learner.predict(inputs).equal(scores.argmax(1))
    assert learner.predict_proba(inputs)[:, 2].max() == 0
    assert learner.predict_proba(inputs).isfinite().all()


def test_exemplars_are_herded_in_the_space_of_unit_features() -> None:
    learner = ICaRL(network(), buffer_size=8)
    samples = task((0, 1), seed=0)
    learn(learner, samples)
    for label, exemplars in learner.memory.by_class().items():
        own = samples.inputs[samples.labels == label]
        with torch.no_grad():
            features = unit(learner.network[:2](own))  # type: ignore[index]
        assert exemplars.inputs.equal(own[herd(features, 4)])


def test_the_loss_is_the_papers_sum() -> None:
    learner = ICaRL(network(), buffer_size=8, weight_decay=0.01, lr=0.05)
    learn(learner, task((0, 1), seed=0))
    previous = copy.deepcopy(learner.network).double()
    x, y = batches(task((2,), seed=1))[0]
    learner.observe(x, y)  # q and the network now differ
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
        for c in (0, 1):  # old: distillation, for exemplars of these classes too
            loss = loss - q[i, c] * g[i, c].log() - (1 - q[i, c]) * (1 - g[i, c]).log()
        loss = loss - (g[i, 2].log() if label == 2 else (1 - g[i, 2]).log())  # new
    loss = loss / len(labels)  # class 3 has not come: not taught
    loss.backward()  # type: ignore[no-untyped-call]
    before = learner.totals()["loss"]
    learner.observe(x, y)
    assert learner.totals()["loss"] - before == pytest.approx(float(loss.detach()), rel=1e-5)
    for found, p in zip(learner.network.parameters(), working.parameters(), strict=True):
        assert p.grad is not None
        expected = p.detach() - 0.05 * (p.grad + 0.01 * p.detach())
        assert torch.allclose(found.double(), expected, atol=1e-6)


def test_a_class_that_comes_again_is_taught_by_its_labels() -> None:
    learner = ICaRL(network(), buffer_size=8, weight_decay=0)
    learn(learner, task((0, 1), seed=0))
    x = torch.full((4, 8), 0.5)
    assert learner.predictors()["working"](x).sigmoid()[0, 0] < 0.6
    for _ in range(200):
        learner.observe(x, torch.zeros(4, dtype=torch.int64))
    assert learner.predictors()["working"](x).sigmoid()[0, 0] > 0.9


def test_until_a_task_has_ended_the_networks_outputs_answer() -> None:
    learner = ICaRL(network(), buffer_size=8)
    samples = task((0, 1), seed=0)
    learner.observe(*batches(samples)[0])
    answers = learner.predictors()
    with torch.no_grad():
        logits = learner.network(samples.inputs)
    assert list(answers) == ["nearest_mean", "working"]
    assert all(answer(samples.inputs).equal(logits) for answer in answers.values())


def test_during_a_task_the_classifier_is_that_of_the_last_end() -> None:
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
    """Linear layers whose last one is not the one that classifies."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 4)
        self.into = nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.into(x).relu())  # type: ignore[no-any-return]


class Tokens(nn.Module):
    """A last layer that is given several vectors for each image."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x.view(-1, 2, 4)).mean(1)  # type: ignore[no-any-return]


def test_networks_without_features_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no nn\.Linear"):
        ICaRL(nn.Sequential(nn.Conv1d(1, 4, 8), nn.Flatten()), buffer_size=8)
    samples = task((0, 1), seed=0)
    for unfit, message in ((Backwards(), "4 outputs"), (Tokens(), "one vector for each")):
        learner = ICaRL(unfit, buffer_size=8)
        with pytest.raises(ValueError, match=message):
            learner.observe(samples.inputs, samples.labels)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="weight_decay is -1"):
        ICaRL(network(), buffer_size=8, weight_decay=-1)
    with pytest.raises(ValueError, match="buffer_size is 0"):
        ICaRL(network(), buffer_size=0)


def test_an_optimizer_that_is_given_keeps_its_weight_decay() -> None:
    module = network()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, weight_decay=0.2)
    ICaRL(module, buffer_size=8, weight_decay=0.5, optimizer=optimizer)
    assert optimizer.param_groups[0]["weight_decay"] == 0.2


def with_batch_statistics(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def test_saved_in_mid_task_it_goes_on_bit_for_bit(tmp_path: Path) -> None:
    learner = ICaRL(with_batch_statistics(), buffer_size=8)
    learn(learner, task((0, 1), seed=0))
    rest = batches(task((2, 3), seed=1))
    for x, y in rest[:5]:
        learner.observe(x, y)
    learner.save(tmp_path / "learner")
    resumed = ICaRL(with_batch_statistics(seed=7), buffer_size=8, seed=7)
    resumed.load(tmp_path / "learner")
    probe = task((0, 1, 2, 3), seed=5).inputs
    assert resumed.predictors()["nearest_mean"](probe).equal(
        learner.predictors()["nearest_mean"](probe)
    )
    for each in (learner, resumed):
        for x, y in rest[5:]:
            each.observe(x, y)
        each.end_task(task((2, 3), seed=1))
        each.observe(*rest[0])
        each.save(tmp_path / f"{each is learner}")
    assert (tmp_path / "True").read_bytes() == (tmp_path / "False").read_bytes()


def test_the_classifier_lives_in_its_modules_state() -> None:
    learner = ICaRL(network(), buffer_size=8)
    samples = task((0, 1), seed=0)
    learn(learner, samples)
    predictor = learner.predictors()["nearest_mean"]
    again = NearestMeanClassifier(network(seed=3))
    again.load_state_dict(predictor.module.state_dict())
    assert again(samples.inputs).equal(predictor(samples.inputs))


def test_remembers_better_than_sgd() -> None:
    tasks = [task((0, 1), seed=0, count=400), task((2, 3), seed=1, count=400)]
    right = {}
    for learner in (ICaRL(network(), buffer_size=20), SGD(network())):
        for samples in tasks:
            learn(learner, samples)
        answers = [learner.predict(samples.inputs) == samples.labels for samples in tasks]
        right[type(learner)] = [float(answer.float().mean()) for answer in answers]
    assert min(right[ICaRL]) > 0.9
    assert right[SGD][0] < 0.3
