"""Growing heads: which layers can grow, what they get, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from signal import SIGTERM
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from perdure import fit, from_batches
from perdure.learners import CLSER, DER, DERPP, ER, FDR, SGD, ICaRL, Learner
from perdure.learners.growth import MAX_ADDED
from perdure.records import Samples
from perdure.training.loop import Interrupted, Run, train


def network(outputs: int = 3, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, outputs))


def samples(*classes: int, seed: int = 0, count: int = 24) -> Samples:
    draws = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes).repeat(count)[:count]
    return Samples(torch.randn(count, 6, generator=draws) + 2 * torch.eye(6)[labels], labels)


def observe(learner: Learner, *classes: int) -> None:
    learner.observe(*samples(*classes)[:2])


def linear(module: nn.Module) -> nn.Linear:
    assert isinstance(module, nn.Linear)
    return module


def test_old_weights_are_identical_and_parameters_the_same_objects() -> None:
    learner = CLSER(network(), buffer_size=20, grow=True)
    observe(learner, 0, 1, 2)
    heads = [linear(each[-1]) for each in learner.networks()]  # type: ignore[index]
    parameters = [(head.weight, head.bias) for head in heads]
    old = [(head.weight.clone(), head.bias.clone()) for head in heads]
    learner.grow(5)
    for head, (weight, bias), (old_weight, old_bias) in zip(heads, parameters, old, strict=True):
        assert (head.out_features, head.weight.shape, head.bias.shape) == (5, (5, 8), (5,))
        assert (head.weight is weight, head.bias is bias) == (True, True)
        assert head.weight[:3].equal(old_weight)
        assert head.bias[:3].equal(old_bias)
        assert head.weight[3:].equal(heads[0].weight[3:])
        assert 0 < float(head.weight[3:].abs().max().detach()) < 2
    learner.grow(5)
    assert learner.grown == 2
    observe(learner, 3, 4)


def test_new_rows_depend_on_seed_and_class_and_have_the_scale_of_the_old() -> None:
    def rows(seed: int, start: int, scale: float = 1.0) -> Tensor:
        learner = ER(network(start), buffer_size=5, seed=seed)
        head = linear(learner.network[-1])  # type: ignore[index]
        nn.init.constant_(head.weight, scale)
        torch.manual_seed(start)
        learner.grow(100)
        assert head.bias[4:].count_nonzero() == 0
        return head.weight[4:].detach()

    assert rows(0, 2).equal(rows(0, 4))
    assert not rows(0, 2).equal(rows(1, 2))
    torch.testing.assert_close(rows(0, 2, 3.0), 3 * rows(0, 2))
    assert float(rows(0, 2).square().mean().sqrt()) == pytest.approx(1, rel=0.1)
    diverged = rows(0, 2, torch.inf)
    assert float(diverged.square().mean().sqrt()) * 8**0.5 == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_network_grows_while_the_user_holds_a_graph(dtype: torch.dtype) -> None:
    learner = SGD(network().to(dtype), grow=True)
    loss = learner.network(samples(0).inputs.to(dtype)).sum()
    learner.grow(5)
    learner.observe(samples(3, 4).inputs.to(dtype), samples(3, 4).labels)
    assert loss.requires_grad


def test_optimizer_state_gets_zeros_and_schedulers_continue() -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    learner = ER(model, buffer_size=20, optimizer=optimizer, grow=True)
    observe(learner, 0, 1, 2)
    scheduler.step()
    head = linear(model[-1])
    old = optimizer.state[head.weight]["exp_avg"].clone()
    learner.grow(4)
    state = optimizer.state[head.weight]["exp_avg"]
    assert state[:3].equal(old)
    assert not state[3:].any()
    before = head.weight.detach().clone()
    observe(learner, 3)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.025)
    assert (head.weight != before).any(dim=1).all()


def test_optimizer_state_of_unknown_layout_is_rejected() -> None:
    model = network()
    learner = ER(model, buffer_size=20, optimizer=torch.optim.Adafactor(model.parameters()))
    observe(learner, 0, 1, 2)
    unchanged(learner, lambda: learner.grow(4), "Adafactor")


@pytest.mark.parametrize("method", [DER, DERPP, FDR])
def test_stored_logits_get_the_lowest_of_each_sample(method: type[Learner]) -> None:
    learner = method(network(), buffer_size=20, grow=True)  # type: ignore[call-arg]
    observe(learner, 0, 1, 2)
    learner.end_task(samples(0, 1, 2))
    assert learner.memory is not None
    stored = learner.memory.contents()
    assert stored is not None
    old = stored.logits
    assert old is not None
    old = old.clone()
    learner.grow(5)
    stored = learner.memory.contents()
    assert stored is not None
    assert stored.logits is not None
    assert stored.logits[:, :3].equal(old)
    assert stored.logits[:, 3:].equal(old.amin(1, keepdim=True).expand(-1, 2))
    observe(learner, 3, 4)


def test_logits_within_a_budget_in_bytes_are_rejected() -> None:
    learner = DER(network(), buffer_bytes=1000)
    observe(learner, 0, 1, 2)
    unchanged(learner, lambda: learner.grow(4), "buffer_size")
    ER(network(), buffer_bytes=1000, grow=True).grow(4)


def test_means_of_new_classes_are_unknown() -> None:
    learner = ICaRL(network(), buffer_size=20, grow=True)
    observe(learner, 0, 1, 2)
    learner.end_task(samples(0, 1, 2))
    learner.grow(4)
    assert learner.previous.known.tolist() == [True, True, True, False]
    observe(learner, 3)
    learner.end_task(samples(3, 4))
    assert learner.previous.known.all()
    test = samples(0, 1, 2, 3, 4, seed=1)
    assert {3, 4} <= set(learner.predict(test.inputs).tolist())


def test_head_without_bias_grows() -> None:
    model = nn.Linear(6, 3, bias=False)
    learner = SGD(model, grow=True)
    observe(learner, 0, 4)
    assert model.weight.shape == (5, 6)


class TwoHeads(nn.Module):
    """The last linear layer is not the classification head."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(6, 3)
        self.auxiliary = nn.Linear(6, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(x) + self.auxiliary(x).mean()  # type: ignore[no-any-return]


def test_named_head_grows() -> None:
    learner = ER(TwoHeads(), buffer_size=20, grow=True, head="classifier")
    observe(learner, 0, 4)
    assert learner.predict_proba(samples(0).inputs).shape[1] == 5


def test_layer_that_is_not_the_head_is_rejected() -> None:
    learner = ER(TwoHeads(), buffer_size=20, grow=True)
    with pytest.raises(ValueError, match="head"):
        observe(learner, 0, 1)
    fixed = ER(TwoHeads(), buffer_size=20)
    observe(fixed, 0, 1)
    unchanged(fixed, lambda: fixed.grow(8), "head")


class Tied(nn.Module):
    """Uses the weight of the head for the input as well."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 6)
        self.head = nn.Linear(6, 3, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)  # type: ignore[no-any-return]


class Sliced(nn.Linear):
    """Returns a fixed number of its outputs."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, :3]


@pytest.mark.parametrize(
    ("build", "word"),
    [
        (Tied, "shares"),
        (
            lambda: nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3).requires_grad_(False)),
            "'1' is frozen",
        ),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.LogSoftmax(dim=1)), "old classes"),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), "old classes"),
        (lambda: Sliced(6, 3), "old classes"),
        (lambda: parametrizations.weight_norm(nn.Linear(6, 3)), "computes"),
        (lambda: nn.Sequential(nn.Unflatten(1, (6, 1)), nn.Conv1d(6, 3, 1), nn.Flatten()), "no nn"),
    ],
)
def test_networks_that_cannot_grow_are_rejected(build: Callable[[], nn.Module], word: str) -> None:
    learner = ER(build(), buffer_size=20)
    observe(learner, 0, 1, 2)
    unchanged(learner, lambda: learner.grow(5), word)
    if word == "old classes":
        growing = ER(build(), buffer_size=20, grow=True)
        observe(growing, 0, 1, 2)
        unchanged(growing, lambda: observe(growing, 4), word)


def test_heads_that_can_never_grow_are_rejected_at_construction() -> None:
    with pytest.raises(ValueError, match="batch through the network"):
        ER(nn.Sequential(nn.Linear(6, 4), nn.LazyLinear(3)), buffer_size=20, grow=True)
    with pytest.raises(ValueError, match="shares"):
        ER(Tied(), buffer_size=20, grow=True)
    for name, what in (("nothing", "exist"), ("1", "ReLU"), ("", "Sequential"), (5, "exist")):
        with pytest.raises(ValueError, match=f"head is.*{what}"):
            ER(network(), buffer_size=20, head=name)  # type: ignore[arg-type]


def unchanged(learner: Learner, call: Callable[[], Any], word: str) -> None:
    """Require a ValueError that leaves state and predictions as they are."""
    inputs = samples(0, 1).inputs
    before, outputs = learner.state_dict(), learner.predict_proba(inputs)
    with pytest.raises(ValueError, match=word):
        call()
    after = learner.state_dict()
    assert learner.predict_proba(inputs).equal(outputs)
    assert before.keys() == after.keys()
    assert (before["growth"], before["input_spec"]) == (after["growth"], after["input_spec"])
    for name, tensor in before["network"].items():
        assert tensor.equal(after["network"][name])


def test_labels_are_rejected_unless_the_learner_grows() -> None:
    learner = ER(network(), buffer_size=20)
    with pytest.raises(ValueError, match="3 outputs"):
        observe(learner, 0, 3)
    assert learner.growth_for(torch.tensor([3])) is None
    growing = ER(network(), buffer_size=20, grow=True)
    assert [growing.growth_for(torch.arange(n)) for n in (0, 3, 4)] == [None, None, 4]
    growing.observe(*samples(0, 3)[:2], check=False)
    assert growing.predict_proba(samples(0).inputs).shape[1] == 4


@pytest.mark.parametrize("label", [10**6, 10**12, 2**63 - 1])
def test_labels_that_are_no_class_numbers_are_rejected(label: int) -> None:
    learner = ER(network(), buffer_size=20, grow=True)
    observe(learner, 0, 1)
    batch, labels, _ = samples(0, 1)
    labels[-1] = label
    unchanged(learner, lambda: learner.observe(batch, labels), "consecutive")
    unchanged(learner, lambda: fit(learner, [(batch, labels)]), "consecutive")


def test_only_labels_are_limited_in_the_classes_they_add() -> None:
    learner = ER(network(), buffer_size=20, grow=True)
    assert learner.growth_for(torch.tensor([3 + MAX_ADDED - 1])) == 3 + MAX_ADDED
    with pytest.raises(ValueError, match="consecutive"):
        learner.growth_for(torch.tensor([3 + MAX_ADDED]))
    learner.grow(3 + MAX_ADDED + 1)
    assert learner.growth_for(torch.tensor([3 + MAX_ADDED])) is None


def test_states_of_other_networks_are_rejected() -> None:
    grown, larger = ER(network(), buffer_size=20), ER(network(5), buffer_size=20)
    grown.grow(5)
    growing = ER(network(), buffer_size=20, grow=True)
    unchanged(growing, lambda: growing.load_state_dict(larger.state_dict()), "fit")
    small = ER(network(), buffer_size=20)
    unchanged(grown, lambda: grown.load_state_dict(small.state_dict()), "fit")
    other = ER(network(4), buffer_size=20)
    unchanged(other, lambda: other.load_state_dict(grown.state_dict()), "fit")
    further = ER(network(), buffer_size=20)
    further.grow(4)
    further.load_state_dict(grown.state_dict())
    assert linear(further.network[-1]).out_features == 5  # type: ignore[index]


def test_a_network_without_linear_layers_resumes() -> None:
    one, other = (
        ER(nn.Sequential(nn.Unflatten(1, (6, 1)), nn.Conv1d(6, 3, 1), nn.Flatten()), buffer_size=20)
        for _ in range(2)
    )
    observe(one, 0, 1, 2)
    other.load_state_dict(one.state_dict())
    assert other.predict(samples(0).inputs).equal(one.predict(samples(0).inputs))


def batches(*tasks: tuple[int, ...]) -> dict[str, list[tuple[Tensor, Tensor]]]:
    return {
        f"task {number}": list(zip(*(t.split(8) for t in samples(*classes)[:2]), strict=True))
        for number, classes in enumerate(tasks)
    }


def test_fit_grows_between_tasks() -> None:
    test = samples(0, 1, 2, 3, 4, seed=1)
    stream = from_batches(batches((0, 1), (2,), (3, 4)), shape=(6,), test=test[:2])
    learner = CLSER(network(2), buffer_size=30, grow=True)
    record = fit(learner, stream)
    assert learner.predict_proba(test.inputs).shape[1] == 5
    first, last = record.class_il["working"][0], record.class_il["working"][-1]
    assert [len(row) for row in (first, last)] == [1, 1]
    with pytest.raises(ValueError, match="grow"):
        fit(CLSER(network(2), buffer_size=30), stream)
    again = CLSER(network(2), buffer_size=30, grow=True)
    fit(again, [samples(0, 1)[:2], samples(5)[:2]])
    assert again.predict_proba(test.inputs).shape[1] == 6


def test_run_resumes_after_growth() -> None:
    def run() -> Run:
        stream = from_batches(batches((0, 1), (2, 3), (4,)), shape=(6,))
        return Run(CLSER(network(1), buffer_size=30, grow=True), stream)

    whole, stopped = run(), run()
    train([whole])
    with pytest.raises(Interrupted):
        train([stopped], stop=lambda: SIGTERM if stopped.step == 5 else 0)
    resumed = run()
    resumed.load_state_dict(stopped.state_dict())
    train([resumed])
    inputs = samples(0, 4).inputs
    for name, predictor in whole.learner.predictors().items():
        assert resumed.learner.predictors()[name](inputs).equal(predictor(inputs))


def test_a_network_that_has_diverged_can_grow() -> None:
    learner = ER(network(), buffer_size=5)
    observe(learner, 0, 1, 2)
    head = linear(learner.network[-1])  # type: ignore[index]
    nn.init.constant_(head.weight, torch.nan)
    learner.grow(head.out_features + 2)
    assert len(head.weight) == head.out_features
    assert head.weight.grad is None
