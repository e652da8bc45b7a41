"""From a configuration to objects, and back from a run folder."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from perdure import CLSER, ER, Learner, load_run
from perdure.catalog import METHODS, find_learner
from perdure.config import RunConfig
from perdure.experiment.build import build_engine, build_run, initialised, read_dataset
from perdure.experiment.resolve import resolve
from perdure.memory import SemanticMemory
from perdure.results.folder import RunFolder
from perdure.state import as_bytes
from perdure.streams import Scale
from perdure.training import Run
from perdure.training.engine import Eager, Recorded

from . import short
from .conftest import Write
from .short import train_one


def build(config: RunConfig, seed: int = 0) -> Run:
    return build_run(config, read_dataset(config), seed)


def digits(stream: str = "s-mnist", method: str = "clser", **other: Any) -> RunConfig:
    return short.digits(stream, method, **{"max_steps": None, **other})


def state(learner: Learner) -> bytes:
    return as_bytes(learner.state_dict(), {})


def flat(network: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


# -- learners -------------------------------------------------------------------------------


def test_settings_reach_the_learner() -> None:
    given = {"lr": 0.7, "memory_batch": 9, "stable_decay": 0.5, "plastic_rate": 0.25, "batch": 40}
    run = build(digits(buffer_size=30, given=given))
    learner = run.learner
    assert isinstance(learner, CLSER)
    assert learner.optimizer.param_groups[0]["lr"] == 0.7
    assert (learner.memory_batch, learner.memory.buffer_size) == (9, 30)
    assert (learner.stable.decay, learner.plastic.rate) == (0.5, 0.25)
    assert (learner.stable.rate, learner.plastic.decay) == (0.9, 0.99)
    assert (run.batch, run.epochs) == (40, 15)
    assert isinstance(learner.normalise, Scale)


def test_methods_receive_the_number_of_tasks_if_they_accept_it(write: Write) -> None:
    write(
        "counting",
        """
        from perdure import SGD

        class Counting(SGD):
            def __init__(self, network, *, tasks, **common):
                super().__init__(network, **common)
                self.received = tasks
        """,
    )
    assert build(digits(method="counting:Counting")).learner.received == 5  # type: ignore[attr-defined]
    learner = build(digits("r-mnist", method="counting:Counting")).learner
    assert learner.received == 20  # type: ignore[attr-defined]


# -- networks -------------------------------------------------------------------------------


def test_initial_weights_depend_on_the_seed_alone() -> None:
    def make(shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Linear(shape[0], classes)

    torch.manual_seed(1)
    one = flat(initialised(make, (6,), 3, seed=5))
    torch.manual_seed(2)
    before = torch.get_rng_state()
    same, other = (flat(initialised(make, (6,), 3, seed=seed)) for seed in (5, 6))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)


NETWORKS = """
    import torch
    from torch import nn

    def wrong_head(shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(784, classes - 1))

    def wrong_input(shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(5, classes))

    def no_module(shape, classes):
        return 3

    def fails(shape, classes):
        raise KeyError("depth")

    def takes_nothing():
        return nn.Linear(1, 1)

    def no_parameters(shape, classes):
        return nn.Flatten()

    class Pair(nn.Linear):
        def forward(self, x):
            return super().forward(x.flatten(1)), x

    def pair(shape, classes):
        return Pair(784, classes)

    value = 3
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("wrong_head", "network has 9 outputs; s-mnist has 10 classes"),
        ("wrong_input", r"does not accept inputs .*\[1, 28, 28\]: RuntimeError: mat1 and mat2"),
        ("no_module", "returned a int, not an nn.Module"),
        ("fails", r"network 'nets:fails' failed: KeyError: 'depth' \(nets.py, line 15\)"),
        ("takes_nothing", r"takes \(input shape, classes\)"),
        ("no_parameters", "no parameters"),
        ("pair", "type tuple; expected logits"),
        ("value", r"takes \(input shape, classes\)"),
        ("missing", "network 'nets:missing': nets has no 'missing'"),
    ],
)
def test_networks_that_do_not_fit_the_stream_are_refused(
    name: str, expected: str, write: Write
) -> None:
    write("nets", NETWORKS)
    with pytest.raises(ValueError, match=expected):
        build(digits(network=f"nets:{name}"))


# -- streams --------------------------------------------------------------------------------


def test_joint_trains_on_all_tasks_at_once() -> None:
    run = build(digits(method="joint"))
    assert [task.name for task in run.stream.tasks] == ["joint"]
    assert len(run.stream.tests) == 5
    assert run.total_steps() == 15 * 400


@pytest.mark.parametrize(
    ("stream_seed", "same"), [(None, True), (3, True), ("per-run", False)], ids=str
)
def test_the_composition_varies_by_seed_only_on_request(
    stream_seed: int | str | None, same: bool
) -> None:
    config = digits("p-mnist", stream_seed=stream_seed)
    one, other = (build(config, seed).stream for seed in (0, 1))
    assert (one.checksum == other.checksum) == same
    assert build(config, 0).stream.checksum == one.checksum


def test_another_stream_seed_is_another_composition() -> None:
    checksums = {
        build(digits("r-mnist", stream_seed=seed)).stream.checksum for seed in (None, 0, 1)
    }
    assert len(checksums) == 2  # 0 is r-mnist's own


def test_validation_evaluates_on_training_samples() -> None:
    config = digits(validation=0.25)
    run = build(config)
    assert run.stream.data == "mnist5k-validation"
    assert sum(len(task.samples().labels) for task in run.stream.tasks) == 3000
    assert sum(len(test.rows) for test in run.stream.tests if test.rows is not None) == 1000


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"validation": 0.0001}, "--validation 0.0001 leaves no samples to test 'classes 0 to 1'"),
        ({"validation": 0.999}, "s-mnist is smaller than a batch of 10"),
        ({"validation": 0.9999}, "leaves none of the 4000 samples for training"),
        ({"given": {"batch": 5000}}, "s-mnist is smaller than a batch of 5000"),
        ({"given": {"batch": 0}}, "batch is 0; expected 1 or more"),
        ({"given": {"epochs": 0}}, "epochs is 0; expected 1 or more"),
        ({"given": {"lr": float("nan")}}, "lr is nan"),
        ({"given": {"memory_batch": 0}}, "memory_batch is 0; expected a whole number"),
        ({"given": {"stable_rate": 1.5}}, "stable.rate is 1.5"),
        ({"given": {"plastic_decay": 1}}, "plastic.decay is 1"),
    ],
)
def test_invalid_values_are_refused(other: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        build(digits(**other))


def test_a_method_that_needs_boundaries_is_refused_on_a_stream_without() -> None:
    with pytest.raises(ValueError, match="GEM needs task boundaries"):
        build(digits("mnist-360", "gem"))


# -- finished runs --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run of CLS-ER."""
    out = tmp_path_factory.mktemp("runs")
    return train_one(digits(max_steps=40), out, seed=7)


def copied(folder: Path, to: Path) -> Path:
    for file in folder.iterdir():
        if file.is_file():
            to.mkdir(exist_ok=True)
            (to / file.name).write_bytes(file.read_bytes())
    return to


def test_a_loaded_run_predicts_as_it_did(finished: Path) -> None:
    learner = load_run(finished)
    assert isinstance(learner, CLSER)
    assert (int(learner.steps), learner.memory.buffer_size) == (40, 500)
    test = digits_test()
    right = (learner.predict(test[0]) == test[1]).double().mean() * 100
    result = json.loads((finished / "result.json").read_text())
    seen = result["predictors"]["stable"]["class_il"]["matrix"][-1][0]
    assert float(right) == pytest.approx(seen)


def digits_test() -> tuple[torch.Tensor, torch.Tensor]:
    """The test samples of the first task."""
    dataset = read_dataset(digits())
    assert dataset is not None
    rows = dataset.test.labels < 2
    return dataset.test.inputs[rows], dataset.test.labels[rows]


def test_a_loaded_run_continues_to_learn_bit_for_bit(finished: Path) -> None:
    inputs, labels = digits_test()
    loaded, again = load_run(finished), load_run(finished)
    run = build(digits(max_steps=40), seed=7)
    run.learner.load(finished / "learner.safetensors")
    for learner in (loaded, again, run.learner):
        for start in range(0, 60, 20):
            learner.observe(inputs[start : start + 20], labels[start : start + 20])
    assert int(loaded.steps) == 43
    assert state(loaded) == state(again) == state(run.learner)


def test_a_run_of_a_users_method_stream_and_network_is_loaded(write: Write, tmp_path: Path) -> None:
    write(
        "mine",
        """
        import torch
        from perdure import ER, from_tensors

        class Mine(ER):
            def __init__(self, network, *, strength: float = 1.0, **common):
                super().__init__(network, **common)
                self.strength = strength

        def stream():
            draws = torch.Generator().manual_seed(0)
            inputs, labels = torch.rand(40, 6, generator=draws), torch.arange(40) % 4
            tasks = dict(groups=[(0, 1), (2, 3)], test=(inputs, labels))
            return from_tensors(inputs, labels, **tasks, normalise=lambda inputs: inputs / 2)

        def network(shape, classes):
            return torch.nn.Linear(*shape, classes)
        """,
    )
    config = resolve("mine:stream", "mine:Mine", 10, network="mine:network", given={"strength": 3})
    folder = train_one(config, tmp_path)
    with pytest.raises(ValueError, match=r"mine:stream.*trust_code"):
        load_run(folder)
    learner = load_run(folder, trust_code=True)
    assert type(learner).__name__ == "Mine"
    assert learner.strength == 3  # type: ignore[attr-defined]
    assert torch.equal(learner.normalise(torch.ones(2)), torch.ones(2) / 2)
    learner.observe(torch.rand(4, 6), torch.tensor([0, 1, 2, 3]))


def test_only_the_steps_of_known_code_are_recorded() -> None:
    config = resolve("s-mnist", "er", 20, dataset="mnist5k")
    assert isinstance(build_engine(config), Recorded)
    for own in ({"method": "mine:Mine"}, {"network": "mine:network"}, {"optimizer": "mine:sgd"}):
        assert type(build_engine(replace(config, **own))) is Eager  # type: ignore[arg-type]


def test_the_settings_in_a_run_folder_are_those_of_the_run(tmp_path: Path) -> None:
    config = resolve("s-mnist", "er", 20, dataset="mnist5k", max_steps=1, optimizer="adam")
    read = RunFolder(train_one(config, tmp_path)).read("config.json", RunConfig)
    assert read.identity() == config.identity()


@pytest.mark.parametrize("method", ["clser", "derpp"])
def test_networks_grow_on_streams_that_do_not_state_their_classes(
    method: str, write: Write, tmp_path: Path
) -> None:
    write(
        "unknown",
        """
        import torch
        from perdure import from_batches

        def batches(*classes):
            labels = torch.tensor(classes).repeat(16)
            return list(zip(torch.eye(6)[labels].split(8), labels.split(8)))

        def stream():
            tasks = {"first": batches(0, 1), "second": batches(3), "third": batches(2, 4)}
            return from_batches(tasks, shape=(6,), test=(torch.eye(6), torch.arange(6)))

        def network(shape, classes):
            assert classes == 1
            return torch.nn.Linear(*shape, classes)
        """,
    )
    config = resolve("unknown:stream", method, 20, network="unknown:network")
    learner = load_run(train_one(config, tmp_path), trust_code=True)
    assert learner.predict_proba(torch.eye(6)).shape == (6, 5)
    learner.observe(torch.eye(6), torch.arange(6))
    assert learner.predict_proba(torch.eye(6)).shape == (6, 6)


def test_a_run_is_loaded_elsewhere_with_the_users_own_objects(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        "own",
        """
        import torch
        from perdure import ER, from_tensors

        class Mine(ER):
            pass

        def stream():
            draws = torch.Generator().manual_seed(0)
            inputs, labels = torch.rand(40, 6, generator=draws), torch.arange(40) % 4
            return from_tensors(inputs, labels, test=(inputs, labels))

        def network(shape, classes):
            return torch.nn.Linear(*shape, classes)

        def optimizer(parameters, lr=0.01):
            return torch.optim.SGD(parameters, lr, momentum=0.5)
        """,
    )
    config = resolve("own:stream", "own:Mine", 10, network="own:network", optimizer="own:optimizer")
    folder = train_one(config, tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.delitem(sys.modules, "own")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not (Path(p) / "own.py").is_file()])
    with pytest.raises(ValueError, match="own:network"):
        load_run(folder, method=ER)
    optimizer = partial(torch.optim.SGD, lr=0.01, momentum=0.5)
    modules: list[Any] = [nn.Linear(6, 4), lambda shape, classes: nn.Linear(shape[0], classes)]
    outputs = []
    for network in modules:  # the stream prepares inputs in the default way and is not needed
        mine = type("Mine", (ER,), {})
        learner = load_run(folder, network=network, method=mine, optimizer=optimizer)
        outputs.append(learner.predict_proba(torch.ones(1, 6)))
    assert torch.equal(*outputs)
    assert "own" not in sys.modules
    with pytest.raises(ValueError, match=r"\(4, 6\).*\(4, 7\)") as raised:
        load_run(folder, network=nn.Linear(7, 4), method=mine, optimizer=optimizer)
    assert "\n" not in str(raised.value)
    instance = ER(nn.Linear(6, 4), buffer_size=3)
    wrong: list[dict[str, Any]] = [{"network": 3}, {"method": instance}, {"optimizer": 3}]
    for arguments in wrong:
        with pytest.raises(ValueError, match="expected"):
            load_run(folder, **{"network": modules[1], "method": ER, **arguments})


def test_folders_without_a_finished_run_are_refused(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config.json is missing: .* is not a finished run"):
        load_run(tmp_path)
    begun = copied(finished, tmp_path / "begun")
    (begun / "result.json").unlink()
    with pytest.raises(ValueError, match=r"result.json is missing: .* is not a finished run"):
        load_run(begun)


def test_a_folder_that_contains_runs_is_refused_with_one_to_pass(finished: Path) -> None:
    for folder in [*finished.parents][:3]:
        with pytest.raises(ValueError, match=f"pass .*{re.escape(str(finished))}$"):
            load_run(folder)


def test_a_run_without_its_networks_is_refused(finished: Path, tmp_path: Path) -> None:
    kept = copied(finished, tmp_path / "kept")
    (kept / "learner.safetensors").unlink()
    with pytest.raises(ValueError, match=r"kept .*networks"):
        load_run(kept)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("config.json", b"{", "config.json cannot be read"),
        ("config.json", b"[]", "config.json cannot be read"),
        ("config.json", b"{}", "config.json cannot be read"),
        ("learner.safetensors", b"", "learner.safetensors"),
    ],
)
def test_damaged_runs_are_refused(
    name: str, content: bytes, expected: str, finished: Path, tmp_path: Path
) -> None:
    damaged = copied(finished, tmp_path / "damaged")
    (damaged / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} was changed"):
        load_run(damaged)
    (damaged / "manifest.json").unlink()
    with pytest.raises(ValueError, match=expected):
        load_run(damaged)


def test_the_state_of_another_network_is_refused(finished: Path, tmp_path: Path) -> None:
    other = copied(finished, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "buffer_size": 400}))
    (other / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"state.*CLSER"):
        load_run(other)


def test_a_huge_buffer_is_refused_before_it_is_allocated(finished: Path, tmp_path: Path) -> None:
    other = copied(finished, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "buffer_size": 2**40}))
    (other / "manifest.json").unlink()
    with pytest.raises(ValueError, match="buffer_size"):
        load_run(other)


def test_the_configuration_file_has_all_settings_and_facts_about_the_stream(
    finished: Path,
) -> None:
    config = digits(max_steps=40)
    file = json.loads((finished / "config.json").read_text())
    assert {key: file[key] for key in config.identity()} == config.identity()
    assert file["hash"] in finished.parent.name
    assert (file["seed"], file["data"], file["tasks"]) == (7, "mnist5k", 5)
    assert (file["shape"], file["classes"]) == ([1, 28, 28], 10)


def test_every_method_can_be_built_for_a_stream_with_tasks() -> None:
    for method in METHODS:
        assert isinstance(build(digits(method=method)).learner, find_learner(method))


@pytest.mark.parametrize("method", ["clser", "mean-er"])
def test_regular_updates_reach_the_memories(method: str, tmp_path: Path) -> None:
    def regular(learner: Learner) -> list[bool]:
        memories = [m for m in vars(learner).values() if isinstance(m, SemanticMemory)]
        return [memory.regular for memory in memories]

    config = digits(method=method, max_steps=10, update="regular")
    assert set(regular(load_run(train_one(config, tmp_path)))) == {True}
    assert set(regular(build(digits(method=method)).learner)) == {False}


def test_the_engine_of_a_gpu_does_not_load_the_compiler() -> None:
    code = """
import sys
from dataclasses import replace
from perdure.experiment.build import build_engine
from perdure.experiment.resolve import resolve
build_engine(replace(resolve("s-mnist", "sgd", None), device="cuda", engine="captured"))
print("torch._dynamo" in sys.modules)
"""
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert loaded == "False"  # it would take seconds
