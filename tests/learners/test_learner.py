"""Behaviour that all learners inherit: arguments, input, preparation, metrics, state and files."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
import tempfile
import warnings
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import perdure
from perdure import catalog, learners
from perdure.learners import CLSER, ER, SGD, Learner, Predictor
from perdure.learners.predictor import unit_range
from perdure.networks import MLP
from perdure.randomness import generator
from perdure.records import Samples
from perdure.state import as_bytes, write_file
from perdure.structures import Inputs

INPUTS, LABELS = torch.rand(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3


def linear() -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Linear(4, 3)


# -- construction ---------------------------------------------------------------------------


def test_network_without_parameters_is_rejected() -> None:
    with pytest.raises(ValueError, match="no parameters"):
        SGD(nn.Flatten())


def test_networks_on_unsupported_devices_are_rejected_unchanged() -> None:
    network = linear().to("meta").eval()
    with pytest.raises(ValueError, match="meta"):
        CLSER(network)
    assert not network.training


@pytest.mark.parametrize("lr", [0, -1.0, math.inf, math.nan, "0.1"])
def test_learning_rate_must_be_positive(lr: Any) -> None:
    with pytest.raises(ValueError, match="lr is"):
        SGD(linear(), lr=lr)


@pytest.mark.parametrize("lr", [0.1, 0.5])
def test_a_learning_rate_is_refused_if_an_optimizer_is_given(lr: float) -> None:
    network = linear()
    with pytest.raises(ValueError, match="omit lr"):
        SGD(network, lr=lr, optimizer=torch.optim.Adam(network.parameters()))


def test_given_optimizer_keeps_its_learning_rate() -> None:
    network = linear()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.7)
    assert SGD(network, optimizer=optimizer).optimizer is optimizer
    assert optimizer.param_groups[0]["lr"] == 0.7


def test_optimizer_may_train_a_part_of_the_network() -> None:
    first, second = nn.Linear(4, 5), nn.Linear(5, 3)
    before = [layer.weight.detach().clone() for layer in (first, second)]
    optimizer = torch.optim.SGD(second.parameters(), lr=0.5)
    SGD(nn.Sequential(first, second), optimizer=optimizer).observe(INPUTS, LABELS)
    assert first.weight.equal(before[0])
    assert not second.weight.equal(before[1])


def test_network_is_trained_in_place_and_in_training_mode() -> None:
    network = linear().eval()
    before = network.weight.detach().clone()
    learner = SGD(network)
    assert learner.network is network
    assert network.training
    learner.observe(INPUTS, LABELS)
    assert not network.weight.equal(before)


METHODS = [
    cls
    for cls in vars(learners).values()
    if inspect.isclass(cls) and issubclass(cls, Learner) and cls is not Learner
]


@pytest.mark.parametrize("method", METHODS)
def test_signatures_are_complete_and_documented(method: type[Learner]) -> None:
    parameters = inspect.signature(method).parameters
    assert all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters.values())
    assert parameters.keys() >= {"network", "lr", "optimizer", "augment", "normalise", "seed"}
    for name in parameters:
        assert f"\n        {name}: " in str(method.__doc__), name


# -- optimizer ------------------------------------------------------------------------------


def test_learning_rate_schedule_on_the_default_optimizer() -> None:
    scheduled, manual = SGD(linear(), lr=0.4), SGD(linear(), lr=0.4)
    scheduler = torch.optim.lr_scheduler.StepLR(scheduled.optimizer, step_size=2, gamma=0.5)
    for step in range(6):
        scheduled.observe(INPUTS, LABELS)
        scheduler.step()  # a warning about the order of calls would be an error here
        manual.optimizer.param_groups[0]["lr"] = 0.4 * 0.5 ** (step // 2)
        manual.observe(INPUTS, LABELS)
    assert scheduled.optimizer.param_groups[0]["lr"] == 0.05
    assert same(scheduled.network.state_dict(), manual.network.state_dict())


def test_fast_path_of_plain_sgd_equals_the_optimizer_bit_for_bit() -> None:
    fast, ordinary = SGD(linear(), lr=0.3), SGD(linear(), lr=0.3)
    calls: list[object] = []
    ordinary.optimizer.register_step_post_hook(lambda optimizer, *_: calls.append(optimizer))
    for _ in range(5):
        fast.observe(INPUTS, LABELS)
        ordinary.observe(INPUTS, LABELS)
    assert calls == [ordinary.optimizer] * 5
    assert same(fast.network.state_dict(), ordinary.network.state_dict())


# -- input ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_labels_may_have_any_integer_dtype(dtype: torch.dtype) -> None:
    one, other = SGD(linear()), SGD(linear())
    one.observe(INPUTS, LABELS)
    other.observe(INPUTS, LABELS.to(dtype))
    assert one.network.state_dict()["weight"].equal(other.network.state_dict()["weight"])


def test_inputs_need_not_be_contiguous() -> None:
    one, other = SGD(linear()), SGD(linear())
    one.observe(INPUTS, LABELS)
    other.observe(INPUTS.T.contiguous().T, LABELS.repeat_interleave(2)[::2])
    assert one.network.state_dict()["weight"].equal(other.network.state_dict()["weight"])


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (
            INPUTS,
            LABELS + 2,
            r"labels range from 2 to 4; the network has 3 outputs.*0 to 2.*grow=True",
        ),
        (INPUTS, LABELS + 1, r"from 1 to 3; .*0 to 2.*from 1.*subtract"),
        (INPUTS, LABELS - 1, "labels range from -1 to 1"),
        (INPUTS, LABELS[:4], "6 inputs but 4 labels"),
        (INPUTS, LABELS.float(), r"dtype float32; expected integers.*long\(\)"),
        (INPUTS, LABELS > 0, r"dtype bool; expected integers.*long\(\)"),
        (INPUTS, LABELS[:, None], r"shape \(6, 1\); expected one integer per sample.*squeeze\(1\)"),
        (INPUTS, torch.eye(6), r"shape \(6, 6\); expected one integer per sample.*argmax\(1\)"),
        (INPUTS, 1, "labels are of type int; expected one integer per sample"),
        (INPUTS, int, "labels are the class int, not an instance"),
        (INPUTS.tolist(), LABELS, r"torch\.tensor\(rows\)"),
        (pd.DataFrame(INPUTS.numpy()), LABELS, r"\.to_numpy\(\)"),
        (INPUTS, [0, 1], "6 inputs but 2 labels"),
        (INPUTS, "labels", "labels are of type str"),
        (INPUTS, [[0], [1, 2]], "labels cannot be read"),
        (INPUTS, list("aabbcc"), "number the classes"),
        ((INPUTS, INPUTS), LABELS[:2], "several arguments"),
        (INPUTS[0], LABELS[:4], r"inputs are a tensor of shape \(4,\)"),
        (INPUTS.long(), LABELS, r"does not accept inputs int64 \[4\]"),
        (INPUTS[:0], LABELS[:0], "the batch is empty"),
        (INPUTS / 0, LABELS, "infinite or NaN"),
        (INPUTS[:, :3], LABELS, r"does not accept inputs float32 \[3\]"),
    ],
)
def test_error_states_what_was_given_and_expected(inputs: Any, labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SGD(linear()).observe(inputs, labels)


def test_two_classes_need_two_outputs() -> None:
    with pytest.raises(ValueError, match=r"1 output.*two outputs"):
        SGD(nn.Linear(4, 1)).observe(INPUTS, LABELS % 2)


def test_error_states_shape_and_dtype_of_earlier_inputs() -> None:
    learner = SGD(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    learner.observe(INPUTS, LABELS)
    with pytest.raises(ValueError, match=r"\[2, 2\]; earlier inputs were float32 \[4\]"):
        learner.observe(INPUTS.view(6, 2, 2), LABELS)
    with pytest.raises(ValueError, match=r"uint8 \[4\]; earlier inputs were float32 \[4\]"):
        learner.observe(INPUTS.byte(), LABELS)
    with pytest.raises(ValueError, match=r"\[2, 2\]; earlier inputs were float32 \[4\]"):
        learner.predict(INPUTS.view(6, 2, 2))


def test_rejected_first_batch_does_not_fix_the_input_shape() -> None:
    learner = SGD(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    with pytest.raises(ValueError, match="labels range"):
        learner.observe(INPUTS.view(6, 2, 2), LABELS + 1)
    learner.observe(INPUTS, LABELS)


def test_predict_rejects_inputs_that_do_not_fit_the_network() -> None:
    with pytest.raises(ValueError, match=r"does not accept inputs float32 \[3\]"):
        SGD(linear()).predict(INPUTS[:, :3])
    with pytest.raises(ValueError, match="infinite or NaN"):
        SGD(linear()).predict(INPUTS / 0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_are_not_checked_if_checks_are_off(value: float) -> None:
    inputs = INPUTS.clone()
    inputs[0, 0] = value
    learner = SGD(linear())
    learner.observe(inputs, LABELS, check=False)
    assert learner.nonfinite_step == 1
    with pytest.raises(ValueError, match="6 inputs but 5 labels"):
        learner.observe(inputs, LABELS[:5], check=False)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Unflatten(1, (2, 2)), "expected logits"),
        (nn.Flatten(0), "expected logits"),
        (nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (2, -1))), "expected logits"),
        (nn.AdaptiveAvgPool1d(1), "labels range"),
    ],
    ids=["rank 3", "rank 1", "other rows", "one output"],
)
def test_network_must_return_logits_per_sample(module: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SGD(nn.Sequential(nn.Linear(4, 4), module)).observe(INPUTS, LABELS)


# -- preparation ----------------------------------------------------------------------------


class Watched(nn.Linear):
    """Records its last input."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.shown = x.detach().clone()
        return super().forward(x)


def test_default_normalisation_scales_bytes_and_keeps_floats() -> None:
    every = torch.arange(256, dtype=torch.uint8)
    assert unit_range(every).equal(every / 255)
    assert unit_range(INPUTS) is INPUTS


def test_augmentation_uses_the_learners_generator_and_precedes_normalisation() -> None:
    network = Watched(4, 3)
    learner = SGD(
        network,
        seed=4,
        augment=lambda inputs, draws: inputs + torch.rand(inputs.shape, generator=draws),
        normalise=lambda inputs: 2 * inputs,
    )
    draws = generator(4, "augmentation")
    for _ in range(3):
        learner.observe(INPUTS, LABELS)
        assert network.shown.equal(2 * (INPUTS + torch.rand(6, 4, generator=draws)))


def test_stream_and_replay_are_prepared_in_the_same_way() -> None:
    network = Watched(4, 3)
    learner = ER(
        network,
        buffer_size=6,
        augment=lambda inputs, _: inputs + 1,
        normalise=lambda inputs: 2 * inputs,
    )
    learner.observe(INPUTS, LABELS)
    learner.observe(INPUTS, LABELS)
    assert network.shown[:6].equal(2 * (INPUTS + 1))
    assert network.shown[6:].sort(0).values.equal(2 * (INPUTS + 1).sort(0).values)


def test_predictions_are_normalised_but_not_augmented() -> None:
    network = linear()
    learner = SGD(network, augment=lambda inputs, _: inputs * 0, normalise=lambda x: 3 * x)
    with torch.no_grad():
        expected = network(3 * INPUTS)
    assert learner.predictors()["working"](INPUTS).equal(expected)
    assert learner.predict(INPUTS).equal(expected.argmax(1))
    assert not learner.predict_proba(INPUTS).requires_grad


def test_predicting_restores_the_mode_of_each_layer() -> None:
    network = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 3))
    learner = SGD(network)
    network[1].eval()  # a user freezes the statistics of one layer
    modes = [module.training for module in network.modules()]
    learner.predict(INPUTS)
    assert [module.training for module in network.modules()] == modes


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_predicting_restores_the_mode_of_a_scripted_network() -> None:
    network = torch.jit.script(nn.Sequential(linear(), nn.Dropout()))
    Predictor(network, unit_range)(INPUTS)
    assert all(module.training for module in network.modules())
    assert (network(torch.ones(9, 4)) == 0).any()


def test_predictor_restores_modes_after_an_error() -> None:
    network = nn.Sequential(linear(), nn.Dropout())
    with pytest.raises(RuntimeError):
        Predictor(network, unit_range)(INPUTS[:, :2])
    assert all(module.training for module in network.modules())


# -- randomness -----------------------------------------------------------------------------


def test_dropout_depends_on_the_learners_seed_only() -> None:
    def masks(seed: int) -> Tensor:
        dropout = nn.Dropout()
        learner = SGD(nn.Sequential(linear(), dropout), seed=seed)
        drawn = []
        dropout.register_forward_hook(
            lambda module, _, out: drawn.append(out == 0) if module.training else None
        )
        for _ in range(3):
            torch.rand(7)  # other code uses the global generator
            learner.observe(INPUTS, LABELS)
        return torch.stack(drawn)

    assert masks(0).equal(masks(0))
    assert not masks(0).equal(masks(1))
    assert not masks(0)[0].equal(masks(0)[1])


def test_global_state_is_restored_after_an_error() -> None:
    learner = SGD(linear())
    before = torch.get_rng_state()

    def fail() -> None:
        with learner.randomness():
            torch.rand(3)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.get_rng_state().equal(before)


# -- metrics --------------------------------------------------------------------------------


def test_metrics_are_means_over_the_steps_since_the_last_call() -> None:
    learner = SGD(linear())
    assert learner.metrics() == {}
    losses = []
    for _ in range(5):
        with torch.no_grad():
            losses.append(float(nn.functional.cross_entropy(learner.network(INPUTS), LABELS)))
        learner.observe(INPUTS, LABELS)
        if len(losses) == 2:
            assert learner.metrics() == pytest.approx({"loss": sum(losses) / 2})
    assert learner.metrics() == pytest.approx({"loss": sum(losses[2:]) / 3})
    assert learner.metrics() == {}
    assert learner.totals() == pytest.approx({"loss": sum(losses)})
    other = SGD(linear())
    for _ in range(2):
        other.observe(INPUTS, LABELS)
    assert other.metrics() == pytest.approx({"loss": sum(losses[:2]) / 2})


def test_repr_shows_method_network_memory_and_steps() -> None:
    learner = ER(linear(), buffer_size=8)
    learner.observe(INPUTS, LABELS)
    expected = "ER(network=15 parameters, memory=Reservoir(6 of 8 samples), steps=1)"
    assert repr(learner) == expected
    assert repr(SGD(MLP(784, 10))) == "SGD(network=89,610 parameters, steps=0)"


def test_end_task_does_nothing_by_default() -> None:
    learner = SGD(linear())
    before = learner.network.state_dict()["weight"].clone()
    learner.end_task(Samples(INPUTS, LABELS))
    assert learner.network.state_dict()["weight"].equal(before)
    assert not learner.needs_boundaries


def make(method: type[Learner]) -> Learner:
    """A learner with the arguments that its method requires."""
    needed: dict[str, Any] = {"buffer_size": 6, "tasks": 2}
    parameters = inspect.signature(method).parameters
    return method(linear(), **{name: needed[name] for name in needed if name in parameters})


@pytest.mark.parametrize("samples", [(INPUTS, LABELS), INPUTS, None, {"labels": LABELS}])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_refuses_to_end_a_task_without_samples(
    method: type[Learner], samples: Any
) -> None:
    learner = make(method)
    learner.observe(INPUTS, LABELS)
    before = as_bytes(learner.state_dict(), {})
    with pytest.raises(ValueError, match=rf"{type(samples).__name__}.*Samples"):
        learner.end_task(samples)
    assert as_bytes(learner.state_dict(), {}) == before
    learner.end_task(Samples(INPUTS, LABELS))


def test_tensors_keep_their_addresses() -> None:
    learner = ER(linear(), buffer_size=4)
    learner.observe(INPUTS, LABELS)

    def addresses() -> list[int]:
        contents = learner.memory.contents()
        assert contents is not None
        tensors = [learner.steps, learner.finite_steps, *learner._totals.values()]
        tensors += [*learner.network.parameters(), learner.memory.seen, *contents[:2]]
        return [tensor.data_ptr() for tensor in tensors]

    before = addresses()
    learner.observe(INPUTS, LABELS)
    assert addresses() == before


# -- state and files ------------------------------------------------------------------------


def test_loading_keeps_the_addresses_of_tensors() -> None:
    one, other = ER(linear(), buffer_size=4), ER(nn.Linear(4, 3), buffer_size=4, seed=1)
    for learner in (one, other):
        learner.observe(INPUTS, LABELS)
    tensors = [*other.network.parameters(), other.steps, other.memory.seen]
    addresses = [tensor.data_ptr() for tensor in tensors]
    other.load_state_dict(one.state_dict())
    now = [*other.network.parameters(), other.steps, other.memory.seen]
    assert [tensor.data_ptr() for tensor in now] == addresses


def test_state_of_another_method_is_rejected(tmp_path: Path) -> None:
    er, sgd = ER(linear(), buffer_size=4), SGD(linear())
    with pytest.raises(ValueError, match=r"the state has the parts .*; SGD has"):
        sgd.load_state_dict(er.state_dict())
    er.save(tmp_path / "er")
    with pytest.raises(ValueError, match="contains the state of ER; this learner is SGD"):
        sgd.load(tmp_path / "er")


def test_error_names_the_part_that_does_not_fit(tmp_path: Path) -> None:
    learner = SGD(linear())
    SGD(nn.Linear(4, 5)).save(tmp_path / "five")
    with pytest.raises(ValueError, match=r"five: the state does not fit this SGD.*network: "):
        learner.load(tmp_path / "five")


def test_state_contains_the_input_shape() -> None:
    one, other = (SGD(nn.Sequential(nn.Flatten(), linear())) for _ in range(2))
    one.observe(INPUTS, LABELS)
    other.load_state_dict(one.state_dict())
    with pytest.raises(ValueError, match="earlier inputs were"):
        other.observe(INPUTS.view(6, 2, 2), LABELS)


@pytest.mark.parametrize("place", ["", ".", "missing/learner", "file/learner"])
def test_where_no_file_can_be_is_refused(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(ValueError, match="folder"):
        SGD(linear()).save(place)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_failed_save_keeps_the_old_file(tmp_path: Path) -> None:
    learner = SGD(linear())
    path = tmp_path / "learner"
    learner.save(path)
    before = path.read_bytes()
    learner.observe(INPUTS, LABELS)
    learner._totals["bad"] = {1, 2}  # type: ignore[assignment]
    with pytest.raises((TypeError, AttributeError)):
        learner.save(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["learner"]


def test_attributes_of_subclasses_are_saved_automatically() -> None:
    class Counting(SGD):
        def __init__(self, network: nn.Module, **common: Any) -> None:
            super().__init__(network, **common)
            self.positives = torch.zeros((), dtype=torch.int64)
            self.draws = generator(0, "mine")

        def step(self, inputs: Tensor, labels: Tensor) -> None:
            super().step(inputs, labels)
            self.positives += (labels > 0).sum()
            torch.rand(1, generator=self.draws)

    one, other = Counting(linear()), Counting(linear())
    one.observe(INPUTS, LABELS)
    other.load_state_dict(one.state_dict())
    assert int(other.positives) == 4
    assert other.draws.get_state().equal(one.draws.get_state())


def same(one: Any, other: Any) -> bool:
    """Return whether two states are equal."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)


def test_values_of_the_wrong_type_in_a_file_are_rejected(tmp_path: Path) -> None:
    learner = ER(linear(), buffer_size=4)
    learner.observe(INPUTS, LABELS)
    before = learner.state_dict()
    for part, value in (
        ("memory", 3),
        ("memory", {"filled": "many"}),
        ("optimizer", {"groups": 1}),
        ("network", {"weight": [1, 2]}),
        ("augmentation", torch.zeros(3)),
        ("augmentation", "text"),
        ("totals", 1),
        ("totals", {"loss": "much"}),
        ("input_spec", 1),
        ("last_read", 1),
        ("last_read", {"steps": 1, "totals": {"loss": "much"}}),
        ("steps", None),
    ):
        write_file(tmp_path / "bad", {**before, part: value}, {"learner": "ER"})
        with pytest.raises(ValueError, match=r"does not fit|has the parts"):
            learner.load(tmp_path / "bad")
        assert same(learner.state_dict(), before), part


def test_parts_without_state_are_allowed(tmp_path: Path) -> None:
    class WithLoss(SGD):
        def __init__(self, network: nn.Module, **common: Any) -> None:
            super().__init__(network, **common)
            self.criterion = nn.CrossEntropyLoss()

    learner = WithLoss(linear())
    learner.observe(INPUTS, LABELS)
    learner.save(tmp_path / "learner")
    resumed = WithLoss(nn.Linear(4, 3))
    resumed.load(tmp_path / "learner")
    assert same(resumed.state_dict(), learner.state_dict())


@given(st.data())
@settings(max_examples=150)
def test_damaged_file_is_rejected_or_read(data: st.DataObject) -> None:
    whole, learner = _saved()
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        # Half of the damage is in the header, with names, shapes and plain values.
        last = data.draw(st.sampled_from([2000, len(content) - 1]))
        content[data.draw(st.integers(0, last))] ^= 1 << data.draw(st.integers(0, 7))
    before = learner.state_dict()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "learner"
        path.write_bytes(content)
        try:
            learner.load(path)
        except ValueError:
            assert same(learner.state_dict(), before)
        finally:
            learner.load_state_dict(before)


@cache
def _saved() -> tuple[bytes, ER]:
    learner = ER(linear(), buffer_size=4)
    learner.observe(INPUTS, LABELS)
    with tempfile.TemporaryDirectory() as folder:
        learner.save(Path(folder) / "learner")
        content = (Path(folder) / "learner").read_bytes()
    learner.observe(INPUTS, LABELS)
    return content, learner


class Fails(BaseException):
    """No library handles this."""


def test_a_change_of_several_parts_is_all_or_nothing() -> None:
    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            return x - self.get_buffer("mean")

    shift = Shift()
    learner = ER(
        nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 3)),
        buffer_size=8,
        normalise=shift,
        grow=True,
    )
    x, y = torch.rand(5, 4), torch.arange(5) % 3

    def change(*, fails: bool) -> None:
        shift.get_buffer("mean").add_(1)
        learner.observe(x, y)
        learner.observe(x, y + 2)  # grows
        if fails:
            raise Fails

    for _ in range(3):  # before the first batch, as the memory fills, and later
        before, outside = as_bytes(learner.state_dict(), {}), torch.get_rng_state()
        mean = shift.get_buffer("mean").clone()
        with pytest.raises(Fails):
            learner.undo_on_failure(partial(change, fails=True))
        assert as_bytes(learner.state_dict(), {}) == before
        assert torch.equal(shift.get_buffer("mean"), mean)
        learner.undo_on_failure(partial(change, fails=False))
        assert torch.equal(shift.get_buffer("mean"), mean + 1)
        assert torch.equal(torch.get_rng_state(), outside)
    assert int(learner.steps) == 6


def test_learner_is_abstract() -> None:
    with pytest.raises(TypeError):
        Learner(linear())  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("network", "optimizer", "word"),
    [("mlp", None, "nn.Module"), (nn.Linear(4, 3), torch.optim.Adam, "instance")],
)
def test_arguments_of_the_wrong_kind_are_refused(network: Any, optimizer: Any, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        SGD(network, optimizer=optimizer)


def test_every_learner_of_the_catalog_is_public() -> None:
    assert {method.learner.__name__ for method in catalog.METHODS.values()} <= {*perdure.__all__}


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_of_a_learner_continues_like_the_original(copied: Any) -> None:
    learner = ER(linear(), buffer_size=8, seed=3)
    batch = torch.rand(4, 4), torch.tensor([0, 1, 2, 0])
    learner.observe(*batch)
    other = copied(learner)
    assert other._lock is not learner._lock
    for each in (learner, other):
        each.observe(*batch)
        each.observe(*batch)
    assert as_bytes(other.state_dict(), {}) == as_bytes(learner.state_dict(), {})


class Rehearsal(SGD):
    """Learns from the samples of a task once more when it ends, and then fails."""

    needs_boundaries = True
    fails = False

    def __init_subclass__(cls, *, word: str = "", **arguments: Any) -> None:
        super().__init_subclass__(**arguments)

    def end_task(self, samples: Samples) -> None:
        self.observe(samples.inputs, samples.labels)
        if self.fails:
            raise KeyError


class Named(Rehearsal, word="name"):
    pass


def test_a_step_inside_the_end_of_a_task_is_undone_with_it() -> None:
    samples = Samples(torch.rand(4, 4), torch.tensor([0, 1, 2, 0]))
    learner, plain = Named(linear()), SGD(linear())
    learner.end_task(samples)
    plain.observe(samples.inputs, samples.labels)
    assert int(learner.steps) == 1
    assert as_bytes(learner.state_dict(), {}) == as_bytes(plain.state_dict(), {})
    learner.fails = True
    with pytest.raises(KeyError):
        learner.end_task(samples)
    assert as_bytes(learner.state_dict(), {}) == as_bytes(plain.state_dict(), {})
    learner.observe(samples.inputs, samples.labels)
    plain.observe(samples.inputs, samples.labels)
    assert as_bytes(learner.state_dict(), {}) == as_bytes(plain.state_dict(), {})


def test_batch_norm_accepts_two_samples() -> None:
    learner = SGD(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    with pytest.raises(ValueError, match="BatchNorm"):
        learner.observe(torch.rand(1, 4), torch.tensor([0]))
    learner.observe(torch.rand(2, 4), torch.tensor([0, 1]))
    assert int(learner.steps) == 1


@pytest.mark.parametrize("method", [SGD, partial(ER, buffer_size=5)])
def test_lazy_layers_work_after_a_refused_batch(method: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lazy modules are under development, says torch
        lazy = nn.LazyBatchNorm1d(affine=False)
    learner = method(nn.Sequential(nn.Linear(4, 6), lazy, nn.Linear(6, 3)))
    with pytest.raises(ValueError, match="0 to 9"):
        learner.observe(INPUTS, torch.tensor([0, 1, 2, 9, 0, 1]))
    learner.observe(INPUTS, LABELS)
    assert int(learner.steps) == 1
    assert lazy.num_batches_tracked is not None
    assert int(lazy.num_batches_tracked) == 1


def test_a_batch_that_diverges_is_refused_and_leaves_the_learner_as_it_was() -> None:
    learner = SGD(linear(), lr=3e38)
    for _ in range(2):
        learner.observe(INPUTS, LABELS)
    before = as_bytes(learner.state_dict(), {})
    with pytest.raises(ValueError, match=r"learning rate \(3e\+38\)"):
        learner.observe(INPUTS, LABELS)
    assert as_bytes(learner.state_dict(), {}) == before


def test_autocast_around_a_loop_uses_the_weights_of_each_step() -> None:
    """Autocast keeps converted weights until its block ends."""
    each, around = SGD(linear(), lr=0.5), SGD(linear(), lr=0.5)
    for _ in range(5):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            each.observe(INPUTS, LABELS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(5):
            around.observe(INPUTS, LABELS)
    assert as_bytes(each.state_dict(), {}) == as_bytes(around.state_dict(), {})


def test_autocast_uses_the_weights_of_each_inner_step() -> None:
    class Twice(SGD):
        def step(self, inputs: Inputs, labels: Tensor) -> None:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                self.inner_step(F.cross_entropy(self.logits(inputs), labels))
                outputs.append(self.logits(inputs).detach())
                again = F.linear(inputs, *(p.detach() for p in self.network.parameters()))
                outputs.append(again)
                self.optimizer_step(F.cross_entropy(self.logits(inputs), labels))

    outputs: list[Tensor] = []
    Twice(linear(), lr=0.5).observe(INPUTS, LABELS)
    assert torch.equal(*outputs)


def test_a_network_that_returns_probabilities_is_noticed() -> None:
    for outputs, scale in ((2, 1.0), (3, 1e4)):  # the latter yields probabilities of 0
        layer = nn.Linear(4, outputs)
        nn.init.uniform_(layer.weight, 0, scale)
        with pytest.warns(UserWarning, match="softmax"):
            SGD(nn.Sequential(layer, nn.Softmax(dim=1))).observe(INPUTS, LABELS % outputs)
    SGD(nn.Sequential(linear(), nn.Sigmoid())).observe(INPUTS, LABELS)  # they do not add up to 1


def test_generators_of_the_memories_are_listed() -> None:
    learner = CLSER(linear(), buffer_size=4, stable_rate=0.5, plastic_rate=0.5)
    holders = learner, learner.memory, learner.stable, learner.plastic
    every = [v for holder in holders for v in vars(holder).values()]
    expected = {id(v) for v in every if isinstance(v, torch.Generator)}
    assert {id(found) for found in learner.generators()} == expected
    assert len(expected) >= 4


def test_an_interrupted_load_changes_nothing() -> None:
    class Part:
        interruptions = iter([KeyboardInterrupt])

        def state_dict(self) -> dict[str, Any]:
            return {"number": 1}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            for interruption in self.interruptions:
                torch.set_grad_enabled(False)  # as an interrupted `no_grad` leaves them
                raise interruption

    class Own(SGD):
        def __init__(self, network: nn.Module) -> None:
            super().__init__(network)
            self.part = Part()

    trained, fresh = Own(linear()), Own(linear())
    trained.observe(INPUTS, LABELS)
    before = as_bytes(fresh.state_dict(), {})
    with pytest.raises(KeyboardInterrupt):
        fresh.load_state_dict(trained.state_dict())
    assert torch.is_grad_enabled()
    assert as_bytes(fresh.state_dict(), {}) == before


def test_a_learner_with_finite_weights_is_saved_whatever_its_loss(tmp_path: Path) -> None:
    class Endless(SGD):
        def step(self, inputs: Tensor, labels: Tensor) -> None:
            self.optimizer_step(nn.functional.cross_entropy(self.logits(inputs), labels) + math.inf)

    one, other = Endless(linear()), Endless(linear())
    one.observe(INPUTS, LABELS, check=False)
    one.save(tmp_path / "learner")
    other.load(tmp_path / "learner")
    assert as_bytes(other.state_dict(), {}) == as_bytes(one.state_dict(), {})
    assert other.nonfinite_step == 1


def test_progress_is_checked_after_16_32_and_64_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    checked, weights = {}, {}

    def check(learner: Learner) -> None:
        checked[int(learner.steps)] = learner.network.state_dict()["weight"].clone()

    monkeypatch.setattr(ER, "check_progress", check)
    learner = ER(linear(), buffer_size=4)
    for step in range(1, 65):
        learner.observe(INPUTS, LABELS)
        weights[step] = learner.network.state_dict()["weight"].clone()
    assert list(checked) == [16, 32, 64]
    assert all(found.equal(weights[step]) for step, found in checked.items())


BOUNDED = [method for method in METHODS if method.needs_boundaries]


@pytest.mark.parametrize("method", BOUNDED)
def test_predictions_after_many_batches_without_a_boundary_warn_once(method: type[Learner]) -> None:
    learner = make(method)
    learner.predict(INPUTS)
    for _ in range(199):
        learner.observe(INPUTS, LABELS)
    learner.predict(INPUTS)  # of a first task
    learner.observe(INPUTS, LABELS)
    with pytest.warns(UserWarning, match="end_task") as found:
        learner.predict_proba(INPUTS)
    assert [warning.filename for warning in found] == [__file__]
    learner.observe(INPUTS, LABELS)
    learner.predict(INPUTS)


@pytest.mark.parametrize("method", METHODS)
def test_correct_use_does_not_warn_of_boundaries(method: type[Learner], tmp_path: Path) -> None:
    learner = make(method)
    learner.observe(INPUTS, LABELS)
    if learner.needs_boundaries:
        learner.end_task(Samples(INPUTS, LABELS))
    learner.save(tmp_path / "learner")
    later = make(method)
    later.load(tmp_path / "learner")
    for each in (learner, copy.deepcopy(learner), later):
        for _ in range(200):
            each.observe(INPUTS, LABELS)
        each.predict(INPUTS)


def test_a_task_whose_end_failed_has_not_ended() -> None:
    learner = make(learners.ICaRL)
    with pytest.raises(ValueError, match="labels"):
        learner.end_task(Samples(INPUTS, LABELS[:2]))
    for _ in range(200):
        learner.observe(INPUTS, LABELS)
    with pytest.warns(UserWarning, match="end_task"):
        learner.predict(INPUTS)


def test_a_subclass_sees_the_weights_that_its_step_has_changed() -> None:
    class Reading(SGD):
        def step(self, inputs: Tensor, labels: Tensor) -> None:
            super().step(inputs, labels)
            self.read = self.logits(inputs).detach()

    class AlsoReading(Reading):
        changes_weights_last = False

    for kind in (Reading, AlsoReading):
        learner = kind(linear())
        learner.observe(INPUTS, LABELS)
        assert learner.read.equal(learner.logits(INPUTS))
