"""The command that a configuration gives reproduces the configuration."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from perdure import catalog
from perdure.cli.command import parse
from perdure.cli.options import Hyperparameters, OptimizerFlags
from perdure.cli.run import RunOptions, _resolve
from perdure.config import NOT_HYPERPARAMETERS, RunConfig
from perdure.experiment.resolve import resolve

OWN = """
import torch
from perdure import ER, from_tensors

class Method(ER):
    def __init__(self, network, *, buffer_size: int, lr: float = 0.1, strength: float = 0.5,
                 rounds: int = 2, seed: int = 0):
        super().__init__(network, buffer_size=buffer_size, lr=lr, seed=seed)

def stream():
    inputs, labels = torch.rand(40, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40)
    return from_tensors(inputs, labels % 4, groups=[(0, 1), (2, 3)], test=(inputs, labels % 4))

def network(shape, classes):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(classes))

def optimizer(parameters, lr=0.05, *, inertia=0.1):
    return torch.optim.SGD(parameters, lr=lr, momentum=inertia)
"""


def again(config: RunConfig) -> RunConfig:
    """The configuration that the command for seeds 0 to 2 resolves to."""
    words = shlex.split(config.command([0, 1, 2]).partition(" && ")[0])
    options = parse(words[words.index("perdure") + 1 :])
    assert isinstance(options, RunOptions)
    assert options.seeds == ("0:3" if config.ranks == 1 else "0")
    (resolved,) = _resolve(options, config.ranks)
    return resolved


def check(config: RunConfig) -> None:
    found = again(config)
    assert found.identity() == config.identity()
    assert found.hash == config.hash


@pytest.mark.parametrize("method", sorted(catalog.METHODS))
def test_every_method(method: str) -> None:
    check(resolve(method=method, dataset="mnist5k", given={"lr": 0.012345678901234567}))


@pytest.mark.parametrize("stream", ["s-mnist", "r-mnist", "p-mnist", "mnist-360"])
def test_every_stream_of_digits(stream: str) -> None:
    check(resolve(stream, "er", 200, dataset="mnist5k"))


@pytest.mark.parametrize(
    "settings",
    [
        {"buffer_size": 77},
        {"given": {"epochs": 3, "batch": 16, "stable_rate": 1e-7, "plastic_decay": 1.0}},
        {"update": "regular"},
        {"optimizer": "adam"},
        {"optimizer": "adamw", "given": {"lr": 0.02, "beta1": 0.8, "eps": 1e-6}},
        {"given": {"momentum": 0.9, "weight_decay": 1e-4}},
        {"method": "icarl", "given": {"momentum": 0.9, "weight_decay": 1e-4}},
        {"max_steps": 12, "validation": 0.1},
        {"stream": "p-mnist", "stream_seed": 7},
        {"stream": "p-mnist", "stream_seed": "per-run"},
        {"stream": "p-mnist", "stream_seed": 0},  # the stream's own
        {"network": "mlp"},
        {"ranks": 2},
        {"device": "cuda"},
        {"device": "cuda", "precision": "fp32", "engine": "eager", "deterministic": True},
    ],
    ids=str,
)
def test_departures(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.experiment.resolve.choose_device", lambda device, *_: device)
    check(resolve(dataset="mnist5k", **settings))


def test_a_users_own_method_stream_and_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_for_commands.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    check(
        resolve(
            "mine_for_commands:stream",
            "mine_for_commands:Method",
            30,
            network="mine_for_commands:network",
            given={"strength": 0.25, "rounds": 5, "batch": 4, "inertia": 0.5},
            optimizer="mine_for_commands:optimizer",
        )
    )


def test_every_hyperparameter_of_the_catalog_has_a_flag() -> None:
    flags = {*Hyperparameters.__dataclass_fields__, *OptimizerFlags.__dataclass_fields__}
    for entry in catalog.OPTIMIZERS.values():
        assert set(entry.settings) <= flags
    for method in catalog.METHODS:
        names = set(catalog.accepted(catalog.find_learner(method))) - NOT_HYPERPARAMETERS
        assert names <= flags, method
