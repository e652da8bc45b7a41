"""Conformance checks for learners: every kind of input."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from perdure.learners import Learner
from perdure.records import Samples
from perdure.structures import Inputs, layout
from perdure.testing.learners import (
    _ALL,
    _BATCHNORM,
    _LINEAR,
    LEARNER_CHECKS,
    MakeLearner,
    _bytes,
    _Event,
    _play,
    _require_rejected,
    _require_same,
    _snapshot,
)
from perdure.testing.rules import equal, require, rule

Change = Callable[[Tensor], Any]


def _changed(events: Iterable[_Event], change: Change) -> list[_Event]:
    """Apply a function to the inputs of events."""
    return [
        _Event(call, Samples(change(samples.inputs), samples.labels)) for call, samples in events
    ]


def _stored(learner: Learner) -> Samples | None:
    return None if learner.memory is None else learner.memory.contents()


# -- structures -----------------------------------------------------------------------------


class _Whole(nn.Module):
    """A linear network that takes one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.head = _LINEAR.network()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)  # type: ignore[no-any-return]


class _Keywords(_Whole):
    """The same network with two keyword arguments; its output has the key "logits"."""

    def forward(self, *, left: Tensor, right: Tensor) -> Any:  # type: ignore[override]
        return {"logits": super().forward(torch.cat([left, right], dim=1))}


class _Positional(_Whole):
    """The same network with two positional arguments; its output has the attribute `logits`."""

    def forward(self, left: Tensor, right: Tensor, /) -> Any:  # type: ignore[override]
        return SimpleNamespace(logits=super().forward(torch.cat([left, right], dim=1)))


class _Nested(_Whole):
    """The same network with a dict and a list as arguments."""

    def forward(self, parts: Any, more: Any) -> Tensor:  # type: ignore[override]
        return super().forward(torch.cat([parts["a"], more[0], more[1][:, None]], dim=1))


_STRUCTURES: dict[str, tuple[type[_Whole], Change]] = {
    "dict": (_Keywords, lambda x: {"right": x[:, 20:], "left": x[:, :20]}),
    "mapping of arrays": (
        _Keywords,
        lambda x: MappingProxyType({"left": x[:, :20].numpy(), "right": x[:, 20:].numpy()}),
    ),
    "tuple": (_Positional, lambda x: (x[:, :20], x[:, 20:])),
    "list": (_Positional, lambda x: [x[:, :20], x[:, 20:]]),
    "nested": (_Nested, lambda x: {"parts": {"a": x[:, :60]}, "more": [x[:, 60:63], x[:, 63]]}),
}


@rule(LEARNER_CHECKS)
def structures_of_tensors_are_learned_like_one_tensor(make: MakeLearner) -> None:
    """Dicts, tuples and nested structures train the same weights as one tensor, also resumed."""
    events, inputs = _LINEAR.script(), _LINEAR.test_inputs()
    whole = _play(make(_Whole(), seed=0), events)
    expected = _bytes(whole.network.state_dict())
    for name, (network, change) in _STRUCTURES.items():
        script = _changed(events, change)
        learner = _play(make(network(), seed=0), script[:4])
        resumed = make(network(), seed=9)
        resumed.load_state_dict(learner.state_dict())
        for what, each in ((name, learner), (f"{name}, resumed", resumed)):
            _play(each, script[4:])
            _require_same(f"{what}: weights", expected, _bytes(each.network.state_dict()))
            _require_same(
                f"{what}: totals",
                *({k: str(v).encode() for k, v in x.totals().items()} for x in (whole, each)),
            )
            same = each.predict_proba(change(inputs)).equal(whole.predict_proba(inputs))
            require(same, f"{what}: predict_proba differs from that for one tensor")
        _require_same(f"{name}: resumed after 4 calls", learner, resumed)
        if (stored := _stored(learner)) is not None:
            found, given = layout(stored.inputs), learner.state_dict()["input_spec"]["layout"]
            require(found == given, f"{name}: the memory stores {found} instead of {given}")
        _require_rejected(
            f"{name}: one tensor after a structure",
            learner,
            partial(learner.observe, *events[0][1][:2]),
        )


# -- integers -------------------------------------------------------------------------------


class _Embedding(nn.Module):
    """A bag of token embeddings, averaged over the tokens that a mask selects."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        vectors = self.embedding(input_ids)
        if attention_mask is None:
            return self.head(vectors.mean(1))  # type: ignore[no-any-return]
        weights = attention_mask[..., None].to(vectors)
        return self.head((vectors * weights).sum(1) / weights.sum(1))  # type: ignore[no-any-return]


def _tokens(x: Tensor) -> Tensor:
    """Token ids of which each class of the linear case has its own, from 64 numbers."""
    return x.view(len(x), 4, 16).mean(2).argmax(1)[:, None] * 10 + (x[:, :6] * 9).long()


@rule(LEARNER_CHECKS)
def token_ids_are_learned(make: MakeLearner) -> None:
    """Integer inputs of a network with an embedding, alone or with a mask, are learned."""
    kinds: dict[str, Change] = {
        "token ids": _tokens,
        "32-bit token ids": lambda x: _tokens(x).int(),
        "dict of token ids and mask": lambda x: {
            "input_ids": _tokens(x),
            "attention_mask": torch.ones(len(x), 6, dtype=torch.bool),
        },
    }
    for name, change in kinds.items():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            network = _Embedding()
        optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
        learner = make(network, seed=0, optimizer=optimizer)
        samples = [_LINEAR.samples(_ALL, 8, seed=seed) for seed in range(40)]
        for inputs, labels, _ in samples:
            learner.observe(change(inputs), labels)
        if learner.needs_boundaries:
            every = torch.cat([s.inputs for s in samples]), torch.cat([s.labels for s in samples])
            learner.end_task(Samples(change(every[0]), every[1]))
        if (stored := _stored(learner)) is not None:
            found, given = layout(stored.inputs), layout(_plain(change(samples[0].inputs)))
            require(found == given, f"{name}: the memory stores {found} instead of {given}")
        inputs, labels, _ = _LINEAR.samples(_ALL, 100, seed=1000)
        learner.predict(change(inputs))
        answers = (score(_plain(change(inputs))) for score in learner.predictors().values())
        correct = max(int((answer.argmax(1) == labels).sum()) for answer in answers)
        require(correct >= 90, f"{name}: {correct} of 100 samples are classified correctly")


def _plain(inputs: Inputs) -> Inputs:
    return dict(sorted(inputs.items())) if isinstance(inputs, dict) else inputs


# -- layouts of tensors in memory -----------------------------------------------------------


def _every_other(x: Tensor) -> Tensor:
    """The same values as every other column of a wider tensor."""
    wide = x.new_zeros(*x.shape[:-1], 2 * x.shape[-1])
    wide[..., ::2] = x
    return wide[..., ::2]


def _batch_last(x: Tensor) -> Tensor:
    """The same values in memory that has the batch as its last dimension."""
    return x.permute(*range(1, x.ndim), 0).contiguous().permute(-1, *range(x.ndim - 1))


def _without_last_column(x: Tensor) -> Tensor:
    """The same values as all but the last column of a table."""
    return torch.cat([x, x[..., :1]], dim=-1)[..., :-1]


def _unaligned(x: Tensor) -> Tensor:
    """The same values at an odd offset in memory."""
    return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)


_VIEWS: dict[str, Change] = {
    "unaligned": _unaligned,
    "every other column": _every_other,
    "all but the last column": _without_last_column,
    "batch-last": _batch_last,
    "expanded": lambda x: x[:, None].expand(-1, 3, *x.shape[1:])[:, 1],
    "arrays": lambda x: x.numpy(),
    "reversed arrays": lambda x: x.numpy()[::-1].copy()[::-1],
    "float64": lambda x: x.double() if x.is_floating_point() else x,
}


@rule(LEARNER_CHECKS)
def strided_inputs_are_learned_like_contiguous_ones(make: MakeLearner) -> None:
    """Views, arrays and float64 give the same memory and, up to rounding, the same network."""
    for case in (_LINEAR, _BATCHNORM):
        expected = _play(make(case.network(), seed=0), case.script())
        inputs = case.test_inputs()
        for name, change in _VIEWS.items():
            learner = _play(make(case.network(), seed=0), _changed(case.script(), change))
            one, other = expected.predict_proba(inputs), learner.predict_proba(change(inputs))
            same = torch.allclose(one, other, rtol=1e-3, atol=1e-4)
            require(same, f"{case.name}: {name}: other predictions than for contiguous inputs")
            stored, found = _stored(expected), _stored(learner)
            same = (stored is None) == (found is None)
            if stored is not None and found is not None:
                same = equal(stored, found)
            require(same, f"{case.name}: {name}: other samples are stored")


@rule(LEARNER_CHECKS)
def gradients_stay_in_the_learner(make: MakeLearner) -> None:
    """Learning from the result of a computation does not propagate gradients into it."""
    factor = torch.ones((), requires_grad=True)
    expected = _play(make(_LINEAR.network(), seed=0), _LINEAR.script())
    learner = _play(make(_LINEAR.network(), seed=0), _changed(_LINEAR.script(), factor.mul))
    _require_same("inputs that require a gradient", expected, learner)
    require(factor.grad is None, "a gradient arrived at the caller's tensor")


# -- small batches --------------------------------------------------------------------------


@rule(LEARNER_CHECKS)
def single_samples_work_or_are_rejected(make: MakeLearner) -> None:
    """A batch of one is learned, or rejected without a change if BatchNorm cannot handle it."""

    def network() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))

    _learn_one(make(_BATCHNORM.network(), seed=0), _BATCHNORM.samples(_ALL, 1, seed=5))
    one = _LINEAR.samples(_ALL, 1, seed=5)
    learner = make(network(), seed=0)
    before = _snapshot(learner)
    try:
        _learn_one(learner, one)
    except ValueError:
        _require_same("a first batch of one was rejected", before, learner)
    _play(learner, (event for event in _LINEAR.script() if len(event.samples.labels) > 1))
    before = _snapshot(learner)
    try:
        _learn_one(learner, one)
    except ValueError:
        _require_same("a batch of one was rejected", before, learner)


def _learn_one(learner: Learner, one: Samples) -> None:
    steps = int(learner.steps)
    learner.observe(one.inputs, one.labels)
    require(int(learner.steps) == steps + 1, "a batch of one was ignored")
