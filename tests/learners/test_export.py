"""Exported networks give the answers of `predict`, without perdure."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perdure import CLSER, ER, ICaRL, Learner, MeanER, Samples
from perdure.networks import MLP, ResNet18
from perdure.structures import arguments, as_tensors

Make = Callable[[int], Any]
BATCHES = (1, 7)


class Transformer(nn.Module):
    """A small transformer over token ids."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.embedding(input_ids)
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        x = self.encoder(x, src_key_padding_mask=attention_mask == 0)
        weight = attention_mask[..., None].float()
        return self.head((x * weight).sum(dim=1) / weight.sum(dim=1))  # type: ignore[no-any-return]


class Pair(nn.Module):
    """A network with two inputs, the second a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 8), nn.Linear(3, 8), nn.Linear(8, 5)

    def forward(self, first: Tensor, second: dict[str, Tensor]) -> Tensor:
        return self.head(self.first(first) + self.second(second["rows"]))  # type: ignore[no-any-return]


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, 2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


def tokens(n: int) -> dict[str, Tensor]:
    mask = (torch.rand(n, 6) > 0.3).long()
    mask[:, 0] = 1
    return {"input_ids": torch.randint(50, (n, 6)), "attention_mask": mask}


def pixels(n: int) -> Tensor:
    return torch.randint(256, (n, 3, 8, 8), dtype=torch.uint8)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Make]] = {
    "mlp": (lambda: MLP(6, 5), lambda n: torch.rand(n, 6)),
    "cnn": (cnn, pixels),
    "resnet": (lambda: ResNet18(5, width=2), pixels),
    "transformer": (lambda: Transformer(5), lambda n: torch.randint(50, (n, 4))),
    "dict": (lambda: Transformer(5), tokens),
    "nested": (Pair, lambda n: (torch.rand(n, 6), {"rows": torch.rand(n, 3)})),
}


def centred(inputs: Tensor) -> Tensor:
    """A normalisation that the exported model must contain."""
    return (inputs.float() - 100) / 50


def trained(network: str, kind: type[Learner] = CLSER, **arguments: Any) -> tuple[Learner, Make]:
    torch.manual_seed(0)
    build, make = NETWORKS[network]
    learner = kind(build(), buffer_size=20, **arguments)  # type: ignore[call-arg]
    for _ in range(3):
        inputs, labels = make(8), torch.randint(5, (8,))
        learner.observe(inputs, labels)
    learner.end_task(Samples(inputs, labels))
    return learner, make


def answer(path: Path, inputs: Any) -> Tensor:
    """Return the first output of an exported model."""
    if path.suffix == ".pt2":
        positional, named = arguments(inputs)
        return torch.export.load(path).module()(*positional, **named)  # type: ignore[no-any-return]
    from onnxruntime import InferenceSession

    session = InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == ["logits"]
    assert {each.shape[0] for each in session.get_inputs()} == {"batch"}
    if isinstance(inputs, Tensor):
        inputs = {"inputs": inputs}
    if isinstance(inputs, tuple):
        inputs = {"inputs_0": inputs[0], "inputs_1_rows": inputs[1]["rows"]}
    feed = {name: tensor.numpy() for name, tensor in inputs.items()}
    return torch.from_numpy(session.run(None, feed)[0])


def check_export(learner: Learner, make: Make, path: Path, example: Any = None) -> None:
    state = str(learner.state_dict())
    learner.export(path, make(1) if example is None else example)
    assert str(learner.state_dict()) == state
    for count in BATCHES:
        inputs = make(count)
        expected = next(iter(learner.predictors().values()))(as_tensors(inputs))
        found = answer(path, inputs)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        assert not found.requires_grad


@pytest.mark.parametrize("network", ["cnn", "dict", "nested"])
def test_pt2(network: str, tmp_path: Path) -> None:
    check_export(*trained(network), tmp_path / "model.pt2")


def test_onnx(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG, "torch.onnx")
    check_export(*trained("cnn", normalise=centred), tmp_path / "model.onnx")
    assert capsys.readouterr().out == ""
    assert not [each for each in caplog.records if each.name.startswith("torch.onnx")]
    assert logging.getLogger("torch.onnx").level == logging.DEBUG


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
@pytest.mark.parametrize("kind", [CLSER, ER, MeanER, ICaRL])
@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_and_predictor(
    network: str, kind: type[Learner], suffix: str, tmp_path: Path
) -> None:
    check_export(*trained(network, kind), tmp_path / f"model.{suffix}")


def test_a_learner_that_has_seen_no_batch_is_exported(tmp_path: Path) -> None:
    learner = CLSER(MLP(6, 5), buffer_size=5)
    nothing = torch.full((1, 6), torch.nan)  # the values do not matter
    check_export(learner, lambda n: torch.rand(n, 6), tmp_path / "model.pt2", nothing)


@pytest.mark.slow
def test_the_file_works_without_perdure(tmp_path: Path) -> None:
    learner, make = trained("mlp")
    learner.export(tmp_path / "model.pt2", make(4))
    inputs = make(3)
    torch.save(inputs, tmp_path / "inputs.pt")
    code = (
        "import sys, torch; model = torch.export.load('model.pt2').module();"
        "print(model(torch.load('inputs.pt')).argmax(1).tolist());"
        "assert not any(name.startswith('perdure') for name in sys.modules)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == str(learner.predict(inputs).tolist())


class OneSize(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * len(x) / int(x.shape[0])


class Branch(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else super().forward(-x)


class Bessel(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(super().forward(x))  # type: ignore[no-any-return]


@pytest.mark.slow
def test_an_operation_that_onnx_lacks_is_refused(tmp_path: Path) -> None:
    learner = ER(Bessel(6, 5), buffer_size=5)
    with pytest.raises(ValueError, match=r"ONNX.*\.pt2"):
        learner.export(tmp_path / "model.onnx", torch.rand(1, 6))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("network", "one_size"), [(OneSize(6, 5), True), (Branch(6, 5), False)], ids=["size", "branch"]
)
def test_what_cannot_be_exported_is_refused_in_one_sentence(
    network: nn.Module, one_size: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    learner = ER(network, buffer_size=5)
    with pytest.raises(ValueError, match="cannot be exported") as raised:
        learner.export(tmp_path / "model.pt2", torch.rand(2, 6))
    assert "\n" not in str(raised.value)
    assert ("batch size" in str(raised.value)) == one_size
    assert ("branches on values" in str(raised.value)) != one_size
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


def test_wrong_arguments_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, make = trained("mlp")
    for name in ("model", "model.pt", "model.onnx.zip"):
        with pytest.raises(ValueError, match=r"\.onnx or \.pt2"):
            learner.export(tmp_path / name, make(1))
    with pytest.raises(ValueError, match="folder"):
        learner.export(tmp_path / "missing" / "model.pt2", make(1))
    with pytest.raises(ValueError, match="shape"):
        learner.export(tmp_path / "model.pt2", torch.rand(1, 7))
    with pytest.raises(ValueError, match="does not accept"):
        ER(MLP(6, 5), buffer_size=5).export(tmp_path / "model.pt2", torch.rand(1, 7))
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ValueError, match=r'pip install "perdure\[onnx\]"'):
        learner.export(tmp_path / "model.onnx", make(1))
    assert not list(tmp_path.iterdir())
