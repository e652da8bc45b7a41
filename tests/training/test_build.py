"""From settings to objects, and back from a run folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from perdure import CLSER, ER, Learner, load_run
from perdure.memory import SemanticMemory
from perdure.streams import Scale
from perdure.training import Run, Settings, plan
from perdure.training.build import accepted, build_run, find_learner, initialised, read_dataset
from perdure.training.seeds import make_runs

from .conftest import Write
from .toy import assert_same


def build(settings: Settings, seed: int = 0) -> Run:
    return build_run(settings, read_dataset(settings), seed)


def digits(stream: str = "s-mnist", method: str = "clser", **other: Any) -> Settings:
    return plan(stream, method, dataset="mnist5k", **other)


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


def test_methods_that_ask_for_it_are_told_how_many_tasks_there_are(write: Write) -> None:
    write(
        "asking",
        """
        from perdure import SGD

        class Asking(SGD):
            def __init__(self, network, *, tasks, **common):
                super().__init__(network, **common)
                self.told = tasks
        """,
    )
    assert build(digits(method="asking:Asking")).learner.told == 5  # type: ignore[attr-defined]
    learner = build(digits("r-mnist", method="asking:Asking")).learner
    assert learner.told == 20  # type: ignore[attr-defined]


def test_arguments_of_bases_are_accepted_where_they_are_passed_on() -> None:
    class Passing(ER):
        def __init__(self, network: nn.Module, *, own: int = 1, **common: Any) -> None:
            super().__init__(network, **common)

    class Closed(ER):
        def __init__(self, network: nn.Module, *, own: int = 1) -> None:
            super().__init__(network, buffer_size=own)

    assert {"own", "buffer_size", "memory_batch", "lr", "seed"} <= set(accepted(Passing))
    assert set(accepted(Closed)) == {"own"}


def test_the_nearest_signature_of_an_argument_counts() -> None:
    class Own(ER):
        def __init__(self, network: nn.Module, *, memory_batch: float = 1, **common: Any) -> None:
            super().__init__(network, **common)

    assert accepted(Own)["memory_batch"].annotation == "float"


# -- networks -------------------------------------------------------------------------------


def test_the_seed_of_a_run_decides_its_first_weights() -> None:
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
        ("wrong_head", r"gives \[1, 9\] for one image; s-mnist has 10 classes.* logits \[1, 10\]"),
        ("wrong_input", r"does not take images \[1, 28, 28\]: mat1 and mat2 shapes"),
        ("no_module", "the network function gave a int, not a module"),
        ("fails", r"the network function failed: KeyError: 'depth' \(nets.py, line 15\)"),
        ("takes_nothing", "the network function failed: TypeError: takes_nothing"),
        ("no_parameters", "the network has no parameters"),
        ("pair", r"gives tuple for one image; s-mnist has 10 classes"),
        ("value", "the network function failed: TypeError: 'int' object is not callable"),
        ("missing", "network 'nets:missing': nets has no 'missing'"),
    ],
)
def test_networks_that_do_not_fit_are_refused(name: str, expected: str, write: Write) -> None:
    write("nets", NETWORKS)
    with pytest.raises(ValueError, match=expected):
        build(digits(network=f"nets:{name}"))


# -- streams --------------------------------------------------------------------------------


def test_joint_sees_all_tasks_at_once() -> None:
    run = build(digits(method="joint"))
    assert [task.name for task in run.stream.tasks] == ["joint"]
    assert len(run.stream.tests) == 5
    assert run.total_steps() == 15 * 400


@pytest.mark.parametrize(
    ("stream_seed", "same"), [(None, True), (3, True), ("per-run", False)], ids=str
)
def test_the_composition_is_the_streams_own_unless_asked_for(
    stream_seed: int | str | None, same: bool
) -> None:
    settings = digits("p-mnist", stream_seed=stream_seed)
    one, other = (build(settings, seed).stream for seed in (0, 1))
    assert (one.checksum == other.checksum) == same
    assert build(settings, 0).stream.checksum == one.checksum


def test_another_stream_seed_is_another_composition() -> None:
    checksums = {
        build(digits("r-mnist", stream_seed=seed)).stream.checksum for seed in (None, 0, 1)
    }
    assert len(checksums) == 2  # 0 is r-mnist's own


def test_validation_evaluates_on_training_samples() -> None:
    settings = digits(validation=0.25)
    run = build(settings)
    assert run.stream.data == "mnist5k-validation"
    assert sum(len(task.samples().labels) for task in run.stream.tasks) == 3000
    assert sum(len(test.rows) for test in run.stream.tests if test.rows is not None) == 1000


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"validation": 0.0001}, "--validation 0.0001 leaves 'classes 0 to 1' without a sample"),
        ({"validation": 0.9999}, "the tasks of s-mnist hold less than one batch of 10"),
        ({"given": {"batch": 5000}}, "the tasks of s-mnist hold less than one batch of 5000"),
        ({"given": {"batch": 0}}, "batch is 0; expected 1 or more"),
        ({"given": {"epochs": 0}}, "epochs is 0; expected 1 or more"),
        ({"given": {"lr": float("nan")}}, "lr is nan; expected a number above 0"),
        ({"given": {"memory_batch": 0}}, "memory_batch is 0; expected 1 or more"),
        ({"given": {"stable_rate": 1.5}}, "stable rate is 1.5; expected a number above 0, at mos"),
        ({"given": {"plastic_decay": 1}}, "plastic decay is 1; expected a number from 0 to below"),
    ],
)
def test_values_under_which_nothing_is_learned_are_refused(
    other: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        build(digits(**other))


def test_a_method_that_needs_boundaries_is_refused_where_there_are_none() -> None:
    with pytest.raises(ValueError, match="GEM needs task boundaries, and mnist-360 has none"):
        build(digits("mnist-360", "gem"))


# -- finished runs --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run of CLS-ER."""
    out = tmp_path_factory.mktemp("runs")
    outcome = make_runs(digits(max_steps=40), [7], out, tell=lambda seed, progress: None)
    return outcome.done[7].path


def copied(folder: Path, to: Path) -> Path:
    for file in folder.iterdir():
        if file.is_file():
            to.mkdir(exist_ok=True)
            (to / file.name).write_bytes(file.read_bytes())
    return to


def test_a_finished_run_is_loaded_as_it_was(finished: Path) -> None:
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


def test_a_loaded_run_goes_on_as_if_it_had_never_stopped(finished: Path) -> None:
    images, labels = digits_test()
    loaded, again = load_run(finished), load_run(finished)
    run = build(digits(max_steps=40), seed=7)
    run.learner.load(finished / "learner.safetensors")
    for learner in (loaded, again, run.learner):
        for start in range(0, 60, 20):
            learner.observe(images[start : start + 20], labels[start : start + 20])
    assert int(loaded.steps) == 43
    assert_same(loaded.state_dict(), again.state_dict())
    assert_same(loaded.state_dict(), run.learner.state_dict())


def test_a_run_of_ones_own_making_is_loaded_too(write: Write, tmp_path: Path) -> None:
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
            images, labels = torch.rand(40, 6, generator=draws), torch.arange(40) % 4
            tasks = dict(groups=[(0, 1), (2, 3)], test=(images, labels))
            return from_tensors(images, labels, **tasks, normalise=lambda images: images / 2)

        def network(shape, classes):
            return torch.nn.Linear(*shape, classes)
        """,
    )
    settings = plan("mine:stream", "mine:Mine", 10, network="mine:network", given={"strength": 3})
    outcome = make_runs(settings, [0], tmp_path, tell=lambda seed, progress: None)
    assert outcome.failed == {}
    learner = load_run(outcome.done[0].path)
    assert type(learner).__name__ == "Mine"
    assert learner.strength == 3  # type: ignore[attr-defined]
    assert torch.equal(learner.normalise(torch.ones(2)), torch.ones(2) / 2)
    learner.observe(torch.rand(4, 6), torch.tensor([0, 1, 2, 3]))


def test_folders_that_hold_no_finished_run_are_refused(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config.json is missing: .* is not a finished run"):
        load_run(tmp_path)
    begun = copied(finished, tmp_path / "begun")
    (begun / "result.json").unlink()
    with pytest.raises(ValueError, match=r"result.json is missing: .* is not a finished run"):
        load_run(begun)


def test_a_run_that_was_kept_without_its_networks_says_so(finished: Path, tmp_path: Path) -> None:
    kept = copied(finished, tmp_path / "kept")
    (kept / "learner.safetensors").unlink()
    with pytest.raises(ValueError, match="kept was kept without its networks"):
        load_run(kept)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("config.json", b"{", "config.json cannot be read"),
        ("config.json", b"[]", "config.json does not hold a JSON object"),
        ("config.json", b"{}", "config.json is not a run's configuration"),
        ("learner.safetensors", b"", "learner.safetensors is not a complete safetensors file"),
    ],
)
def test_damaged_runs_are_refused(
    name: str, content: bytes, expected: str, finished: Path, tmp_path: Path
) -> None:
    damaged = copied(finished, tmp_path / "damaged")
    (damaged / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} was altered after the run had written it"):
        load_run(damaged)
    (damaged / "manifest.json").unlink()
    with pytest.raises(ValueError, match=expected):
        load_run(damaged)


def test_the_state_of_another_network_is_refused(finished: Path, tmp_path: Path) -> None:
    other = copied(finished, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "buffer_size": 400}))
    (other / "manifest.json").unlink()
    with pytest.raises(ValueError, match="the state does not fit this CLSER"):
        load_run(other)


def test_the_configuration_says_all_that_decides(finished: Path) -> None:
    settings = digits(max_steps=40)
    config = json.loads((finished / "config.json").read_text())
    assert {key: config[key] for key in settings.deciding()} == settings.deciding()
    assert config["hash"] in finished.parent.name
    assert (config["seed"], config["data"], config["tasks"]) == (7, "mnist5k", 5)
    assert (config["shape"], config["classes"]) == ([1, 28, 28], 10)
    assert replace(settings, notes=("x",)).config(7, build(settings).stream)["notes"] == ["x"]


def test_every_method_can_be_built_for_a_stream_with_tasks() -> None:
    from perdure.catalog import METHODS

    for method in METHODS:
        learner: Learner = build(digits(method=method)).learner
        assert isinstance(learner, find_learner(method))


@pytest.mark.parametrize("method", ["clser", "mean-er"])
def test_regular_updates_reach_the_memories_and_are_read_back(method: str, tmp_path: Path) -> None:
    settings = digits(method=method, max_steps=10, update="regular")
    outcome = make_runs(settings, [0], tmp_path, tell=lambda seed, progress: None)
    loaded = load_run(outcome.done[0].path)
    memories = [m for m in vars(loaded).values() if isinstance(m, SemanticMemory)]
    assert memories
    assert all(memory.regular for memory in memories)
    assert not any(
        memory.regular
        for memory in vars(build(digits(method=method)).learner).values()
        if isinstance(memory, SemanticMemory)
    )
