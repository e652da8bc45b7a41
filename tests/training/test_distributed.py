"""Distributed training equals training in one process but for rounding; failures and stops."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from perdure import ER, catalog, load_run
from perdure.experiment.resolve import resolve
from perdure.networks import ResNet18
from perdure.results import RunFolder, read_run
from perdure.state import read_file, write_file
from perdure.training import TrainingError, distributed
from perdure.training.distributed import divide, synchronise
from perdure.training.launch import setup_ranks, torchrun_rank

from . import rank as ranks

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SHORT = ["run", "s-mnist", "--dataset", "mnist5k", "--max-steps", "20"]


class Outcome(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def messages(self) -> list[str]:
        """The messages of the command, without torchrun's own report of failures."""
        return [line for line in self.err.splitlines() if line.startswith("perdure: ")]


def on_two_ranks(*words: str, folder: Path, module: str = "perdure") -> Outcome:
    """Run a module in two processes, as a user does."""
    done = subprocess.run(
        [*TORCHRUN, "-m", module, *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


def flat(state: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of a nested state, by path."""
    leaves: dict[str, Any] = {}
    for key, value in state.items():
        name = f"{prefix}{key}"
        leaves |= flat(value, f"{name}/") if isinstance(value, dict) else {name: value}
    return leaves


def assert_close(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Floats are equal up to rounding; everything else (samples, generators, counts) exactly."""
    found, expected = flat(found), flat(expected)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=name)
        elif isinstance(value, Tensor):
            assert torch.equal(found[name], value), name
        elif isinstance(value, float):
            assert found[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
        else:
            assert found[name] == value, name


# -- equal results --------------------------------------------------------------------------


def trained_by_two(folder: Path, methods: tuple[str, ...]) -> Path:
    """States and results of these methods, trained by two ranks."""
    outcome = on_two_ranks(str(folder), *methods, folder=ROOT, module="training.rank")
    assert outcome.status == 0, outcome.err
    return folder


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_by_two(tmp_path_factory.mktemp("two-ranks"), ranks.METHODS)


@pytest.mark.parametrize("method", ranks.METHODS)
def test_two_ranks_learn_the_same_as_one_process(method: str, two_ranks: Path) -> None:
    assert_the_same_as_one_process(method, two_ranks)


@pytest.mark.slow
def test_two_ranks_learn_the_same_with_other_methods(tmp_path: Path) -> None:
    trained_by_two(tmp_path, ranks.OTHER_METHODS)
    for method in ranks.OTHER_METHODS:
        assert_the_same_as_one_process(method, tmp_path)
    assert_equal_on_all_ranks(tmp_path, ranks.OTHER_METHODS)


def test_every_method_is_trained_by_two_ranks() -> None:
    assert {*ranks.METHODS, *ranks.OTHER_METHODS} == set(catalog.METHODS)


def assert_the_same_as_one_process(method: str, two_ranks: Path) -> None:
    learner, result = ranks.learn(method, ranks=1)
    found, _ = read_file(two_ranks / f"{method}-0.safetensors")
    assert_close(found, from_file(learner.state_dict(), two_ranks))
    other = json.loads((two_ranks / f"{method}-0.json").read_text())
    for name, numbers in result["predictors"].items():
        there = other["predictors"][name]["class_il"]["mean"]
        assert there == pytest.approx(numbers["class_il"]["mean"], abs=0.3), name
    assert result["steps"] == other["steps"] == ranks.STEPS


@pytest.mark.parametrize("batch", ranks.UNEVEN)
def test_batches_that_do_not_divide_evenly_give_the_same_result(
    batch: int, two_ranks: Path
) -> None:
    learner = ranks.uneven(batch, divided=False)
    found, _ = read_file(two_ranks / f"uneven-{batch}-0.safetensors")
    assert_close(found, from_file(learner.state_dict(), two_ranks))


def test_learners_are_equal_on_all_ranks_bit_for_bit(two_ranks: Path) -> None:
    assert_equal_on_all_ranks(two_ranks, ranks.METHODS)


def assert_equal_on_all_ranks(folder: Path, methods: tuple[str, ...]) -> None:
    for name in [*methods, *(f"uneven-{batch}" for batch in ranks.UNEVEN)]:
        one, other = ((folder / f"{name}-{rank}.safetensors").read_bytes() for rank in (0, 1))
        assert one == other, name


def test_dropout_differs_between_ranks_and_other_draws_are_equal(two_ranks: Path) -> None:
    one, other = (read_file(two_ranks / f"dropped-{rank}.safetensors")[0] for rank in (0, 1))
    assert torch.equal(one["kept"], other["kept"])
    assert not torch.equal(one["kept"][:4], one["kept"][5:])  # rows of the second rank
    assert 0.3 < (one["kept"] > 0).float().mean() < 0.7
    assert torch.equal(one["drawn"], other["drawn"])
    for found in (one, other):
        assert torch.equal(found["kept"], found["repeated"])  # from the same state
        assert not torch.equal(found["kept"], found["next"])


def from_file(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A state as read back from a file, which omits empty parts."""
    write_file(folder / "one.safetensors", state, {})
    return read_file(folder / "one.safetensors")[0]


# -- the command ----------------------------------------------------------------------------

MODULE = """
import os
import perdure

class Alone(perdure.SGD):
    \"\"\"Fails on one rank only.\"\"\"
    def step(self, inputs, labels):
        super().step(inputs, labels)
        if os.environ["RANK"] == "1" and int(self.steps) == 3:
            self.stop()
    def stop(self):
        raise KeyError("only here")

class Dies(Alone):
    def stop(self):
        os.kill(os.getpid(), 9)

def differs():
    import torch
    draws = torch.Generator().manual_seed(int(os.environ["RANK"]))
    inputs, labels = torch.rand(64, 4, generator=draws), torch.arange(64) % 4
    return perdure.from_tensors(inputs, labels, test=(inputs, labels))
"""


def test_rank_0_writes_and_prints_for_all(tmp_path: Path) -> None:
    outcome = on_two_ranks(*SHORT, "--out", "runs", "--json", folder=tmp_path)
    assert outcome.status == 0, outcome.err
    (line,) = outcome.out.splitlines()
    summary = json.loads(line)
    assert outcome.err.count("Class-IL") == 1
    (setting,) = (tmp_path / "runs" / "s-mnist").iterdir()
    folder = RunFolder(setting / "seed-0")
    run = read_run(folder.path)
    assert run.config.ranks == 2
    assert setting.name.endswith(run.config.hash)
    assert run.config.hash != replace(run.config, ranks=1).hash
    events = [(event["event"], event["step"]) for event in folder.events()]
    assert len(set(events)) == len(events)
    assert {("evaluation", 0), ("metrics", 20), ("evaluation", 20)} < set(events)
    assert not [*folder.path.glob(".*"), *folder.path.glob("checkpoints")]
    assert summary["predictors"]["stable"]["class_il"]["mean"] == pytest.approx(
        json.loads((folder.path / "result.json").read_text())["predictors"]["stable"]["class_il"][
            "mean"
        ]
    )
    assert int(load_run(folder.path).steps) == 20


def test_an_error_is_printed_once(tmp_path: Path) -> None:
    outcome = on_two_ranks(*SHORT, "--batch", "5", folder=tmp_path)
    assert outcome.status != 0
    assert outcome.out == ""
    (message,) = outcome.messages
    assert message.startswith("perdure: --batch is 5")
    assert "exitcode  : 2" in outcome.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("Alone", "perdure: rank 1 failed with status 1:"),
        ("Dies", "perdure: rank 1 exited without a report"),
    ],
)
def test_no_rank_waits_for_one_that_has_exited(method: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(MODULE)
    start = time.monotonic()
    outcome = on_two_ranks(*SHORT, "--method", f"module:{method}", folder=tmp_path)
    assert time.monotonic() - start < 60
    assert outcome.status != 0
    assert "lost contact with another rank" in outcome.messages[0]
    assert message in outcome.messages
    assert ("KeyError: 'only here'" in outcome.err) == (method == "Alone")


@pytest.mark.slow
def test_a_stopped_run_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    words = [*SHORT[:-1], "400", "--checkpoint-every", "0.5", "--quiet"]
    assert on_two_ranks(*words, "--out", "whole", folder=tmp_path).status == 0
    command = [*TORCHRUN, "-m", "perdure", *words, "--out", "parts"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
    ) as started:
        deadline = time.monotonic() + 90
        while not [*tmp_path.glob("parts/*/*/*/checkpoints/*.json")]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        started.send_signal(signal.SIGTERM)
        _, err = started.communicate(timeout=60)
    assert started.returncode != 0
    (message,) = [line for line in err.splitlines() if line.startswith("perdure: ")]
    assert "`torchrun --nproc-per-node 2 -m perdure run s-mnist" in message
    assert message.endswith("--out parts`")
    assert not [*tmp_path.glob("parts/*/*/*/result.json")]
    resumed = on_two_ranks(*words, "--out", "parts", "--resume", folder=tmp_path)
    assert resumed.status == 0, resumed.err
    (one,) = tmp_path.glob("whole/*/*/seed-0")
    (other,) = tmp_path.glob("parts/*/*/seed-0")
    assert read_run(other).timing.resumed
    for name in ("result.json", "learner.safetensors", "events.jsonl"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.slow
def test_ranks_with_different_streams_are_refused(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(MODULE)
    outcome = on_two_ranks("run", "module:differs", "--method", "sgd", folder=tmp_path)
    (message,) = outcome.messages
    assert "configuration of rank 1 differs" in message
    assert message.endswith("data_checksum, hash, stream_checksum")


def test_ranks_with_different_losses_have_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "from_all", lambda loss: [loss, 1.01 * loss])
    with pytest.raises(TrainingError, match="the ranks diverged"):
        distributed.SharedFolder(tmp_path).event("metrics", step=100, values={"loss": 2.0})


# -- unsupported uses -----------------------------------------------------------------------


@pytest.fixture
def second_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the second of two processes started by torchrun."""
    variables = {
        "RANK": 1,
        "WORLD_SIZE": 2,
        "LOCAL_RANK": 1,
        "MASTER_ADDR": "here",
        "MASTER_PORT": 1,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


def test_without_torchrun_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torchrun_rank() is None
    assert setup_ranks([0, 1, 2], "auto", "captured") == 1
    monkeypatch.setenv("WORLD_SIZE", "2")  # set by other software
    assert torchrun_rank() is None


@pytest.mark.usefixtures("second_of_two")
def test_torchrun_determines_rank_and_number_of_ranks() -> None:
    assert torchrun_rank() == (1, 2, 1)
    assert setup_ranks([3], "cpu", None) == 2


@pytest.mark.usefixtures("second_of_two")
def test_torchrun_with_one_process_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert setup_ranks([0, 1], "auto", "captured") == 1


@pytest.mark.usefixtures("second_of_two")
def test_unsupported_options_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="give one seed, not 3"):
        setup_ranks([0, 1, 2], "cpu", None)
    with pytest.raises(ValueError, match="--engine captured does not work with torchrun"):
        setup_ranks([0], "auto", "captured")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="no GPU for process 1 of this machine"):
        setup_ranks([0], "auto", None)


@pytest.mark.parametrize(
    ("key", "flag"), [("batch", "--batch"), ("memory_batch", "--memory-batch")]
)
def test_batches_that_ranks_cannot_divide_evenly_are_refused(key: str, flag: str) -> None:
    with pytest.raises(ValueError, match=f"^{flag} is 20, .* not a multiple of the 3 processes"):
        resolve(
            "s-mnist", dataset="mnist5k", given={"batch": 30, "memory_batch": 30, key: 20}, ranks=3
        )


def test_batch_norm_is_synchronised_over_all_ranks() -> None:
    plain = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), nn.Flatten(), nn.Linear(144, 2)
    )
    for network in (ResNet18(2, width=4), plain):
        network(torch.rand(4, 3, 8, 8))  # changes the running statistics
        inputs, state = torch.rand(5, 3, 8, 8), copy.deepcopy(network.state_dict())
        expected = network.eval()(inputs)
        synchronise(network)
        assert torch.equal(network(inputs), expected)
        assert_close(network.state_dict(), state)
        norms = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        assert norms
        assert all(isinstance(norm, nn.SyncBatchNorm) and not norm.training for norm in norms)


def test_subclasses_of_batch_norm_are_refused() -> None:
    class Own(nn.BatchNorm1d):
        pass

    with pytest.raises(ValueError, match="has a Own, which processes cannot share"):
        synchronise(nn.Sequential(nn.Linear(4, 3), Own(3)))


def test_batch_norm_on_cpus_is_refused() -> None:
    layers = (nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3))
    learner = ER(nn.Sequential(*layers), buffer_size=4)
    with pytest.raises(ValueError, match=r"BatchNorm, whose .* only on GPUs"):
        divide(learner)
