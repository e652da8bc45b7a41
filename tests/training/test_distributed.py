"""One learner on several processes: the same as on one, but for rounding; and how they end."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from perdure import ER, load_run
from perdure.networks import ResNet18
from perdure.results import RunFolder
from perdure.state import read_file, write_file
from perdure.training import plan
from perdure.training.distributed import divide, synchronise
from perdure.training.ranks import launched, prepare

from . import rank as ranks
from . import toy

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SHORT = ["run", "s-mnist", "--dataset", "mnist5k", "--max-steps", "20"]


class Ended(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def said(self) -> list[str]:
        """The sentences of the command, without torchrun's own report of failures."""
        return [line for line in self.err.splitlines() if line.startswith("perdure: ")]


def together(*words: str, folder: Path, module: str = "perdure") -> Ended:
    """A module on two processes, as a user starts it."""
    ended = subprocess.run(
        [*TORCHRUN, "-m", module, *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


def flat(state: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of a nested state by their paths."""
    leaves: dict[str, Any] = {}
    for key, value in state.items():
        name = f"{prefix}{key}"
        leaves |= flat(value, f"{name}/") if isinstance(value, dict) else {name: value}
    return leaves


def assert_close(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Floats within rounding; all else (stored images, labels, generators, counts) exactly."""
    found, expected = flat(found), flat(expected)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=name)
        elif isinstance(value, Tensor):
            assert torch.equal(found[name], value), name
        else:
            assert found[name] == value, name


# -- the same numbers -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The states and results of every method, as two ranks left them."""
    folder = tmp_path_factory.mktemp("by-two")
    ended = together(str(folder), folder=ROOT, module="training.rank")
    assert ended.status == 0, ended.err
    return folder


@pytest.mark.parametrize("method", ranks.METHODS)
def test_two_ranks_learn_what_one_process_learns(method: str, by_two: Path) -> None:
    learner, result = ranks.learn(method, ranks=1)
    found, _ = read_file(by_two / f"{method}-0.safetensors")
    assert_close(found, by_file(learner.state_dict(), by_two))
    other = json.loads((by_two / f"{method}-0.json").read_text())
    for name, numbers in result["predictors"].items():
        there = other["predictors"][name]["class_il"]["mean"]
        assert there == pytest.approx(numbers["class_il"]["mean"], abs=0.3), name
    assert result["steps"] == other["steps"] == ranks.STEPS


@pytest.mark.parametrize("batch", ranks.UNEVEN)
def test_batches_that_cannot_be_shared_equally_count_right_all_the_same(
    batch: int, by_two: Path
) -> None:
    learner = ranks.uneven(batch, divided=False)
    found, _ = read_file(by_two / f"uneven-{batch}-0.safetensors")
    assert_close(found, by_file(learner.state_dict(), by_two))


def test_all_ranks_hold_the_same_learner_to_the_last_bit(by_two: Path) -> None:
    names = [*ranks.METHODS, *(f"uneven-{batch}" for batch in ranks.UNEVEN)]
    for name in names:
        one, other = ((by_two / f"{name}-{rank}.safetensors").read_bytes() for rank in (0, 1))
        assert one == other, name


def test_dropout_draws_for_each_rank_and_leaves_other_draws_alone(by_two: Path) -> None:
    one, other = (read_file(by_two / f"dropped-{rank}.safetensors")[0] for rank in (0, 1))
    assert torch.equal(one["left"], other["left"])
    assert not torch.equal(one["left"][:4], one["left"][5:])  # the second rank's rows
    assert 0.3 < (one["left"] > 0).float().mean() < 0.7
    learner = toy.learner("er")
    with learner.randomness():
        untouched = torch.rand(3)
    assert torch.equal(one["drawn"], untouched)
    assert torch.equal(other["drawn"], untouched)


def by_file(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A state as it comes back from a file, which keeps no empty part."""
    write_file(folder / "one.safetensors", state, {})
    return read_file(folder / "one.safetensors")[0]


# -- the command ----------------------------------------------------------------------------

MODULE = """
import os
import perdure

class Alone(perdure.SGD):
    \"\"\"Fails, or dies, on one rank only.\"\"\"
    def step(self, images, labels):
        super().step(images, labels)
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
    images, labels = torch.rand(64, 4, generator=draws), torch.arange(64) % 4
    return perdure.from_tensors(images, labels, test=(images, labels))
"""


def test_rank_0_writes_and_speaks_for_all(tmp_path: Path) -> None:
    ended = together(*SHORT, "--out", "runs", "--json", folder=tmp_path)
    assert ended.status == 0, ended.err
    summary = json.loads(ended.out.splitlines()[-1])
    assert (ended.out.count("Class-IL"), ended.err.count("accuracy")) == (1, 1)
    (place,) = (tmp_path / "runs" / "s-mnist").iterdir()
    folder = RunFolder(place / "seed-0")
    config, result = folder.read("config.json"), folder.read("result.json")
    assert config["ranks"] == 2
    alone = plan("s-mnist", dataset="mnist5k", max_steps=20)
    assert (
        place.name
        == plan("s-mnist", dataset="mnist5k", max_steps=20, ranks=2)
        .folder(tmp_path, 0)
        .path.parent.name
    )
    assert place.name != alone.folder(tmp_path, 0).path.parent.name
    assert "ranks" not in alone.deciding()
    noted = [(event["event"], event["step"]) for event in folder.events()]
    assert len(set(noted)) == len(noted)
    assert {("evaluation", 0), ("totals", 20), ("evaluation", 20)} < set(noted)
    assert not [*folder.path.glob(".*"), *folder.path.glob("checkpoints")]
    assert summary["predictors"]["stable"]["class_il"]["mean"] == pytest.approx(
        result["predictors"]["stable"]["class_il"]["mean"]
    )
    assert int(load_run(folder.path).steps) == 20


def test_what_is_wrong_is_said_once(tmp_path: Path) -> None:
    ended = together(*SHORT, "--batch", "5", folder=tmp_path)
    assert ended.status != 0
    assert ended.out == ""
    assert ended.said == [
        "perdure: --batch is 5, which 2 processes cannot share equally; give a multiple of 2, or "
        "start another number of processes"
    ]
    assert "exitcode  : 2" in ended.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--method module:Alone", "perdure: rank 1 ended with status 1:"),
        ("--method module:Dies", "perdure: rank 1 ended without a word"),
    ],
)
def test_no_rank_waits_for_one_that_has_ended(words: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(MODULE)
    began = time.monotonic()
    ended = together(*SHORT, *words.split(), folder=tmp_path)
    assert time.monotonic() - began < 60
    assert ended.status != 0
    assert ended.said[0].startswith("perdure: seed 0 failed: another rank cannot be reached")
    assert said in ended.said
    assert ("KeyError: 'only here'" in ended.err) == words.endswith("Alone")


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    words = [*SHORT[:-1], "400", "--checkpoint-every", "0.5", "--quiet"]
    assert together(*words, "--out", "whole", folder=tmp_path).status == 0
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
    said = [line for line in err.splitlines() if line.startswith("perdure: ")]
    assert len(said) == 1
    assert said[0].startswith(
        "perdure: stopped; go on with `torchrun --nproc-per-node 2 -m perdure run s-mnist"
    )
    assert said[0].endswith("--resume`")
    assert not [*tmp_path.glob("parts/*/*/*/result.json")]
    resumed = together(*words, "--out", "parts", "--resume", folder=tmp_path)
    assert resumed.status == 0, resumed.err
    (one,) = tmp_path.glob("whole/*/*/seed-0")
    (other,) = tmp_path.glob("parts/*/*/seed-0")
    assert RunFolder(other).read("timing.json")["resumed"]
    for name in ("result.json", "learner.safetensors", "events.jsonl"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.slow
def test_ranks_that_read_different_streams_are_stopped(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(MODULE)
    ended = together("run", "module:differs", "--method", "sgd", folder=tmp_path)
    assert ended.said == [
        "perdure: seed 0 failed: rank 1 would train on something else than rank 0: its "
        "data_checksum, hash, stream_checksum differ"
    ]


# -- what is refused ------------------------------------------------------------------------


@pytest.fixture
def second_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process as torchrun would have started it."""
    place = {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "MASTER_ADDR": "here", "MASTER_PORT": 1}
    for name, value in place.items():
        monkeypatch.setenv(name, str(value))


def test_without_torchrun_a_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launched() is None
    assert prepare([0, 1, 2], "auto", "captured") == 1
    monkeypatch.setenv("WORLD_SIZE", "2")  # as other software may set it
    assert launched() is None


@pytest.mark.usefixtures("second_of_two")
def test_ranks_are_counted() -> None:
    assert launched() == (1, 2, 1)
    assert prepare([3], "cpu", None) == 2


@pytest.mark.usefixtures("second_of_two")
def test_torchrun_alone_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert prepare([0, 1], "auto", "captured") == 1


@pytest.mark.usefixtures("second_of_two")
def test_what_ranks_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="give one seed, not 3"):
        prepare([0, 1, 2], "cpu", None)
    with pytest.raises(ValueError, match=r"--engine captured: .* leave it out"):
        prepare([0], "auto", "captured")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="no GPU of its own: there are 1; start at most 1"):
        prepare([0], "auto", None)


@pytest.mark.parametrize(
    ("key", "flag"), [("batch", "--batch"), ("memory_batch", "--memory-batch")]
)
def test_batches_that_ranks_cannot_share_are_refused(key: str, flag: str) -> None:
    with pytest.raises(ValueError, match=f"^{flag} is 20, which 3 processes cannot share equally"):
        plan(
            "s-mnist", dataset="mnist5k", given={"batch": 30, "memory_batch": 30, key: 20}, ranks=3
        )


def test_batch_norm_becomes_one_over_all_ranks() -> None:
    plain = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), nn.Flatten(), nn.Linear(144, 2)
    )
    for network in (ResNet18(2, width=4), plain):
        network(torch.rand(4, 3, 8, 8))  # running statistics that are not those of the beginning
        images, state = torch.rand(5, 3, 8, 8), copy.deepcopy(network.state_dict())
        expected = network.eval()(images)
        synchronise(network)
        assert torch.equal(network(images), expected)
        assert_close(network.state_dict(), state)
        norms = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        assert norms
        assert all(isinstance(norm, nn.SyncBatchNorm) and not norm.training for norm in norms)


def test_batch_norm_of_ones_own_is_refused() -> None:
    class Own(nn.BatchNorm1d):
        pass

    with pytest.raises(ValueError, match="has a Own, which several processes cannot share"):
        synchronise(nn.Sequential(nn.Linear(4, 3), Own(3)))


def test_batch_norm_on_cpus_is_refused() -> None:
    layers = (nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3))
    learner = ER(nn.Sequential(*layers), buffer_size=4)
    with pytest.raises(ValueError, match=r"BatchNorm, whose statistics .* on GPUs only"):
        divide(learner)
