"""Inputs that learners accept, warn about or refuse."""

from __future__ import annotations

import inspect
import warnings
from collections import UserDict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from perdure import (
    AGEM,
    CLSER,
    ER,
    FDR,
    GEM,
    MER,
    SGD,
    ICaRL,
    fit,
    from_batches,
    from_dataset,
    from_tensors,
)
from perdure.catalog import METHODS, accepted
from perdure.records import Samples
from perdure.state import as_bytes
from perdure.testing import check_stream

LABELS = torch.arange(12) % 3
IDS = torch.randint(0, 5, (12, 4), generator=torch.Generator().manual_seed(0)) + 5 * LABELS[:, None]
ENCODING = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}


class Text(nn.Module):
    """A small text model with the interface of Hugging Face models."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(15, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        weights = attention_mask[..., None].float()
        pooled = (self.embedding(input_ids) * weights).sum(1) / weights.sum(1)
        return UserDict(logits=self.head(pooled))


class TextDataset(Dataset[Any]):
    def __init__(self, *, paired: bool) -> None:
        self.paired = paired

    def __len__(self) -> int:
        return len(LABELS)

    def __getitem__(self, i: int) -> Any:
        row = {name: values[i] for name, values in ENCODING.items()}
        return (row, int(LABELS[i])) if self.paired else {**row, "labels": int(LABELS[i])}


@pytest.mark.parametrize("paired", [True, False])
def test_fit_learns_from_dicts_of_a_data_loader(paired: bool) -> None:
    learner = ER(Text(), buffer_size=6, lr=1.0)
    loader = DataLoader(TextDataset(paired=paired), batch_size=4)
    assert fit(learner, loader, epochs=20).steps == 60
    assert learner.predict(ENCODING).equal(LABELS)
    assert learner.predict(UserDict(ENCODING)).equal(LABELS)
    for predictor in learner.predictors().values():  # they take the same structures
        assert predictor(UserDict(ENCODING)).argmax(1).equal(LABELS)


def test_streams_of_dicts_are_evaluated() -> None:
    stream = from_tensors(ENCODING, LABELS, groups=[(0,), (1, 2)], test=(ENCODING, LABELS))
    assert stream.shape == {"attention_mask": (4,), "input_ids": (4,)}
    record = fit(ER(Text(), buffer_size=6, lr=1.0), stream, batch=4, epochs=20)
    assert record.class_il["working"][-1] == [100.0, 100.0]
    same = from_dataset(TextDataset(paired=True), groups=[(0,), (1, 2)], classes=3)
    for task, other in zip(stream.tasks, same.tasks, strict=True):
        assert task.samples().inputs["input_ids"].equal(other.samples().inputs["input_ids"])
    batches = [(ENCODING, LABELS)] * 3
    again = from_batches(batches, classes=3, shape=stream.shape, test=(ENCODING, LABELS))
    assert fit(ER(Text(), buffer_size=6), again).steps == 3


def test_token_ids_are_not_scaled_by_a_stream() -> None:
    stream = from_tensors(IDS, LABELS)
    assert stream.normalise(IDS).equal(IDS)
    check_stream(stream)
    check_stream(from_tensors(ENCODING, LABELS, test=(ENCODING, LABELS)))


def test_save_and_load_structures(tmp_path: Any) -> None:
    one, other = (ER(Text(), buffer_size=6) for _ in range(2))
    for _ in range(3):
        one.observe(ENCODING, LABELS)
    one.save(tmp_path / "learner")
    other.load(tmp_path / "learner")
    for learner in (one, other):
        learner.observe(ENCODING, LABELS)
    assert one.network.head.weight.equal(other.network.head.weight)  # type: ignore[union-attr,operator,arg-type]
    stored = other.memory.contents()
    assert stored is not None
    assert stored.inputs["input_ids"].dtype == torch.int64


def images(top: float) -> Tensor:
    return torch.linspace(0, top, 6 * 27).view(6, 3, 3, 3)


def convolution() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(27, 3))


def test_float_images_up_to_255_produce_one_warning() -> None:
    learner = SGD(convolution(), lr=1e-6)
    with pytest.warns(UserWarning, match="255"):
        learner.observe(images(255), LABELS[:6])
    learner.observe(images(255), LABELS[:6])  # a warning would be an error here
    with pytest.warns(UserWarning, match="255"):
        fit(SGD(convolution(), lr=1e-6), [(images(255), LABELS[:6])])
    with pytest.warns(UserWarning, match="255"):  # without channels
        SGD(convolution(), lr=1e-6).observe(images(255).flatten(2), LABELS[:6])


@pytest.mark.parametrize(
    ("inputs", "normalise"),
    [
        (images(1), None),
        (images(255).byte(), None),
        (images(255) - 100, None),
        (images(1e4), None),
        (images(255), lambda x: x / 255),
        (images(255).flatten(1), None),
    ],
)
def test_other_inputs_produce_no_warning(inputs: Tensor, normalise: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SGD(convolution(), lr=1e-9, normalise=normalise).observe(inputs, LABELS[:6])


def customers(rows: int = 32) -> Tensor:
    """Columns age and income."""
    draws = torch.Generator().manual_seed(0)
    return torch.randn(rows, 2, generator=draws) * torch.tensor([10, 5e3]) + torch.tensor([45, 2e4])


@pytest.mark.parametrize("inputs", [customers(), customers(1), customers().double(), -customers()])
def test_an_unscaled_table_produces_one_warning(inputs: Tensor) -> None:
    learner = SGD(nn.Linear(2, 3), lr=1e-9)
    labels = torch.arange(len(inputs)) % 3
    with pytest.warns(UserWarning, match=r"inputs\[:, 1\].*standardise"):
        learner.observe(inputs, labels)
    learner.observe(inputs, labels)  # a warning would be an error here


def standardised_with_an_outlier() -> Tensor:
    """The first rows of 10,000, one of which is very large."""
    draws = torch.Generator().manual_seed(0)
    column = torch.randn(10_000, 1, generator=draws)
    column[5] = 1e6
    return ((column - column.mean()) / column.std())[:32].repeat(1, 2)


@pytest.mark.parametrize(
    ("inputs", "network", "normalise"),
    [
        (standardised_with_an_outlier(), nn.Linear(2, 3), None),
        (torch.arange(64.0).view(32, 2), nn.Linear(2, 3), None),  # counts
        (torch.eye(2).repeat(16, 1), nn.Linear(2, 3), None),
        (customers(), nn.Linear(2, 3), lambda x: x / 20_000),
        (customers(), nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 3)), None),
        (customers().long(), nn.Linear(2, 3), lambda x: x / 20_000),
    ],
)
def test_tables_of_usual_scale_produce_no_warning(
    inputs: Tensor, network: nn.Module, normalise: Any
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SGD(network, lr=1e-9, normalise=normalise).observe(inputs, torch.arange(32) % 3)


class Softmax(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).softmax(dim=1)


@pytest.mark.parametrize(
    "method", [SGD, partial(ER, buffer_size=20), partial(CLSER, buffer_size=20)]
)
def test_warnings_about_inputs_and_outputs_point_to_the_line_of_the_user(method: Any) -> None:
    batch = customers(), torch.arange(32) % 3
    with pytest.warns(UserWarning, match="softmax") as softmax:
        method(Softmax(2, 3)).predict(batch[0])
    with pytest.warns(UserWarning, match="standardise") as observed:
        method(nn.Linear(2, 3), lr=1e-9).observe(*batch)
    with pytest.warns(UserWarning, match="standardise") as fitted:
        fit(method(nn.Linear(2, 3), lr=1e-9), [batch])
    found = [warning.filename for caught in (softmax, observed, fitted) for warning in caught]
    assert found == [__file__] * 3


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.uint8, np.int64])
def test_arrays_equal_tensors(dtype: Any) -> None:
    array = np.arange(24).reshape(6, 4).astype(dtype)
    tensor = torch.from_numpy(array.astype(np.float32 if dtype == np.float64 else dtype))
    to_float = lambda x: x.float() / 255  # noqa: E731
    one, other = (SGD(linear(), normalise=to_float) for _ in range(2))
    one.observe(array, LABELS[:6].numpy())
    other.observe(tensor, LABELS[:6])
    assert one.network.weight.equal(other.network.weight)  # type: ignore[operator,arg-type]
    assert one.predict(array).equal(other.predict(tensor))


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def test_float64_is_kept_for_a_network_in_float64() -> None:
    learner = ER(linear().double(), buffer_size=4)
    learner.observe(torch.rand(6, 4, dtype=torch.float64), LABELS[:6])
    stored = learner.memory.contents()
    assert stored is not None
    assert stored.inputs.dtype == torch.float64


def test_inference_tensors_are_learned() -> None:
    with torch.inference_mode():
        inputs = torch.rand(6, 4)
    ER(linear(), buffer_size=4).observe(inputs, LABELS[:6])


def test_nothing_is_propagated_into_inputs() -> None:
    source = torch.rand(6, 4, requires_grad=True)
    inputs = source * 2
    learner = ER(linear(), buffer_size=4)
    learner.observe(inputs, LABELS[:6])
    learner.observe(inputs, LABELS[:6])
    assert source.grad is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused() -> None:
    nested = torch.nested.nested_tensor([torch.rand(4), torch.rand(4)])
    with pytest.raises(ValueError, match="dense"):
        ER(linear(), buffer_size=4).observe(nested, LABELS[:2])


def test_masked_values_are_refused() -> None:
    rows: Any = np.ma.masked_less(np.ones((4, 3), np.float32), 0)
    labels: Any = np.ma.masked_less(np.arange(4) % 2, 0)
    learner = SGD(nn.Linear(3, 2))
    learner.observe(rows, labels)  # nothing is masked
    rows[1, 2] = labels[3] = np.ma.masked
    for pair in ((rows, labels.filled(0)), (rows.filled(0), labels)):
        with pytest.raises(ValueError, match="masked"):
            learner.observe(*pair)
        with pytest.raises(ValueError, match="masked"):
            from_tensors(*pair)
    assert int(learner.steps) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("method", [SGD, partial(CLSER, buffer_size=20)])
def test_networks_compiled_with_torch_jit_are_refused(method: Any) -> None:
    compiled = torch.jit.script(nn.Linear(3, 2))
    for network in (compiled, nn.Sequential(compiled)):
        with pytest.raises(ValueError, match=r"torch\.jit"):
            method(network)


def test_a_scalar_among_the_inputs_is_refused() -> None:
    with pytest.raises(ValueError, match="scalar"):
        ER(Text(), buffer_size=6).observe({**ENCODING, "scale": torch.tensor(1.0)}, LABELS)


@pytest.mark.parametrize("method", [SGD, ER, CLSER, GEM, ICaRL])
def test_token_ids_out_of_range_are_refused(method: Any) -> None:
    options = {} if method is SGD else {"buffer_size": 6}
    learner = method(Text(), **options, **({"tasks": 2} if method is GEM else {}))
    learner.observe(ENCODING, LABELS)
    wrong = {**ENCODING, "input_ids": IDS + 10**6}
    before = as_bytes(learner.state_dict(), {})
    calls = [partial(learner.observe, wrong, LABELS), partial(learner.predict, wrong)]
    if method is ICaRL:
        calls.append(partial(learner.end_task, Samples(wrong, LABELS)))
    for call in calls:
        with pytest.raises(ValueError, match="index out of range") as caught:
            call()
        assert isinstance(caught.value.__cause__, IndexError)
        assert as_bytes(learner.state_dict(), {}) == before


class Failing(nn.Linear):
    """Raises an error if an input is above 1."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(4, 3)
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        if x.max() > 1:
            raise self.error
        return super().forward(x)


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        MemoryError(),
        TimeoutError("by a signal"),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate"),
        RuntimeError("CUDA error: unspecified launch failure"),
    ],
)
def test_errors_that_are_not_about_inputs_keep_their_type(error: BaseException) -> None:
    learner = SGD(Failing(error))
    inputs, labels = torch.rand(3, 4), torch.arange(3)
    learner.observe(inputs, labels)
    for call in (
        partial(learner.observe, inputs + 1, labels),
        partial(learner.predict, inputs + 1),
    ):
        with pytest.raises(type(error)) as caught:
            call()
        assert caught.value is error


class OwnLoss(SGD):
    def step(self, inputs: Any, labels: Tensor) -> None:
        x, y = self.prepare(Samples(inputs, labels))
        if len(y) < 12:
            raise IndexError("in the loss")
        self.optimizer_step(nn.functional.cross_entropy(self.logits(x), y))


def test_errors_of_an_augmentation_or_a_loss_keep_their_type() -> None:
    learner = OwnLoss(Text())
    learner.observe(ENCODING, LABELS)
    half = {name: values[:6] for name, values in ENCODING.items()}
    with pytest.raises(IndexError, match="in the loss"):
        learner.observe(half, LABELS[:6])

    def augment(inputs: Any, draws: torch.Generator) -> Any:
        learner.predictors()["working"]({**inputs, "input_ids": inputs["input_ids"] + 100})
        return inputs

    with pytest.raises(IndexError, match="out of range"):
        SGD(Text(), augment=augment).observe(ENCODING, LABELS)


def test_inputs_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="11 and 12 samples"):
        ER(Text(), buffer_size=6).observe({**ENCODING, "attention_mask": IDS[:11]}, LABELS)


def test_padding_must_not_change() -> None:
    learner = ER(Text(), buffer_size=6)
    learner.observe(ENCODING, LABELS)
    with pytest.raises(ValueError, match="pad"):
        learner.observe({name: values[:, :3] for name, values in ENCODING.items()}, LABELS)


def test_one_sample_with_batchnorm_is_refused_only_if_it_cannot_be_learned() -> None:
    network = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    learner = ER(network, buffer_size=6)
    inputs = torch.rand(6, 4)
    with pytest.raises(ValueError, match="BatchNorm"):
        learner.observe(inputs[:1], LABELS[:1])
    assert int(learner.steps) == 0
    learner.observe(inputs, LABELS[:6])
    learner.observe(inputs[:1], LABELS[:1])  # together with replayed samples
    assert int(learner.steps) == 2


def test_batchnorm_may_be_called_with_a_keyword() -> None:
    class Keyword(nn.BatchNorm1d):
        def __call__(self, x: Tensor) -> Any:
            return super().__call__(input=x)

    learner = SGD(nn.Sequential(nn.Linear(4, 3), Keyword(3)))
    learner.observe(torch.rand(6, 4), LABELS[:6])
    assert int(learner.steps) == 1


def test_labels_may_be_a_list() -> None:
    learner = ER(Text(), buffer_size=6)
    learner.observe(ENCODING, LABELS.tolist())
    assert learner.steps == 1


def test_names_as_labels_are_refused() -> None:
    learner = ER(Text(), buffer_size=6)
    names: Any = np.array(["a"] * len(LABELS))
    with pytest.raises(ValueError, match="expected integers"):
        learner.observe(ENCODING, names)
    assert learner.steps == 0


@pytest.mark.parametrize("disable", [torch.no_grad, torch.inference_mode])
def test_learning_without_gradients_is_refused(disable: Any) -> None:
    learner = ER(Text(), buffer_size=6)
    with disable(), pytest.raises(ValueError, match=disable.__name__):
        learner.observe(ENCODING, LABELS)
    assert learner.steps == 0


class Own(nn.Module):
    """A linear layer in a forward pass of the test's own."""

    def __init__(self, forward: Callable[[nn.Linear, Tensor], Any]) -> None:
        super().__init__()
        self.layer = linear()
        self.own_forward = forward

    def forward(self, x: Tensor) -> Any:
        return self.own_forward(self.layer, x)


ROWS = torch.rand(12, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("method", sorted({m.learner for m in METHODS.values()}, key=str))
@pytest.mark.parametrize(
    "forward",
    [lambda layer, x: layer(x).detach(), lambda layer, x: torch.from_numpy(layer(x).data.numpy())],
)
def test_outputs_without_a_gradient_are_refused(method: Any, forward: Any) -> None:
    arguments = {"buffer_size": 6, "tasks": 2}
    learner = method(Own(forward), **{k: v for k, v in arguments.items() if k in accepted(method)})
    with pytest.raises(ValueError, match="no gradient"):
        learner.observe(ROWS, LABELS)
    assert learner.steps == 0
    if not learner.needs_boundaries:
        with pytest.raises(ValueError, match="no gradient"):
            fit(learner, [(ROWS, LABELS)])


@pytest.mark.parametrize("wrap", [list, tuple, Tensor.numpy, lambda logits: None])
def test_outputs_other_than_logits_are_refused(wrap: Any) -> None:
    learner = ER(Own(lambda layer, x: wrap(layer(x).detach())), buffer_size=6)
    with pytest.raises(ValueError, match="returned") as caught:
        learner.observe(ROWS, LABELS)
    assert "does not accept" not in str(caught.value)


def test_an_error_of_the_network_is_named() -> None:
    missing: dict[str, Tensor] = {}
    always = Own(lambda layer, x: layer(x) + missing["bias"])
    in_training = Own(lambda layer, x: layer(x) + (missing["bias"] if x.requires_grad else 0))
    with pytest.raises(ValueError, match=r"KeyError: 'bias' \(test_inputs.py"):
        ER(always, buffer_size=6).observe(ROWS, LABELS)
    learner = ER(in_training, buffer_size=6, augment=lambda x, draws: x.requires_grad_())
    with pytest.raises(ValueError, match="KeyError: 'bias'"):
        learner.observe(ROWS.clone(), LABELS)


def test_layers_without_a_size_are_refused() -> None:
    network = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ValueError, match="LazyLinear"):
        ER(network, buffer_size=6)
    network(ROWS)
    ER(network, buffer_size=6).observe(ROWS, LABELS)


def test_logits_for_each_sample_are_expected() -> None:
    learner = ER(Own(lambda layer, x: layer(x).mean(0, keepdim=True)), buffer_size=6)
    for learn in (partial(learner.observe, ROWS, LABELS), partial(fit, learner, [(ROWS, LABELS)])):
        with pytest.raises(ValueError, match="for 2 samples"):
            learn()


class Sequences(nn.Module):
    """A network for sequences of vectors."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Any:
        output = self.body(x)
        return self.head((output[0] if isinstance(output, tuple) else output)[:, -1])


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize(
    "make", [partial(nn.LSTM, 16, 16), partial(nn.TransformerEncoderLayer, 16, 2, 32)]
)
def test_a_network_that_mixes_samples_produces_one_warning(make: Any, batch_first: bool) -> None:
    inputs = torch.rand(12, 5, 16, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    learner = ER(Sequences(make(batch_first=batch_first)), buffer_size=6)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        learner.observe(inputs, LABELS)
        learner.observe(inputs, LABELS)
        learner.predict(inputs)
    assert ["batch_first" in str(each.message) for each in caught] == [True] * (not batch_first)


@pytest.mark.parametrize(
    "forward",
    [
        lambda layer, x: layer(nn.functional.dropout(x, 0.5)),
        lambda layer, x: layer(x + torch.rand(x.shape)),
        lambda layer, x: layer(x + 1e-4 * x.amax()),
        lambda layer, x: layer(x).bfloat16(),
        lambda layer, x: layer(x) + x.mean(),  # the same for all classes
    ],
)
def test_networks_that_are_random_or_almost_separate_produce_no_warning(forward: Any) -> None:
    learner, other = (ER(Own(forward), buffer_size=6, seed=3) for _ in range(2))
    before = torch.get_rng_state()
    learner.predict(ROWS)
    torch.set_rng_state(before)
    other.observe(ROWS, LABELS)
    assert torch.get_rng_state().equal(before)
    learner.observe(ROWS, LABELS)
    assert as_bytes(learner.state_dict(), {}) == as_bytes(other.state_dict(), {})


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        (ER, {"memory_batch": 2.5}),
        (ER, {"memory_batch": 0}),
        (ER, {"memory_batch": "8"}),
        (ER, {"memory_device": "gpu"}),
        (ER, {"buffer_size": 6.0}),
        (ER, {"buffer_size": True}),
        (ER, {"augment": 3}),
        (ER, {"normalise": "yes"}),
        (ER, {"seed": "a"}),
        (ER, {"seed": 1.5}),
        (CLSER, {"consistency_weight": "1"}),
        (CLSER, {"consistency_weight": None}),
        (CLSER, {"stable_window": "a"}),
        (CLSER, {"stable_decay": "a"}),
        (CLSER, {"plastic_rate": "a"}),
        (MER, {"beta": "1"}),
        (AGEM, {"tasks": "2"}),
    ],
)
def test_wrong_arguments_are_refused(method: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)).replace("_", "[_ ]")):
        method(Text(), **{"buffer_size": 6, **wrong})


@pytest.mark.parametrize("method", [ER, CLSER, GEM, AGEM, FDR, ICaRL])
def test_whole_numbers_of_numpy_are_accepted(method: Any) -> None:
    numbers: dict[str, Any] = {"buffer_size": 6, "seed": 3}
    if "memory_batch" in inspect.signature(method).parameters:
        numbers["memory_batch"] = 2
    if "tasks" in inspect.signature(method).parameters:
        numbers["tasks"] = 2
    learners = [
        method(Text(), **{name: kind(number) for name, number in numbers.items()})
        for kind in (int, np.int64)
    ]
    for learner in learners:
        learner.observe(ENCODING, LABELS)
        assert type(learner.memory.buffer_size) is int
    assert as_bytes(learners[0].state_dict(), {}) == as_bytes(learners[1].state_dict(), {})
