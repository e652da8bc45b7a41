"""What every learner inherits: construction, input, preparation, counters, state and files."""

from __future__ import annotations

import math
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from perdure.learners import ER, SGD, Learner, Predictor
from perdure.learners.learner import unit_range
from perdure.randomness import generator
from perdure.records import Samples
from perdure.state import write_file

IMAGES, LABELS = torch.rand(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3


def linear() -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Linear(4, 3)


# -- construction ---------------------------------------------------------------------------


def test_a_network_without_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="no parameters"):
        SGD(nn.Flatten())


@pytest.mark.parametrize("lr", [0, -1.0, math.inf, math.nan, "0.1", None])
def test_a_learning_rate_must_be_a_number_above_zero(lr: Any) -> None:
    with pytest.raises(ValueError, match="lr is"):
        SGD(linear(), lr=lr)


def test_an_optimizer_keeps_its_own_learning_rate() -> None:
    network = linear()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.7)
    assert SGD(network, optimizer=optimizer).optimizer is optimizer
    assert optimizer.param_groups[0]["lr"] == 0.7


def test_an_optimizer_over_a_part_of_the_network_leaves_the_rest() -> None:
    first, second = nn.Linear(4, 5), nn.Linear(5, 3)
    before = [layer.weight.detach().clone() for layer in (first, second)]
    optimizer = torch.optim.SGD(second.parameters(), lr=0.5)
    SGD(nn.Sequential(first, second), optimizer=optimizer).observe(IMAGES, LABELS)
    assert first.weight.equal(before[0])
    assert not second.weight.equal(before[1])


def test_the_network_is_trained_in_place_and_in_training_mode() -> None:
    network = linear().eval()
    before = network.weight.detach().clone()
    learner = SGD(network)
    assert learner.network is network
    assert network.training
    learner.observe(IMAGES, LABELS)
    assert not network.weight.equal(before)


# -- input ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_labels_of_any_integer_dtype_are_the_same_labels(dtype: torch.dtype) -> None:
    one, other = SGD(linear()), SGD(linear())
    one.observe(IMAGES, LABELS)
    other.observe(IMAGES, LABELS.to(dtype))
    assert one.network.state_dict()["weight"].equal(other.network.state_dict()["weight"])


def test_images_need_not_be_contiguous() -> None:
    one, other = SGD(linear()), SGD(linear())
    one.observe(IMAGES, LABELS)
    other.observe(IMAGES.T.contiguous().T, LABELS.repeat_interleave(2)[::2])
    assert one.network.state_dict()["weight"].equal(other.network.state_dict()["weight"])


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (IMAGES, LABELS + 1, r"labels range from 1 to 3; the network has 3 outputs.*0 to 2"),
        (IMAGES, LABELS - 1, "labels range from -1 to 1"),
        (IMAGES, LABELS[:4], "6 images came with 4 labels"),
        (IMAGES, LABELS.float(), "dtype torch.float32; expected integers"),
        (IMAGES, LABELS[:, None], r"a tensor of shape \(6, 1\); expected a tensor of rank 1"),
        (IMAGES, [0, 1], "labels are of type list"),
        (IMAGES[0], LABELS[:4], r"images are a tensor of shape \(4,\)"),
        (IMAGES.long(), LABELS, "dtype torch.int64; expected uint8 or floats"),
        (IMAGES[:0], LABELS[:0], "the batch is empty"),
        (IMAGES / 0, LABELS, "infinite or not a number"),
        (IMAGES[:, :3], LABELS, r"does not take images of shape \(3,\)"),
        (IMAGES.double(), LABELS, r"does not take images of shape \(4,\) and dtype torch.float64"),
    ],
)
def test_a_refusal_says_what_came_and_what_was_expected(
    inputs: Any, labels: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SGD(linear()).observe(inputs, labels)


def test_a_refusal_names_what_came_before() -> None:
    learner = SGD(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    learner.observe(IMAGES, LABELS)
    with pytest.raises(ValueError, match=r"shape \(2, 2\); those before had \(4,\)"):
        learner.observe(IMAGES.view(6, 2, 2), LABELS)
    with pytest.raises(ValueError, match=r"dtype torch\.uint8; those before torch\.float32"):
        learner.observe(IMAGES.byte(), LABELS)
    with pytest.raises(ValueError, match=r"shape \(2, 2\); those before had \(4,\)"):
        learner.predict(IMAGES.view(6, 2, 2))


def test_a_refused_first_batch_leaves_no_expectation_behind() -> None:
    learner = SGD(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    with pytest.raises(ValueError, match="labels range"):
        learner.observe(IMAGES.view(6, 2, 2), LABELS + 1)
    learner.observe(IMAGES, LABELS)


def test_predicting_images_that_the_network_does_not_take_is_refused() -> None:
    with pytest.raises(ValueError, match=r"does not take images of shape \(3,\)"):
        SGD(linear()).predict(IMAGES[:, :3])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_are_not_read_where_checks_are_off(value: float) -> None:
    inputs = IMAGES.clone()
    inputs[0, 0] = value
    learner = SGD(linear())
    learner.observe(inputs, LABELS, check=False)
    assert learner.nonfinite_step == 1
    with pytest.raises(ValueError, match="6 images came with 5 labels"):
        learner.observe(inputs, LABELS[:5], check=False)


@pytest.mark.parametrize(
    "module",
    [nn.Identity(), nn.Unflatten(1, (2, 2)), nn.AdaptiveAvgPool1d(1), nn.Flatten(0)],
    ids=["logits", "rank 3", "one output", "rank 1"],
)
def test_a_network_must_give_logits_per_image(module: nn.Module) -> None:
    learner = SGD(nn.Sequential(nn.Linear(4, 4), module))
    if isinstance(module, nn.Identity):
        learner.observe(IMAGES, LABELS)
    else:
        with pytest.raises(ValueError, match=r"expected logits|labels range"):
            learner.observe(IMAGES, LABELS)


# -- preparation ----------------------------------------------------------------------------


class Watched(nn.Linear):
    """Remembers what it was shown."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.shown = x.detach().clone()
        return super().forward(x)


def test_bytes_become_floats_from_0_to_1_and_floats_stay() -> None:
    every = torch.arange(256, dtype=torch.uint8)
    assert unit_range(every).equal(every / 255)
    assert unit_range(IMAGES) is IMAGES


def test_augmentation_draws_from_the_learners_generator_then_comes_normalisation() -> None:
    network = Watched(4, 3)
    learner = SGD(
        network,
        seed=4,
        augment=lambda inputs, draws: inputs + torch.rand(inputs.shape, generator=draws),
        normalise=lambda inputs: 2 * inputs,
    )
    draws = generator(4, "augmentation")
    for _ in range(3):
        learner.observe(IMAGES, LABELS)
        assert network.shown.equal(2 * (IMAGES + torch.rand(6, 4, generator=draws)))


def test_stream_and_replay_are_prepared_alike() -> None:
    network = Watched(4, 3)
    learner = ER(
        network,
        buffer_size=6,
        augment=lambda inputs, _: inputs + 1,
        normalise=lambda inputs: 2 * inputs,
    )
    learner.observe(IMAGES, LABELS)
    learner.observe(IMAGES, LABELS)
    assert network.shown[:6].equal(2 * (IMAGES + 1))
    assert network.shown[6:].sort(0).values.equal(2 * (IMAGES + 1).sort(0).values)


def test_answers_are_normalised_but_not_augmented() -> None:
    network = linear()
    learner = SGD(network, augment=lambda inputs, _: inputs * 0, normalise=lambda x: 3 * x)
    with torch.no_grad():
        expected = network(3 * IMAGES)
    assert learner.predictors()["working"](IMAGES).equal(expected)
    assert learner.predict(IMAGES).equal(expected.argmax(1))


def test_predicting_leaves_each_layer_in_the_mode_it_was_in() -> None:
    network = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 3))
    learner = SGD(network)
    network[1].eval()  # a user freezes the statistics of one layer
    modes = [module.training for module in network.modules()]
    learner.predict(IMAGES)
    assert [module.training for module in network.modules()] == modes


def test_a_predictor_restores_the_modes_after_an_error() -> None:
    network = nn.Sequential(linear(), nn.Dropout())
    with pytest.raises(RuntimeError):
        Predictor(network, unit_range)(IMAGES[:, :2])
    assert all(module.training for module in network.modules())


# -- randomness -----------------------------------------------------------------------------


def test_dropout_draws_from_the_learners_seed() -> None:
    def masks(seed: int) -> Tensor:
        dropout = nn.Dropout()
        learner = SGD(nn.Sequential(linear(), dropout), seed=seed)
        drawn = []
        dropout.register_forward_hook(
            lambda module, _, out: drawn.append(out == 0) if module.training else None
        )
        for _ in range(3):
            torch.rand(7)  # someone else uses the global generator
            learner.observe(IMAGES, LABELS)
        return torch.stack(drawn)

    assert masks(0).equal(masks(0))
    assert not masks(0).equal(masks(1))
    assert not masks(0)[0].equal(masks(0)[1])


def test_the_global_state_comes_back_after_an_error() -> None:
    learner = SGD(linear())
    before = torch.get_rng_state()

    def fail() -> None:
        with learner.randomness():
            torch.rand(3)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.get_rng_state().equal(before)


# -- counters -------------------------------------------------------------------------------


def test_totals_add_up_the_losses() -> None:
    learner = SGD(linear())
    expected = 0.0
    for _ in range(5):
        with torch.no_grad():
            expected += float(nn.functional.cross_entropy(learner.network(IMAGES), LABELS))
        learner.observe(IMAGES, LABELS)
    assert learner.totals()["loss"] == pytest.approx(expected, rel=1e-6)
    assert learner.totals()["loss"].dtype == torch.float64


def test_the_first_step_whose_loss_is_not_finite_is_remembered() -> None:
    network = linear()
    learner = SGD(network)
    learner.observe(IMAGES, LABELS)
    assert learner.nonfinite_step == 0
    with torch.no_grad():
        network.weight.fill_(math.inf)
    for _ in range(3):
        learner.observe(IMAGES, LABELS)
    assert learner.nonfinite_step == 2


def test_the_end_of_a_task_means_nothing_to_most() -> None:
    learner = SGD(linear())
    before = learner.network.state_dict()["weight"].clone()
    learner.end_task(Samples(IMAGES, LABELS))
    assert learner.network.state_dict()["weight"].equal(before)
    assert not learner.needs_boundaries


def test_tensors_that_change_stay_where_they_are() -> None:
    learner = ER(linear(), buffer_size=4)
    learner.observe(IMAGES, LABELS)

    def addresses() -> list[int]:
        contents = learner.memory.contents()
        assert contents is not None
        tensors = [learner.steps, learner.finite_steps, *learner.totals.values()]
        tensors += [*learner.network.parameters(), learner.memory.seen, *contents[:2]]
        return [tensor.data_ptr() for tensor in tensors]

    before = addresses()
    learner.observe(IMAGES, LABELS)
    assert addresses() == before


# -- state and files ------------------------------------------------------------------------


def test_loading_writes_into_the_tensors_that_are_there() -> None:
    one, other = ER(linear(), buffer_size=4), ER(nn.Linear(4, 3), buffer_size=4, seed=1)
    for learner in (one, other):
        learner.observe(IMAGES, LABELS)
    tensors = [*other.network.parameters(), other.steps, other.memory.seen]
    addresses = [tensor.data_ptr() for tensor in tensors]
    other.load_state_dict(one.state_dict())
    now = [*other.network.parameters(), other.steps, other.memory.seen]
    assert [tensor.data_ptr() for tensor in now] == addresses


def test_another_methods_state_is_refused(tmp_path: Path) -> None:
    er, sgd = ER(linear(), buffer_size=4), SGD(linear())
    with pytest.raises(ValueError, match=r"the state has the parts .*; SGD has"):
        sgd.load_state_dict(er.state_dict())
    er.save(tmp_path / "er")
    with pytest.raises(ValueError, match="holds a ER; this learner is a SGD"):
        sgd.load(tmp_path / "er")


def test_a_state_that_does_not_fit_names_the_part(tmp_path: Path) -> None:
    learner = SGD(linear())
    SGD(nn.Linear(4, 5)).save(tmp_path / "five")
    with pytest.raises(ValueError, match=r"five: the state does not fit this SGD.*network: "):
        learner.load(tmp_path / "five")


def test_what_was_expected_of_images_is_part_of_the_state() -> None:
    one, other = (SGD(nn.Sequential(nn.Flatten(), linear())) for _ in range(2))
    one.observe(IMAGES, LABELS)
    other.load_state_dict(one.state_dict())
    with pytest.raises(ValueError, match="those before had"):
        other.observe(IMAGES.view(6, 2, 2), LABELS)


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    learner = SGD(linear())
    path = tmp_path / "learner"
    learner.save(path)
    before = path.read_bytes()
    learner.observe(IMAGES, LABELS)
    learner.totals()["bad"] = {1, 2}  # type: ignore[assignment]
    with pytest.raises((TypeError, AttributeError)):
        learner.save(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["learner"]


def test_a_part_that_a_subclass_adds_is_saved_without_a_word() -> None:
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
    one.observe(IMAGES, LABELS)
    other.load_state_dict(one.state_dict())
    assert int(other.positives) == 4
    assert other.draws.get_state().equal(one.draws.get_state())


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal, value by value."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)


def test_values_of_the_wrong_kind_in_a_file_are_refused(tmp_path: Path) -> None:
    learner = ER(linear(), buffer_size=4)
    learner.observe(IMAGES, LABELS)
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
        ("expects", 1),
        ("steps", None),
    ):
        write_file(tmp_path / "bad", {**before, part: value}, {"learner": "ER"})
        with pytest.raises(ValueError, match=r"does not fit|has the parts"):
            learner.load(tmp_path / "bad")
        assert same(learner.state_dict(), before), part


def test_a_part_without_weights_does_not_hinder_a_resume(tmp_path: Path) -> None:
    class WithLoss(SGD):
        def __init__(self, network: nn.Module, **common: Any) -> None:
            super().__init__(network, **common)
            self.criterion = nn.CrossEntropyLoss()

    learner = WithLoss(linear())
    learner.observe(IMAGES, LABELS)
    learner.save(tmp_path / "learner")
    resumed = WithLoss(nn.Linear(4, 3))
    resumed.load(tmp_path / "learner")
    assert same(resumed.state_dict(), learner.state_dict())


@given(st.data())
@settings(max_examples=150)
def test_a_damaged_file_is_refused_or_read_but_nothing_else(data: st.DataObject) -> None:
    whole, learner = _saved()
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        # Half of the damage goes to the header, where names, shapes and plain values are.
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
    learner.observe(IMAGES, LABELS)
    with tempfile.TemporaryDirectory() as folder:
        learner.save(Path(folder) / "learner")
        content = (Path(folder) / "learner").read_bytes()
    learner.observe(IMAGES, LABELS)
    return content, learner


def test_a_learner_is_abstract() -> None:
    with pytest.raises(TypeError):
        Learner(linear())  # type: ignore[abstract]
