"""From what a user asks for to settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from perdure import catalog, presets
from perdure.training import Settings, plan
from perdure.training.plan import parse_seeds

from .conftest import Write

OWN = """
    import torch
    from perdure import ER, SGD, from_tensors

    class Own(ER):
        def __init__(self, network, *, strength: float = 0.5, rounds: int = 2, **common):
            super().__init__(network, **common)

    class Bare(SGD):
        pass

    def stream():
        images, labels = torch.rand(40, 6), torch.arange(40) % 4
        return from_tensors(images, labels, groups=[(0, 1), (2, 3)], test=(images, labels))

    ready = stream()

    def network(shape, classes):
        return torch.nn.Linear(*shape, classes)
"""


def on_mnist(
    small_mnist: Path, stream: str = "s-mnist", method: str = "clser", **other: Any
) -> Settings:
    return plan(stream, method, data_root=small_mnist, **other)


# -- presets --------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["s-mnist", "r-mnist", "p-mnist", "mnist-360"])
@pytest.mark.parametrize("method", sorted(catalog.METHODS))
def test_settings_are_the_published_ones(stream: str, method: str, small_mnist: Path) -> None:
    keeps = method not in ("sgd", "joint")
    settings = on_mnist(small_mnist, stream, method)
    preset = presets.find(method, stream, 500 if keeps else None)
    assert preset is not None
    assert settings.values == {"batch": 32, "epochs": 1, **preset.values}
    assert settings.buffer_size == (500 if keeps else None)
    assert (settings.dataset, settings.network) == ("mnist", "mlp")
    assert settings.notes == preset.notes
    assert settings.published == (not preset.notes)


def test_the_defaults_are_clser_on_s_mnist_with_a_buffer_of_500(small_mnist: Path) -> None:
    settings = plan(data_root=small_mnist)
    assert (settings.stream, settings.method, settings.buffer_size) == ("s-mnist", "clser", 500)
    assert settings.values == {
        "lr": 0.1,
        "batch": 10,
        "memory_batch": 32,
        "epochs": 1,
        "consistency_weight": 2.0,
        "stable_rate": 0.9,
        "stable_decay": 0.99,
        "plastic_rate": 1.0,
        "plastic_decay": 0.99,
    }
    assert settings.published
    assert settings.notes == ()
    assert (settings.device, settings.precision, settings.engine) == ("cpu", "fp32", "eager")


def test_a_buffer_between_published_ones_takes_the_nearest_and_says_so(small_mnist: Path) -> None:
    settings = on_mnist(small_mnist, buffer_size=300)
    assert settings.values == on_mnist(small_mnist, buffer_size=200).values
    assert "with buffer 300: taken from buffer 200" in settings.notes[0]
    assert not settings.published


def test_joint_takes_the_values_of_sgd(small_mnist: Path) -> None:
    one, other = (on_mnist(small_mnist, method=name) for name in ("joint", "sgd"))
    assert one.values == other.values
    assert one.published
    assert one.notes == ()


def test_a_buffer_for_a_method_without_memory_is_not_used(small_mnist: Path) -> None:
    settings = on_mnist(small_mnist, method="sgd", buffer_size=200)
    assert settings.buffer_size is None
    assert settings.notes == ("sgd keeps no memory: --buffer 200 is not used",)


def test_given_values_come_before_the_preset(small_mnist: Path) -> None:
    settings = on_mnist(small_mnist, given={"lr": 0.5, "epochs": 3})
    assert settings.values == {**on_mnist(small_mnist).values, "lr": 0.5, "epochs": 3}
    assert not settings.published


@pytest.mark.parametrize(
    "other",
    [
        {"given": {"lr": 0.1}},
        {"buffer_size": 300},
        {"network": "mlp"},
        {"validation": 0.2},
        {"max_steps": 10},
        {"dataset": "mnist5k"},
        {"update": "regular"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_whatever_departs_from_the_paper_is_not_called_published(
    other: dict[str, Any], small_mnist: Path
) -> None:
    assert not on_mnist(small_mnist, **other).published


def test_another_composition_is_not_called_published(small_mnist: Path) -> None:
    assert on_mnist(small_mnist, "r-mnist").published
    assert not on_mnist(small_mnist, "r-mnist", stream_seed=1).published
    assert not on_mnist(small_mnist, "r-mnist", stream_seed="per-run").published


# -- which digits ---------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["s-mnist", "r-mnist", "p-mnist", "mnist-360"])
def test_without_mnist_the_shipped_digits_are_taken_and_passed_15_times(stream: str) -> None:
    settings = plan(stream)
    assert settings.dataset == "mnist5k"
    assert settings.values["epochs"] == 15
    assert settings.notes[0].startswith("mnist was not found: taking mnist5k")
    assert "perdure data fetch mnist" in settings.notes[0]
    assert not settings.published


def test_mnist_is_taken_where_it_is_found(
    small_mnist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_DATA", str(small_mnist))
    settings = plan()
    assert (settings.dataset, settings.values["epochs"], settings.notes) == ("mnist", 1, ())


def test_the_shipped_digits_can_be_chosen(small_mnist: Path) -> None:
    settings = plan(dataset="mnist5k", data_root=small_mnist)
    assert (settings.dataset, settings.values["epochs"], settings.notes) == ("mnist5k", 15, ())
    assert not settings.published


def test_epochs_that_were_given_are_not_multiplied() -> None:
    assert plan(dataset="mnist5k", given={"epochs": 2}).values["epochs"] == 2


def test_with_a_data_folder_missing_digits_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"mnist is not in {tmp_path}"):
        plan(data_root=tmp_path)
    with pytest.raises(ValueError, match=f"mnist is not in {tmp_path / 'no'}"):
        plan(data_root=tmp_path / "no")


def test_damaged_digits_are_an_error(small_mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = small_mnist / "MNIST/raw/train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="train-images-idx3-ubyte"):
        plan(data_root=small_mnist)
    monkeypatch.setenv("PERDURE_DATA", str(small_mnist))
    with pytest.raises(ValueError, match="train-images-idx3-ubyte"):
        plan()


# -- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"stream": "s-mnits"}, "no stream 's-mnits'; the streams are s-mnist, r-mnist"),
        ({"method": "clsre"}, "no method 'clsre'; the methods are clser, mean-er"),
        ({"network": "lenet"}, "no network 'lenet'; the networks are mlp, resnet18"),
        ({"network": ""}, "no network ''"),
        ({"dataset": "cifar10"}, "s-mnist is made from mnist or mnist5k, not from 'cifar10'"),
        ({"dataset": "cifar11"}, "not from 'cifar11'; the datasets are mnist, mnist5k, cifar10"),
        ({"stream": "s-cifar10", "dataset": "mnist5k"}, "s-cifar10 is made from cifar10"),
        ({"stream": "s-cifar10"}, "cifar10 is not in .*perdure data fetch cifar10"),
        ({"buffer_size": 0}, "--buffer is 0; expected 1 or more"),
        ({"buffer_size": -3}, "--buffer is -3; expected 1 or more"),
        ({"max_steps": 0}, "--max-steps is 0; expected 1 or more"),
        ({"stream_seed": 3}, "--stream-seed: chance has no part in the composition of s-mnist"),
        ({"stream": "r-mnist", "stream_seed": "each"}, "--stream-seed is 'each'; expected a num"),
        ({"validation": 2.0}, "validation fraction is 2.0; expected a number between 0 and 1"),
        ({"validation": float("nan")}, "validation fraction is nan"),
        ({"given": {"rate": 0.5}}, "clser has no setting 'rate'; it takes batch, consistency_"),
        ({"given": {"seed": 3}}, "clser has no setting 'seed'"),
        ({"given": {"tasks": 3}, "method": "gem"}, "gem has no setting 'tasks'"),
        ({"given": {"memory_batch": 2.5}}, "memory_batch is 2.5; expected a whole number"),
        ({"given": {"epochs": float("nan")}}, "epochs is nan; expected a whole number"),
        ({"given": {"batch": float("inf")}}, "batch is inf; expected a whole number"),
        ({"given": {"update": 1}}, "clser has no setting 'update'"),
        ({"method": "er", "update": "regular"}, "--update regular: er has no semantic memories"),
        ({"precision": "bf16"}, "--precision bf16 needs a GPU"),
        ({"engine": "captured"}, "--engine captured needs a GPU"),
        ({"stream": ":"}, "stream ':'; expected module:name"),
        ({"method": "json:"}, "method 'json:'; expected module:name"),
        ({"method": "json:loads"}, "method 'json:loads' is not a subclass of perdure.Learner"),
        ({"method": "perdure:Learner"}, "method 'perdure:Learner' is abstract"),
        ({"method": "no_such_module:X"}, "method 'no_such_module:X': No module named"),
        ({"stream": "json:dump_all"}, "stream 'json:dump_all': json has no 'dump_all'"),
        ({"stream": "os:getpid"}, "stream 'os:getpid' gave a int, not a Stream"),
        ({"stream": "os:getpid", "data_root": Path()}, "os:getpid brings its own data"),
        ({"stream": "os:getpid", "dataset": "mnist"}, "os:getpid brings its own data"),
        ({"stream": "os:getpid", "validation": 0.1}, "your own stream brings its own tests"),
    ],
)
def test_what_does_not_exist_is_refused(asked: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        plan(**asked)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="no CUDA device can be used here"):
        plan(device="cuda")
    assert plan(device="auto").device == "cpu"


# -- a user's own ---------------------------------------------------------------------------


def test_a_method_of_ones_own(write: Write) -> None:
    write("own_thing", OWN)
    given = {"strength": 0.25, "rounds": 3.0, "lr": 0.2}
    settings = plan(method="own_thing:Own", buffer_size=200, given=given, dataset="mnist5k")
    er = presets.find("er", "s-mnist", 200)
    assert er is not None
    assert settings.values == {**er.values, "epochs": 15, **given}
    assert isinstance(settings.values["rounds"], int)
    assert settings.notes == (
        "no published setting of own_thing:Own for s-mnist: taking those of er",
    )
    assert settings.buffer_size == 200
    with pytest.raises(ValueError, match=r"rounds is 2\.5; expected a whole number"):
        plan(method="own_thing:Own", given={"rounds": 2.5})
    with pytest.raises(ValueError, match="it takes batch, epochs, lr, memory_batch, rounds, stre"):
        plan(method="own_thing:Own", given={"power": 1})


def test_a_method_of_ones_own_without_memory_takes_the_values_of_sgd(write: Write) -> None:
    write("own_thing", OWN)
    settings = plan(method="own_thing:Bare", dataset="mnist5k")
    assert settings.values == {"lr": 0.03, "batch": 10, "epochs": 15}
    assert settings.buffer_size is None


@pytest.mark.parametrize("name", ["stream", "ready"])
def test_a_stream_of_ones_own(name: str, write: Write) -> None:
    write("own_thing", OWN)
    settings = plan(f"own_thing:{name}", "er", 20, given={"batch": 4})
    assert settings.values == {"batch": 4, "epochs": 1}
    assert (settings.dataset, settings.network) == (None, "mlp")
    assert len(settings.data_checksum) > 8
    assert "no network was named for your stream: taking the mlp" in settings.notes
    assert any("taking batch 32, one epoch and the defaults" in note for note in settings.notes)
    assert not settings.published


def test_a_network_of_ones_own(write: Write) -> None:
    write("own_thing", OWN)
    settings = plan("own_thing:stream", "sgd", network="own_thing:network")
    assert settings.network == "own_thing:network"
    assert not any("mlp" in note for note in settings.notes)


# -- hashes and folders ---------------------------------------------------------------------


def test_what_decides_the_numbers_decides_the_folder(tmp_path: Path) -> None:
    base = plan(dataset="mnist5k")
    same = replace(base, notes=("a remark",), data_root="/elsewhere", published=True)
    assert same.folder(tmp_path, 3) == base.folder(tmp_path, 3)
    others = [
        replace(base, **change)
        for change in (
            {"values": {**base.values, "lr": 0.2}},
            {"data_checksum": "another"},
            {"stream_seed": 1},
            {"validation": 0.1},
            {"max_steps": 7},
            {"network": "resnet18"},
            {"precision": "bf16"},
            {"engine": "captured"},
            {"device": "cuda"},
            {"update": "regular"},
        )
    ]
    folders = {settings.folder(tmp_path, 3).path for settings in (base, *others)}
    assert len(folders) == 1 + len(others)
    assert base.folder(tmp_path, 3).path.parent == base.folder(tmp_path, 4).path.parent
    assert base.folder(tmp_path, 3).path.name == "seed-3"


def test_an_option_that_came_later_does_not_move_the_runs_made_before(tmp_path: Path) -> None:
    settings = Settings("s", "m", 5, {"lr": 0.5}, "mlp", None, "0123")
    assert settings.folder(tmp_path, 0).path.parent.name == "m-5-a840d842"


# -- seeds ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("3", [3]), ("0,4,7", [0, 4, 7]), ("7,0", [7, 0]), ("0:3", [0, 1, 2]), ("9:10", [9])],
)
def test_seeds_are_read(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5:2", "--seeds 5:2 is empty: the end must be larger than the start"),
        ("3:3", "--seeds 3:3 is empty"),
        ("1,1", "--seeds 1,1 names a seed twice"),
        ("0:99999999999", "expected at most 10000"),
        *((text, "expected 3, or 0,4,7, or 0:10") for text in ("", "x", "-1", "1.5", "3:", ":3")),
        *((text, "expected 3, or 0,4,7, or 0:10") for text in ("1,", "1 2", "0:4:2", "1,2:4")),
    ],
)
def test_seeds_that_make_no_sense_are_refused(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        parse_seeds(text)
