"""From what a user asks for to a configuration."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from perdure import catalog, presets
from perdure.cli import main
from perdure.config import RunConfig
from perdure.experiment.build import build_run, read_dataset
from perdure.experiment.resolve import resolve
from perdure.learners import CLSER
from perdure.results.folder import RunFolder

from .conftest import Write

OWN = """
    import torch
    from perdure import ER, SGD, from_batches, from_tensors

    class Own(ER):
        def __init__(self, network, *, strength: float = 0.5, rounds: int = 2, **common):
            super().__init__(network, **common)

    class Bare(SGD):
        pass

    def stream():
        inputs, labels = torch.rand(40, 6), torch.arange(40) % 4
        return from_tensors(inputs, labels, groups=[(0, 1), (2, 3)], test=(inputs, labels))

    ready = stream()

    def batches():
        return from_batches([(torch.rand(40, 6), torch.arange(40) % 4)], classes=4, shape=(6,))

    def network(shape, classes):
        return torch.nn.Linear(*shape, classes)
"""


GCIL = {"stream": "gcil-cifar100-uniform", "stream_seed": "published"}


def on_mnist(
    small_mnist: Path, stream: str = "s-mnist", method: str = "clser", **other: Any
) -> RunConfig:
    return resolve(stream, method, data_root=small_mnist, **other)


# -- published hyperparameters --------------------------------------------------------------


@pytest.mark.parametrize("stream", ["s-mnist", "r-mnist", "p-mnist", "mnist-360"])
@pytest.mark.parametrize("method", sorted(catalog.METHODS))
def test_hyperparameters_default_to_the_published_ones(
    stream: str, method: str, small_mnist: Path
) -> None:
    has_memory = method not in ("sgd", "joint")
    config = on_mnist(small_mnist, stream, method)
    preset = presets.find(method, stream, 500 if has_memory else None)
    assert preset is not None
    assert config.hyperparameters == {"batch": 32, "epochs": 1, **preset.values}
    assert config.buffer_size == (500 if has_memory else None)
    assert (config.dataset, config.network) == ("mnist", "mlp")
    assert config.notes[: len(preset.notes)] == preset.notes
    assert len(config.notes) == len(preset.notes) + (not preset.is_published)


def test_the_default_is_clser_on_s_mnist_with_a_buffer_of_500(small_mnist: Path) -> None:
    config = resolve(data_root=small_mnist)
    assert (config.stream, config.method, config.buffer_size) == ("s-mnist", "clser", 500)
    assert config.is_published
    assert config.notes == ()
    assert (config.device, config.precision, config.engine) == ("cpu", "fp32", "eager")


def test_a_buffer_size_without_published_values_uses_the_nearest(small_mnist: Path) -> None:
    config = on_mnist(small_mnist, buffer_size=300)
    assert config.hyperparameters == on_mnist(small_mnist, buffer_size=200).hyperparameters
    assert "buffer 300" in config.notes[0]
    assert not config.is_published


def test_a_buffer_size_is_ignored_without_a_memory(small_mnist: Path) -> None:
    config = on_mnist(small_mnist, method="sgd", buffer_size=200)
    assert config.buffer_size is None
    assert "--buffer-size 200" in config.notes[0]


def test_given_values_replace_the_published_ones(small_mnist: Path) -> None:
    config = on_mnist(small_mnist, given={"lr": 0.5, "epochs": 3})
    usual = on_mnist(small_mnist)
    assert config.hyperparameters == {**usual.hyperparameters, "lr": 0.5, "epochs": 3}
    assert not config.is_published


@pytest.mark.parametrize(
    "given",
    [
        {"epochs": 1},
        {"epochs": 1.0},
        {"lr": 0.1, "batch": 10},
        {"plastic_rate": 1},
        {"momentum": 0, "weight_decay": 0.0},
    ],
)
def test_a_published_value_given_explicitly_changes_nothing(
    given: dict[str, float], small_mnist: Path
) -> None:
    usual, config = on_mnist(small_mnist), on_mnist(small_mnist, given=given)
    assert config == usual
    assert config.hash == usual.hash
    assert config.published_figures()
    assert config.published_figures() == usual.published_figures()


def test_defaults_of_an_optimizer_given_explicitly_change_nothing(small_mnist: Path) -> None:
    given = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
    usual = on_mnist(small_mnist, optimizer="adamw")
    assert on_mnist(small_mnist, optimizer="adamw", given=given) == usual
    assert on_mnist(small_mnist, optimizer="adam", given={"weight_decay": 0.01}).departures()


def test_settings_of_an_optimizer_may_have_no_default_value(
    small_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "warming.py").write_text("def optimizer(parameters, lr=0.1, warm=None): ...")
    config = on_mnist(small_mnist, optimizer="warming:optimizer")
    assert "warm" not in config.hyperparameters


def test_the_streams_own_seed_given_explicitly_changes_nothing(small_mnist: Path) -> None:
    usual = on_mnist(small_mnist, "r-mnist")
    for seed in (0, "0"):
        config = on_mnist(small_mnist, "r-mnist", stream_seed=seed)
        assert (config, config.is_published) == (usual, True)
    for seed in (1, "per-run"):
        assert not on_mnist(small_mnist, "r-mnist", stream_seed=seed).is_published


@pytest.mark.parametrize(
    "other",
    [
        {"given": {"lr": 0.2}},
        {"buffer_size": 300},
        {"network": "resnet18"},
        {"validation": 0.2},
        {"max_steps": 10},
        {"dataset": "mnist5k"},
        {"update": "regular"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_departures_from_the_paper_have_no_published_figure(
    other: dict[str, Any], small_mnist: Path
) -> None:
    assert not on_mnist(small_mnist, **other).published_figures()


# -- which digits ---------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["s-mnist", "r-mnist", "p-mnist", "mnist-360"])
def test_without_mnist_the_shipped_digits_are_passed_15_times(stream: str) -> None:
    config = resolve(stream)
    assert (config.dataset, config.epochs) == ("mnist5k", 15)
    assert "perdure data fetch mnist" in config.notes[0]


def test_mnist_is_used_if_it_is_found(small_mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_DATA", str(small_mnist))
    config = resolve()
    assert (config.dataset, config.epochs, config.notes) == ("mnist", 1, ())


def test_the_shipped_digits_can_be_chosen(small_mnist: Path) -> None:
    config = resolve(dataset="mnist5k", data_root=small_mnist)
    assert (config.dataset, config.epochs, config.notes) == ("mnist5k", 15, ())
    assert resolve(dataset="mnist5k", given={"epochs": 2}).epochs == 2


def test_missing_digits_in_a_named_folder_are_an_error(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "no"):
        with pytest.raises(ValueError, match=f"mnist.*{folder}"):
            resolve(data_root=folder)


def test_damaged_digits_are_an_error(small_mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = small_mnist / "MNIST/raw/train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="train-images-idx3-ubyte"):
        resolve(data_root=small_mnist)
    monkeypatch.setenv("PERDURE_DATA", str(small_mnist))
    with pytest.raises(ValueError, match="train-images-idx3-ubyte"):
        resolve()


# -- invalid input (the command's tests have the rest) --------------------------------------


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"stream": "s-mnits"}, "did you mean s-mnist"),
        ({"method": "clsre"}, "did you mean clser"),
        ({"network": "lenet"}, "'lenet'; choose from mlp, cnn, resnet18"),
        ({"dataset": "cifar11"}, "'cifar11'; known datasets: mnist, mnist5k, cifar10"),
        ({"stream": "s-cifar10", "dataset": "mnist5k"}, "s-cifar10 requires cifar10"),
        ({"buffer_size": -3}, "--buffer-size is -3"),
        ({"stream": "r-mnist", "stream_seed": "each"}, "--stream-seed is 'each'"),
        ({"stream": "r-mnist", "stream_seed": "published"}, "GCIL streams only"),
        ({**GCIL, "method": "er", "buffer_size": 300}, "no run of er on gcil.*buffer 300"),
        ({**GCIL, "method": "mean-er"}, "the paper has no run of mean-er"),
        ({**GCIL, "validation": 0.1}, "omit --validation"),
        ({**GCIL, "given": {"epochs": 10}}, "the paper has .* 100 epochs"),
        ({**GCIL, "given": {"batch": 10}}, "batch 32"),
        ({"validation": float("nan")}, "validation.* nan"),
        ({"given": {"seed": 3}}, "no hyperparameter 'seed'"),
        ({"given": {"tasks": 3}, "method": "gem"}, "no hyperparameter 'tasks'"),
        ({"given": {"update": 1}}, "no hyperparameter 'update'"),
        ({"given": {"memory_batch": 2.5}}, "memory_batch is 2.5; expected a whole number"),
        ({"given": {"epochs": float("nan")}}, "epochs is nan; expected a whole number"),
        ({"given": {"batch": float("inf")}}, "batch is inf; expected a whole number"),
        ({"ranks": 3}, "--batch is 10.*3 processes"),
    ],
)
def test_invalid_input_is_refused(asked: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        resolve(**asked)


def test_a_missing_gpu_is_refused_only_if_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="no CUDA device"):
        resolve(device="cuda")
    assert resolve(device="auto").device == "cpu"
    planned = resolve(device="cuda", check_device=False)
    assert (planned.precision, planned.engine) == ("bf16", "captured")


# -- a user's own method, stream and network ------------------------------------------------


def test_a_users_method(write: Write) -> None:
    write("own_thing", OWN)
    given = {"strength": 0.25, "rounds": 3.0, "lr": 0.2}
    config = resolve(method="own_thing:Own", buffer_size=200, given=given, dataset="mnist5k")
    er = presets.find("er", "s-mnist", 200)
    assert er is not None
    assert config.hyperparameters == {**er.values, "epochs": 15, **given}
    assert isinstance(config.hyperparameters["rounds"], int)
    assert "own_thing:Own" in config.notes[0]
    assert config.buffer_size == 200
    with pytest.raises(ValueError, match=r"rounds is 2\.5; expected a whole number"):
        resolve(method="own_thing:Own", given={"rounds": 2.5})
    with pytest.raises(
        ValueError, match="batch, epochs, lr, memory_batch, momentum, rounds, strength"
    ):
        resolve(method="own_thing:Own", given={"power": 1})
    bare = resolve(method="own_thing:Bare", dataset="mnist5k")
    assert bare.hyperparameters == {"lr": 0.03, "batch": 10, "epochs": 15}
    assert bare.buffer_size is None


def test_hyperparameters_without_annotation_keep_their_type(write: Write) -> None:
    write(
        "own_plain",
        "import perdure\n"
        "class Plain(perdure.SGD):\n"
        "    def __init__(self, network, *, k=1, share: float = 0.5, **common):\n"
        "        super().__init__(network, **common)\n",
    )
    config = resolve(method="own_plain:Plain", given={"k": 3, "share": 1}, dataset="mnist5k")
    found = config.hyperparameters
    assert (repr(found["k"]), repr(found["share"])) == ("3", "1.0")
    assert "--set k=3 " in f"{config.command([0])} "


@pytest.mark.parametrize("name", ["stream", "ready"])
def test_a_users_stream(name: str, write: Write) -> None:
    write("own_thing", OWN)
    config = resolve(f"own_thing:{name}", "er", 20, given={"batch": 4})
    # All of them are listed, so that a run does not depend on the defaults of later versions.
    assert config.hyperparameters == {"batch": 4, "epochs": 1, "lr": 0.1, "memory_batch": 32}
    assert (config.dataset, config.network) == (None, "mlp")
    assert len(config.data_checksum) > 8
    assert any("mlp" in note for note in config.notes)
    assert not config.published_figures()
    named = resolve("own_thing:stream", "sgd", network="own_thing:network")
    assert named.network == "own_thing:network"
    assert not any("mlp" in note for note in named.notes)


@pytest.mark.parametrize(("shape", "image"), [((6,), False), ((2, 3), False), ((3, 8, 8), True)])
def test_a_network_for_images_is_suggested_for_images_only(
    shape: tuple[int, ...], image: bool, write: Write
) -> None:
    data = f"torch.rand(8, *{shape}), torch.arange(8) % 2"
    write(
        "own_shape",
        f"import perdure, torch\ndef stream(): return perdure.from_tensors({data})\n",
    )
    (note,) = (note for note in resolve("own_shape:stream").notes if "--network" in note)
    assert ("cnn" in note) == image


def test_windows_are_on_for_a_users_stream_and_off_in_presets(write: Write) -> None:
    write("own_thing", OWN)
    own = resolve("own_thing:stream", "clser")
    assert own.hyperparameters["stable_window"] > own.hyperparameters["plastic_window"] > 0
    assert not any("window" in name for name in own.departures())
    off = resolve("own_thing:stream", "clser", given={"stable_window": 0})
    assert "stable_window" not in off.hyperparameters
    assert "--stable-window 0.0" in off.command([0])
    published = resolve("s-mnist", "clser", dataset="mnist5k")
    assert "stable_window" not in published.hyperparameters
    on = resolve("s-mnist", "clser", given={"stable_window": 0.1}, dataset="mnist5k")
    assert "--stable-window 0.1" in on.command([0])
    for config, window in [(published, None), (on, 0.1), (off, None)]:
        learner = build_run(config, read_dataset(config), 0).learner
        assert isinstance(learner, CLSER)
        assert learner.stable.window == window


def test_the_command_of_a_users_method_says_what_is_off() -> None:
    method = "perdure.learners.clser:CLSER"
    off = resolve("s-mnist", method, given={"stable_window": 0}, dataset="mnist5k")
    words = off.command([0]).split()
    assert "stable_window=0.0" in words
    assert "plastic_window=0.03" in words
    learner = build_run(off, read_dataset(off), 0).learner
    assert isinstance(learner, CLSER)
    assert learner.stable.window is None
    assert learner.plastic.window == 0.03


# -- hashes and folders ---------------------------------------------------------------------


def test_settings_that_change_the_numbers_change_the_folder(tmp_path: Path) -> None:
    base = resolve(dataset="mnist5k")
    same = replace(base, notes=("a remark",), data_root="/elsewhere")
    assert RunFolder.locate(tmp_path, same, 3) == RunFolder.locate(tmp_path, base, 3)
    others = [
        replace(base, **change)
        for change in (
            {"hyperparameters": {**base.hyperparameters, "lr": 0.2}},
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
    folders = {RunFolder.locate(tmp_path, config, 3).path for config in (base, *others)}
    assert len(folders) == 1 + len(others)


def test_the_run_command_passes_on_every_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, object] = {}

    def note(stream: str, method: str, buffer_size: int | None, **settings: object) -> None:
        seen.update(settings)
        raise ValueError("seen")

    monkeypatch.setattr("perdure.cli.options.resolve", note)
    assert main(["run"]) == 2
    _, _, _, *others = inspect.signature(resolve).parameters
    assert seen.keys() == {*others} - {"check_device"}


def test_a_stream_that_supplies_batches_has_no_batch_size(write: Write) -> None:
    name = f"{write('supplying', OWN)}:batches"
    config = resolve(name, "er", given={"epochs": 2})
    assert "batch" not in config.hyperparameters
    assert config.departures() == {"epochs": 2}
    assert "batch" not in config.command([0]).replace(name, "")
    assert resolve(name, "sgd", ranks=3).ranks == 3
    with pytest.raises(ValueError, match="--batch does not apply to supplying:batches"):
        resolve(name, "er", given={"batch": 32})
    joint = resolve(name, "joint", given={"batch": 8})
    assert joint.batch == 8
    with pytest.raises(ValueError, match=r"--batch is 32.*3 processes"):
        resolve(name, "joint", ranks=3)
    with pytest.raises(ValueError, match="hyperparameters lack batch"):
        replace(config, stream="s-mnist", dataset="mnist")


def test_the_note_on_defaults_names_the_batch_and_the_epochs_of_the_run(write: Write) -> None:
    module = write("noted", OWN)

    def note(stream: str, method: str = "er", **given: float) -> str:
        notes = resolve(f"{module}:{stream}", method, given=given).notes
        (found,) = (text for text in notes if "no published settings" in text)
        return found

    assert note("stream").endswith("for 1 epoch with batches of 32")
    assert note("stream", batch=16, epochs=5).endswith("for 5 epochs with batches of 16")
    assert note("batches", epochs=5).endswith("for 5 epochs with batches from the stream")
    assert note("batches", "joint", batch=8).endswith("for 1 epoch with batches of 8")
