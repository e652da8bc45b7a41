"""What a user can get wrong is answered with one sentence and status 2, and nothing is begun."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from perdure.cli import main
from perdure.data import DATASETS

MODULES = {
    "nets": """
from torch import nn
import perdure

def wrong_head(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(784, 3))
def wrong_input(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(5, classes))
def no_module(shape, classes): return "a network"
def no_arguments(): return nn.Linear(1, 1)
def no_parameters(shape, classes): return nn.Flatten()
def fails(shape, classes): raise RuntimeError("out of ideas")
def no_stream(): return None
def failing_stream(): raise KeyError("batches")
class NoLearner: pass
class Greedy(perdure.SGD):
    def __init__(self, network, *, appetite: int = 1, **common):
        super().__init__(network, **common)
        if appetite > 9: raise ValueError(f"appetite is {appetite}; expected at most 9")
value = 3
""",
    "broken": "import there_is_no_such_module",
    "unfinished": "def network(shape,",
    "exploding": "1 / 0",
}

CASES = {
    # the command line itself: only the part at fault is named, in the parser's words
    "": "run",
    "runn": "runn",
    "run --bufer 200": "--buffer",
    "run s-mnist r-mnist": "r-mnist",
    "run --lr": "--lr",
    "run --lr fast": "'fast'",
    "run --lr None": "'None'",
    "run --batch 2.5": "'2.5'",
    "run --buffer 1e3": "'1e3'",
    "run --threads many": "'many'",
    "run --device tpu": "'tpu'",
    "run --precision fp64": "'fp32', 'bf16'",
    "run --update sometimes": "--update",
    "run --method er --update every": "--update",
    "run --engine steam": "'captured'",
    "data": "fetch",
    "data fetch": "cifar10",
    "data fetch svhn": "'svhn'",
    "data verify svhn": "'svhn'",
    "list everything": "perdure list --help",
    "data verify --nonsense": "perdure data --help",
    "reproduce table2 --buffer 200": "--buffers",
    "reproduce table2 --lr 0.1": "--lr",
    "reproduce table2 table3": "table3",
    "reproduce --max-steps x": "'x'",
    "reproduce --nonsense": "perdure reproduce --help",
    "tune --lr 0.1": "perdure tune --help",
    # names
    "run s-mnits": "there is no stream 's-mnits'; the streams are s-mnist, r-mnist",
    "run ''": "there is no stream ''",
    "run --method clsre": "there is no method 'clsre'; the methods are clser, mean-er",
    "run --network lenet": "there is no network 'lenet'; the networks are mlp, resnet18, or your",
    "run --network ''": "there is no network ''",
    "run --dataset cifar11": "not from 'cifar11'; the datasets are mnist, mnist5k, cifar10",
    "run --dataset cifar10": "s-mnist is made from mnist or mnist5k, not from 'cifar10'",
    # seeds
    "run --seeds 5:2": "--seeds 5:2 is empty: the end must be larger than the start",
    "run --seeds 1,1": "--seeds 1,1 names a seed twice",
    "run --seeds -1": "--seeds is '-1'; expected 3, or 0,4,7, or 0:10 (10 left out)",
    "run --seeds ''": "--seeds is ''; expected 3",
    "run --seeds a:b": "--seeds is 'a:b'; expected 3",
    "run --seeds 0:999999999999": "expected at most 10000",
    "run --stream-seed 3": "chance has no part in the composition of s-mnist",
    "run r-mnist --stream-seed each": "--stream-seed is 'each'; expected a number or 'per-run'",
    "run r-mnist --stream-seed -1": "--stream-seed is '-1'",
    # hyperparameters
    "run --lr nan": "lr is nan; expected a number above 0",
    "run --lr inf": "lr is inf; expected a number above 0",
    "run --lr -0.1": "lr is -0.1; expected a number above 0",
    "run --lr 0": "lr is 0.0; expected a number above 0",
    "run --batch 0": "batch is 0; expected 1 or more",
    "run --batch -1": "batch is -1; expected 1 or more",
    "run --batch 100000": "the tasks of s-mnist hold less than one batch of 100000",
    "run --memory-batch 0": "memory_batch is 0; expected 1 or more",
    "run --epochs 0": "epochs is 0; expected 1 or more",
    "run --epochs -1": "epochs is -1; expected 1 or more",
    "run --consistency-weight nan": "consistency_weight is nan; expected a number from 0 on",
    "run --consistency-weight -1": "consistency_weight is -1.0; expected a number from 0 on",
    "run --stable-rate 0": "stable rate is 0.0; expected a number above 0, at most 1",
    "run --stable-rate 1.01": "stable rate is 1.01; expected a number above 0, at most 1",
    "run --stable-rate nan": "stable rate is nan",
    "run --plastic-rate inf": "plastic rate is inf",
    "run --stable-decay 1": "stable decay is 1.0; expected a number from 0 to below 1",
    "run --plastic-decay -0.1": "plastic decay is -0.1",
    "run --plastic-decay nan": "plastic decay is nan",
    "run --method mean-er --rate 0": "rate is 0.0",
    "run --method mean-er --decay 1": "decay is 1.0",
    "run --method er --stable-rate 1": "er has no setting 'stable_rate'; it takes batch, epochs",
    "run --buffer 0": "--buffer is 0; expected 1 or more",
    "run --buffer -5": "--buffer is -5; expected 1 or more",
    "run --set lr": "--set 'lr'; expected name=number",
    "run --set lr=": "--set 'lr='; expected name=number",
    "run --set lr=fast": "--set 'lr=fast'; expected name=number",
    "run --set =1": "--set '=1'; expected name=number",
    "run --set lr=nan": "lr is nan; expected a number above 0",
    "run --set speed=1": "clser has no setting 'speed'; it takes batch, consistency_weight",
    "run --set seed=1": "clser has no setting 'seed'",
    "run --set buffer_size=1": "clser has no setting 'buffer_size'",
    "run --set epochs=1.5": "epochs is 1.5; expected a whole number",
    "run --set memory_batch=2.5": "memory_batch is 2.5; expected a whole number",
    "run --method nets:Greedy --set appetite=1.5": "appetite is 1.5; expected a whole number",
    "run --method nets:Greedy --set appetite=10": "appetite is 10; expected at most 9",
    # how to run
    "run --max-steps 0": "--max-steps is 0; expected 1 or more",
    "run --max-steps -1": "--max-steps is -1; expected 1 or more",
    "run --threads 0": "--threads is 0; expected 1 or more",
    "run --threads 100000": "--threads is 100000; expected at most 256",
    "run --workers 0": "--workers is 0; expected 1 or more",
    "run --workers -1": "--workers is -1; expected 1 or more",
    "run --side-by-side 0": "--side-by-side is 0; expected 1 or more",
    "run --checkpoint-every 0": "--checkpoint-every is 0; expected a number above 0",
    "run --checkpoint-every -1": "--checkpoint-every is -1; expected a number above 0",
    "run --checkpoint-every nan": "--checkpoint-every is nan; expected a number above 0",
    "run --checkpoint-every often": "'often' is not a number",
    "run --again --resume": "--again starts anew and --resume goes on; leave out one of them",
    "run --device cuda": "--device cuda: no CUDA device can be used here; leave it out to train",
    "run --precision bf16": "--precision bf16 needs a GPU; leave it out to train on the CPU",
    "run --engine captured": "--engine captured needs a GPU; leave it out to train on the CPU",
    "run --validation 2": "validation fraction is 2.0; expected a number between 0 and 1",
    "run --validation 0": "validation fraction is 0.0; expected a number between 0 and 1",
    "run --validation nan": "validation fraction is nan",
    "run --validation 0.0001": "--validation 0.0001 leaves 'classes 0 to 1' without a sample",
    "run --validation 0.9999": "the tasks of s-mnist hold less than one batch of 10",
    "run mnist-360 --method gem": "GEM must be told where tasks end, and mnist-360 has no task",
    # folders
    "run --data nowhere": "mnist is not in nowhere; fetch it with `perdure data fetch mnist",
    "run --data a-file": "mnist is not in a-file",
    "run --data damaged": "damaged/MNIST/raw/train-images-idx3-ubyte.gz",
    "run --dataset mnist": "fetch it with `perdure data fetch mnist`, or point --data at",
    "run s-cifar10": "fetch it with `perdure data fetch cifar10`",
    "run --out a-file": "--out a-file cannot be written: File exists",
    "run --out a-file/runs": "--out a-file/runs cannot be written: Not a directory",
    "run --out /proc/runs": "--out /proc/runs cannot be written: No such file or directory",
    "demo --out a-file": "--out a-file cannot be written: File exists",
    # a user's own
    "run :": "stream ':'; expected module:name",
    "run --method nets:": "method 'nets:'; expected module:name",
    "run nowhere:stream": "stream 'nowhere:stream': No module named 'nowhere'",
    "run broken:stream": "stream 'broken:stream': No module named 'there_is_no_such_module'",
    "run nets:nothing": "stream 'nets:nothing': nets has no 'nothing'",
    "run nets:value": "stream 'nets:value' gave a int, not a Stream",
    "run nets:no_stream": "stream 'nets:no_stream' gave a NoneType, not a Stream",
    "run nets:failing_stream": "stream 'nets:failing_stream' failed: KeyError: 'batches' (nets.py",
    "run nets:value --data .": "nets:value brings its own data; leave out --dataset and --data",
    "run nets:value --validation 0.1": "your own stream brings its own tests",
    "run --method nets:NoLearner": "method 'nets:NoLearner' is not a subclass of perdure.Learner",
    "run --method nets:value": "method 'nets:value' is not a subclass of perdure.Learner",
    "run --method perdure:Learner": "method 'perdure:Learner' is abstract",
    "run --method unfinished:X": "method 'unfinished:X': '(' was never closed (unfinished.py, line",
    "run --method exploding:X": "ZeroDivisionError: division by zero (exploding.py, line 1)",
    "run --network nowhere:network": "network 'nowhere:network': No module named 'nowhere'",
    "run --network broken:network": "No module named 'there_is_no_such_module'",
    "run --network nets:nothing": "network 'nets:nothing': nets has no 'nothing'",
    "run --network nets:no_module": "the network function gave a str, not a module",
    "run --network nets:no_arguments": "TypeError: no_arguments() takes 0 positional arguments",
    "run --network nets:no_parameters": "the network has no parameters: there is nothing to learn",
    "run --network nets:fails": "RuntimeError: out of ideas (nets.py, line 10)",
    "run --network nets:value": "TypeError: 'int' object is not callable",
    "run --network nets:wrong_head": "gives [1, 3] for one image; s-mnist has 10 classes",
    "run --network nets:wrong_input": "does not take images [1, 28, 28]",
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder, with modules and files such as the cases name."""
    folder = tmp_path_factory.mktemp("bad")
    for name, source in MODULES.items():
        (folder / f"{name}.py").write_text(source)
    (folder / "a-file").touch()
    for file in DATASETS["mnist"].layouts[0].files:
        (folder / "damaged" / file.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "damaged" / file.path).write_bytes(b"not the digits")
    before, path = signal.getsignal(signal.SIGTERM), list(sys.path)
    yield folder
    signal.signal(signal.SIGTERM, before)
    sys.path[:] = path
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("line", CASES)
def test_bad_input_is_one_sentence(
    line: str, here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(here)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    status = main(shlex.split(line))
    out, err = capfd.readouterr()
    assert (status, out) == (2, "")
    assert err.startswith("perdure: ")
    assert err.count("\n") == 1
    assert CASES[line] in err
    assert not (here / "runs").exists() or not [*(here / "runs").rglob("*")]


def test_a_narrow_terminal_changes_no_words(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    said = []
    for columns in ("40", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(["reproduce", "table2", "--buffer", "200"]) == 2
        said.append(capfd.readouterr().err)
    assert said[0] == said[1]


def test_the_command_itself_ends_with_status_2(here: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "perdure", "run", "--bufer", "3"],
        cwd=here,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("perdure: ")
    assert ended.stderr.count("\n") == 1


def test_a_folder_without_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path, *args: object, **kwargs: object) -> None:  # root may write anywhere
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "touch", refuse)
    assert main(["run", "--out", str(tmp_path)]) == 2
    expected = f"perdure: --out {tmp_path} cannot be written: Permission denied\n"
    assert capfd.readouterr().err == expected
